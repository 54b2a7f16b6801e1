//! The web server: readers of files that nobody changes, and for every ten of them one that appends to a log. Of fewer than eleven
//! workers the last one does, and one alone only reads. Each log has one writer here; in Filebench all append to the same one.

use super::{
    APPEND_BYTES_MEAN, Expects, Ops, Phase, Plan, SAMPLES, TREE_WIDTH, Worker, bytes, phases,
    samples,
};
use crate::op::{Expect, Op};
use crate::random::{Random, mix};

/// Of so many workers, or of all if they are fewer, the last one writes a log.
const CREW: u64 = 11;

/// Files that a reader reads in a turn.
const READS: u64 = 10;

/// The mean size of a file.
const FILE_BYTES_MEAN: f64 = 16_384.0;

/// The workload.
pub(super) struct Web {
    files: u64,
    turns: u64,
}

impl Web {
    /// So many files, served so often.
    pub(super) fn new(files: u64, turns: u64) -> Web {
        Web { files, turns }
    }

    /// The directory of a file.
    fn dir(file: u64) -> String {
        format!("d{}", file / TREE_WIDTH)
    }

    fn file(file: u64) -> String {
        format!("{}/f{file}", Self::dir(file))
    }

    fn size(file: u64) -> u64 {
        bytes(&mut Random::new(mix(file)), FILE_BYTES_MEAN)
    }

    fn create(file: u64) -> Op {
        Op::Create { path: Self::file(file), bytes: Self::size(file), key: file }
    }

    /// What the worker appends to its log: where, and how much.
    fn appends(&self, worker: Worker) -> impl Iterator<Item = (u64, u64)> + use<> {
        let mut random = Random::new(worker.index);
        let mut end = 0;
        worker.share(self.turns).map(move |_| {
            let (at, more) = (end, bytes(&mut random, APPEND_BYTES_MEAN));
            end += more;
            (at, more)
        })
    }
}

fn log(worker: u64) -> String {
    format!("log{worker}")
}

/// What it holds, which is nothing of any file.
fn log_key(worker: u64) -> u64 {
    worker | 1 << 40
}

fn writes_log(worker: Worker) -> bool {
    worker.of > 1 && worker.index % CREW == CREW.min(worker.of) - 1
}

impl Plan for Web {
    fn phases(&self) -> Vec<Phase> {
        phases(110)
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        let dirs = self.files.div_ceil(TREE_WIDTH);
        match phase {
            0 => Box::new(worker.share(dirs).map(|dir| Op::MakeDir(format!("d{dir}")))),
            1 => {
                let path = log(worker.index);
                let log = Op::Create { path, bytes: 0, key: log_key(worker.index) };
                let log = writes_log(worker).then_some(log);
                Box::new(worker.share(self.files).map(Self::create).chain(log))
            }
            _ if writes_log(worker) => Box::new(self.appends(worker).map(move |(at, bytes)| {
                let path = log(worker.index);
                Op::Append { path, at, bytes, key: log_key(worker.index), durable: false }
            })),
            _ => {
                let mut random = Random::new(worker.index);
                let turns = worker.share(self.turns);
                let reads = (turns.end - turns.start) * READS;
                Box::new((0..reads).map(move |_| {
                    let file = random.below(self.files);
                    Op::Read { path: Self::file(file), bytes: Self::size(file), key: file }
                }))
            }
        }
    }

    fn expects(&self, phase: usize, workers: u64) -> Expects<'_> {
        let file = |key| Expect::File { path: Self::file(key), bytes: Self::size(key), key };
        let files = samples(self.files, SAMPLES).map(file);
        let names = (0..self.files.div_ceil(TREE_WIDTH)).map(move |dir| {
            let first = dir * TREE_WIDTH;
            let names = if phase == 0 { 0 } else { TREE_WIDTH.min(self.files - first) };
            Expect::Names(Self::dir(first), names)
        });
        let writers = (0..workers).map(move |index| Worker { index, of: workers });
        let logs = writers.filter(|worker| writes_log(*worker)).map(|worker| Expect::File {
            path: log(worker.index),
            bytes: self.appends(worker).map(|(_, bytes)| bytes).sum(),
            key: log_key(worker.index),
        });
        match phase {
            0 => Box::new(names),
            1 => Box::new(names.chain(files)),
            _ => Box::new(files.chain(logs)),
        }
    }

    fn inodes(&self) -> u64 {
        2 * self.files + 10_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server of fewer than eleven workers had no log.
    #[test]
    fn one_of_eleven_or_fewer_writes_a_log() {
        let logs = |of| (0..of).filter(|index| writes_log(Worker { index: *index, of })).collect();
        let all: [Vec<u64>; 5] = [1, 2, 11, 15, 22].map(logs);
        assert_eq!(all, [vec![], vec![1], vec![10], vec![10], vec![10, 21]]);
    }
}
