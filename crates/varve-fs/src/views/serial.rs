//! Serializable transactions: views that lock what they look at and what they change.
//!
//! The store locks rows ([`varve_engine`], `txn`): those of names by their keys, a directory that is listed by the prefix of
//! its rows. A call that meets a lock is refused (`FsError::Blocked`), having changed nothing and holding nothing, and made
//! again when locks have gone; so nobody waits while others wait for him. What needs no locks of its own:
//!
//! - The bytes and extended attributes of files in the store: they change only together with the row that has the
//!   attributes. Large files are read as they are, since opening one to write changes its row; one that is open for
//!   writing in the main view can be neither opened nor changed.
//! - Marks, which are the bookkeeping of [`crate::usage`], and what only the view knows.
//!
//! A directory's row is special, as it counts what is in it: with one lock for all of it, programs that merely pass
//! through a directory would keep others from making files there. So changes of the counts *commute*: they need no more than
//! the lock of a reader, and who moves, removes or changes the directory itself needs it alone. For that the view has,
//! for each such row,
//!
//! ```text
//! its base    the store's row as the view last took it over, in the volatile key space, which is private to the view ([`bases`])
//! its own     base with what the view has added, once it has changed the row
//! ```
//!
//! 1. Until the row is changed the view reads the base ([`SerialStore::get`]).
//! 2. Who has locked rows to change them has the bases of directories among them brought up to date first, after the rows of
//!    names are locked ([`SerialStore::prepare`]): so the counts hold every name that the call can see.
//! 3. The commit does it for all of them at last ([`SerialStore::settle`]), while nothing changes in the main view.
//!
//! Source: KVFS, thesis section 3.3 (strong strict two-phase locking). Departure: counts commute, after escrow locking
//! (O'Neil 1986).

mod bases;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use varve_engine::{
    Batch, Branch, Db, Direction, GaveWay, KeyIter, KeyRange, KeyspaceOptions, Op, ScanIter, Store,
    StoreError, StoreResult, StoreSnapshot,
};
use varve_namespace::merge::merge_inodes;
use varve_schema::key::MetaRow;
use varve_schema::{Body, EntryRow, Inlined, Inode, META, RowKey};
use varve_types::{BranchId, InodeId, KeyspaceId};
use varve_vfs::{Blocked, FsError, FsResult};

use super::txn::{Isolation, Transaction};
use crate::error;
use crate::fs::VarveFs;
use crate::locks::RowGuards;
use bases::{Base, Bases};

/// How long a change of the main view waits for locks, before those who have them give way.
const PLAIN_WAIT_MAX: Duration = Duration::from_secs(10);
/// Rows that one batch of the commit's first step changes.
const SETTLED_ROWS: usize = 1024;

/// The store of a serializable view.
pub(crate) struct SerialStore {
    db: Arc<Db>,
    branch: Branch,
    meta: KeyspaceId,
    bases: Bases,
    /// The longest that a call waits for locks.
    lock_wait: Duration,
    /// Held while a base is taken over.
    taking: Mutex<()>,
}

/// What is about to be written.
#[derive(Default)]
struct Changes {
    batch: Batch,
    bases: Vec<(RowKey, Base)>,
}

impl SerialStore {
    pub(super) fn new(
        db: Arc<Db>,
        branch: Branch,
        (meta, private): (KeyspaceId, KeyspaceId),
        lock_wait: Duration,
    ) -> SerialStore {
        let bases = Bases::new(private);
        SerialStore { db, branch, meta, bases, lock_wait, taking: Mutex::new(()) }
    }

    /// The key as that of an inode's row, if it is one.
    fn counted_key(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<RowKey> {
        let key = RowKey::from_bytes(key).filter(|_| keyspace == self.meta)?;
        matches!(key.meta_kind(), MetaRow::Inode(_)).then_some(key)
    }

    /// The row of an inode, whose base is taken over if there is none.
    fn counted(&self, key: RowKey) -> StoreResult<Option<Bytes>> {
        match self.bases.get(&self.branch, key)? {
            Some(Base { changed: false, row, .. }) => Ok(Some(row)),
            Some(_) => self.branch.get(self.meta, &key.to_bytes()),
            None => {
                let _taking = self.taking.lock();
                if self.bases.get(&self.branch, key)?.is_some() {
                    return self.counted(key);
                }
                let as_of = Some(self.db.store_changes());
                let row = self.branch.get(self.meta, &key.to_bytes())?;
                if let Some(row) = &row {
                    let mut changes = Changes::default();
                    changes.batch.reclaims_space();
                    self.put(key, Base { changed: false, row: row.clone(), as_of }, &mut changes);
                    self.apply(changes)?;
                }
                Ok(row)
            }
        }
    }

    fn put(&self, key: RowKey, base: Base, changes: &mut Changes) {
        self.bases.put(key, &base, &mut changes.batch);
        changes.bases.push((key, base));
    }

    fn apply(&self, Changes { batch, bases }: Changes) -> StoreResult<()> {
        if !batch.is_empty() {
            self.branch.write(batch)?;
            self.bases.written(bases);
        }
        Ok(())
    }

    /// Locks the rows that a call is about to read and change, and brings the bases among them up to date. REQUIRES: the
    /// view's own locks of them.
    pub(crate) fn prepare(&self, keys: &[RowKey]) -> StoreResult<()> {
        keys.iter().try_for_each(|key| self.branch.lock_to_read(self.meta, &key.to_bytes()))?;
        let mut changes = Changes::default();
        for key in keys.iter().filter(|key| matches!(key.meta_kind(), MetaRow::Inode(_))) {
            let as_of = self.db.store_changes();
            let base = self.bases.get(&self.branch, *key)?;
            self.renew(*key, (base, as_of), &mut changes)?;
        }
        self.apply(changes)
    }

    /// Locks the row of a directory that is to be moved or removed against all others, and brings it up to date. REQUIRES: the
    /// view's own lock of it.
    pub(crate) fn claim(&self, key: RowKey) -> StoreResult<()> {
        let bytes = key.to_bytes();
        let Some(row) = self.counted(key)? else { return Ok(()) };
        let mut batch = Batch::new();
        batch.reclaims_space();
        batch.put(self.meta, Bytes::copy_from_slice(&bytes), row);
        self.write(batch)?;
        self.prepare(&[key])
    }

    /// Brings all bases up to date. REQUIRES: nothing changes in the view or below.
    pub(super) fn settle(&self) -> StoreResult<()> {
        let mut changes = Changes::default();
        for row in self.branch.scan(self.bases.space(), KeyRange::all(), Direction::Forward)? {
            let (key, value) = row?;
            if let Some(key) = self.counted_key(self.meta, &key) {
                let as_of = self.db.store_changes();
                self.renew(key, (self.bases.of_row(key, &value), as_of), &mut changes)?;
            }
            if changes.batch.ops().len() >= SETTLED_ROWS {
                self.apply(std::mem::take(&mut changes))?;
            }
        }
        self.apply(changes)
    }

    /// Adds to `changes` what brings a row up to date, if it has a base and that is old. `as_of` is what
    /// [`Db::store_changes`] was before the base was read.
    fn renew(
        &self,
        key: RowKey,
        (base, as_of): (Option<Base>, u64),
        changes: &mut Changes,
    ) -> StoreResult<()> {
        let Some(base) = base.filter(|base| !base.row.is_empty()) else { return Ok(()) };
        if base.as_of == Some(as_of) {
            return Ok(());
        }
        let bytes = Bytes::copy_from_slice(&key.to_bytes());
        let now = self.db.get(self.meta, &bytes)?.unwrap_or_default();
        if now == base.row {
            self.bases.seen(key, as_of);
            return Ok(());
        }
        changes.batch.reclaims_space();
        if base.changed
            && let Some(own) = self.branch.get(self.meta, &bytes)?
        {
            let merged = merge_inodes(&base.row, &now, &own).ok().flatten();
            let keys = vec![(self.meta, bytes.clone())];
            let merged = merged.ok_or(StoreError::Conflict { keys })?;
            changes.batch.put_commuting(self.meta, bytes, merged);
        }
        self.put(key, Base { row: now, as_of: Some(as_of), ..base }, changes);
        Ok(())
    }
}

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

    /// In a serializable view, refuses a large file that is open for writing in the main view, who does not ask us then. Its
    /// row too changes once more past our lock, when it is closed: who has read it may not write it.
    pub(crate) fn check_written_elsewhere(&self, inode: &Inode) -> FsResult<()> {
        if !self.is_written_elsewhere(inode)? {
            return Ok(());
        }
        self.note_refused();
        Err(FsError::Busy)
    }

    /// The same of one whose bytes are to be read or changed. Programs that have closed it may go on writing to it, too, who have mapped
    /// it; they are noted before its row is clean.
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

    /// Notes in a serializable view that a call fails as others are in its way.
    fn note_refused(&self) {
        if let Some((db, Some(serial))) = self.locking() {
            db.note_refused(serial.branch.id());
        }
    }

    /// What a call has found that looks at more than rows, such as the bytes of large files. In a serializable view all of
    /// that belongs together while it has its locks; once it has lost them others may have changed or removed it meanwhile.
    pub(crate) fn under_locks<T>(&self, found: FsResult<T>) -> FsResult<T> {
        match self.has_lost_locks() {
            true => found.and(Err(FsError::GaveWay)).map_err(|error| self.or_gave_way(error)),
            false => found,
        }
    }

    /// Why a call has failed: in a serializable view that has lost its locks for nothing else, as it may have met what others
    /// have changed or removed since.
    pub(crate) fn or_gave_way(&self, error: FsError) -> FsError {
        match error {
            FsError::Storage(_)
            | FsError::Damaged(_)
            | FsError::Stale
            | FsError::NotFound
            | FsError::Busy
                if self.has_lost_locks() =>
            {
                FsError::GaveWay
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
            (None, Some(views)) => Some((&views.db, None)),
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
            views.db.stop_waiting(txn.branch, blocked.wait);
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
    pub(super) fn gave_way(&self, txn: &Transaction) -> FsResult<Option<String>> {
        if txn.isolation != Isolation::Serializable {
            return Ok(None);
        }
        let all = self.lock_status()?;
        Ok(all
            .into_iter()
            .find(|status| status.id == txn.name().name)
            .and_then(|found| found.gave_way))
    }

    /// The ids of those that `blocked` a call.
    pub fn transactions_of(&self, blocked: &Blocked) -> Vec<String> {
        let open = self.transactions().unwrap_or_default();
        let open = open.iter().filter(|txn| blocked.by.contains(&txn.branch.get()));
        open.map(|txn| txn.name().name).collect()
    }

    /// What serializable transactions have locked, and for whom they wait.
    pub fn lock_status(&self) -> FsResult<Vec<TransactionLocks>> {
        let (open, locks) = (self.transactions()?, self.views()?.db.lock_status());
        let name = |branch: BranchId| {
            let found = open.iter().find(|txn| txn.branch == branch);
            found.map_or_else(|| "one that has ended".to_owned(), |txn| txn.name().name)
        };
        let told = locks.into_iter().map(|status| TransactionLocks {
            id: name(status.id),
            locks: status.locks,
            was_refused: status.was_refused,
            waits_for: status.waits_for.iter().map(|id| name(*id)).collect(),
            gave_way: status.gave_way.map(|why| match why {
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

/// What is told of the locks of a serializable transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionLocks {
    /// Its id.
    pub id: String,
    /// Names, directories and others that it has locked.
    pub locks: usize,
    /// The ids of those for whom calls of it wait.
    pub waits_for: Vec<String>,
    /// Why it has lost its locks, if it has.
    pub gave_way: Option<String>,
    /// A call of it failed (EBUSY), as others had locked what it asked for, or had a large file open for writing.
    pub was_refused: bool,
}

impl Store for SerialStore {
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>> {
        match self.counted_key(keyspace, key) {
            Some(key) => self.counted(key),
            None => self.branch.get(keyspace, key),
        }
    }

    fn write(&self, batch: Batch) -> StoreResult<()> {
        let mut changes = Changes { batch, bases: Vec::new() };
        let counted = |op: &Op| {
            let (Op::Put { keyspace, key, .. } | Op::Delete { keyspace, key }) = op;
            self.counted_key(*keyspace, key)
        };
        let counted: SmallVec<[RowKey; 4]> =
            changes.batch.ops().iter().filter_map(counted).collect();
        for key in counted {
            let base = self.bases.get(&self.branch, key)?;
            if base.as_ref().is_some_and(|base| base.changed) {
                continue;
            }
            let (row, as_of) = base.map_or_else(Default::default, |base| (base.row, base.as_of));
            self.put(key, Base { changed: true, row, as_of }, &mut changes);
        }
        self.apply(changes)
    }

    fn meets_locks(&self) -> bool {
        true
    }

    fn snapshot(&self) -> StoreResult<Box<dyn StoreSnapshot + '_>> {
        Ok(Box::new(Present { store: self, rows: self.branch.snapshot()? }))
    }

    fn keyspace(&self, name: &str, options: KeyspaceOptions) -> StoreResult<KeyspaceId> {
        self.branch.keyspace(name, options)
    }

    fn keyspace_names(&self) -> StoreResult<Vec<String>> {
        self.branch.keyspace_names()
    }

    fn clear_keyspace(&self, keyspace: KeyspaceId) -> StoreResult<()> {
        self.branch.clear_keyspace(keyspace)
    }

    fn sync(&self) -> StoreResult<()> {
        self.branch.sync()
    }

    fn syncs_begun(&self) -> Option<u64> {
        self.branch.syncs_begun()
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>> {
        self.branch.scan(keyspace, range, direction)
    }

    fn keys(&self, keyspace: KeyspaceId, range: KeyRange) -> StoreResult<KeyIter<'_>> {
        self.branch.keys(keyspace, range)
    }

    fn set_external_sync(&self, hook: Box<dyn Fn() -> std::io::Result<()> + Send + Sync>) {
        self.branch.set_external_sync(hook);
    }

    fn metrics_json(&self) -> String {
        self.branch.metrics_json()
    }

    fn close(&self) -> StoreResult<()> {
        self.branch.close()
    }
}

/// What a serializable view gives as its snapshot: what it reads cannot change.
struct Present<'a> {
    store: &'a SerialStore,
    rows: Box<dyn StoreSnapshot + 'a>,
}

impl StoreSnapshot for Present<'_> {
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>> {
        self.store.get(keyspace, key)
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>> {
        self.rows.scan(keyspace, range, direction)
    }
}

impl fmt::Debug for SerialStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SerialStore").field("branch", &self.branch).finish_non_exhaustive()
    }
}
