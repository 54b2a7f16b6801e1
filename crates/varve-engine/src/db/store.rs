//! [`Store`] for [`Db`].

use bytes::Bytes;
use varve_types::{KeyspaceId, SeqNo};

use super::Db;
use crate::reads::DbSnapshot;
use crate::store::{KeyIter, ScanIter, SortedRows};
use crate::{
    Batch, Direction, KeyRange, KeyspaceOptions, RowVersion, Store, StoreResult, StoreSnapshot,
};

impl Store for Db {
    fn keyspace(&self, name: &str, options: KeyspaceOptions) -> StoreResult<KeyspaceId> {
        self.inner.commits.keyspace(name, options)
    }

    fn keyspace_names(&self) -> StoreResult<Vec<String>> {
        Ok(self.inner.reads.keyspace_names())
    }

    fn clear_keyspace(&self, keyspace: KeyspaceId) -> StoreResult<()> {
        self.inner.commits.clear_keyspace(keyspace)
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
        self.inner.commits.write(batch)
    }

    /// All or nothing.
    fn insert_sorted(
        &self,
        keyspace: KeyspaceId,
        rows: SortedRows<'_>,
        external: bool,
    ) -> StoreResult<()> {
        self.inner.commits.insert_sorted(keyspace, rows, external)
    }

    fn meets_locks(&self) -> bool {
        self.inner.locks.is_used()
    }

    fn sync(&self) -> StoreResult<()> {
        self.inner.health.check_open()?;
        self.inner.log.sync()
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
        let (pin, ()) = self.inner.reads.snapshots.pin(|| ());
        Ok(Box::new(DbSnapshot { reads: &self.inner.reads, tree: None, pin }))
    }

    fn set_external_sync(&self, hook: Box<dyn Fn() -> std::io::Result<()> + Send + Sync>) {
        self.inner.external.set(hook);
        self.inner.commits.work_is_due();
    }

    fn syncs_begun(&self) -> Option<u64> {
        Some(self.inner.metrics.syncs.get())
    }

    fn is_room_scarce(&self) -> bool {
        self.inner.space.is_scarce().unwrap_or(false)
    }

    fn get_room(&self) -> StoreResult<bool> {
        self.inner.health.check_open()?;
        self.inner.commits.get_room()
    }

    fn lend_inode(&self) -> bool {
        self.inner.reserve.lend_inode()
    }

    fn metrics_json(&self) -> String {
        self.inner.compactor.metrics_json()
    }

    fn empty_logs(&self) -> StoreResult<()> {
        self.inner.flusher.empty_logs()
    }

    fn close(&self) -> StoreResult<()> {
        self.shut_down()
    }
}
