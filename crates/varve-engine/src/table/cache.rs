//! Blocks, indexes and filters of tables and values of segments in memory, within one budget; and a bounded number of open
//! files.
//!
//! 1. [`TableCache::get`] asks the table's filter, finds the block in its index and searches it, or the
//!    few blocks that the index cannot tell apart.
//! 2. What is not in memory is read (`load`), its checksum compared, and kept; least useful entries make room.
//! 3. A value that stands in a segment costs one more read; those that lookups ask for are kept like blocks,
//!    those that scans and merges pass are not.
//! 4. Tables that are looked up in keep their index and filters themselves, as long as there is room (`pinned`).
//! 5. Scans and compactions read blocks through [`TableCache::block`]; compactions keep none of them.
//!
//! Invariants: every byte that leaves this module was covered by a checksum over its content, the
//! file's salt and the offset; indexes and filters are charged to the same budget as blocks.

mod load;
mod pinned;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use varve_env::{Env, File};
use varve_format::block::Block;
use varve_format::filter::{Filter, PREFIX_BYTES, filter_hash};
use varve_format::index::Index;
use varve_format::section::Handle;
use varve_format::table::{Footer, Zones};
use varve_types::{FileNo, SeqNo};

use crate::files::format_error;
use crate::memtable::Found;
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::segment::Separated;
use crate::table::file::{Table, TableFile};
use crate::{StoreError, StoreResult};

pub(crate) use pinned::IndexSlot;

/// Bytes that the cache's own bookkeeping takes per entry, nearly.
const ENTRY_OVERHEAD_BYTES: u64 = 96;
/// A shard must hold an index and filter of a large table with room to spare.
const SHARD_BYTES_MIN: usize = 4 << 20;
const SHARDS_MAX: usize = 16;
/// The offset under which a table's index and filters are cached.
const INDEX_OFFSET: u64 = u64::MAX;
/// The offset under which the index of a table is cached whose filters are not wanted.
const BARE_INDEX_OFFSET: u64 = u64::MAX - 1;
/// One part in so many of the cache may be reserved for something else.
const RESERVED_SHARE: usize = 4;

/// Who says whether a table may hold a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilteredBy {
    /// The table's own filter.
    Table,
    /// The map of the sub-levels, which said that it may.
    Map,
}

/// Whether a block or value that was read stays in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may be wanted again.
    Keep,
    /// It is read in passing.
    Pass,
}

/// A table's index and filters.
#[derive(Debug)]
pub(crate) struct TableIndex {
    pub(crate) footer: Footer,
    pub(crate) index: Index,
    /// Where the blocks are, if not all are in the table's own file.
    pub(crate) zones: Option<Zones>,
    filter: Option<Filter>,
    prefix_filter: Option<Filter>,
}

impl TableIndex {
    /// False if no version of a key with this filter hash is in the table.
    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_contain(hash))
    }

    /// False if no key with this prefix is in the table.
    pub(crate) fn may_hold_prefix(&self, prefix: &[u8; PREFIX_BYTES]) -> bool {
        self.prefix_filter.as_ref().is_none_or(|filter| filter.may_contain(filter_hash(prefix)))
    }

    /// Where block `number` of `table` stands; `None` beyond the last.
    pub(crate) fn place<'a>(
        &self,
        table: &'a Table,
        number: usize,
    ) -> StoreResult<Option<BlockPlace<'a>>> {
        let Some(handle) = self.index.handle(number) else { return Ok(None) };
        match table.place(self.zones.as_ref(), handle) {
            Some((file, handle)) => Ok(Some(BlockPlace { file, handle })),
            None => {
                let offset = self.footer.index.offset;
                let detail = format!("block {number} lies in none of the table's runs");
                Err(StoreError::Damaged { path: table.path().to_owned(), offset, detail })
            }
        }
    }

    /// The blocks of `table` that hold what it stands for up to the key `end`, or up to its own, nearly: the first, and how
    /// many.
    pub(crate) fn blocks_within(&self, table: &Table, end: Option<&[u8]>) -> (usize, usize) {
        let (index, count) = (&self.index, self.index.block_count());
        let first = index.find(&table.meta().smallest_key, SeqNo::MAX);
        let first = first.map_or(0, |blocks| *blocks.start()).min(count);
        let last = end.and_then(|end| index.last_below(end)).unwrap_or(count);
        (first, (last + 1).clamp(first, count) - first)
    }

    fn memory_bytes(&self) -> usize {
        let filters = [&self.filter, &self.prefix_filter];
        let filters = filters.into_iter().flatten().map(Filter::memory_bytes).sum::<usize>();
        let zones = self.zones.as_ref().map_or(0, Zones::memory_bytes);
        size_of::<TableIndex>() + self.index.memory_bytes() + zones + filters
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CacheKey {
    file: FileNo,
    offset: u64,
}

#[derive(Clone, Debug)]
enum Cached {
    Block(Block),
    Value(Bytes),
    Index(Arc<TableIndex>),
}

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<CacheKey, Cached> for ByBytes {
    fn weight(&self, _: &CacheKey, cached: &Cached) -> u64 {
        let bytes = match cached {
            Cached::Block(block) => block.memory_bytes(),
            Cached::Value(value) => value.len(),
            Cached::Index(index) => index.memory_bytes(),
        };
        bytes as u64 + ENTRY_OVERHEAD_BYTES
    }
}

type Entries =
    Cache<CacheKey, Cached, ByBytes, DefaultHashBuilder, DefaultLifecycle<CacheKey, Cached>>;

/// Bytes of the cache's capacity that something else uses until this is dropped.
pub(crate) struct Reservation {
    cache: Arc<TableCache>,
    bytes: usize,
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.cache.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
        self.cache.fit();
    }
}

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct TableCache {
    env: Arc<dyn Env>,
    entries: Entries,
    capacity_bytes: usize,
    /// Bytes of the capacity that others use.
    reserved: AtomicUsize,
    /// Bytes of the capacity that indexes outside use.
    pinned: AtomicUsize,
    /// Bytes of the capacity that are left to them: what they have had at most, rounded up. Each change of the cache's
    /// capacity costs some of its memory of what it evicted, so there are few, all upwards.
    pinned_room: AtomicUsize,
    /// Held while the capacity of `entries` is set.
    fitting: Mutex<()>,
    files: Cache<FileNo, Arc<dyn File>>,
    metrics: Arc<Metrics>,
}

impl TableCache {
    /// An empty cache, as large as `options` say.
    pub(crate) fn new(
        env: Arc<dyn Env>,
        options: &DbOptions,
        metrics: Arc<Metrics>,
    ) -> StoreResult<TableCache> {
        let (capacity_bytes, block_bytes) = (options.cache_bytes(), options.block_bytes as usize);
        let open_tables_max = options.open_tables_max.max(1);
        let options = OptionsBuilder::new()
            .shards((capacity_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX))
            .estimated_items_capacity((capacity_bytes / block_bytes.max(1)).max(16))
            .weight_capacity(capacity_bytes as u64)
            .build()
            .map_err(|error| StoreError::Invalid(format!("cache options: {error}")))?;
        let entries = Cache::with_options(
            options,
            ByBytes,
            DefaultHashBuilder::default(),
            Default::default(),
        );
        let files = Cache::new(open_tables_max);
        Ok(TableCache {
            env,
            entries,
            capacity_bytes,
            reserved: AtomicUsize::new(0),
            pinned: AtomicUsize::new(0),
            pinned_room: AtomicUsize::new(0),
            fitting: Mutex::new(()),
            files,
            metrics,
        })
    }

    /// Bytes in use, those reserved by others and those of pinned indexes among them.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let outside = self.reserved.load(Ordering::Relaxed) + self.pinned.load(Ordering::Relaxed);
        self.entries.weight() + outside as u64
    }

    /// The most bytes of one reservation, so that there can be two: of what is and of what comes after it.
    pub(crate) fn reserve_max(&self) -> usize {
        self.capacity_bytes / RESERVED_SHARE / 2
    }

    /// Takes `bytes` from the cache for something else; `None` if too much is taken already.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        let most = self.capacity_bytes / RESERVED_SHARE;
        let add = |reserved: usize| reserved.checked_add(bytes).filter(|sum| *sum <= most);
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        self.fit();
        Some(Reservation { cache: Arc::clone(self), bytes })
    }

    /// Leaves to the entries what nobody else has taken of the capacity.
    fn fit(&self) {
        let _one = self.fitting.lock();
        let reserved = self.reserved.load(Ordering::Relaxed);
        let outside = reserved + self.pinned_room.load(Ordering::Relaxed);
        let left = self.capacity_bytes.saturating_sub(outside);
        self.entries.set_capacity(left as u64);
    }

    /// The newest version of `key` in `table` not newer than `seq`. `hash` is the key's filter hash.
    pub(crate) fn get(
        self: &Arc<Self>,
        table: &Table,
        key: &[u8],
        hash: u64,
        seq: SeqNo,
        filtered_by: FilteredBy,
    ) -> StoreResult<Option<Found>> {
        Ok(self.version(table, key, hash, seq, filtered_by)?.map(|(_, found)| found))
    }

    /// The newest version of `key` in `table` and when it was written.
    pub(crate) fn newest(
        self: &Arc<Self>,
        table: &Table,
        key: &[u8],
        hash: u64,
    ) -> StoreResult<Option<(SeqNo, Found)>> {
        self.version(table, key, hash, SeqNo::MAX, FilteredBy::Table)
    }

    fn version(
        self: &Arc<Self>,
        table: &Table,
        key: &[u8],
        hash: u64,
        seq: SeqNo,
        filtered_by: FilteredBy,
    ) -> StoreResult<Option<(SeqNo, Found)>> {
        let cached;
        let index = match table.index_slot().get() {
            Some(pinned) => &*pinned.index,
            None => {
                cached = self.looked_up_index(table, filtered_by)?;
                &*cached
            }
        };
        if filtered_by == FilteredBy::Table && !index.may_hold(hash) {
            self.metrics.filter_negatives.add(1);
            return Ok(None);
        }
        let seq = table.bound_of(seq);
        let Some(blocks) = index.index.find(key, seq) else { return Ok(None) };
        let found = self.search(table, index, blocks, key, seq)?;
        if found.is_none() && (index.filter.is_some() || filtered_by == FilteredBy::Map) {
            self.metrics.filter_false_positives.add(1);
        }
        Ok(found)
    }

    /// The first block in which `key` is to be looked for; `None` if it is not in `table`, by the filter or the index.
    pub(crate) fn first_block<'a>(
        self: &Arc<Self>,
        table: &'a Table,
        key: &[u8],
        hash: u64,
        filtered_by: FilteredBy,
    ) -> StoreResult<Option<BlockPlace<'a>>> {
        let index = match table.index_slot().get() {
            Some(pinned) => Arc::clone(&pinned.index),
            None => self.looked_up_index(table, filtered_by)?,
        };
        if filtered_by == FilteredBy::Table && !index.may_hold(hash) {
            return Ok(None);
        }
        match index.index.find(key, table.bound_of(SeqNo::MAX)) {
            Some(blocks) => index.place(table, *blocks.start()),
            None => Ok(None),
        }
    }

    /// The index of a table in which something is looked up, which is pinned if there is room.
    fn looked_up_index(
        self: &Arc<Self>,
        table: &Table,
        filtered_by: FilteredBy,
    ) -> StoreResult<Arc<TableIndex>> {
        let index = self.cached_index(table, filtered_by)?;
        if filtered_by == FilteredBy::Table {
            self.pin(table, &index);
        }
        Ok(index)
    }

    /// The newest version of `key` as of `seq` in `blocks`, which the index cannot tell apart. Nearly
    /// always there is one; of three and more, all but two are ruled out by halving.
    fn search(
        &self,
        table: &Table,
        index: &TableIndex,
        blocks: RangeInclusive<usize>,
        key: &[u8],
        seq: SeqNo,
    ) -> StoreResult<Option<(SeqNo, Found)>> {
        let (mut first, last) = blocks.into_inner();
        let mut bound = last;
        while bound > first + 1 {
            let middle = first + (bound - first) / 2;
            self.metrics.index_ties.add(1);
            self.metrics.lookup_blocks.add(1);
            let Some((block, at)) = self.numbered(table, index, middle)? else { break };
            let begins = block.first_key().map_err(|error| at.damaged(error))?;
            if begins < key {
                first = middle;
            } else {
                bound = middle;
            }
        }
        for number in first..=last {
            self.metrics.lookup_blocks.add(1);
            let Some((block, at)) = self.numbered(table, index, number)? else { break };
            let at = |error| at.damaged(error);
            if number > first {
                self.metrics.index_ties.add(1);
                if block.first_key().map_err(at)? > key {
                    break;
                }
            }
            if let Some(found) = block.get(key, seq).map_err(at)? {
                let seq = table.seq_of(found.seq);
                let found = table.found(found.kind, found.value).map_err(at)?;
                return Ok(Some((seq, found)));
            }
        }
        Ok(None)
    }

    /// Block `number` and where it stands; `None` beyond the last.
    fn numbered<'a>(
        &self,
        table: &'a Table,
        index: &TableIndex,
        number: usize,
    ) -> StoreResult<Option<(Block, BlockPlace<'a>)>> {
        let Some(place) = index.place(table, number)? else { return Ok(None) };
        let block = match self.cached_block(place) {
            Some(block) => block,
            None => {
                self.metrics.lookup_reads.add(1);
                self.read_block(place, Admission::Keep)?
            }
        };
        Ok(Some((block, place)))
    }

    /// Whether `table` may hold keys that begin with `prefix`, by its prefix filter (TableFS 4.2.4).
    pub(crate) fn may_hold_prefix(
        &self,
        table: &Table,
        prefix: &[u8; PREFIX_BYTES],
    ) -> StoreResult<bool> {
        let may = self.index(table)?.may_hold_prefix(prefix);
        if !may {
            self.metrics.prefix_filter_negatives.add(1);
        }
        Ok(may)
    }

    /// The index and filters of `table`.
    pub(crate) fn index(&self, table: &Table) -> StoreResult<Arc<TableIndex>> {
        match table.index_slot().get() {
            Some(pinned) => Ok(Arc::clone(&pinned.index)),
            None => self.cached_index(table, FilteredBy::Table),
        }
    }

    fn cached_index(&self, table: &Table, by: FilteredBy) -> StoreResult<Arc<TableIndex>> {
        let offset = match by {
            FilteredBy::Table => INDEX_OFFSET,
            FilteredBy::Map => BARE_INDEX_OFFSET,
        };
        let place = CacheKey { file: table.file_no(), offset };
        // Threads that miss the same index wait for the one that loads it.
        let load = || match table.index_slot().get() {
            // It was pinned since the caller looked.
            Some(pinned) if by == FilteredBy::Table => Ok(Cached::Index(Arc::clone(&pinned.index))),
            _ => self.read_index(table, by).map(|index| Cached::Index(Arc::new(index))),
        };
        match self.entries.get_or_insert_with(&place, load)? {
            Cached::Index(index) => Ok(index),
            Cached::Block(_) | Cached::Value(_) => {
                Err(StoreError::Invalid("something else cached as an index".to_owned()))
            }
        }
    }

    /// A data block.
    pub(crate) fn block(&self, at: BlockPlace<'_>, admission: Admission) -> StoreResult<Block> {
        match self.cached_block(at) {
            Some(block) => Ok(block),
            None => self.read_block(at, admission),
        }
    }

    /// The block if it is in memory.
    fn cached_block(&self, at: BlockPlace<'_>) -> Option<Block> {
        let place = CacheKey { file: at.file.no(), offset: at.handle.offset };
        let Some(Cached::Block(block)) = self.entries.get(&place) else { return None };
        self.metrics.cache_hits.add(1);
        Some(block)
    }

    /// Reads a block that is not in memory.
    fn read_block(&self, at: BlockPlace<'_>, admission: Admission) -> StoreResult<Block> {
        let block = self.load_block(at)?;
        if admission == Admission::Keep {
            self.metrics.cache_misses.add(1);
            let place = CacheKey { file: at.file.no(), offset: at.handle.offset };
            self.entries.insert(place, Cached::Block(block.clone()));
        }
        Ok(block)
    }

    /// Whether the block at `place` is in memory.
    pub(crate) fn holds(&self, place: BlockPlace<'_>) -> bool {
        self.holds_at(place.file.no(), place.handle.offset)
    }

    /// Whether what stands at `offset` of `file` is in memory.
    fn holds_at(&self, file: FileNo, offset: u64) -> bool {
        self.entries.contains_key(&CacheKey { file, offset })
    }

    /// The value that is found, if one is.
    pub(crate) fn value_of(
        &self,
        found: Found,
        admission: Admission,
    ) -> StoreResult<Option<Bytes>> {
        match found {
            Found::Value(value) => Ok(Some(value)),
            Found::Separated(separated) => self.value(&separated, admission).map(Some),
            Found::Tombstone => Ok(None),
        }
    }

    /// A value that stands in a segment.
    pub(crate) fn value(&self, separated: &Separated, admission: Admission) -> StoreResult<Bytes> {
        let Separated { segment, handle } = separated;
        let place = CacheKey { file: segment.file_no(), offset: handle.offset };
        if let Some(Cached::Value(value)) = self.entries.get(&place) {
            self.metrics.value_hits.add(1);
            return Ok(value);
        }
        let value = self.load_value(separated)?;
        if admission == Admission::Keep {
            self.entries.insert(place, Cached::Value(value.clone()));
        }
        Ok(value)
    }

    /// Forgets the open file of a table or segment that is about to go, so that its room is given back.
    ///
    /// REQUIRES: it is marked as obsolete already, so that nobody keeps it open anew.
    pub(crate) fn forget(&self, file: FileNo) {
        self.files.remove(&file);
        self.entries.remove(&CacheKey { file, offset: INDEX_OFFSET });
        self.entries.remove(&CacheKey { file, offset: BARE_INDEX_OFFSET });
    }
}

/// Where a block stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPlace<'a> {
    pub(crate) file: &'a Arc<TableFile>,
    pub(crate) handle: Handle,
}

impl BlockPlace<'_> {
    /// The error of the block.
    pub(crate) fn damaged(&self, error: varve_format::FormatError) -> StoreError {
        format_error(self.file.path(), error.shifted(self.handle.offset))
    }
}

/// The error of a section at `offset` of `table`'s own file.
pub(crate) fn damaged(table: &Table, offset: u64, error: varve_format::FormatError) -> StoreError {
    format_error(table.path(), error.shifted(offset))
}
