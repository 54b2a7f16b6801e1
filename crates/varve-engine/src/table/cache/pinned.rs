//! Indexes and filters that stay at hand.
//!
//! A lookup asks each sub-level's table whether it may hold the key, and nearly all say no. To ask the cache for the index
//! costs more than the answer, so a table that is looked up in keeps its index itself, as long as all such take no more
//! than a share of the cache's capacity: the first that come, until they go. Scans and merges pin nothing: they pass each
//! table once.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use super::{CacheKey, INDEX_OFFSET, TableCache, TableIndex};
use crate::table::file::Table;

/// One part in so many of the cache may be pinned.
const PINNED_SHARE: usize = 8;

/// Steps in which the cache leaves that share to them.
const ROOM_STEPS: usize = 8;

/// Where a table keeps its index, if it does. Shared by the tables that are the same file.
pub(crate) type IndexSlot = Arc<OnceLock<PinnedIndex>>;

/// An index that takes its room from the cache until it is dropped.
pub(crate) struct PinnedIndex {
    pub(super) index: Arc<TableIndex>,
    cache: Arc<TableCache>,
    bytes: usize,
}

impl fmt::Debug for PinnedIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

impl Drop for PinnedIndex {
    fn drop(&mut self) {
        self.cache.pinned.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl TableCache {
    /// Has `table` keep its index, if there is room.
    pub(super) fn pin(self: &Arc<Self>, table: &Table, index: &Arc<TableIndex>) {
        let bytes = index.memory_bytes();
        let most = self.capacity_bytes / PINNED_SHARE;
        let add = |pinned: usize| pinned.checked_add(bytes).filter(|sum| *sum <= most);
        let taken = self.pinned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let Ok(before) = taken else { return };
        let used = before + bytes;
        let room = used.next_multiple_of((most / ROOM_STEPS).max(1)).min(most);
        if self.pinned_room.fetch_max(room, Ordering::Relaxed) < room {
            self.fit();
        }
        let (index, cache) = (Arc::clone(index), Arc::clone(self));
        // If another thread was faster, its bytes are given back here.
        drop(table.index_slot().set(PinnedIndex { index, cache, bytes }));
        // Only now: who finds it here no more finds it there.
        self.entries.remove(&CacheKey { file: table.file_no(), offset: INDEX_OFFSET });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use varve_env::sim::SimEnv;
    use varve_types::KeyspaceId;

    use super::super::ENTRY_OVERHEAD_BYTES;
    use super::*;
    use crate::{Batch, Db, DbOptions, Direction, KeyRange, KeyspaceOptions, Store};

    const ROWS: u64 = 300;

    fn open(options: DbOptions) -> (Db, KeyspaceId) {
        let db = Db::open(SimEnv::new(7), Path::new("/store"), options).unwrap();
        let space = KeyspaceOptions { prefixed: true, compressed: false };
        let space = db.keyspace("rows", space).unwrap();
        (db, space)
    }

    fn key(row: u64) -> [u8; 16] {
        (u128::from(row / 7) << 64 | u128::from(row)).to_be_bytes()
    }

    fn put_table(db: &Db, space: KeyspaceId, value: &'static str) {
        let mut batch = Batch::new();
        (0..ROWS).for_each(|row| batch.put(space, key(row), value));
        db.write(batch).unwrap();
        db.flush().unwrap();
    }

    fn pinned(db: &Db) -> usize {
        db.inner.reads.cache.pinned.load(Ordering::Relaxed)
    }

    #[test]
    fn a_table_that_is_looked_up_in_keeps_its_index_until_it_goes() {
        let (db, space) = open(DbOptions { sublevels_trigger: 2, ..DbOptions::default() });
        let cache = &db.inner.reads.cache;
        put_table(&db, space, "old");
        assert_eq!(db.scan(space, KeyRange::all(), Direction::Forward).unwrap().count(), 300);
        assert_eq!(pinned(&db), 0, "a scan passes");
        let loads = db.inner.metrics.index_loads.get();
        let table = {
            let read_state = db.inner.reads.read_states.get();
            let mut tables = read_state.keyspace(space).unwrap().version.tables();
            Arc::clone(tables.next().expect("a table").1)
        };
        let own = CacheKey { file: table.file_no(), offset: INDEX_OFFSET };
        assert!(cache.entries.contains_key(&own));
        let before = cache.memory_bytes();
        for row in 0..ROWS {
            assert_eq!(db.get(space, &key(row)).unwrap().as_deref(), Some(&b"old"[..]));
        }
        let first = pinned(&db);
        assert!(first > 0 && !cache.entries.contains_key(&own), "{first} bytes, or twice");
        let after = cache.memory_bytes() + ENTRY_OVERHEAD_BYTES;
        assert_eq!(
            after, before,
            "the scan has brought the blocks, and the index is charged still"
        );
        assert_eq!(db.scan(space, KeyRange::all(), Direction::Forward).unwrap().count(), 300);
        assert_eq!(db.inner.metrics.index_loads.get(), loads, "nothing was read again");
        put_table(&db, space, "new");
        db.compact().unwrap();
        assert_eq!(db.get(space, &key(1)).unwrap().as_deref(), Some(&b"new"[..]));
        assert!(pinned(&db) > first, "that of the table that is held, and of the new one");
        drop(table);
        assert!(pinned(&db) < 2 * first, "it has gone");
        db.close().unwrap();
    }

    #[test]
    fn no_more_is_pinned_than_a_share() {
        let options = DbOptions::with_memory_budget(1 << 16);
        let (db, space) = open(DbOptions { sublevels_trigger: 1000, ..options });
        let most = db.inner.reads.cache.capacity_bytes / PINNED_SHARE;
        for _ in 0..40 {
            put_table(&db, space, "value");
            // Only the newest has it, so only that is asked; one that nobody has is asked of all.
            assert!(db.get(space, &key(3)).unwrap().is_some());
            assert!(db.get(space, &key(ROWS / 7 * 7 + 6)).unwrap().is_none());
        }
        let read_state = db.inner.reads.read_states.get();
        let slots = read_state.keyspace(space).unwrap().version.tables();
        let kept = slots.filter(|(_, table)| table.index_slot().get().is_some()).count();
        assert!((1..40).contains(&kept), "{kept} of 40 tables keep their index");
        assert!(pinned(&db) <= most, "{} of {most} bytes", pinned(&db));
        let left = db.inner.reads.cache.entries.capacity() as usize;
        let room = db.inner.reads.cache.capacity_bytes - left;
        assert!(pinned(&db) <= room && room <= most, "{room} bytes are left to them, of {most}");
        assert!(db.verify(&mut |_| {}).unwrap().errors.is_empty());
    }
}
