//! Checks every invariant of a file system, streaming over one snapshot of its store.
//!
//! 1. `names`, with `usage`, scans the key space `meta`. Rows come grouped by directory, so that counts are checked as
//!    each group ends; what an entry refers to is read from the snapshot. Every directory is followed
//!    up to the root once.
//! 2. `data` scans the key space `data` and lists the object files, and compares both with what step 1
//!    found.
//!
//! Memory: a few bits for each inode, an entry for each inode with a row of its own that is not a
//! directory, and one for each large file. Findings beyond [`FINDINGS_MAX`] are only counted.

mod bitmap;
mod data;
mod finding;
mod names;
mod usage;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use varve_engine::{StoreError, StoreResult, StoreSnapshot};
use varve_env::Env;
use varve_schema::Pending;
use varve_vfs::FsResult;

pub use finding::{Finding, Severity};

use crate::error;
use crate::fs::VarveFs;
use crate::options::MountOptions;
use bitmap::InodeSet;

/// Findings that are kept one by one.
pub const FINDINGS_MAX: usize = 10_000;
/// Rows and objects between two calls of the progress callback.
const PROGRESS_STEP: u64 = 4096;

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// What is being checked.
    pub phase: &'static str,
    /// Rows or files of this phase so far.
    pub done: u64,
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
    /// Findings in the order in which they were found; at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// Findings beyond those.
    pub findings_omitted: u64,
    /// Findings of [`Severity::Error`].
    pub errors: u64,
}

impl Report {
    /// True if no invariant is broken. Unfinished work and wasted room do not count.
    pub fn is_clean(&self) -> bool {
        self.errors == 0
    }
}

/// The state of a check.
struct Check<'a> {
    fs: &'a VarveFs,
    snapshot: &'a dyn StoreSnapshot,
    report: Report,
    progress: &'a mut dyn FnMut(Progress),
    done: u64,
    /// Ids handed out are below this.
    mark: u64,
    pending: HashMap<u64, Pending>,
    /// Every inode found, in a row of its own or in its name's.
    inodes: InodeSet,
    /// Directories known to lead to the root.
    reachable: InodeSet,
    /// Inodes in rows of their own that are no directories, and names that refer to such.
    linked: HashMap<u64, Links>,
    /// Directories that marks name.
    marked: HashSet<u64>,
    with_chunks: InodeSet,
    with_xattrs: InodeSet,
    /// Large files with the size their rows promise.
    large: HashMap<u64, u64>,
}

/// What is known of an inode with a row of its own that is not a directory.
#[derive(Default)]
struct Links {
    /// What its row says, if there is one.
    recorded: Option<u64>,
    counted: u64,
    pointers: u64,
    /// One of its names is its home.
    home_found: bool,
}

impl Check<'_> {
    fn found(&mut self, finding: Finding) {
        if finding.severity() == Severity::Error {
            self.report.errors += 1;
        }
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(finding);
        } else {
            self.report.findings_omitted += 1;
        }
    }

    fn step(&mut self, phase: &'static str) {
        self.done += 1;
        if self.done.is_multiple_of(PROGRESS_STEP) {
            (self.progress)(Progress { phase, done: self.done });
        }
    }

    fn begin(&mut self, phase: &'static str) {
        self.done = 0;
        (self.progress)(Progress { phase, done: 0 });
    }
}

impl VarveFs {
    /// Checks the file system as it is now. Changes during the check can make object files seem lost or
    /// stray; a store that nobody else has open gives an exact answer.
    pub fn check(&self, progress: &mut dyn FnMut(Progress)) -> FsResult<Report> {
        let snapshot = self.store.snapshot().map_err(error::store)?;
        let mut check = Check {
            fs: self,
            snapshot: snapshot.as_ref(),
            report: Report::default(),
            progress,
            done: 0,
            mark: 0,
            pending: HashMap::new(),
            inodes: InodeSet::default(),
            reachable: InodeSet::default(),
            linked: HashMap::new(),
            marked: HashSet::new(),
            with_chunks: InodeSet::default(),
            with_xattrs: InodeSet::default(),
            large: HashMap::new(),
        };
        check.check_names()?;
        check.check_data()?;
        check.check_objects()?;
        Ok(check.report)
    }
}

/// Checks the file system in the store `dir`, which nobody may have open. Changes nothing, and leaves
/// unfinished work to the next mount.
pub fn check_store(
    env: Arc<dyn Env>,
    dir: &Path,
    progress: &mut dyn FnMut(Progress),
) -> StoreResult<Report> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = VarveFs::open(env, dir, options)?;
    let report = fs.check(progress).map_err(|error| StoreError::Invalid(error.to_string()));
    fs.close()?;
    report
}
