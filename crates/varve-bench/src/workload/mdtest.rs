//! Each operation on many files and directories, one kind after the other, as mdtest of the HPC IO benchmark
//! repository does.
//!
//! The directories of the first level are made first. Each worker has its own of them, or with `--shared` all
//! work in all: the files of a directory are then dealt to the workers in turn.

use serde::{Deserialize, Serialize};

use super::{Expects, Ops, Phase, Plan, SAMPLES, Worker, samples};
use crate::Failure;
use crate::op::{Detail, Expect, Is, Op};
use crate::random::{Shuffle, mix};

/// The options.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub(crate) struct Options {
    /// Files in all
    #[arg(long, default_value_t = 200_000)]
    files: u64,
    /// Directories they are spread over
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    dirs: u64,
    /// Directories that are made, looked at, renamed and removed like the files [default: a quarter of the files]
    #[arg(long)]
    subdirs: Option<u64>,
    /// Bytes of a file at least
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = varve::size::parse)]
    size_min: u64,
    /// Bytes of a file at most [default: as at least]
    #[arg(long, value_name = "SIZE", value_parser = varve::size::parse)]
    size_max: Option<u64>,
    /// All workers in the same directories, instead of each in its own
    #[arg(long)]
    shared: bool,
    /// Visit the files in the order they were made, instead of a shuffled one
    #[arg(long)]
    in_order: bool,
}

/// What a phase does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Mkdir,
    Create,
    StatCold,
    Stat,
    Readdir,
    LsL,
    Read,
    Chmod,
    Utime,
    Rename,
    Unlink,
    DirCreate,
    DirStat,
    DirRename,
    DirRemove,
    Rmdir,
}

/// The workload.
pub(super) struct Mdtest {
    options: Options,
    size_max: u64,
    steps: Vec<Step>,
}

/// The modes and times that chmod and utime set.
const MODE: u32 = 0o600;
const SECONDS: i64 = 1_000_000_000;

impl Mdtest {
    /// With these options.
    pub(super) fn new(options: &Options) -> Result<Mdtest, Failure> {
        let size_max = options.size_max.unwrap_or(options.size_min);
        if size_max < options.size_min {
            return Err("--size-max is below --size-min".into());
        }
        let mut steps = vec![Step::Mkdir, Step::Create, Step::StatCold, Step::Stat];
        steps.extend([Step::Readdir, Step::LsL]);
        if size_max > 0 {
            steps.push(Step::Read);
        }
        steps.extend([Step::Chmod, Step::Utime, Step::Rename, Step::Unlink]);
        steps.extend([
            Step::DirCreate,
            Step::DirStat,
            Step::DirRename,
            Step::DirRemove,
            Step::Rmdir,
        ]);
        Ok(Mdtest { options: options.clone(), size_max, steps })
    }

    fn subdirs(&self) -> u64 {
        self.options.subdirs.unwrap_or(self.options.files / 4)
    }

    fn size(&self, file: u64) -> u64 {
        self.options.size_min + mix(file) % (self.size_max - self.options.size_min + 1)
    }

    /// The path of item `item` of `count`, which are spread over the directories.
    fn path(&self, item: u64, count: u64, name: &str) -> String {
        let dirs = self.options.dirs;
        let dir = (u128::from(item) * u128::from(dirs) / u128::from(count.max(1))) as u64;
        format!("d{dir:05}/{name}-{item:09}")
    }

    fn file(&self, file: u64) -> String {
        self.path(file, self.options.files, "file")
    }

    fn moved(&self, file: u64) -> String {
        self.path(file, self.options.files, "moved")
    }

    /// The items of `count` that a worker has, in the order of visits. A directory's items follow each other.
    fn visits(&self, count: u64, worker: Worker, in_order: bool) -> Box<dyn Iterator<Item = u64>> {
        let (own, step) = match self.options.shared {
            true => (worker.index..count, worker.of),
            false => (worker.share(count), 1),
        };
        let mine = (own.end - own.start).div_ceil(step);
        let shuffle = Shuffle::new(mine, count ^ worker.index);
        let at = move |index: u64| if in_order { index } else { shuffle.at(index) };
        Box::new((0..mine).map(move |index| own.start + at(index) * step))
    }

    fn dirs(&self, worker: Worker) -> impl Iterator<Item = String> + use<> {
        worker.share(self.options.dirs).map(|dir| format!("d{dir:05}"))
    }

    fn each<'a>(&'a self, count: u64, worker: Worker, op: impl Fn(u64) -> Op + 'a) -> Ops<'a> {
        Box::new(self.visits(count, worker, self.options.in_order).map(op))
    }

    /// Names in the directories, as `Expect`s: `count` items called `name` spread over them.
    fn names(&self, count: u64) -> Expects<'_> {
        let dirs = self.options.dirs;
        Box::new((0..dirs).map(move |dir| {
            // The first item of a directory is the first that `path` puts there.
            let first = |dir: u64| (u128::from(dir) * u128::from(count)).div_ceil(u128::from(dirs));
            Expect::Names(format!("d{dir:05}"), (first(dir + 1) - first(dir)) as u64)
        }))
    }

    fn whole(&self, key: u64) -> Expect {
        Expect::File { path: self.file(key), bytes: self.size(key), key }
    }

    fn sampled<'a>(&'a self, expect: impl Fn(u64) -> Expect + 'a) -> Expects<'a> {
        Box::new(samples(self.options.files, SAMPLES).map(expect))
    }
}

impl Plan for Mdtest {
    fn phases(&self) -> Vec<Phase> {
        let phase = |step: &Step| match step {
            Step::Mkdir => Phase::warm("mkdir"),
            Step::Create => Phase::warm("create"),
            Step::StatCold => Phase::cold("stat cold"),
            Step::Stat => Phase::warm("stat cached"),
            Step::Readdir => Phase { names: Some(self.options.files), ..Phase::cold("readdir") },
            Step::LsL => Phase { names: Some(self.options.files), ..Phase::cold("ls -l") },
            Step::Read => Phase::cold("read cold"),
            Step::Chmod => Phase::warm("chmod"),
            Step::Utime => Phase::warm("utime"),
            Step::Rename => Phase::warm("rename"),
            Step::Unlink => Phase::warm("unlink"),
            Step::DirCreate => Phase::warm("dir create"),
            Step::DirStat => Phase::cold("dir stat"),
            Step::DirRename => Phase::warm("dir rename"),
            Step::DirRemove => Phase::warm("dir remove"),
            Step::Rmdir => Phase::warm("rmdir"),
        };
        self.steps.iter().map(phase).collect()
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        let (files, subdirs) = (self.options.files, self.subdirs());
        let subdir = move |dir| self.path(dir, subdirs, "dir");
        let moved_dir = move |dir| self.path(dir, subdirs, "moved");
        match self.steps[phase] {
            Step::Mkdir => Box::new(self.dirs(worker).map(Op::MakeDir)),
            Step::Create => Box::new(self.visits(files, worker, true).map(|key| Op::Create {
                path: self.file(key),
                bytes: self.size(key),
                key,
            })),
            Step::StatCold | Step::Stat => self
                .each(files, worker, |n| Op::Stat(self.file(n), Is::File { bytes: self.size(n) })),
            Step::Readdir => Box::new(self.dirs(worker).map(|dir| Op::List(dir, Detail::Names))),
            Step::LsL => Box::new(self.dirs(worker).map(|dir| Op::List(dir, Detail::Attributes))),
            Step::Read => self.each(files, worker, |file| Op::Read {
                path: self.file(file),
                bytes: self.size(file),
                key: file,
            }),
            Step::Chmod => self.each(files, worker, |n| Op::Chmod(self.file(n), MODE)),
            Step::Utime => self.each(files, worker, |n| Op::Utime(self.file(n), SECONDS)),
            Step::Rename => self.each(files, worker, |n| Op::Rename(self.file(n), self.moved(n))),
            Step::Unlink => self.each(files, worker, |n| Op::Unlink(self.moved(n))),
            Step::DirCreate => {
                Box::new(self.visits(subdirs, worker, true).map(subdir).map(Op::MakeDir))
            }
            Step::DirStat => self.each(subdirs, worker, move |n| Op::Stat(subdir(n), Is::Dir)),
            Step::DirRename => {
                self.each(subdirs, worker, move |n| Op::Rename(subdir(n), moved_dir(n)))
            }
            Step::DirRemove => self.each(subdirs, worker, move |n| Op::RemoveDir(moved_dir(n))),
            Step::Rmdir => Box::new(self.dirs(worker).map(Op::RemoveDir)),
        }
    }

    fn expects(&self, phase: usize, _workers: u64) -> Expects<'_> {
        let (files, subdirs) = (self.options.files, self.subdirs());
        match self.steps[phase] {
            Step::Mkdir | Step::Unlink | Step::DirRemove => self.names(0),
            Step::Create => Box::new(self.names(files).chain(self.sampled(|key| self.whole(key)))),
            Step::Read => self.sampled(|key| self.whole(key)),
            Step::Chmod => self.sampled(|n| Expect::Mode(self.file(n), MODE)),
            Step::Utime => self.sampled(|n| Expect::Changed(self.file(n), SECONDS)),
            Step::Rename => {
                let old = self.sampled(|n| Expect::Absent(self.file(n)));
                let new = self.sampled(|n| Expect::Mode(self.moved(n), MODE));
                Box::new(self.names(files).chain(old).chain(new))
            }
            Step::DirCreate | Step::DirRename => self.names(subdirs),
            Step::Rmdir => Box::new(std::iter::once(Expect::Names(".".to_owned(), 0))),
            // What is looked at is checked as it is seen, listings by the number of their names.
            Step::StatCold | Step::Stat | Step::DirStat | Step::Readdir | Step::LsL => {
                Box::new(std::iter::empty())
            }
        }
    }

    fn inodes(&self) -> u64 {
        self.options.dirs + self.options.files.max(self.subdirs())
    }
}
