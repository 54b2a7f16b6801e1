//! Rows of unfolded directories that the device has no room for: reading a clone needs none.
//!
//! What unfolding writes can be made again from the source ([`Store::write_derived`]). So where the store refuses a batch of it for want of
//! room, [`UnwrittenStore`] keeps it in memory, over the rows of the store below:
//!
//! 1. Readers find its rows as if they were written.
//! 2. A later write to one of these rows first writes the batch, and the batches that it builds on. So what the store has is always a
//!    state that unfolding and operations lead to: a removal takes room that is held for removals, all else is refused.
//! 3. The rest is written once there is room ([`UnwrittenStore::sync`]), or by [`Store::write_kept`] for whoever is about to read
//!    the store below: a view that begins, a commit.
//!
//! A crash loses the batches, and with them who knew their inodes. The next mount unfolds the directories to the same rows.
//!
//! Invariants:
//! - Each row in memory is newer than that of the store below. REQUIRES: writers of a row hold its lock, as all of the file system do.
//! - The batches of a source are written before those of the main tree and of younger sources: these name inodes of it.
//! - The batches of all states of a store together take no more than [`KeptBytes`] allows; the next one is refused for want of room.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use varve_engine::store::SortedRows;
use varve_engine::{
    Batch, Direction, KeyIter, KeyRange, KeyspaceOptions, Op, RowVersion, ScanIter, Store,
    StoreError, StoreResult, StoreSnapshot,
};
use varve_types::KeyspaceId;

/// What a row takes in memory besides its key and value, in bytes.
const ROW_BYTES: usize = 128;

/// What all states of a store may keep in memory.
#[derive(Debug)]
pub(crate) struct KeptBytes {
    used: AtomicUsize,
    max: usize,
}

impl KeptBytes {
    /// `max` bytes at most.
    pub(crate) fn new(max: usize) -> KeptBytes {
        KeptBytes { used: AtomicUsize::new(0), max }
    }

    /// Takes `bytes`, if there are so many.
    fn take(&self, bytes: usize) -> bool {
        let take = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Writes the kept batches of the states that this one builds on; true: they take room that is held for removals.
type WriteOlder = dyn Fn(bool) -> StoreResult<()> + Send + Sync;

type Rows = BTreeMap<(KeyspaceId, Vec<u8>), Row>;

/// A row in memory.
#[derive(Clone, Debug)]
struct Row {
    /// `None`: it is removed.
    value: Option<Bytes>,
    /// The newest batch that it is of.
    batch: u64,
}

/// A batch in memory.
#[derive(Debug)]
struct Kept {
    batch: Batch,
    bytes: usize,
    /// Batches with rows that it changes.
    after: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Batches {
    /// By their numbers, which ascend.
    kept: BTreeMap<u64, Kept>,
    next: u64,
}

impl Batches {
    /// The numbers of `last` and of all batches that they build on.
    fn with_earlier(&self, last: BTreeSet<u64>) -> BTreeSet<u64> {
        let (mut found, mut left) = (BTreeSet::new(), Vec::from_iter(last));
        while let Some(number) = left.pop() {
            if let Some(kept) = self.kept.get(&number)
                && found.insert(number)
            {
                left.extend(&kept.after);
            }
        }
        found
    }
}

/// See the module's comment.
pub(crate) struct UnwrittenStore {
    below: Arc<dyn Store>,
    bytes: Arc<KeptBytes>,
    write_older: Mutex<Option<Box<WriteOlder>>>,
    /// Held while a batch is kept or written, so that both happen in the order of their numbers.
    batches: Mutex<Batches>,
    rows: RwLock<Arc<Rows>>,
    /// Rows in memory.
    count: AtomicUsize,
    /// Batches that were kept and are written by now.
    written: AtomicUsize,
}

impl UnwrittenStore {
    /// Over `below`.
    pub(crate) fn over(below: Arc<dyn Store>, bytes: Arc<KeptBytes>) -> UnwrittenStore {
        UnwrittenStore {
            below,
            bytes,
            write_older: Mutex::default(),
            batches: Mutex::default(),
            rows: RwLock::default(),
            count: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
        }
    }

    /// What all states of the store may keep in memory.
    pub(crate) fn bytes(&self) -> Arc<KeptBytes> {
        Arc::clone(&self.bytes)
    }

    /// Says how the kept batches of the states are written that this one builds on.
    pub(crate) fn write_older_by(
        &self,
        write: impl Fn(bool) -> StoreResult<()> + Send + Sync + 'static,
    ) {
        *self.write_older.lock() = Some(Box::new(write));
    }

    /// Whether nothing is in memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether kept batches were written since the last time.
    pub(crate) fn has_written(&self) -> bool {
        self.written.load(Ordering::Relaxed) > 0 && self.written.swap(0, Ordering::Relaxed) > 0
    }

    fn row(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<Option<Bytes>> {
        if self.is_empty() {
            return None;
        }
        Some(self.rows.read().get(&(keyspace, key.to_vec()))?.value.clone())
    }

    /// The kept batches of which `batch` changes rows.
    fn changed_by(&self, batch: &Batch) -> BTreeSet<u64> {
        let rows = self.rows.read();
        let row = |op| {
            let (keyspace, key, _) = parts(op);
            Some(rows.get(&(keyspace, key.to_vec()))?.batch)
        };
        batch.ops().iter().filter_map(row).collect()
    }

    /// Writes the batches `numbers`, which build on no others.
    fn write_batches(
        &self,
        batches: &mut Batches,
        numbers: &BTreeSet<u64>,
        reclaims: bool,
    ) -> StoreResult<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        if let Some(write_older) = &*self.write_older.lock() {
            write_older(reclaims)?;
        }
        for number in numbers {
            let Some(Kept { batch, bytes, .. }) = batches.kept.get(number) else { continue };
            let (mut batch, bytes) = (batch.clone(), *bytes);
            let keys: Vec<_> =
                batch.ops().iter().map(|op| (parts(op).0, parts(op).1.to_vec())).collect();
            if reclaims {
                batch.reclaims_space();
            }
            self.below.write(batch)?;
            batches.kept.remove(number);
            self.bytes.give_back(bytes);
            self.written.fetch_add(1, Ordering::Relaxed);
            let mut rows = self.rows.write();
            let own = Arc::make_mut(&mut rows);
            for key in keys {
                if own.get(&key).is_some_and(|row| row.batch == *number) {
                    own.remove(&key);
                }
            }
            self.count.store(own.len(), Ordering::Release);
        }
        Ok(())
    }

    fn write_all(&self, batches: &mut Batches, reclaims: bool) -> StoreResult<()> {
        let all = batches.kept.keys().copied().collect();
        self.write_batches(batches, &all, reclaims)
    }

    /// Keeps `batch` in memory. False if there is no memory for it.
    fn keep(&self, batches: &mut Batches, batch: Batch) -> bool {
        let size = |op| parts(op).1.len() + parts(op).2.map_or(0, Bytes::len) + ROW_BYTES;
        // Each row is in the batch and in the map.
        let bytes = 2 * batch.ops().iter().map(size).sum::<usize>();
        if !self.bytes.take(bytes) {
            return false;
        }
        if batches.kept.is_empty() {
            log::warn!(
                "the device has no room for the names of clones that are looked at: they stay in memory"
            );
        }
        let (number, after) = (batches.next, self.changed_by(&batch));
        batches.next += 1;
        let mut rows = self.rows.write();
        let own = Arc::make_mut(&mut rows);
        for op in batch.ops() {
            let (keyspace, key, value) = parts(op);
            own.insert((keyspace, key.to_vec()), Row { value: value.cloned(), batch: number });
        }
        self.count.store(own.len(), Ordering::Release);
        drop(rows);
        batches.kept.insert(number, Kept { batch, bytes, after });
        true
    }
}

fn parts(op: &Op) -> (KeyspaceId, &[u8], Option<&Bytes>) {
    match op {
        Op::Put { keyspace, key, value } => (*keyspace, key.as_slice(), Some(value)),
        Op::Delete { keyspace, key } => (*keyspace, key.as_slice(), None),
    }
}

impl std::fmt::Debug for UnwrittenStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows = self.count.load(Ordering::Relaxed);
        f.debug_struct("UnwrittenStore").field("below", &self.below).field("rows", &rows).finish()
    }
}

impl Drop for UnwrittenStore {
    fn drop(&mut self) {
        let bytes = self.batches.get_mut().kept.values().map(|kept| kept.bytes).sum();
        self.bytes.give_back(bytes);
    }
}

impl Store for UnwrittenStore {
    fn keyspace(&self, name: &str, options: KeyspaceOptions) -> StoreResult<KeyspaceId> {
        self.below.keyspace(name, options)
    }

    fn keyspace_names(&self) -> StoreResult<Vec<String>> {
        self.below.keyspace_names()
    }

    fn clear_keyspace(&self, keyspace: KeyspaceId) -> StoreResult<()> {
        self.below.clear_keyspace(keyspace)
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>> {
        match self.row(keyspace, key) {
            Some(value) => Ok(value),
            None => self.below.get(keyspace, key),
        }
    }

    fn prefetch(&self, keyspace: KeyspaceId, keys: &[&[u8]]) -> StoreResult<usize> {
        self.below.prefetch(keyspace, keys)
    }

    fn version(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<RowVersion> {
        // That of the store below says nothing of a row in memory, and is another one once the row is written.
        match self.row(keyspace, key) {
            Some(_) => None,
            None => self.below.version(keyspace, key),
        }
    }

    fn write(&self, batch: Batch) -> StoreResult<()> {
        if !self.is_empty() {
            let mut batches = self.batches.lock();
            let first = batches.with_earlier(self.changed_by(&batch));
            self.write_batches(&mut batches, &first, batch.is_reclaiming())?;
        }
        self.below.write(batch)
    }

    fn write_derived(&self, batch: Batch) -> StoreResult<()> {
        let mut batches = self.batches.lock();
        let write = |batches: &mut Batches| {
            let first = batches.with_earlier(self.changed_by(&batch));
            self.write_batches(batches, &first, false)?;
            self.below.write(batch.clone())
        };
        // While there are some already, the store is asked again only once it has room again.
        let tried = match !batches.kept.is_empty() && self.below.is_room_scarce() {
            true => None,
            false => Some(write(&mut batches)),
        };
        match tried {
            None | Some(Err(StoreError::NoSpace { .. })) => {}
            Some(written) => return written,
        }
        if self.keep(&mut batches, batch.clone()) {
            return Ok(());
        }
        write(&mut batches)
    }

    fn write_kept(&self, reclaims: bool) -> StoreResult<()> {
        let mut batches = self.batches.lock();
        self.write_all(&mut batches, reclaims)
    }

    fn insert_sorted(
        &self,
        keyspace: KeyspaceId,
        rows: SortedRows<'_>,
        external: bool,
    ) -> StoreResult<()> {
        self.write_kept(false)?;
        self.below.insert_sorted(keyspace, rows, external)
    }

    fn sync(&self) -> StoreResult<()> {
        if !self.is_empty() && !self.below.is_room_scarce() {
            match self.write_kept(false) {
                Ok(()) | Err(StoreError::NoSpace { .. }) => {}
                failed => return failed,
            }
        }
        self.below.sync()
    }

    fn syncs_begun(&self) -> Option<u64> {
        self.below.syncs_begun()
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>> {
        // What is written meanwhile is in both, and nothing in neither.
        let rows = self.rows.read();
        let own = rows_of(&rows, keyspace, &range, direction);
        let below = self.below.scan(keyspace, range, direction)?;
        drop(rows);
        Ok(merged_rows(own, below, direction))
    }

    fn each_row(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        visit: &mut dyn FnMut(&[u8], Bytes) -> bool,
    ) -> StoreResult<()> {
        if self.is_empty() {
            return self.below.each_row(keyspace, range, visit);
        }
        for row in self.scan(keyspace, range, Direction::Forward)? {
            let (key, value) = row?;
            if !visit(&key, value) {
                break;
            }
        }
        Ok(())
    }

    fn keys(&self, keyspace: KeyspaceId, range: KeyRange) -> StoreResult<KeyIter<'_>> {
        let rows = self.rows.read();
        let own = rows_of(&rows, keyspace, &range, Direction::Forward);
        let below = self.below.keys(keyspace, range)?;
        drop(rows);
        if own.is_empty() {
            return Ok(below);
        }
        let below = below.map(|key| key.map(|key| (key, ())));
        let own = own.into_iter().map(|(key, value)| (key, value.map(|_| ())));
        let both = Merged::new(own.collect(), Box::new(below), Direction::Forward);
        Ok(Box::new(both.map(|row| row.map(|(key, ())| key))))
    }

    fn snapshot(&self) -> StoreResult<Box<dyn StoreSnapshot + '_>> {
        let rows = self.rows.read();
        let below = self.below.snapshot()?;
        if rows.is_empty() {
            return Ok(below);
        }
        Ok(Box::new(Snapshot { rows: Arc::clone(&rows), below }))
    }

    fn set_external_sync(&self, hook: Box<dyn Fn() -> std::io::Result<()> + Send + Sync>) {
        self.below.set_external_sync(hook);
    }

    fn meets_locks(&self) -> bool {
        self.below.meets_locks()
    }

    fn is_room_scarce(&self) -> bool {
        self.below.is_room_scarce()
    }

    fn get_room(&self) -> StoreResult<bool> {
        self.below.get_room()
    }

    fn lend_inode(&self) -> bool {
        self.below.lend_inode()
    }

    fn metrics_json(&self) -> String {
        self.below.metrics_json()
    }

    fn empty_logs(&self) -> StoreResult<()> {
        self.below.empty_logs()
    }

    fn close(&self) -> StoreResult<()> {
        self.below.close()
    }
}

/// The rows in memory and those below at one moment.
struct Snapshot<'a> {
    rows: Arc<Rows>,
    below: Box<dyn StoreSnapshot + 'a>,
}

impl StoreSnapshot for Snapshot<'_> {
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>> {
        match self.rows.get(&(keyspace, key.to_vec())) {
            Some(row) => Ok(row.value.clone()),
            None => self.below.get(keyspace, key),
        }
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>> {
        let own = rows_of(&self.rows, keyspace, &range, direction);
        Ok(merged_rows(own, self.below.scan(keyspace, range, direction)?, direction))
    }
}

/// Rows in memory in the order in which they are wanted.
type Own<T> = Vec<(Bytes, Option<T>)>;

/// The rows of `range` in memory.
fn rows_of(
    rows: &Rows,
    keyspace: KeyspaceId,
    range: &KeyRange,
    direction: Direction,
) -> Own<Bytes> {
    if rows.is_empty() {
        return Vec::new();
    }
    let bound = |bound: &Bound<Vec<u8>>| bound.clone();
    let start = match bound(&range.start) {
        Bound::Included(key) => Bound::Included((keyspace, key)),
        Bound::Excluded(key) => Bound::Excluded((keyspace, key)),
        Bound::Unbounded => Bound::Included((keyspace, Vec::new())),
    };
    let is_within = |key: &Vec<u8>| match &range.end {
        Bound::Included(end) => key <= end,
        Bound::Excluded(end) => key < end,
        Bound::Unbounded => true,
    };
    let found = rows.range((start, Bound::Unbounded));
    let found = found.take_while(|((space, key), _)| *space == keyspace && is_within(key));
    let mut own: Own<Bytes> =
        found.map(|((_, key), row)| (Bytes::copy_from_slice(key), row.value.clone())).collect();
    if direction == Direction::Reverse {
        own.reverse();
    }
    own
}

fn merged_rows<'a>(own: Own<Bytes>, below: ScanIter<'a>, direction: Direction) -> ScanIter<'a> {
    match own.is_empty() {
        true => below,
        false => Box::new(Merged::new(own, below, direction)),
    }
}

type Below<'a, T> = Box<dyn Iterator<Item = StoreResult<(Bytes, T)>> + Send + 'a>;

/// Rows in memory over those below.
struct Merged<'a, T> {
    own: std::iter::Peekable<std::vec::IntoIter<(Bytes, Option<T>)>>,
    below: std::iter::Peekable<Below<'a, T>>,
    direction: Direction,
}

impl<'a, T> Merged<'a, T> {
    fn new(own: Own<T>, below: Below<'a, T>, direction: Direction) -> Merged<'a, T> {
        Merged { own: own.into_iter().peekable(), below: below.peekable(), direction }
    }
}

impl<T> Iterator for Merged<'_, T> {
    type Item = StoreResult<(Bytes, T)>;

    fn next(&mut self) -> Option<StoreResult<(Bytes, T)>> {
        loop {
            let Some((key, _)) = self.own.peek() else { return self.below.next() };
            if let Some(below) = self.below.peek() {
                let Ok((other, _)) = below else { return self.below.next() };
                let order = match self.direction {
                    Direction::Forward => other.cmp(key),
                    Direction::Reverse => key.cmp(other),
                };
                if order.is_lt() {
                    return self.below.next();
                }
                if order.is_eq() {
                    self.below.next();
                }
            }
            if let Some((key, Some(value))) = self.own.next() {
                return Some(Ok((key, value)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
