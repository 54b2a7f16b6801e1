//! Serializable transactions: views that lock what they look at and what they change.
//!
//! In: the rows that a call reads or changes, and calls that met a lock. Out: rows that are locked and up to date ([`store`]), or a
//! refusal that names the transactions to wait for. Never: waits while it holds a lock, or chooses a deadlock victim; the engine does.
//!
//! The store locks rows ([`varve_engine`], `txn`): rows of names by their keys, a directory that is listed by the prefix of
//! its rows. A call that meets a lock is refused (`FsError::Blocked`), has changed nothing and holds nothing, and is made
//! again when locks have gone; so no call waits while others wait for it. What needs no locks of its own:
//!
//! - The bytes and extended attributes of files in the store: they change only together with the row that has the
//!   attributes. Large files are read as they are, since opening one to write changes its row; one that is open for
//!   writing in the main tree can be neither opened nor changed.
//! - Marks, which are the bookkeeping of [`crate::usage`], and what only the view knows.
//!
//! A directory's row is special, as it counts what is in it: with one lock for all of it, programs that merely pass
//! through a directory would keep others from making files there. So changes of the counts *commute*: they need no more than
//! the lock of a reader, and an operation that moves, removes or changes the directory itself locks it exclusively. For that the view
//! has, for each such row,
//!
//! ```text
//! its base    the store's row as the view last took it over, in the volatile key space, which is private to the view ([`bases`])
//! its own     base with what the view has added, once it has changed the row
//! ```
//!
//! 1. Until the row is changed the view reads the base ([`SerialStore`]).
//! 2. An operation that has locked rows to change them first brings the bases of directories among them up to date, after the rows of
//!    names are locked ([`SerialStore::prepare`]): so the counts hold every name that the call can see.
//! 3. The commit does it for all of them at last ([`SerialStore::settle`]), while nothing changes in the main tree.
//!
//! Source: KVFS, thesis section 3.3 (strong strict two-phase locking). Departure: counts commute, after escrow locking
//! (O'Neil 1986).

mod bases;
mod store;

use std::sync::Arc;
use std::time::Duration;

use varve_engine::{Db, GaveWay};
use varve_schema::{Body, EntryRow, Inlined, Inode, META, RowKey};
use varve_types::{BranchId, InodeId};
use varve_vfs::{Blocked, FsError, FsResult};

use super::transaction::{Isolation, Transaction};
use crate::error;
use crate::fs::VarveFs;
use crate::locks::RowGuards;
pub(crate) use store::SerialStore;

/// How long a change of the main tree waits for locks, before the transactions that hold them lose them.
const PLAIN_WAIT_MAX: Duration = Duration::from_secs(10);

impl VarveFs {
    /// Locks rows that an operation reads and then writes, here and, in a serializable view, against other views. REQUIRES:
    /// the caller holds no row lock.
    pub(crate) fn lock_rows(&self, keys: &[RowKey]) -> FsResult<RowGuards<'_>> {
        self.lock_rows_or_all(keys, false)
    }

    /// The same, here for every row if `all`. REQUIRES: the caller holds no row lock.
    pub(crate) fn lock_rows_or_all(&self, keys: &[RowKey], all: bool) -> FsResult<RowGuards<'_>> {
        let guards = if all { self.locks.lock_all() } else { self.locks.lock(keys) };
        self.prepare_rows(keys)?;
        Ok(guards)
    }

    /// What [`VarveFs::lock_rows`] does for other views. REQUIRES: the locks of the rows here.
    pub(crate) fn prepare_rows(&self, keys: &[RowKey]) -> FsResult<()> {
        let Some(serial) = &self.serial else { return Ok(()) };
        serial.prepare(keys).map_err(error::store)
    }

    /// In a serializable view, keeps others from changing anything in a directory that is to be moved or removed. REQUIRES:
    /// the lock of its row.
    pub(crate) fn claim_directory(&self, ino: InodeId) -> FsResult<()> {
        let Some(serial) = &self.serial else { return Ok(()) };
        serial.claim(RowKey::inode(ino)).map_err(error::store)
    }

    /// In a serializable view, refuses a large file that is open for writing in the main tree, as its writer asks for no locks. Its
    /// row too changes once more past our lock, when it is closed: a call that has read the row may not write it.
    pub(crate) fn check_written_elsewhere(&self, inode: &Inode) -> FsResult<()> {
        if !self.is_written_elsewhere(inode)? {
            return Ok(());
        }
        self.note_refused();
        Err(FsError::Busy)
    }

    /// The same for a file whose bytes are to be read or changed. Programs that have mapped and closed it may go on writing to it, too;
    /// they are noted before its row is clean.
    pub(crate) fn check_changed_elsewhere(&self, inode: &Inode) -> FsResult<()> {
        self.check_written_elsewhere(inode)?;
        if self.serial.is_none() || !self.objects.is_mapped_below(inode.ino)? {
            return Ok(());
        }
        let fail = |error| self.object_error("stat", inode.ino, error);
        if self.objects.has_own(inode.ino).map_err(fail)? {
            return Ok(());
        }
        self.note_refused();
        Err(FsError::Busy)
    }

    /// Notes in a serializable view that a call fails because others have locked what it needs.
    fn note_refused(&self) {
        if let Some((db, Some(serial))) = self.locking() {
            db.note_refused(serial.branch.id());
        }
    }

    /// What a call has found that looks at more than rows, such as the bytes of large files. In a serializable view all of
    /// that belongs together while it has its locks; once it has lost them others may have changed or removed it meanwhile.
    pub(crate) fn under_locks<T>(&self, found: FsResult<T>) -> FsResult<T> {
        match self.has_lost_locks() {
            true => {
                found.and(Err(FsError::DeadlockVictim)).map_err(|error| self.or_lost_locks(error))
            }
            false => found,
        }
    }

    /// Why a call has failed: in a serializable view that has lost its locks for nothing else, as it may have met what others
    /// have changed or removed since.
    pub(crate) fn or_lost_locks(&self, error: FsError) -> FsError {
        match error {
            FsError::Storage(_)
            | FsError::Damaged(_)
            | FsError::Stale
            | FsError::NotFound
            | FsError::Busy
                if self.has_lost_locks() =>
            {
                FsError::DeadlockVictim
            }
            error => error,
        }
    }

    fn has_lost_locks(&self) -> bool {
        self.serial.as_ref().is_some_and(|serial| serial.branch.has_lost_locks())
    }

    /// Whether that is such a file in a serializable view. Its attributes change without the view's front end.
    pub(crate) fn is_written_elsewhere(&self, inode: &Inode) -> FsResult<bool> {
        if self.serial.is_none() || !inode.content.is_dirty() {
            return Ok(false);
        }
        let fail = |error| self.object_error("stat", inode.ino, error);
        Ok(!self.objects.has_own(inode.ino).map_err(fail)?)
    }

    /// The same for all inodes of an entry row that is about to be written.
    pub(crate) fn check_none_written_elsewhere(&self, row: &EntryRow) -> FsResult<()> {
        if self.serial.is_none() {
            return Ok(());
        }
        row.names().iter().try_for_each(|named| match &named.body {
            Body::Inline(inode) => self.check_written_elsewhere(inode),
            Body::Reference { .. } => Ok(()),
        })
    }

    /// The same, of the row `key` as it was read to change one of its inodes.
    pub(crate) fn check_none_beside_written_elsewhere(
        &self,
        key: RowKey,
        row: &Inlined,
    ) -> FsResult<()> {
        if self.serial.is_none() {
            return Ok(());
        }
        let row =
            EntryRow::decode(row.row()).map_err(|error| error::unreadable(META, key, error))?;
        self.check_none_written_elsewhere(&row)
    }

    /// The store with the locks, and the branch if this is a serializable view.
    fn locking(&self) -> Option<(&Arc<Db>, Option<&SerialStore>)> {
        match (&self.serial, &self.views) {
            (Some(serial), _) => Some((&serial.db, Some(serial))),
            (None, Some(views)) => Some((views.db(), None)),
            (None, None) => None,
        }
    }

    /// See [`varve_vfs::Vfs::wait_for_locks`].
    pub(crate) fn do_wait_for_locks(&self, blocked: &Blocked, wait_max: Duration) -> bool {
        self.locking().is_none_or(|(db, _)| db.wait_for_locks(blocked.released, wait_max))
    }

    /// See [`varve_vfs::Vfs::lock_wait_max`].
    pub(crate) fn do_lock_wait_max(&self) -> Duration {
        self.serial.as_ref().map_or(PLAIN_WAIT_MAX, |serial| serial.lock_wait)
    }

    /// See [`varve_vfs::Vfs::wait_is_over`].
    pub(crate) fn do_wait_is_over(&self, blocked: &Blocked) {
        if let Some((db, Some(serial))) = self.locking() {
            db.stop_waiting(serial.branch.id(), blocked.wait);
        }
    }

    /// A call that failed as `why` is not made again: in a serializable view it would count as waiting for locks.
    pub(crate) fn not_again(&self, why: &FsError) {
        if let FsError::Blocked(blocked) = why {
            self.do_wait_is_over(blocked);
        }
    }

    /// A call of a transaction that was refused as `blocked`, and did not come through a file system of its own, is made anew,
    /// or no more.
    pub fn give_up(&self, txn: &Transaction, blocked: &Blocked) {
        if let Some(views) = &self.views {
            views.db().stop_waiting(txn.branch, blocked.wait);
        }
    }

    /// See [`varve_vfs::Vfs::overrule`].
    pub(crate) fn do_overrule(&self, blocked: &Blocked) -> bool {
        let Some((db, None)) = self.locking() else {
            self.note_refused();
            return false;
        };
        for id in &blocked.by {
            db.overrule(BranchId::new(*id));
        }
        true
    }

    /// Why a transaction has lost its locks, if it has.
    pub(crate) fn why_locks_are_lost(&self, txn: &Transaction) -> FsResult<Option<String>> {
        if txn.isolation != Isolation::Serializable {
            return Ok(None);
        }
        let all = self.lock_status()?;
        Ok(all
            .into_iter()
            .find(|status| status.id == txn.name().name)
            .and_then(|found| found.lost_locks))
    }

    /// The ids of those that `blocked` a call.
    pub fn transactions_of(&self, blocked: &Blocked) -> Vec<String> {
        let open = self.transactions().unwrap_or_default();
        let open = open.iter().filter(|txn| blocked.by.contains(&txn.branch.get()));
        open.map(|txn| txn.name().name).collect()
    }

    /// What serializable transactions have locked, and for whom they wait.
    pub fn lock_status(&self) -> FsResult<Vec<TransactionLocks>> {
        let (open, locks) = (self.transactions()?, self.views()?.db().lock_status());
        let name = |branch: BranchId| {
            let found = open.iter().find(|txn| txn.branch == branch);
            found.map_or_else(|| "one that has ended".to_owned(), |txn| txn.name().name)
        };
        let told = locks.into_iter().map(|status| TransactionLocks {
            id: name(status.id),
            locks: status.locks,
            was_refused: status.was_refused,
            waits_for: status.waits_for.iter().map(|id| name(*id)).collect(),
            lost_locks: status.gave_way.map(|why| match why {
                GaveWay::Deadlock(other) => {
                    format!("it and transaction {} waited for each other", name(other))
                }
                GaveWay::Restart(other) => {
                    format!("transaction {} had locked what it asked for", name(other))
                }
                GaveWay::Overruled => format!(
                    "a change outside of it had waited {} seconds for what it had locked",
                    PLAIN_WAIT_MAX.as_secs()
                ),
                GaveWay::Committed(other) => {
                    format!(
                        "the commit of transaction {} had to write what it had locked",
                        name(other)
                    )
                }
                GaveWay::Ended => "it has ended".to_owned(),
            }),
        });
        Ok(told.collect())
    }
}

/// What is known of the locks of a serializable transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionLocks {
    /// Its id.
    pub id: String,
    /// Names, directories and others that it has locked.
    pub locks: usize,
    /// The ids of the transactions for which calls of it wait.
    pub waits_for: Vec<String>,
    /// Why it has lost its locks, if it has.
    pub lost_locks: Option<String>,
    /// A call of it failed (EBUSY), as others had locked what it asked for, or had a large file open for writing.
    pub was_refused: bool,
}
