//! SlimFS's create and stat phases (Ren, thesis, 5.5.2).
//!
//! All directories are made first, then each file in a random directory that has room, 128 in each; then random
//! files are looked at. The thesis pads the attributes of each to 256 bytes; here rows are as long as they are.

use serde::{Deserialize, Serialize};

use super::{Expects, Ops, Phase, Plan, SAMPLES, Worker, samples};
use crate::op::{Expect, Is, Op};
use crate::random::{Shuffle, mix};

/// Directories in a group, which is a directory of the first level.
const GROUP: u64 = 1024;

/// The options.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub(crate) struct Options {
    /// Files in all
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    files: u64,
    /// Files of a directory
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..))]
    per_dir: u64,
    /// Operations of the stat phase [default: as many as files, but no more than 10 million]
    #[arg(long)]
    stats: Option<u64>,
}

/// The workload.
pub(super) struct Slimfs {
    files: u64,
    per_dir: u64,
    stats: u64,
}

impl Slimfs {
    /// With these options.
    pub(super) fn new(options: &Options) -> Slimfs {
        let stats = options.stats.unwrap_or(options.files.min(10_000_000));
        Slimfs { files: options.files, per_dir: options.per_dir, stats }
    }

    fn dirs(&self) -> u64 {
        self.files.div_ceil(self.per_dir)
    }

    fn dir(dir: u64) -> String {
        format!("g{}/d{dir}", dir / GROUP)
    }

    fn file(&self, file: u64) -> String {
        format!("{}/f{file}", Self::dir(file / self.per_dir))
    }
}

impl Plan for Slimfs {
    fn phases(&self) -> Vec<Phase> {
        vec![Phase::warm("mkdir"), Phase::warm("create"), Phase::cold("stat")]
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        match phase {
            0 => Box::new(worker.share(self.dirs().div_ceil(GROUP)).flat_map(|group| {
                let dirs = group * GROUP..((group + 1) * GROUP).min(self.dirs());
                let first = Op::MakeDir(format!("g{group}"));
                std::iter::once(first).chain(dirs.map(|dir| Op::MakeDir(Self::dir(dir))))
            })),
            1 => {
                let order = Shuffle::new(self.files, 1);
                Box::new(worker.share(self.files).map(move |index| {
                    let key = order.at(index);
                    Op::Create { path: self.file(key), bytes: 0, key }
                }))
            }
            _ => {
                Box::new(worker.share(self.stats).map(|index| {
                    Op::Stat(self.file(mix(index) % self.files), Is::File { bytes: 0 })
                }))
            }
        }
    }

    fn expects(&self, phase: usize, _workers: u64) -> Expects<'_> {
        let files = move |dir: u64| match phase {
            0 => 0,
            _ => ((dir + 1) * self.per_dir).min(self.files) - dir * self.per_dir,
        };
        let dirs = samples(self.dirs(), 10 * SAMPLES);
        let dirs = dirs.map(move |dir| Expect::Names(Self::dir(dir), files(dir)));
        let groups = (0..self.dirs().div_ceil(GROUP)).map(|group| {
            Expect::Names(format!("g{group}"), GROUP.min(self.dirs() - group * GROUP))
        });
        match phase {
            0 => Box::new(groups.chain(dirs)),
            1 => Box::new(dirs),
            // What is looked at is checked as it is seen.
            _ => Box::new(std::iter::empty()),
        }
    }

    fn inodes(&self) -> u64 {
        self.files + self.dirs() + self.dirs().div_ceil(GROUP)
    }
}
