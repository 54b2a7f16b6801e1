//! The store of a serializable transaction: a branch in which rows of directories have bases ([`super`]).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use varve_engine::{
    Batch, Branch, Db, Direction, KeyIter, KeyRange, KeyspaceOptions, Op, ScanIter, Store,
    StoreError, StoreResult, StoreSnapshot,
};
use varve_namespace::merge::merge_inodes;
use varve_schema::RowKey;
use varve_schema::key::MetaRow;
use varve_types::KeyspaceId;

use super::bases::{Base, Bases};

/// Rows that one batch of the commit's first step changes.
const SETTLED_ROWS: usize = 1024;

/// The store of a serializable view.
pub(crate) struct SerialStore {
    pub(super) db: Arc<Db>,
    pub(super) branch: Branch,
    meta: KeyspaceId,
    bases: Bases,
    /// The longest that a call waits for locks.
    pub(super) lock_wait: Duration,
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
    pub(crate) fn new(
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
    pub(crate) fn settle(&self) -> StoreResult<()> {
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
