//! Decides which operations fail: crash points and injected faults. Keeps a journal of operations, which shows how a
//! seed came to its failure.
//!
//! Invariant: after a crash point every operation fails.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// How many operations the journal keeps.
pub const JOURNAL_ENTRIES_MAX: usize = 4096;

/// What an operation on the simulated machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SimOp {
    /// Opening an existing file.
    Open,
    /// Making a file.
    Create,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Setting a length.
    SetLen,
    /// Changing an allocation.
    Allocate,
    /// Making a file durable.
    Sync,
    /// Making a directory's names durable.
    SyncDir,
    /// Making all that is below a directory durable.
    SyncFs,
    /// Renaming.
    Rename,
    /// Giving a second name.
    Link,
    /// Removing a file's name.
    Remove,
    /// Making a directory.
    CreateDir,
    /// Removing a directory.
    RemoveDir,
    /// Listing a directory.
    List,
    /// Asking for length and times, or for the next data or hole.
    Stat,
    /// Setting times. The last kind.
    SetTimes,
}

impl SimOp {
    /// Returns whether it changes what the disk may hold.
    pub fn mutates(self) -> bool {
        !matches!(self, SimOp::Open | SimOp::Read | SimOp::List | SimOp::Stat)
    }

    /// Returns whether it is a sync point.
    pub fn is_sync(self) -> bool {
        matches!(self, SimOp::Sync | SimOp::SyncDir | SimOp::SyncFs)
    }
}

/// Which operations fail, and how. A failing write leaves a random prefix of its bytes behind; after a failing sync a
/// random part of what it should have made durable is lost to every later sync too, as with a kernel that marks pages
/// clean after a failed writeback. An operation whose failure [`crate::is_passing`] was not tried.
#[derive(Clone, Debug)]
pub struct FaultRule {
    /// The end of the path as text; empty matches every path. An open file has the path it was opened
    /// by.
    pub path_suffix: String,
    /// The kind of operation.
    pub op: SimOp,
    /// Which matching operation from now on fails: 1 is the next.
    pub nth: u64,
    /// The error number.
    pub errno: i32,
    /// Whether all matching operations after that one fail too.
    pub sticky: bool,
}

/// One operation in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Its number among the operations that change something; for the others, that of the last one.
    pub number: u64,
    /// What it does.
    pub op: SimOp,
    /// The path it was given.
    pub path: PathBuf,
    /// Offset and length, where it has them.
    pub range: Option<(u64, u64)>,
}

impl JournalEntry {
    pub(super) fn new(
        number: u64,
        op: SimOp,
        paths: &[&Path],
        range: Option<(u64, u64)>,
    ) -> JournalEntry {
        let path = paths.first().map(|path| path.to_path_buf()).unwrap_or_default();
        JournalEntry { number, op, path, range }
    }
}

impl fmt::Display for JournalEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.number, self.op, self.path.display())?;
        match self.range {
            Some((offset, len)) => write!(f, " {offset}+{len}"),
            None => Ok(()),
        }
    }
}

/// The error of every operation after the crash point, and on a killed process's machine.
#[derive(Debug)]
struct Crashed;

impl fmt::Display for Crashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated crash")
    }
}

impl std::error::Error for Crashed {}

/// Returns whether `error` says that the simulated machine has crashed.
pub fn is_crash(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Crashed>())
}

/// Counts, crash points and faults of one simulated machine.
#[derive(Debug, Default)]
pub(super) struct Control {
    pub(super) op_count: u64,
    pub(super) sync_count: u64,
    pub(super) crash_after: Option<u64>,
    pub(super) crash_at_sync: Option<u64>,
    pub(super) crashed: bool,
    /// At which operations others take all room but so many bytes.
    pub(super) fills: Vec<(u64, u64)>,
    /// Syncs that do nothing: their kind and a part of the path.
    pub(super) ignored: Vec<(SimOp, String)>,
    pub(super) faults: Vec<FaultRule>,
    pub(super) fault_count: u64,
    /// Operations of each kind.
    pub(super) counts: [u64; SimOp::SetTimes as usize + 1],
    pub(super) journal: VecDeque<JournalEntry>,
}

impl Control {
    /// Counts one operation and decides whether it may go on.
    pub(super) fn begin(
        &mut self,
        op: SimOp,
        paths: &[&Path],
        range: Option<(u64, u64)>,
    ) -> io::Result<()> {
        self.crashed |= self.crash_after.is_some_and(|n| self.op_count >= n);
        if self.crashed {
            return Err(io::Error::other(Crashed));
        }
        self.op_count += u64::from(op.mutates());
        self.counts[op as usize] += 1;
        self.sync_count += u64::from(op.is_sync());
        self.record(op, paths, range);
        if op.is_sync() && self.crash_at_sync.is_some_and(|n| self.sync_count >= n) {
            self.crashed = true;
            return Err(io::Error::other(Crashed));
        }
        self.fault(op, paths)
    }

    fn record(&mut self, op: SimOp, paths: &[&Path], range: Option<(u64, u64)>) {
        if self.journal.len() == JOURNAL_ENTRIES_MAX {
            self.journal.pop_front();
        }
        self.journal.push_back(JournalEntry::new(self.op_count, op, paths, range));
    }

    /// Returns whether a sync of `path` is to do nothing.
    pub(super) fn ignores(&self, op: SimOp, path: &Path) -> bool {
        let text = path.to_string_lossy();
        self.ignored.iter().any(|(kind, part)| *kind == op && text.contains(part.as_str()))
    }

    fn fault(&mut self, op: SimOp, paths: &[&Path]) -> io::Result<()> {
        let mut errno = None;
        if self.faults.is_empty() {
            return Ok(());
        }
        let matches = |rule: &FaultRule, path: &Path| {
            path.as_os_str().as_encoded_bytes().ends_with(rule.path_suffix.as_bytes())
        };
        self.faults.retain_mut(|rule| {
            if rule.op != op || !paths.iter().any(|path| matches(rule, path)) {
                return true;
            }
            rule.nth = rule.nth.saturating_sub(1);
            if rule.nth > 0 {
                return true;
            }
            errno = errno.or(Some(rule.errno));
            rule.sticky
        });
        let Some(errno) = errno else { return Ok(()) };
        self.fault_count += 1;
        Err(io::Error::from_raw_os_error(errno))
    }
}
