//! The video server: one worker replaces videos of the passive set, the others serve those of the active set.

use super::{Expects, Ops, Phase, Plan, Worker, phases};
use crate::Failure;
use crate::op::{Expect, Op};
use crate::random::mix;

const WRITE_BYTES: u64 = 1 << 20;
const READ_BYTES: u64 = 256 << 10;
const ACTIVE: u64 = 6;
const PASSIVE: u64 = 26;

/// The workload.
pub(super) struct Video {
    /// Bytes of a video.
    size: u64,
    /// Parts of videos that are served; for every 480 of them a video is replaced.
    turns: u64,
}

impl Video {
    /// Videos of about `size` bytes, of which parts are served so often.
    pub(super) fn new(size: u64, turns: u64) -> Video {
        Video { size: size.next_multiple_of(WRITE_BYTES).max(WRITE_BYTES), turns }
    }

    /// Makes a video by writes of 1 MiB.
    fn record(&self, path: String, key: u64) -> impl Iterator<Item = Op> + use<> {
        let create = Op::Create { path: path.clone(), bytes: 0, key };
        let offsets = (0..self.size).step_by(WRITE_BYTES as usize);
        let write =
            move |offset| Op::WriteAt { path: path.clone(), offset, bytes: WRITE_BYTES, key };
        std::iter::once(create).chain(offsets.map(write))
    }

    /// How many videos are replaced.
    fn replaced(&self) -> u64 {
        self.turns / 480
    }

    /// What the passive video number `number` holds after `replaced` replacements.
    fn passive_key(number: u64, replaced: u64) -> u64 {
        let generations = replaced / PASSIVE + u64::from(number < replaced % PASSIVE);
        1000 + number + generations * PASSIVE
    }
}

fn active(number: u64) -> String {
    format!("active/v{number}")
}

fn passive(number: u64) -> String {
    format!("passive/v{number}")
}

impl Plan for Video {
    fn require(&self, workers: u64) -> Result<(), Failure> {
        match workers {
            1 => Err(
                "one worker replaces videos and nobody serves them\nhint: give --workers 2 or more"
                    .into(),
            ),
            _ => Ok(()),
        }
    }

    fn phases(&self) -> Vec<Phase> {
        phases(49)
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        match (phase, worker.index) {
            (0, 0) => {
                Box::new(["active", "passive"].map(|dir| Op::MakeDir(dir.to_owned())).into_iter())
            }
            (1, 0) => {
                let active = (0..ACTIVE).flat_map(|number| self.record(active(number), number));
                let passive = (0..PASSIVE)
                    .flat_map(|number| self.record(passive(number), Self::passive_key(number, 0)));
                Box::new(active.chain(passive))
            }
            (0 | 1, _) => Box::new(std::iter::empty()),
            (_, 0) => Box::new((0..self.replaced()).flat_map(|turn| {
                let number = turn % PASSIVE;
                let remove = Op::Unlink(passive(number));
                let key = Self::passive_key(number, turn + 1);
                std::iter::once(remove).chain(self.record(passive(number), key))
            })),
            (_, reader) => {
                let readers = Worker { index: reader - 1, of: worker.of - 1 };
                let key = mix(reader) % ACTIVE;
                let path = active(key);
                let blocks = self.size / READ_BYTES;
                Box::new(readers.share(self.turns).enumerate().map(move |(at, _)| Op::ReadAt {
                    path: path.clone(),
                    offset: (reader + at as u64) % blocks * READ_BYTES,
                    bytes: READ_BYTES,
                    key,
                }))
            }
        }
    }

    fn expects(&self, phase: usize, _workers: u64) -> Expects<'_> {
        let (made, replaced) = match phase {
            0 => (0, 0),
            1 => (1, 0),
            _ => (1, self.replaced()),
        };
        let names = [("active", made * ACTIVE), ("passive", made * PASSIVE)]
            .map(|(dir, names)| Expect::Names(dir.to_owned(), names));
        let active = (0..ACTIVE).map(|number| (active(number), number));
        let passive =
            (0..PASSIVE).map(move |number| (passive(number), Self::passive_key(number, replaced)));
        let bytes = self.size;
        let videos = active.chain(passive).filter(move |_| made > 0);
        let videos = videos.map(move |(path, key)| Expect::File { path, bytes, key });
        Box::new(names.into_iter().chain(videos))
    }

    fn inodes(&self) -> u64 {
        1024
    }
}
