//! [`Store`] for [`Db`], and what a `Db` can do beyond it.

use std::sync::Arc;

use bytes::Bytes;
use varve_env::Env;
use varve_types::{KeyspaceId, SeqNo};

use super::Db;
use crate::reads::DbSnapshot;
use crate::store::{KeyIter, ScanIter, SortedRows};
use crate::{
    Batch, Direction, KeyRange, KeyspaceOptions, RowVersion, Store, StoreResult, StoreSnapshot,
};

impl Store for Db {
    fn keyspace(&self, name: &str, options: KeyspaceOptions) -> StoreResult<KeyspaceId> {
        self.inner.keyspace(name, options)
    }

    fn keyspace_names(&self) -> StoreResult<Vec<String>> {
        Ok(self.inner.keyspace_names())
    }

    fn clear_keyspace(&self, keyspace: KeyspaceId) -> StoreResult<()> {
        self.inner.clear_keyspace(keyspace)
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>> {
        // Not the newest published state: a row that overwrote it in place may be newer.
        self.inner.reads.get(None, keyspace, key, SeqNo::MAX)
    }

    fn prefetch(&self, keyspace: KeyspaceId, keys: &[&[u8]]) -> StoreResult<usize> {
        self.inner.reads.prefetch(keyspace, keys)
    }

    fn version(&self, _keyspace: KeyspaceId, key: &[u8]) -> Option<RowVersion> {
        self.inner.reads.version(key)
    }

    fn write(&self, batch: Batch) -> StoreResult<()> {
        self.inner.write(batch)
    }

    /// All or nothing.
    fn insert_sorted(
        &self,
        keyspace: KeyspaceId,
        rows: SortedRows<'_>,
        external: bool,
    ) -> StoreResult<()> {
        self.inner.insert_sorted(keyspace, rows, external)
    }

    fn meets_locks(&self) -> bool {
        self.inner.locks.is_used()
    }

    fn sync(&self) -> StoreResult<()> {
        self.inner.health.check_open()?;
        self.inner.sync()
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>> {
        let (pin, read_state) = self.inner.reads.pinned();
        self.inner.reads.scan(pin, read_state, None, keyspace, range, direction)
    }

    fn each_row(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        visit: &mut dyn FnMut(&[u8], Bytes) -> bool,
    ) -> StoreResult<()> {
        let (pin, read_state) = self.inner.reads.pinned();
        self.inner
            .reads
            .walk(pin, read_state, None, keyspace, &range, Direction::Forward)?
            .each(visit)
    }

    fn keys(&self, keyspace: KeyspaceId, range: KeyRange) -> StoreResult<KeyIter<'_>> {
        let (pin, read_state) = self.inner.reads.pinned();
        self.inner.reads.keys(pin, read_state, None, keyspace, &range)
    }

    fn snapshot(&self) -> StoreResult<Box<dyn StoreSnapshot + '_>> {
        self.inner.health.check_open()?;
        let (pin, ()) = self.inner.snapshots.pin(|| ());
        Ok(Box::new(DbSnapshot { reads: &self.inner.reads, tree: None, pin }))
    }

    fn set_external_sync(&self, hook: Box<dyn Fn() -> std::io::Result<()> + Send + Sync>) {
        self.inner.external.set(hook);
        self.inner.work_is_due();
    }

    fn is_room_scarce(&self) -> bool {
        self.inner.space.is_scarce().unwrap_or(false)
    }

    fn get_room(&self) -> StoreResult<bool> {
        self.inner.health.check_open()?;
        self.inner.get_room()
    }

    fn metrics_json(&self) -> String {
        self.inner.metrics_json()
    }

    fn empty_logs(&self) -> StoreResult<()> {
        self.inner.empty_logs()
    }

    fn close(&self) -> StoreResult<()> {
        self.shut_down()
    }
}

impl Db {
    /// The machine for what frees room outside of the store: its operations take some that the store holds where there is no other.
    pub fn freeing_env(&self) -> Arc<dyn Env> {
        Arc::clone(&self.inner.env)
    }

    /// Turns everything written so far into tables.
    pub fn flush(&self) -> StoreResult<()> {
        self.inner.flush_all()
    }

    /// Compacts until every level is within its target.
    pub fn compact(&self) -> StoreResult<()> {
        self.inner.health.check_open()?;
        while self.inner.compact_one(false)? {}
        Ok(())
    }
}
