//! [`Store`] for branches, and for named snapshots, which are read only.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use varve_types::{KeyspaceId, SeqNo};

use super::handle::Branch;
use super::handle::Branches;
use crate::memtable::Memtable;
use crate::reads::DbSnapshot;
use crate::snapshot::Pin;
use crate::store::{KeyIter, ScanIter};
use crate::txn::held::Held;
use crate::txn::locking::Asker;
use crate::{
    Batch, Direction, KeyRange, KeyspaceOptions, Op, Store, StoreError, StoreResult, StoreSnapshot,
};

/// Deletions of one batch when a key space is cleared row by row.
const CLEARED_ROWS: usize = 1024;

impl Branch {
    /// What the branch began over, for reading; `Invalid` if that is another branch. Costs nothing.
    pub fn base(&self) -> StoreResult<SnapshotStore> {
        let read_state = self.branches.reads.read_states.get();
        let record = read_state.branch(self.id)?;
        if record.parent.is_some() {
            return Err(StoreError::Invalid("the branch stands over another".to_owned()));
        }
        Ok(SnapshotStore { branches: Arc::clone(&self.branches), pin: Pin::clone(&record.base) })
    }

    /// The asker of locks for rows that begin with `key`, if the branch takes any for them.
    fn asker_of(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<Asker<'_>> {
        Asker::new(self.id, &self.shared).filter(|_| !self.shared.is_unlocked(keyspace, key))
    }

    /// Fails if the branch was committed or dropped.
    pub fn check(&self) -> StoreResult<()> {
        self.shared.check()
    }

    /// Whether it may have rows that depend on data outside the store which nobody has made durable: an earlier process left them in
    /// the log. To be asked before anything is synced or written.
    pub fn may_await_external_sync(&self) -> StoreResult<bool> {
        if self.branches.log.external_seq() == SeqNo::ZERO {
            return Ok(false);
        }
        let read_state = self.branches.reads.read_states.get();
        let spaces = &read_state.branch(self.id)?.spaces;
        let has_rows = |memtable: &Arc<Memtable>| {
            memtable.has_external() && spaces.iter().any(|space| memtable.rows(space.id) > 0)
        };
        Ok(read_state.memtables().any(has_rows))
    }

    /// Takes the lock to read `key` without reading it, if the branch takes any.
    pub fn lock_to_read(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<()> {
        self.check()?;
        let asker = self.asker_of(keyspace, key);
        asker.map_or(Ok(()), |asker| self.branches.locking.lock_key(asker, keyspace, key))
    }

    /// Whether it has lost the locks that it took. While it has not, nothing that it has looked at has changed.
    pub fn has_lost_locks(&self) -> bool {
        self.shared.held.get().is_some_and(Held::is_lost)
    }

    /// Takes the locks to read `range`, if the branch takes any.
    fn lock_reads(&self, keyspace: KeyspaceId, range: &KeyRange) -> StoreResult<()> {
        let start = match &range.start {
            Bound::Included(start) | Bound::Excluded(start) => start.as_slice(),
            Bound::Unbounded => &[],
        };
        let asker = self.asker_of(keyspace, start);
        asker.map_or(Ok(()), |asker| self.branches.locking.lock_range(asker, keyspace, range))
    }
}

/// What a serializable branch gives as its snapshot: locked reads, which find the same however often they are made, and
/// what the branch itself wrote meanwhile.
struct Locking<'a>(&'a Branch);

impl StoreSnapshot for Locking<'_> {
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>> {
        Store::get(self.0, keyspace, key)
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>> {
        Store::scan(self.0, keyspace, range, direction)
    }
}

impl Store for Branch {
    /// One that does not exist yet is made in the store itself, where it is empty.
    fn keyspace(&self, name: &str, options: KeyspaceOptions) -> StoreResult<KeyspaceId> {
        self.branches.commits.keyspace(name, options)
    }

    fn keyspace_names(&self) -> StoreResult<Vec<String>> {
        Ok(self.branches.reads.keyspace_names())
    }

    /// Costs the number of rows, unless the key space is private.
    fn clear_keyspace(&self, keyspace: KeyspaceId) -> StoreResult<()> {
        {
            let _gate = self.shared.gate.read();
            self.shared.check()?;
            let own = self.branches.reads.read_states.get().branch(self.id)?.space(keyspace);
            if let Some(own) = own.filter(|own| own.private) {
                return self.branches.commits.clear_keyspace(own.id);
            }
        }
        loop {
            let mut batch = Batch::new();
            batch.reclaims_space();
            for key in self.keys(keyspace, KeyRange::all())?.take(CLEARED_ROWS) {
                batch.delete(keyspace, key?);
            }
            if batch.is_empty() {
                return Ok(());
            }
            self.write(batch)?;
        }
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>> {
        self.lock_to_read(keyspace, key)?;
        self.branches.reads.get(Some(self.id), keyspace, key, SeqNo::MAX)
    }

    fn write(&self, mut batch: Batch) -> StoreResult<()> {
        let _gate = self.shared.gate.read();
        self.shared.check()?;
        if let Some(asker) = Asker::new(self.id, &self.shared) {
            self.branches.locking.lock_batch(asker, &self.shared, &batch)?;
        }
        let mut record = Arc::clone(self.branches.reads.read_states.get().branch(self.id)?);
        let lacks = |base: &KeyspaceId| record.space(*base).is_none();
        let lacking: Vec<KeyspaceId> = batch.ops().iter().map(Op::keyspace).filter(lacks).collect();
        if !lacking.is_empty() {
            record = self.with_spaces(lacking)?;
        }
        for op in batch.ops_mut() {
            let keyspace = op.keyspace_mut();
            *keyspace = record.space(*keyspace).ok_or(StoreError::Ended)?.id;
        }
        drop(record);
        if batch.is_external() {
            self.shared.external.store(true, Ordering::Relaxed);
        }
        self.branches.commits.write(batch)
    }

    fn meets_locks(&self) -> bool {
        self.shared.locks.is_some()
    }

    fn sync(&self) -> StoreResult<()> {
        self.branches.health.check_open()?;
        self.branches.log.sync()
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>> {
        self.lock_reads(keyspace, &range)?;
        let (pin, read_state) = self.branches.reads.pinned();
        self.branches.reads.scan(pin, read_state, Some(self.id), keyspace, range, direction)
    }

    fn keys(&self, keyspace: KeyspaceId, range: KeyRange) -> StoreResult<KeyIter<'_>> {
        self.lock_reads(keyspace, &range)?;
        let (pin, read_state) = self.branches.reads.pinned();
        self.branches.reads.keys(pin, read_state, Some(self.id), keyspace, &range)
    }

    fn snapshot(&self) -> StoreResult<Box<dyn StoreSnapshot + '_>> {
        self.branches.health.check_open()?;
        self.shared.check()?;
        if self.shared.locks.is_some() {
            return Ok(Box::new(Locking(self)));
        }
        let (pin, ()) = self.branches.snapshots.pin(|| ());
        Ok(Box::new(DbSnapshot { reads: &self.branches.reads, tree: Some(self.id), pin }))
    }

    /// Runs beside the store's own hook, and until the branch ends.
    fn set_external_sync(&self, hook: Box<dyn Fn() -> std::io::Result<()> + Send + Sync>) {
        self.branches.external.set_for_branch(self.id, hook);
    }

    fn syncs_begun(&self) -> Option<u64> {
        Some(self.branches.metrics.syncs.get())
    }

    fn is_room_scarce(&self) -> bool {
        self.branches.space.is_scarce().unwrap_or(false)
    }

    fn get_room(&self) -> StoreResult<bool> {
        self.branches.health.check_open()?;
        self.branches.commits.get_room()
    }

    fn metrics_json(&self) -> String {
        self.branches.compactor.metrics_json()
    }

    fn close(&self) -> StoreResult<()> {
        self.sync()
    }
}

/// A named snapshot, or what a branch began over, as a store that cannot be written to; it stays what it is when its
/// name is deleted or the branch ends.
pub struct SnapshotStore {
    pub(super) branches: Arc<Branches>,
    pub(super) pin: Pin,
}

impl SnapshotStore {
    /// The state that `pin` keeps.
    pub(crate) fn new(branches: Arc<Branches>, pin: Pin) -> SnapshotStore {
        SnapshotStore { branches, pin }
    }
}

impl fmt::Debug for SnapshotStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotStore").field("seq", &self.pin.seq()).finish_non_exhaustive()
    }
}

fn read_only<T>() -> StoreResult<T> {
    Err(StoreError::Invalid("a snapshot cannot be changed; begin a branch over it".to_owned()))
}

impl Store for SnapshotStore {
    /// `Invalid` if there is no such key space.
    fn keyspace(&self, name: &str, _options: KeyspaceOptions) -> StoreResult<KeyspaceId> {
        let read_state = self.branches.reads.read_states.get();
        let space = read_state.keyspaces.iter().find(|space| &*space.name == name);
        space.map_or_else(read_only, |space| Ok(space.id))
    }

    fn keyspace_names(&self) -> StoreResult<Vec<String>> {
        Ok(self.branches.reads.keyspace_names())
    }

    fn clear_keyspace(&self, _keyspace: KeyspaceId) -> StoreResult<()> {
        read_only()
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>> {
        self.branches.reads.get(None, keyspace, key, self.pin.seq())
    }

    fn write(&self, _batch: Batch) -> StoreResult<()> {
        read_only()
    }

    fn sync(&self) -> StoreResult<()> {
        self.branches.health.check_open()
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>> {
        self.branches.reads.scan(
            self.pin.clone(),
            self.branches.reads.read_states.get(),
            None,
            keyspace,
            range,
            direction,
        )
    }

    fn keys(&self, keyspace: KeyspaceId, range: KeyRange) -> StoreResult<KeyIter<'_>> {
        self.branches.reads.keys(
            self.pin.clone(),
            self.branches.reads.read_states.get(),
            None,
            keyspace,
            &range,
        )
    }

    fn snapshot(&self) -> StoreResult<Box<dyn StoreSnapshot + '_>> {
        self.branches.health.check_open()?;
        Ok(Box::new(DbSnapshot { reads: &self.branches.reads, tree: None, pin: self.pin.clone() }))
    }

    fn set_external_sync(&self, _hook: Box<dyn Fn() -> std::io::Result<()> + Send + Sync>) {}

    fn metrics_json(&self) -> String {
        self.branches.compactor.metrics_json()
    }

    fn close(&self) -> StoreResult<()> {
        Ok(())
    }
}
