//! The newest rows, sorted in memory, of every key space.
//!
//! 1. The writer logs a batch, then calls [`Memtable::apply`].
//! 2. Readers call [`Memtable::get`], or [`Memtable::chunk`] again and again while they scan.
//! 3. When it is large the writer puts an empty one in its place; the flush turns this one, which no
//!    longer changes, into tables.
//!
//! Invariants:
//! - The rows of one batch appear at once: they are applied under one lock.
//! - A version is overwritten in place unless a live snapshot sees it, so that a row rewritten a thousand times takes the
//!   room of one. Of overwritten versions there are no more than twice those that snapshots saw at once, or four.
//! - The lock is held for at most one batch or one chunk, never during I/O; only of a memtable that no longer changes, so
//!   that nobody waits for it, is it held for a walk over all rows ([`Memtable::each_version`]).
//! - A row stands once, in [`rows`], and is found by the hash of its key. The tree of its key space names it in order; only
//!   scans and new keys search that.

mod order;
mod rows;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use varve_format::filter::filter_hash;
use varve_types::{BranchId, FileNo, KeyspaceId, SeqNo};

use order::Order;
use rows::{Probe, Row, RowId, Rows};

use crate::key::Key;
use crate::row_versions::RowVersions;
use crate::segment::Separated;
use crate::{Op, StoreResult};

/// Bytes that a row takes besides its key and value, measured with rows of 16 + 100 bytes.
const ROW_OVERHEAD_BYTES: usize = 120;
/// Bytes that each further version of a row takes besides its value.
const VERSION_OVERHEAD_BYTES: usize = 48;

/// Whether a live snapshot sees the version of the first number, which that of the second follows.
pub(crate) type IsSeen<'a> = dyn Fn(SeqNo, SeqNo) -> bool + 'a;

/// Rows that one chunk looks at, at most: a reader of an old state may see none of very many.
const CHUNK_ROWS_MAX: usize = 1024;

/// There is room at once for the index of a full memtable whose rows take so many bytes, counted as above: a file's.
const INDEXED_ROW_BYTES: usize = 200;

/// What a key is at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Set to this value.
    Value(Bytes),
    /// Set to a value that stands apart; never in a memtable.
    Separated(Separated),
    /// Deleted.
    Tombstone,
}

impl Found {
    /// Bytes of the value, if it is at hand.
    pub(crate) fn len(&self) -> usize {
        match self {
            Found::Value(value) => value.len(),
            Found::Separated(_) | Found::Tombstone => 0,
        }
    }
}

/// One version of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemEntry {
    pub(crate) key: Key,
    pub(crate) seq: SeqNo,
    pub(crate) found: Found,
}

/// The order of each key space.
#[derive(Debug, Default)]
struct Spaces {
    /// The store's own, by number.
    store: Vec<Order>,
    /// Those of branches.
    branches: BTreeMap<KeyspaceId, Order>,
}

impl Spaces {
    fn get(&self, keyspace: KeyspaceId) -> Option<&Order> {
        if keyspace.is_of_branch() {
            return self.branches.get(&keyspace);
        }
        self.store.get(keyspace.get() as usize)
    }

    fn get_mut(&mut self, keyspace: KeyspaceId) -> &mut Order {
        if keyspace.is_of_branch() {
            return self.branches.entry(keyspace).or_default();
        }
        let index = keyspace.get() as usize;
        if index >= self.store.len() {
            self.store.resize_with(index + 1, Order::default);
        }
        &mut self.store[index]
    }
}

/// All rows, and their order.
#[derive(Debug)]
struct Contents {
    spaces: Spaces,
    rows: Rows,
}

impl Contents {
    /// The row of `key`, whose filter hash is `hash`.
    fn find(&self, keyspace: KeyspaceId, key: &[u8], hash: u64) -> Option<&Row> {
        let id = match self.rows.find(keyspace, key, hash) {
            Probe::Found(id) => id,
            Probe::Absent => return None,
            Probe::Crowded => self.in_order(keyspace, key)?,
        };
        Some(self.rows.get(id))
    }

    /// What the order names for `key`.
    #[cold]
    fn in_order(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<RowId> {
        self.spaces.get(keyspace)?.get(key)
    }

    /// Sets the row of `key`, whose filter hash is `hash`; returns the bytes by which the memtable grew and shrank.
    fn set(
        &mut self,
        keyspace: KeyspaceId,
        key: Key,
        hash: u64,
        (seq, found): (SeqNo, Found),
        is_seen: &IsSeen<'_>,
    ) -> (usize, usize) {
        let probe = self.rows.find(keyspace, &key, hash);
        let known = match probe {
            Probe::Found(id) => Some(id),
            Probe::Absent => None,
            Probe::Crowded => self.in_order(keyspace, &key),
        };
        let Some(id) = known else {
            let grown = ROW_OVERHEAD_BYTES + key.len() + found.len();
            let id = self.rows.add(Row::new(keyspace, key.clone(), seq, found), hash, &probe);
            self.spaces.get_mut(keyspace).insert(&key, id);
            return (grown, 0);
        };
        self.rows.get_mut(id).set(seq, found, is_seen)
    }
}

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct Memtable {
    contents: RwLock<Contents>,
    /// Branches whose commits it holds.
    ended: Mutex<Vec<BranchId>>,
    bytes: AtomicUsize,
    deletions: AtomicUsize,
    external: AtomicBool,
    /// The log that holds its oldest row.
    first_log: FileNo,
}

impl Memtable {
    /// An empty memtable whose rows are logged from `first_log` on, to be filled with some `bytes_max` of them.
    pub(crate) fn new(first_log: FileNo, bytes_max: usize) -> Memtable {
        let rows = Rows::with_room(bytes_max / INDEXED_ROW_BYTES);
        Memtable {
            contents: RwLock::new(Contents { spaces: Spaces::default(), rows }),
            ended: Mutex::default(),
            bytes: AtomicUsize::new(0),
            deletions: AtomicUsize::new(0),
            external: AtomicBool::new(false),
            first_log,
        }
    }

    /// The log that holds its oldest row.
    pub(crate) fn first_log(&self) -> FileNo {
        self.first_log
    }

    /// Bytes of memory in use, nearly.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Deletions that were applied, also those that were written over.
    pub(crate) fn deletions(&self) -> usize {
        self.deletions.load(Ordering::Relaxed)
    }

    /// True if nothing was ever applied.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Whether some batch depends on data outside the store.
    pub(crate) fn has_external(&self) -> bool {
        self.external.load(Ordering::Relaxed)
    }

    /// Notes that a batch depends on data outside the store.
    pub(crate) fn mark_external(&self) {
        self.external.store(true, Ordering::Relaxed);
    }

    /// Rows of one key space.
    pub(crate) fn rows(&self, keyspace: KeyspaceId) -> usize {
        self.contents.read().spaces.get(keyspace).map_or(0, Order::len)
    }

    /// The key spaces that it has rows of, ascending.
    pub(crate) fn keyspaces(&self) -> Vec<KeyspaceId> {
        let spaces = &self.contents.read().spaces;
        let of_store = (0..).map(KeyspaceId::new).zip(&spaces.store);
        let of_store = of_store.filter(|(_, order)| order.len() > 0).map(|(id, _)| id);
        of_store.chain(spaces.branches.keys().copied()).collect()
    }

    /// Notes that a batch is the commit of `branch`.
    pub(crate) fn note_ended(&self, branch: BranchId) {
        self.ended.lock().push(branch);
    }

    /// The branches whose commits it holds.
    pub(crate) fn ended(&self) -> Vec<BranchId> {
        self.ended.lock().clone()
    }

    /// The largest number of a branch's key space that it has rows of.
    pub(crate) fn last_branch_space(&self) -> Option<KeyspaceId> {
        self.contents.read().spaces.branches.last_key_value().map(|(id, _)| *id)
    }

    /// Applies a batch; its i-th write has sequence number `first_seq` + i. Versions that a live snapshot sees are kept.
    /// Counts the writes in `versions`.
    ///
    /// REQUIRES: called by one thread at a time, with growing sequence numbers.
    pub(crate) fn apply(
        &self,
        first_seq: SeqNo,
        ops: impl Iterator<Item = Op>,
        is_seen: &IsSeen<'_>,
        versions: Option<&RowVersions>,
    ) {
        let (mut added, mut removed, mut deletions) = (0, 0, 0);
        let mut contents = self.contents.write();
        for (seq, op) in (first_seq.get()..).zip(ops) {
            let (keyspace, key, found) = match op {
                Op::Put { keyspace, key, value } => (keyspace, key, Found::Value(value)),
                Op::Delete { keyspace, key } => (keyspace, key, Found::Tombstone),
            };
            deletions += usize::from(found == Found::Tombstone);
            let hash = filter_hash(&key);
            if let Some(versions) = versions {
                versions.count(hash);
            }
            let version = (SeqNo::new(seq), found);
            let (more, less) = contents.set(keyspace, key, hash, version, is_seen);
            added += more;
            removed += less;
        }
        let bytes = self.bytes() + added - removed;
        self.bytes.store(bytes, Ordering::Relaxed);
        self.deletions.store(self.deletions() + deletions, Ordering::Relaxed);
    }

    /// The newest version of `key`, whose filter hash is `hash`, that is not newer than `seq`.
    pub(crate) fn get(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        hash: u64,
        seq: SeqNo,
    ) -> Option<Found> {
        let contents = self.contents.read();
        contents.find(keyspace, key, hash)?.at(seq).map(|(_, found)| found.clone())
    }

    /// The newest version of `key`, whose filter hash is `hash`, and when it was written.
    pub(crate) fn newest(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        hash: u64,
    ) -> Option<(SeqNo, Found)> {
        let contents = self.contents.read();
        let (seq, found) = contents.find(keyspace, key, hash)?.newest();
        Some((seq, found.clone()))
    }

    /// Appends to `out`, up to `limit` of them, of each row of a range the newest version not newer than `seq`, keys ascending
    /// or, if `reverse`, descending; maybe none where all is newer. Returns the key behind which the range may hold more.
    pub(crate) fn chunk(
        &self,
        keyspace: KeyspaceId,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        seq: SeqNo,
        limit: usize,
        out: &mut Vec<MemEntry>,
    ) -> Option<Key> {
        let contents = self.contents.read();
        let order = contents.spaces.get(keyspace)?;
        if is_empty_range(range) {
            return None;
        }
        let target = out.len() + limit;
        let (mut ids, mut looked_at) = (order.range(range, reverse), 0);
        loop {
            let row = contents.rows.get(ids.next()?);
            out.extend(row.at(seq).map(|(seq, found)| MemEntry {
                key: row.key().clone(),
                seq,
                found: found.clone(),
            }));
            looked_at += 1;
            if out.len() >= target || looked_at == CHUNK_ROWS_MAX {
                return Some(row.key().clone());
            }
        }
    }

    /// Calls `visit` with all versions of the rows of a key space, keys ascending with newest versions first, until it
    /// fails.
    ///
    /// REQUIRES: nothing is applied to the memtable any more, as its lock is held meanwhile.
    pub(crate) fn each_version(
        &self,
        keyspace: KeyspaceId,
        mut visit: impl FnMut(&[u8], SeqNo, &Found) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let contents = self.contents.read();
        let Some(order) = contents.spaces.get(keyspace) else { return Ok(()) };
        for id in order.range((Bound::Unbounded, Bound::Unbounded), false) {
            let row = contents.rows.get(id);
            for (seq, found) in row.versions() {
                visit(row.key().as_slice(), seq, found)?;
            }
        }
        Ok(())
    }
}

/// True if no key can be in `range`; such ranges must not reach the tree, which panics on some.
pub(crate) fn is_empty_range(range: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match range {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (
            Bound::Included(start) | Bound::Excluded(start),
            Bound::Included(end) | Bound::Excluded(end),
        ) => start >= end,
    }
}

#[cfg(test)]
mod tests;
