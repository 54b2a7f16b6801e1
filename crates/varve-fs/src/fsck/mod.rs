//! Checks every invariant of a file system, streaming over one snapshot of its store, and repairs.
//!
//! 1. `names` scans the key space `meta`. Rows come grouped by directory, so that counts are checked as each
//!    group ends. What is learnt of inodes goes into a [`sorter`], by inode.
//! 2. `inodes` walks what was learnt, the key space `data` and the object files side by side, all in the
//!    order of inode ids, and compares them; `data` has what it compares of the last two, `clones` what is not copied yet.
//! 3. `tree` follows all directories up at once and finds those that never reach the root.
//! 4. `accounts` adds up what directories say of the trees below them; `dictionaries` looks at those of users,
//!    `requests` at what is known of clients of a server, and `overlays` at what views have changed of large files and what is kept for them.
//! 5. [`repair`] does the same and mends each finding as it comes, until nothing is found.
//!
//! Invariant: memory stays within [`CheckOptions::memory_bytes`], however many rows there are; what does not
//! fit goes to files that have no name. Findings beyond [`FINDINGS_MAX`] are only counted.

mod accounts;
mod clones;
mod data;
mod dictionaries;
mod fact;
pub(crate) mod finding;
mod inodes;
mod losses;
mod names;
mod overlays;
pub mod repair;
mod requests;
pub(crate) mod sorter;
mod tree;
pub(crate) mod volume;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use varve_engine::{StoreError, StoreSnapshot};
use varve_env::Env;
use varve_vfs::{FsError, FsResult};

pub use finding::{Finding, Severity};
pub use losses::Doubt;

use crate::error;
use crate::error::invalid;
use crate::fs::VarveFs;
use crate::lost::{LOST_NAME, Lost};
use accounts::Account;
use fact::Fact;
use finding::At;
use sorter::{Sorter, SpillPlace};
use tree::Jump;
use volume::{AlsoSync, Volume};

/// Findings that are kept one by one.
pub const FINDINGS_MAX: usize = 10_000;
/// Rows and objects between two calls of the progress callback.
const PROGRESS_STEP: u64 = 4096;

/// What a check may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Memory in bytes: a quarter for the store's caches, half for sorting, the rest for what nobody counts.
    pub memory_bytes: usize,
    /// Where sorted data goes that does not fit; `None`: the store's directory.
    pub spill_dir: Option<PathBuf>,
    /// Whose, user and group, that is which a repair makes anew: of the owner of the store's files, who may read all in them.
    pub owner: (u32, u32),
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions { memory_bytes: 256 << 20, spill_dir: None, owner: (0, 0) }
    }
}

impl CheckOptions {
    /// The store's part of the memory.
    pub(crate) fn engine_bytes(&self) -> usize {
        self.memory_bytes / 4
    }

    /// The part of each of the up to four sorts that go on at once.
    fn sort_bytes(&self) -> usize {
        self.memory_bytes / 8
    }
}

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// What is being checked.
    pub phase: &'static str,
    /// Rows or files of this phase so far.
    pub done: u64,
    /// The part of the phase that is done, in thousandths, as far as that is known.
    pub permille: Option<u16>,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Directories.
    pub directories: u64,
    /// Files and other inodes that are no directories.
    pub files: u64,
    /// Names, each hard link counted.
    pub names: u64,
    /// Rows of file data.
    pub chunks: u64,
    /// Object files.
    pub objects: u64,
    /// Dictionaries of users.
    pub dictionaries: u64,
    /// The largest inode id in use.
    pub largest_inode: u64,
    /// Bytes of sorted data that did not fit in memory.
    pub spilled_bytes: u64,
    /// Findings in the order in which they were found; at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// Findings beyond those.
    pub findings_omitted: u64,
    /// Findings of [`Severity::Error`].
    pub errors: u64,
    /// Findings of [`Severity::Lost`].
    pub lost: u64,
    /// What may be older than it was, or incomplete, as a repair of the engine's files lost rows; at most [`FINDINGS_MAX`].
    pub doubts: Vec<Doubt>,
    /// More of those.
    pub doubts_omitted: u64,
}

impl Report {
    /// True if no invariant is broken. Unfinished work, wasted room and bytes that are known to be lost do not count.
    pub fn is_clean(&self) -> bool {
        self.errors == 0
    }

    /// True if there is nothing to repair, finish or give back.
    pub fn is_spotless(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Who is told of each finding as it comes.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&Finding, &At) -> FsResult<()>;

/// The state of a check.
struct Check<'a> {
    volume: &'a Volume,
    snapshot: &'a dyn StoreSnapshot,
    report: Report,
    progress: &'a mut dyn FnMut(Progress),
    sink: Sink<'a>,
    done: u64,
    permille: Option<u16>,
    /// What a repair could not save and rows do not say yet.
    lost: Lost,
    /// Ids handed out are below this.
    mark: u64,
    has_store_id: bool,
    place: SpillPlace,
    sort_bytes: usize,
    facts: Sorter<Fact>,
    /// Each directory with the one that holds its name.
    parents: Sorter<Jump>,
    /// What directories record, and what they hold.
    accounts: Sorter<Account>,
}

impl Check<'_> {
    fn found(&mut self, finding: Finding, at: At) -> FsResult<()> {
        match finding.severity() {
            Severity::Error => self.report.errors += 1,
            Severity::Lost => self.report.lost += 1,
            Severity::Unfinished | Severity::Waste => {}
        }
        (self.sink)(&finding, &at)?;
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(finding);
        } else {
            self.report.findings_omitted += 1;
        }
        Ok(())
    }

    fn step(&mut self, phase: &'static str) {
        self.done += 1;
        if self.done.is_multiple_of(PROGRESS_STEP) {
            (self.progress)(Progress { phase, done: self.done, permille: self.permille });
        }
    }

    /// Notes that `done` of `all` of the phase is done.
    fn at(&mut self, done: u64, all: u64) {
        let permille = done.saturating_mul(1000).checked_div(all).unwrap_or(0).min(1000);
        self.permille = Some(permille as u16);
    }

    fn begin(&mut self, phase: &'static str) {
        (self.done, self.permille) = (0, None);
        (self.progress)(Progress { phase, done: 0, permille: None });
    }

    fn run(mut self) -> FsResult<Report> {
        self.check_names()?;
        let facts = self.next_sorter();
        let facts = std::mem::replace(&mut self.facts, facts).finish()?;
        self.report.spilled_bytes += facts.spilled_bytes();
        self.check_inodes(&facts)?;
        drop(facts);
        let parents = self.next_sorter();
        let parents = std::mem::replace(&mut self.parents, parents).finish()?;
        self.check_tree(parents)?;
        let accounts = self.next_sorter();
        let accounts = std::mem::replace(&mut self.accounts, accounts).finish()?;
        self.check_accounts(&accounts)?;
        drop(accounts);
        self.check_dictionaries()?;
        self.check_requests()?;
        self.check_overlays()?;
        Ok(self.report)
    }

    fn next_sorter<R: sorter::Record>(&self) -> Sorter<R> {
        Sorter::new(&self.place, self.sort_bytes)
    }
}

/// Checks `volume` as it is now and tells `sink` of each finding.
pub(crate) fn check_volume(
    volume: &Volume,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
    sink: Sink<'_>,
) -> FsResult<Report> {
    let snapshot = volume.store.snapshot().map_err(error::store)?;
    let dir = options.spill_dir.clone().unwrap_or_else(|| volume.dir.clone());
    let place = SpillPlace { env: Arc::clone(&volume.env), dir };
    let sort_bytes = options.sort_bytes();
    let lost = Lost::read(volume.env.as_ref(), &volume.dir);
    let lost = lost.map_err(|error| error::object("read", &volume.dir.join(LOST_NAME), error))?;
    let check = Check {
        volume,
        snapshot: snapshot.as_ref(),
        report: Report::default(),
        progress,
        sink,
        done: 0,
        permille: None,
        lost: lost.unmarked(),
        mark: 0,
        has_store_id: false,
        sort_bytes,
        facts: Sorter::new(&place, sort_bytes),
        parents: Sorter::new(&place, sort_bytes),
        accounts: Sorter::new(&place, sort_bytes),
        place,
    };
    check.run()
}

impl VarveFs {
    /// Checks the file system as it is now. Changes during the check can make object files seem lost or
    /// stray; a store that nobody else has open gives an exact answer.
    pub fn check(&self, progress: &mut dyn FnMut(Progress)) -> FsResult<Report> {
        check_volume(&Volume::of(self), &CheckOptions::default(), progress, &mut |_, _| Ok(()))
    }
}

/// Why a check has not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The store cannot be opened, or not closed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot be read to the end: [`FsError::Damaged`] is damage, anything else a failure of the check, for which there may
    /// have been no room.
    #[error(transparent)]
    Files(#[from] FsError),
}

impl From<CheckError> for StoreError {
    fn from(error: CheckError) -> StoreError {
        match error {
            CheckError::Store(error) => error,
            CheckError::Files(error) => invalid(error),
        }
    }
}

/// Checks the file system in the store `dir`, which nobody may have open. Changes nothing, and leaves
/// unfinished work to the next mount.
pub fn check_store(
    env: Arc<dyn Env>,
    dir: &Path,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, CheckError> {
    let volume = Volume::open(env, dir, options.engine_bytes(), AlsoSync::default())?;
    let report = check_volume(&volume, options, progress, &mut |_, _| Ok(()));
    volume.store.close()?;
    Ok(report?)
}
