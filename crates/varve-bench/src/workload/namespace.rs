//! Work on a generated namespace (Ren, thesis, 4.3.4; its b1 to b7).
//!
//! 1. create: directories depth first, then files in random order.
//! 2. readdir (b5), readdir and stat (b6), readdir and read (b7) of randomly chosen directories.
//! 3. query (b2): half stat, half chmod or utime, of random files and directories.
//! 4. rename (b3): half of the files to another random directory.
//! 5. delete (b4): a random half of the files.
//!
//! The thesis runs create anew for each test; here the tests follow one another, each with nothing in memory.
//! Listings come before what moves files, so that their names and bytes can be told before. The rate of creation over
//! time of figure 4.16 is that of the create phase (`--until create`).

use serde::{Deserialize, Serialize};

use super::{Expects, Ops, Phase, Plan, SAMPLES, Worker, samples};
use crate::Failure;
use crate::op::{Detail, Expect, Is, Listing, Op};
use crate::random::{Shuffle, mix};
use crate::tree::{Tree, file_bytes};

/// The options.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub(crate) struct Options {
    /// Files in all
    #[arg(long, default_value_t = 1_000_000)]
    files: u64,
    /// Directories [default: one for 11 files]
    #[arg(long)]
    dirs: Option<u32>,
    /// Bytes of each file (the thesis: 0, and 1K for listings), or `mixed`: of a skewed distribution up to 64K
    #[arg(long, default_value = "0", value_parser = sizes)]
    sizes: Sizes,
    /// Operations of the query phase [default: as many as files]
    #[arg(long)]
    queries: Option<u64>,
    /// Directories listed by each listing phase [default: 100000, or all if there are fewer]
    #[arg(long)]
    listings: Option<u64>,
}

/// How large files are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Sizes {
    Fixed(u64),
    Mixed,
}

fn sizes(text: &str) -> Result<Sizes, Failure> {
    if text == "mixed" { Ok(Sizes::Mixed) } else { Ok(Sizes::Fixed(varve::size::parse(text)?)) }
}

/// The most and the median bytes of files of mixed sizes.
const MIXED_BYTES_MAX: u64 = 64 << 10;
const MIXED_BYTES_MEDIAN: u64 = 2 << 10;

/// What chmod and utime set; a directory can still be entered.
const MODE: u32 = 0o700;
const SECONDS: i64 = 1_000_000_000;

const PHASES: [&str; 8] =
    ["mkdir", "create", "readdir", "readdir+stat", "readdir+read", "query", "rename", "delete"];

/// The workload.
pub(super) struct Namespace {
    tree: Tree,
    /// Names in each directory, after the create phase.
    names: Vec<u64>,
    /// Bytes of all files in each directory.
    bytes: Vec<u64>,
    sizes: Sizes,
    queries: u64,
    listings: u64,
}

impl Namespace {
    /// With these options.
    pub(super) fn new(options: &Options) -> Result<Namespace, Failure> {
        let dirs = match options.dirs {
            Some(dirs) => dirs,
            None => Tree::usual_dirs(options.files)?,
        };
        let tree = Tree::new(dirs, options.files, 1);
        let listings = options.listings.unwrap_or_else(|| tree.dirs().min(100_000));
        let queries = options.queries.unwrap_or(options.files);
        let (names, sizes) = (tree.names(), options.sizes);
        let mut plan = Namespace { names, bytes: Vec::new(), tree, sizes, queries, listings };
        plan.bytes = (0..plan.tree.dirs())
            .map(|dir| plan.tree.files_of(dir).map(|file| plan.size(file)).sum())
            .collect();
        Ok(plan)
    }

    fn size(&self, file: u64) -> u64 {
        match self.sizes {
            Sizes::Fixed(bytes) => bytes,
            Sizes::Mixed => file_bytes(file, MIXED_BYTES_MEDIAN, MIXED_BYTES_MAX),
        }
    }

    /// The file that is number `index` in an order of all files.
    fn file_at(&self, order: u64, index: u64) -> u64 {
        Shuffle::new(self.tree.files(), order).at(index)
    }

    /// The directory of listing number `index`.
    fn listed(&self, index: u64) -> u64 {
        mix(index ^ 0x6c69_7374) % self.tree.dirs()
    }

    /// Query number `index`.
    fn query(&self, index: u64) -> Op {
        let choice = mix(index);
        let at = (choice >> 2) % (self.tree.files() + self.tree.dirs());
        let (path, is) = match at.checked_sub(self.tree.files()) {
            Some(dir) => (self.tree.dir(dir), Is::Dir),
            None => (self.tree.file(at), Is::File { bytes: self.size(at) }),
        };
        match choice & 3 {
            0 | 1 => Op::Stat(path, is),
            2 => Op::Chmod(path, MODE),
            _ => Op::Utime(path, SECONDS),
        }
    }

    /// How many files the rename phase moves, and the delete phase deletes.
    fn half(&self) -> u64 {
        self.tree.files() / 2
    }

    /// The directory that a file is renamed into.
    fn target(&self, file: u64) -> u64 {
        mix(file) % self.tree.dirs()
    }

    /// The old and new path of the file that is number `index` to be renamed.
    fn renamed(&self, index: u64) -> (String, String) {
        let file = self.file_at(RENAMES, index);
        let to = self.tree.dir(self.target(file));
        (self.tree.file(file), format!("{to}/r{file}"))
    }

    /// The path, after the rename phase, of the file that is number `index` of the delete phase, and the file.
    fn doomed(&self, index: u64) -> (String, u64) {
        let rename = self.file_at(DELETES, index);
        let file = self.file_at(RENAMES, rename);
        let is_renamed = rename < self.half();
        (if is_renamed { self.renamed(rename).1 } else { self.tree.file(file) }, file)
    }

    /// Names in each directory after the rename phase, or also after the delete phase.
    fn names_after(&self, deletes: bool) -> Vec<u64> {
        let mut names = self.names.clone();
        for index in 0..self.half() {
            let file = self.file_at(RENAMES, index);
            names[self.tree.dir_of(file) as usize] -= 1;
            names[self.target(file) as usize] += 1;
        }
        for index in (0..self.half()).filter(|_| deletes) {
            let rename = self.file_at(DELETES, index);
            let file = self.file_at(RENAMES, rename);
            let is_renamed = rename < self.half();
            let dir = if is_renamed { self.target(file) } else { self.tree.dir_of(file) };
            names[dir as usize] -= 1;
        }
        names
    }

    /// Some directories with their names.
    fn counted<'a>(&'a self, names: impl Fn(u64) -> u64 + 'a) -> Expects<'a> {
        let dirs = samples(self.tree.dirs(), 10 * SAMPLES);
        Box::new(dirs.map(move |dir| Expect::Names(self.tree.dir(dir), names(dir))))
    }
}

/// Orders of all files: of creation, of renames, and of deletes among renames.
const CREATES: u64 = 1;
const RENAMES: u64 = 2;
const DELETES: u64 = 3;

impl Plan for Namespace {
    fn phases(&self) -> Vec<Phase> {
        let phase = |name: &&str| match *name {
            "mkdir" | "create" => Phase::warm(name),
            _ => Phase::cold(name),
        };
        let mut phases: Vec<Phase> = PHASES.iter().map(phase).collect();
        for listing in &mut phases[2..5] {
            listing.counts_names = true;
        }
        phases
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        let list = |detail| -> Ops<'_> {
            let listings = worker.share(self.listings);
            Box::new(listings.map(move |index| {
                let dir = self.listed(index);
                let (names, bytes) = (self.names[dir as usize], self.bytes[dir as usize]);
                Op::List(Listing { dir: self.tree.dir(dir), detail, names, bytes })
            }))
        };
        match PHASES[phase] {
            // Subtrees of different workers depend on one another: one worker makes them all.
            "mkdir" if worker.index > 0 => Box::new(std::iter::empty()),
            "mkdir" => Box::new((1..self.tree.dirs()).map(|dir| Op::MakeDir(self.tree.dir(dir)))),
            "create" => Box::new(worker.share(self.tree.files()).map(|index| {
                let key = self.file_at(CREATES, index);
                Op::Create { path: self.tree.file(key), bytes: self.size(key), key }
            })),
            "readdir" => list(Detail::Names),
            "readdir+stat" => list(Detail::Attributes),
            "readdir+read" => list(Detail::Contents),
            "query" => Box::new(worker.share(self.queries).map(|index| self.query(index))),
            "rename" => Box::new(worker.share(self.half()).map(|index| {
                let (from, to) = self.renamed(index);
                Op::Rename(from, to)
            })),
            _ => Box::new(worker.share(self.half()).map(|index| Op::Unlink(self.doomed(index).0))),
        }
    }

    fn expects(&self, phase: usize, _workers: u64) -> Expects<'_> {
        let file = |path: String, key: u64| Expect::File { path, bytes: self.size(key), key };
        let files = samples(self.tree.files(), SAMPLES);
        match PHASES[phase] {
            "mkdir" => self.counted(|dir| {
                let files = self.tree.files_of(dir);
                self.names[dir as usize] - (files.end - files.start)
            }),
            "create" => {
                let dirs = self.counted(|dir| self.names[dir as usize]);
                Box::new(dirs.chain(files.map(move |key| file(self.tree.file(key), key))))
            }
            "readdir+read" => Box::new(files.map(move |key| file(self.tree.file(key), key))),
            "query" => {
                let held = |index| match self.query(index) {
                    Op::Chmod(path, mode) => Some(Expect::Mode(path, mode)),
                    Op::Utime(path, seconds) => Some(Expect::Changed(path, seconds)),
                    // Looks are checked as they are seen.
                    _ => None,
                };
                Box::new(samples(self.queries, 4 * SAMPLES).filter_map(held))
            }
            "rename" => {
                let names = self.names_after(false);
                let files = samples(self.half(), SAMPLES).flat_map(move |index| {
                    let (from, to) = self.renamed(index);
                    [Expect::Absent(from), file(to, self.file_at(RENAMES, index))]
                });
                Box::new(self.counted(move |dir| names[dir as usize]).chain(files))
            }
            "delete" => {
                let names = self.names_after(true);
                let files = files.map(move |index| match self.doomed(index) {
                    (path, _) if index < self.half() => Expect::Absent(path),
                    (path, key) => file(path, key),
                });
                Box::new(self.counted(move |dir| names[dir as usize]).chain(files))
            }
            // Listings are checked as they are met.
            _ => Box::new(std::iter::empty()),
        }
    }

    fn inodes(&self) -> u64 {
        self.tree.dirs() + self.tree.files()
    }
}
