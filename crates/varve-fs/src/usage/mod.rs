//! What every directory tree holds, kept as the tree changes.
//!
//! Each directory's row has its *usage*: bytes, files and directories below it. A change deep in a tree would have to reach every
//! row up to the root. Instead each row also has its *pending* usage: the part that its parent does not count yet:
//!
//! ```text
//! usage(d) = what lies directly in d + sum over subdirectories c of (usage(c) - pending(c) + c itself)
//! ```
//!
//! 1. An operation charges the directory it works in ([`Changes::charge`]): in the batch that it writes anyway, usage and pending
//!    usage of that one row change ([`Accounts::commit`]).
//! 2. A mark row names each directory with pending usage, written in the same batch ([`marks`]). There are about [`MARKS_MAX`] marks
//!    at most, besides those of directories that cannot be propagated now and those that a commit has just brought.
//! 3. Every few seconds, and when three quarters of the room for marks are taken, a thread propagates the pending usage of each
//!    marked directory to its parent, in one batch, up to the root ([`propagate`]). An operation that finds no room at all propagates
//!    some itself.
//! 4. The usage of a tree is that of its top and the pending usage of the marked directories below ([`total`]):
//!    its cost grows with the marks, not with the tree.
//!
//! A directory that moves takes along what its old parent counts for it: no walk. A file with several names counts in the directory of one
//! of them, its home ([`varve_namespace::Parents`]).
//!
//! Invariants, which `fsck` checks: the equation above; the root has no pending usage; a directory with pending usage has a mark.
//! Each step is one batch, so that a crash at any point keeps them.
//!
//! Limits on trees build on the same charges ([`quota`]).
//!
//! A large file that is being written counts with the size in its row; what its object has beyond is added
//! when somebody asks, and goes into the row with the last writer's release, or at the next mount.
//!
//! Source: the recursive accounting of Ceph's file system (`rstats`), which is late by design. Departure:
//! what is late is itself on record, so that an answer is exact at any moment.

mod limits;
mod marks;
mod propagate;
mod quota;
pub(crate) mod total;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use parking_lot::Mutex;
use smallvec::SmallVec;
use varve_engine::Store;
use varve_namespace::directory::{apply_charge, differ_by_counts};
use varve_namespace::{Changes, Space, Standing};
use varve_schema::key::MetaRow;
use varve_schema::{Mark, RowKey};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::{FsError, FsResult};

use crate::dir_rows::DirRows;
use crate::error;
use crate::locks::RowLocks;
use crate::rows::{AlsoRow, read_inode_row, to_batch};
use marks::Marks;
pub(crate) use marks::{MARKS_MAX, MarksOf};
use quota::Quotas;

/// Directories marked in a batch that is not written yet: unless it is, their marks end.
struct Begun<'a> {
    marks: &'a Marks,
    dirs: SmallVec<[InodeId; 1]>,
}

impl Begun<'_> {
    /// The batch is written.
    fn keep(mut self) {
        self.dirs.clear();
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.dirs.iter().for_each(|dir| self.marks.end(*dir));
    }
}

/// The accounts of all directories.
pub(crate) struct Accounts {
    store: Arc<dyn Store>,
    meta: KeyspaceId,
    data: KeyspaceId,
    locks: Arc<RowLocks>,
    dirs: Arc<DirRows>,
    marks: Marks,
    marks_max: usize,
    /// Marks beyond which operations propagate usage themselves.
    room: AtomicUsize,
    /// A thread was asked to propagate usage before that.
    asked: AtomicBool,
    quotas: Quotas,
    /// Held while pending usage is propagated.
    propagating: Mutex<()>,
}

impl Accounts {
    /// The accounts of a store that is being opened.
    pub(crate) fn open(
        store: Arc<dyn Store>,
        (meta, data): (KeyspaceId, KeyspaceId),
        locks: Arc<RowLocks>,
        dirs: Arc<DirRows>,
        marks_max: usize,
        marks: MarksOf,
    ) -> FsResult<Accounts> {
        let marks = Marks::load(store.as_ref(), meta, marks)?;
        let (quotas, propagating) = (Quotas::default(), Mutex::new(()));
        let (room, asked) = (AtomicUsize::new(marks_max), AtomicBool::new(false));
        Ok(Accounts {
            store,
            meta,
            data,
            locks,
            dirs,
            marks,
            marks_max,
            room,
            asked,
            quotas,
            propagating,
        })
    }

    /// Writes all of `changes`, which are done then, or nothing, with what they charge; `QuotaExceeded` if that does not
    /// fit. REQUIRES: the locks of the rows in it, and of the inode rows of the directories charged.
    pub(crate) fn commit(&self, changes: &mut Changes) -> FsResult<()> {
        self.commit_also(changes, None)
    }

    /// The same with one row more.
    pub(crate) fn commit_also(&self, changes: &mut Changes, also: Option<AlsoRow>) -> FsResult<()> {
        if cfg!(debug_assertions) {
            self.check_locks(changes)?;
        }
        let reserved = self.reserve(changes)?;
        let begun = self.settle_charges(changes)?;
        let propagated = std::mem::take(&mut changes.propagated);
        let removed = changes.standing != Standing::Propagated;
        if self.store.meets_locks() {
            self.note_counted(changes)?;
        }
        for dir in &propagated {
            if let Some(slot) = self.marks.slot(*dir) {
                changes.delete_meta(RowKey::mark(slot));
            }
            if removed && self.is_top(*dir) {
                changes.delete_meta(RowKey::limits(*dir));
            }
        }
        changes.put_dirs();
        let before = self.dirs.before(&changes.dirs);
        let mut batch = to_batch(changes, (self.meta, self.data));
        if let Some(AlsoRow { space, key, value }) = also {
            batch.put(space, key, value);
        }
        let written = match changes.derived {
            true => self.store.write_derived(batch),
            false => self.store.write(batch),
        };
        written.map_err(error::store)?;
        self.dirs.keep(changes.dirs.drain(..), &before);
        begun.keep();
        if let Some(reserved) = reserved {
            reserved.keep();
        }
        for dir in propagated {
            self.marks.end(dir);
            if removed && self.is_top(dir) {
                self.end_domain(dir);
            }
        }
        Ok(())
    }

    /// Asserts that the locks of all rows of names and inodes that `changes` write are held. A row that an inode gets for the
    /// first time needs none: nobody else can find the inode.
    fn check_locks(&self, changes: &Changes) -> FsResult<()> {
        let written = changes.writes.iter().filter(|write| write.space == Space::Meta);
        let dirs = changes.dirs.iter().map(|dir| dir.ino);
        let charged = changes.charges.iter().map(|(dir, _)| *dir);
        let keys = written.map(|write| write.key).chain(dirs.chain(charged).map(RowKey::inode));
        for key in keys {
            let is_guarded = match key.meta_kind() {
                // Names that a clone's directory gets are found by nobody before its row says so.
                MetaRow::Entry(dir, _) => !self.locks.is_held(RowKey::inode(dir)),
                MetaRow::Inode(ino) => self.dirs.read(ino)?.is_some(),
                _ => false,
            };
            assert!(
                !is_guarded || self.locks.is_held(key),
                "row ({}, {:#x}) is written without its lock",
                key.prefix(),
                key.suffix()
            );
        }
        Ok(())
    }

    /// Notes which directories change in no other way than by what they count; extended attributes, which are rows of
    /// their own, are another.
    fn note_counted(&self, changes: &mut Changes) -> FsResult<()> {
        for dir in &changes.dirs {
            let before = read_inode_row(self.store.as_ref(), self.meta, dir.ino)?;
            let own = dir.ino.get();
            let has_xattrs = changes
                .writes
                .iter()
                .any(|write| write.space == Space::Data && write.key.prefix() == own);
            if !has_xattrs && before.is_some_and(|before| differ_by_counts(&before, dir)) {
                changes.counted.push(dir.ino);
            }
        }
        Ok(())
    }

    /// Adds the charges to the directories' rows, and marks those that now have something to tell.
    fn settle_charges(&self, changes: &mut Changes) -> FsResult<Begun<'_>> {
        let mut begun = Begun { marks: &self.marks, dirs: SmallVec::new() };
        for charge in 0..changes.charges.len() {
            let (dir, change) = changes.charges[charge];
            if change.is_zero() {
                continue;
            }
            let at = match changes.dirs.iter().position(|staged| staged.ino == dir) {
                Some(at) => at,
                None => {
                    let row = self.dirs.read(dir)?;
                    changes.dirs.push(row.ok_or_else(|| no_directory(dir))?);
                    changes.dirs.len() - 1
                }
            };
            let is_pending = apply_charge(&mut changes.dirs[at], change);
            if is_pending.map_err(|_| no_directory(dir))?
                && let Some(slot) = self.marks.begin(dir)
            {
                changes.put_meta(RowKey::mark(slot), Mark(dir).encode());
                begun.dirs.push(dir);
            }
        }
        Ok(begun)
    }

    /// A slot for a directory that begins to have something to tell, whose row the caller writes; `None` if it has one.
    /// REQUIRES: the lock of its row.
    pub(crate) fn begin_mark(&self, dir: InodeId) -> Option<u64> {
        self.marks.begin(dir)
    }

    /// Ends the mark of a directory; gives the slot, whose row the caller removes. REQUIRES: the lock of its row.
    pub(crate) fn end_mark(&self, dir: InodeId) -> Option<u64> {
        let slot = self.marks.slot(dir);
        self.marks.end(dir);
        slot
    }

    /// Whether a directory had something to tell when the view began, or has had since.
    pub(crate) fn is_marked(&self, dir: InodeId) -> bool {
        self.marks.slot(dir).is_some()
    }

    /// The directories that have something to tell, and perhaps some that have not.
    pub(crate) fn marked_dirs(&self) -> Vec<InodeId> {
        self.marks.dirs()
    }

    /// Directories that have something to tell, and at most one or the other that has not.
    pub(crate) fn marked(&self) -> usize {
        self.marks.count()
    }
}

fn no_directory(dir: InodeId) -> FsError {
    FsError::Storage(format!("directory {dir} has no row; run `varve fsck`"))
}
