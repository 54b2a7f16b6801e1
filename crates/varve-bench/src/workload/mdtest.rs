//! Each operation on many files and directories, one kind after the other, as mdtest of the HPC IO benchmark
//! repository does.
//!
//! The directories of the first level are made first. Each worker has its own of them, as many as every other, or with
//! `--shared` all work in all: the files of a directory are then dealt to the workers in turn, and each worker lists every
//! directory.

use serde::{Deserialize, Serialize};

use super::{Expects, Ops, Phase, Plan, SAMPLES, Worker, samples};
use crate::Failure;
use crate::op::{Detail, Expect, Is, Listing, Op};
use crate::random::{Shuffle, mix};

/// The options.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub(crate) struct Options {
    /// Files in all
    #[arg(long, default_value_t = 200_000)]
    files: u64,
    /// Directories they are spread over; without --shared a multiple of the workers
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    dirs: u64,
    /// Directories that are made, looked at, listed, changed, renamed and removed like the files [default: a quarter of the files]
    #[arg(long)]
    subdirs: Option<u64>,
    /// Bytes of a file at least
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = varve::size::parse)]
    size_min: u64,
    /// Bytes of a file at most [default: as at least]
    #[arg(long, value_name = "SIZE", value_parser = varve::size::parse)]
    size_max: Option<u64>,
    /// All workers in the same directories, instead of each in its own; each lists them all
    #[arg(long)]
    shared: bool,
    /// Visit the files in the order they were made, instead of a shuffled one
    #[arg(long)]
    in_order: bool,
    /// Sync each new file before it is closed
    #[arg(long)]
    sync: bool,
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
    DirReaddir,
    DirLsL,
    DirChmod,
    DirUtime,
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

/// The modes and times that chmod and utime set; a directory can still be entered.
const MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
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
        steps.extend([Step::DirCreate, Step::DirStat, Step::DirReaddir, Step::DirLsL]);
        steps.extend([Step::DirChmod, Step::DirUtime, Step::DirRename, Step::DirRemove]);
        steps.push(Step::Rmdir);
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

    /// The first item of `count` that `path` puts into a directory, or into one behind it.
    fn first(&self, dir: u64, count: u64) -> u64 {
        (u128::from(dir) * u128::from(count)).div_ceil(u128::from(self.options.dirs)) as u64
    }

    /// The items of `count` that a worker has, in the order of visits. A directory's items follow each other.
    fn visits(&self, count: u64, worker: Worker, in_order: bool) -> Box<dyn Iterator<Item = u64>> {
        let dirs = worker.share(self.options.dirs);
        let (own, step) = match self.options.shared {
            true => (worker.index..count, worker.of),
            false => (self.first(dirs.start, count)..self.first(dirs.end, count), 1),
        };
        let mine = own.end.saturating_sub(own.start).div_ceil(step);
        let shuffle = Shuffle::new(mine, count ^ worker.index);
        let at = move |index: u64| if in_order { index } else { shuffle.at(index) };
        Box::new((0..mine).map(move |index| own.start + at(index) * step))
    }

    fn dirs(&self, worker: Worker) -> impl Iterator<Item = String> + use<> {
        worker.share(self.options.dirs).map(|dir| format!("d{dir:05}"))
    }

    /// Listings of the directories, in which lie `count` items of which each has so many bytes.
    fn listings<'a>(
        &'a self,
        detail: Detail,
        worker: Worker,
        count: u64,
        bytes: impl Fn(u64) -> u64 + 'a,
    ) -> Ops<'a> {
        let dirs = match self.options.shared {
            true => 0..self.options.dirs,
            false => worker.share(self.options.dirs),
        };
        Box::new(dirs.map(move |dir| {
            let items = self.first(dir, count)..self.first(dir + 1, count);
            let (names, dir) = (items.end - items.start, format!("d{dir:05}"));
            match detail {
                Detail::Names => Op::List(Listing::names(dir, names)),
                _ => Op::List(Listing { dir, detail, names, bytes: items.map(&bytes).sum() }),
            }
        }))
    }

    fn each<'a>(&'a self, count: u64, worker: Worker, op: impl Fn(u64) -> Op + 'a) -> Ops<'a> {
        Box::new(self.visits(count, worker, self.options.in_order).map(op))
    }

    /// Names in the directories, as `Expect`s: `count` items called `name` spread over them.
    fn names(&self, count: u64) -> Expects<'_> {
        Box::new((0..self.options.dirs).map(move |dir| {
            let names = self.first(dir + 1, count) - self.first(dir, count);
            Expect::Names(format!("d{dir:05}"), names)
        }))
    }

    fn whole(&self, path: String, key: u64) -> Expect {
        Expect::File { path, bytes: self.size(key), key }
    }

    fn sampled<'a>(&'a self, expect: impl Fn(u64) -> Expect + 'a) -> Expects<'a> {
        Box::new(samples(self.options.files, SAMPLES).map(expect))
    }

    fn subdir(&self, dir: u64) -> String {
        self.path(dir, self.subdirs(), "dir")
    }

    fn moved_subdir(&self, dir: u64) -> String {
        self.path(dir, self.subdirs(), "moved")
    }

    fn sampled_subdirs<'a>(&'a self, expect: impl Fn(u64) -> Expect + 'a) -> Expects<'a> {
        Box::new(samples(self.subdirs(), SAMPLES).map(expect))
    }
}

impl Plan for Mdtest {
    fn require(&self, workers: u64) -> Result<(), Failure> {
        if self.options.shared || self.options.dirs.is_multiple_of(workers) {
            return Ok(());
        }
        let dirs = self.options.dirs.next_multiple_of(workers);
        Err(format!(
            "{} directories do not give each of {workers} workers as many of its own\nhint: give --dirs {dirs}, or --shared",
            self.options.dirs
        )
        .into())
    }

    fn phases(&self) -> Vec<Phase> {
        let listing = |name| Phase { counts_names: true, ..Phase::cold(name) };
        let phase = |step: &Step| match step {
            Step::Mkdir => Phase::warm("mkdir"),
            Step::Create => Phase::warm("create"),
            Step::StatCold => Phase::cold("stat cold"),
            Step::Stat => Phase::warm("stat cached"),
            Step::Readdir => listing("readdir"),
            Step::LsL => listing("ls -l"),
            Step::Read => Phase::cold("read cold"),
            Step::Chmod => Phase::warm("chmod"),
            Step::Utime => Phase::warm("utime"),
            Step::Rename => Phase::warm("rename"),
            Step::Unlink => Phase::warm("unlink"),
            Step::DirCreate => Phase::warm("dir create"),
            Step::DirStat => Phase::cold("dir stat"),
            Step::DirReaddir => listing("dir readdir"),
            Step::DirLsL => listing("dir ls -l"),
            Step::DirChmod => Phase::warm("dir chmod"),
            Step::DirUtime => Phase::warm("dir utime"),
            Step::DirRename => Phase::warm("dir rename"),
            Step::DirRemove => Phase::warm("dir remove"),
            Step::Rmdir => Phase::warm("rmdir"),
        };
        self.steps.iter().map(phase).collect()
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        let (files, subdirs) = (self.options.files, self.subdirs());
        let size = move |file| self.size(file);
        match self.steps[phase] {
            Step::Mkdir => Box::new(self.dirs(worker).map(Op::MakeDir)),
            Step::Create => Box::new(self.visits(files, worker, true).map(|key| {
                let (path, bytes) = (self.file(key), self.size(key));
                match self.options.sync {
                    true => Op::Deliver { path, bytes, key },
                    false => Op::Create { path, bytes, key },
                }
            })),
            Step::StatCold | Step::Stat => self
                .each(files, worker, |n| Op::Stat(self.file(n), Is::File { bytes: self.size(n) })),
            Step::Readdir => self.listings(Detail::Names, worker, files, size),
            Step::LsL => self.listings(Detail::Attributes, worker, files, size),
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
                Box::new(self.visits(subdirs, worker, true).map(|n| Op::MakeDir(self.subdir(n))))
            }
            Step::DirStat => self.each(subdirs, worker, |n| Op::Stat(self.subdir(n), Is::Dir)),
            // Whatever a file system says that directories have of bytes is not added.
            Step::DirReaddir => self.listings(Detail::Names, worker, subdirs, |_| 0),
            Step::DirLsL => self.listings(Detail::Attributes, worker, subdirs, |_| 0),
            Step::DirChmod => self.each(subdirs, worker, |n| Op::Chmod(self.subdir(n), DIR_MODE)),
            Step::DirUtime => self.each(subdirs, worker, |n| Op::Utime(self.subdir(n), SECONDS)),
            Step::DirRename => {
                self.each(subdirs, worker, |n| Op::Rename(self.subdir(n), self.moved_subdir(n)))
            }
            Step::DirRemove => self.each(subdirs, worker, |n| Op::RemoveDir(self.moved_subdir(n))),
            Step::Rmdir => Box::new(self.dirs(worker).map(Op::RemoveDir)),
        }
    }

    fn expects(&self, phase: usize, _workers: u64) -> Expects<'_> {
        let (files, subdirs) = (self.options.files, self.subdirs());
        match self.steps[phase] {
            Step::Mkdir | Step::Unlink | Step::DirRemove => self.names(0),
            Step::Create => Box::new(
                self.names(files).chain(self.sampled(|key| self.whole(self.file(key), key))),
            ),
            Step::Read => self.sampled(|key| self.whole(self.file(key), key)),
            Step::Chmod => self.sampled(|n| Expect::Mode(self.file(n), MODE)),
            Step::Utime => self.sampled(|n| Expect::Changed(self.file(n), SECONDS)),
            Step::Rename => {
                let old = self.sampled(|n| Expect::Absent(self.file(n)));
                let new = self.sampled(|key| self.whole(self.moved(key), key));
                let modes = self.sampled(|n| Expect::Mode(self.moved(n), MODE));
                Box::new(self.names(files).chain(old).chain(new).chain(modes))
            }
            Step::DirCreate => self.names(subdirs),
            Step::DirChmod => self.sampled_subdirs(|n| Expect::Mode(self.subdir(n), DIR_MODE)),
            Step::DirUtime => self.sampled_subdirs(|n| Expect::Changed(self.subdir(n), SECONDS)),
            Step::DirRename => {
                let moved = self.sampled_subdirs(|n| Expect::Mode(self.moved_subdir(n), DIR_MODE));
                Box::new(self.names(subdirs).chain(moved))
            }
            Step::Rmdir => Box::new(std::iter::once(Expect::Names(".".to_owned(), 0))),
            // What is looked at and listed is checked as it is seen.
            Step::StatCold | Step::Stat | Step::DirStat => Box::new(std::iter::empty()),
            Step::Readdir | Step::LsL | Step::DirReaddir | Step::DirLsL => {
                Box::new(std::iter::empty())
            }
        }
    }

    fn inodes(&self) -> u64 {
        self.options.dirs + self.options.files.max(self.subdirs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(files: u64, dirs: u64, shared: bool) -> Mdtest {
        let (subdirs, size_min, size_max, in_order) = (None, 0, None, true);
        Mdtest::new(&Options {
            files,
            dirs,
            subdirs,
            size_min,
            size_max,
            shared,
            in_order,
            sync: false,
        })
        .expect("a plan")
    }

    fn done(plan: &Mdtest, step: Step, workers: u64) -> Vec<Vec<Op>> {
        let phase = plan.steps.iter().position(|it| *it == step).expect("the phase");
        let of = |index| plan.ops(phase, Worker { index, of: workers }).collect();
        (0..workers).map(of).collect()
    }

    /// Where the files are no multiple of the workers some of a directory were another worker's.
    #[test]
    fn workers_have_directories_of_their_own() {
        let plan = plan(100, 6, false);
        assert!(plan.require(3).is_ok() && plan.require(1).is_ok());
        let error = plan.require(4).expect_err("6 directories for 4").to_string();
        assert!(error.contains("--dirs 8"), "{error}");
        let all = done(&plan, Step::Create, 3);
        assert_eq!(all.iter().map(Vec::len).sum::<usize>(), 100);
        for (worker, ops) in all.iter().enumerate() {
            let own = [2 * worker, 2 * worker + 1].map(|dir| format!("d{dir:05}/"));
            let is_own = |op: &Op| match op {
                Op::Create { path, .. } => own.iter().any(|dir| path.starts_with(dir)),
                _ => false,
            };
            assert!(ops.iter().all(is_own), "{worker}: {ops:?}");
        }
    }

    /// More workers than files made the number of files of some negative; of one directory one worker alone made listings.
    #[test]
    fn workers_share_what_there_is() {
        let plan = plan(3, 1, true);
        assert!(plan.require(5).is_ok());
        let counts = |step| done(&plan, step, 5).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(counts(Step::Create), [1, 1, 1, 0, 0]);
        assert_eq!(counts(Step::LsL), [1; 5]);
    }
}
