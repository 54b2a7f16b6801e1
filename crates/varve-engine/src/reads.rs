//! The read path: memtables, then tables, newest first.
//!
//! 1. A lookup asks the memtables of the present read state. If they do not have the key, it keeps the read state
//!    and searches the tables of the key space, from the newest to the oldest.
//! 2. A scan pins a state, takes the read state after that, and merges what memtables and tables have of its range.
//! 3. A reader of a branch sees a stack of layers ([`crate::read_state::Layer`]). Each is searched as above.
//!
//! Invariants:
//! - A read takes no lock of writers, flushes or compactions, and the locks that it takes are never held during I/O.
//! - A read state that a scan walks is taken after its pin: what the pin sees is in it.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use varve_format::filter::{PREFIX_BYTES, filter_hash};
use varve_types::{BranchId, KeyspaceId, SeqNo};

use crate::base::Base;
use crate::health::Health;
use crate::iter::level::LevelSource;
use crate::iter::memory::MemorySource;
use crate::iter::merge::Merge;
use crate::iter::rows::{Keys, Rows};
use crate::iter::{KeyBounds, Source, common_prefix};
use crate::keyspace::Keyspace;
use crate::memtable::{Found, is_empty_range};
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::read_state::{Layer, ReadState, ReadStates};
use crate::snapshot::{Pin, Snapshots};
use crate::store::{KeyIter, ScanIter};
use crate::sublevel_map::findings::Findings;
use crate::table::cache::{Admission, BlockPlace, FilteredBy, TableCache};
use crate::table::file::Table;
use crate::version::Version;
use crate::{Direction, KeyRange, RowVersion, StoreResult, StoreSnapshot, ValuePolicy};

/// What reads rows.
pub(crate) struct Reads {
    pub(crate) options: Arc<DbOptions>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) cache: Arc<TableCache>,
    /// What lookups found, for the maps of the sub-levels.
    pub(crate) findings: Arc<Findings>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) read_states: Arc<ReadStates>,
}

impl Reads {
    /// Reads of the store that `base` is of.
    pub(crate) fn new(base: &Base, findings: Arc<Findings>) -> Reads {
        let Base { options, health, metrics, cache, snapshots, read_states, .. } = base.clone();
        Reads { options, health, metrics, cache, findings, snapshots, read_states }
    }

    /// Pins the newest state, and a read state that has all of it.
    pub(crate) fn pinned(&self) -> (Pin, Arc<ReadState>) {
        self.snapshots.pin(|| self.read_states.get())
    }

    /// See [`crate::Store::keyspace_names`].
    pub(crate) fn keyspace_names(&self) -> Vec<String> {
        let read_state = self.read_states.get();
        read_state.keyspaces.iter().map(|space| space.name.to_string()).collect()
    }

    /// The value of `key` in `tree` (`None`: the store itself) as of `seq`.
    pub(crate) fn get(
        &self,
        tree: Option<BranchId>,
        keyspace: KeyspaceId,
        key: &[u8],
        seq: SeqNo,
    ) -> StoreResult<Option<Bytes>> {
        self.metrics.gets.add(1);
        let Some(found) = self.locate(tree, keyspace, key, seq)? else { return Ok(None) };
        let value = self.cache.value_of(found, Admission::Keep)?;
        self.metrics.gets_found.add(u64::from(value.is_some()));
        Ok(value)
    }

    /// Fetches the newest rows of `keys`, and their values where they stand apart. Returns how many blocks and values it fetched.
    pub(crate) fn prefetch(&self, keyspace: KeyspaceId, keys: &[&[u8]]) -> StoreResult<usize> {
        self.health.check_open()?;
        let read_state = self.read_states.get();
        let space = read_state.keyspace(keyspace)?;
        let mut blocks = Vec::new();
        for key in keys {
            blocks.extend(self.block_to_fetch(space, key)?);
        }
        // Several rows may be in one.
        blocks.dedup_by_key(|block| (block.file.no(), block.handle.offset));
        self.cache.prefetch_blocks(&blocks)?;
        let mut fetched = blocks.len();
        let apart = if self.options.values == ValuePolicy::InRow { &[] } else { keys };
        for key in apart {
            if let Some(Found::Separated(separated)) =
                self.locate(None, keyspace, key, SeqNo::MAX)?
            {
                fetched += usize::from(self.cache.prefetch_value(&separated)?);
            }
        }
        self.metrics.rows_prefetched.add(fetched as u64);
        Ok(fetched)
    }

    /// The block in which a lookup of `key` in tables begins to search, unless there is none or it is in memory.
    fn block_to_fetch<'a>(
        &self,
        space: &'a Keyspace,
        key: &[u8],
    ) -> StoreResult<Option<BlockPlace<'a>>> {
        let (version, hash) = (&*space.version, filter_hash(key));
        let named = version.map().map(|map| map.lookup(key, hash));
        for table in version.sublevels().filter_map(|(_, sublevel)| sublevel.find(key)) {
            let filtered_by = match named.zip(version.number(table)) {
                Some((named, number)) if !named.contains(number) => continue,
                Some(_) => FilteredBy::Map,
                None => FilteredBy::Table,
            };
            if let Some(block) = self.cache.first_block(table, key, hash, filtered_by)? {
                return Ok(Some(block).filter(|block| !self.cache.holds(*block)));
            }
        }
        Ok(None)
    }

    /// What `key` is in `tree` as of `seq`.
    fn locate(
        &self,
        tree: Option<BranchId>,
        keyspace: KeyspaceId,
        key: &[u8],
        seq: SeqNo,
    ) -> StoreResult<Option<Found>> {
        self.health.check_open()?;
        let hash = filter_hash(key);
        // What is in a memtable of the uppermost layer is found without holding on to a read state.
        let found = self.read_states.with(|read_state| {
            let layers = read_state.layers(tree, keyspace, seq)?;
            let found =
                layers.first().and_then(|layer| in_memtables(read_state, *layer, key, hash));
            StoreResult::Ok(found.ok_or_else(|| Arc::clone(read_state)))
        })?;
        match found {
            Ok(found) => Ok(Some(found)),
            Err(read_state) => self.get_below_memtables(
                &read_state,
                &read_state.layers(tree, keyspace, seq)?,
                key,
                hash,
            ),
        }
    }

    /// The version of the row of `key` in every key space; `None` once the store is closed.
    pub(crate) fn version(&self, key: &[u8]) -> Option<RowVersion> {
        self.health.check_open().ok()?;
        let (read_states, writes) =
            (self.read_states.changes(), self.read_states.writes.of(filter_hash(key)));
        Some(RowVersion { read_states, writes })
    }

    /// What `key` is, which no memtable has in the first of `layers`.
    fn get_below_memtables(
        &self,
        read_state: &ReadState,
        layers: &[Layer<'_>],
        key: &[u8],
        hash: u64,
    ) -> StoreResult<Option<Found>> {
        let Some((first, others)) = layers.split_first() else { return Ok(None) };
        if let Some(found) = self.get_from_tables(first.space, key, hash, first.seq)? {
            return Ok(Some(found));
        }
        for layer in others {
            if let Some(found) = self.find(read_state, *layer, key, hash)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// What `key`, whose filter hash is `hash`, is in `layer`, if the layer says anything of it.
    pub(crate) fn find(
        &self,
        read_state: &ReadState,
        layer: Layer<'_>,
        key: &[u8],
        hash: u64,
    ) -> StoreResult<Option<Found>> {
        match in_memtables(read_state, layer, key, hash) {
            Some(found) => Ok(Some(found)),
            None => self.get_from_tables(layer.space, key, hash, layer.seq),
        }
    }

    /// The newest version of `key`, whose filter hash is `hash`, as of `seq` in the tables.
    fn get_from_tables(
        &self,
        space: &Keyspace,
        key: &[u8],
        hash: u64,
        seq: SeqNo,
    ) -> StoreResult<Option<Found>> {
        let version = &*space.version;
        let mut named = version.map().map(|map| map.lookup(key, hash));
        for table in version.sublevels().filter_map(|(_, sublevel)| sublevel.find(key)) {
            let number = version.number(table);
            let mut filtered_by = FilteredBy::Table;
            if let Some((named, number)) = named.zip(number) {
                if !named.contains(number) {
                    self.metrics.map_negatives.add(1);
                    continue;
                }
                filtered_by = FilteredBy::Map;
                self.metrics.map_hits.add(1);
            }
            // The newest row, which the map names, may be newer than the reader: then others count too.
            named = named.filter(|_| table.meta().largest_seq <= seq);
            if table.meta().smallest_seq > seq {
                continue;
            }
            if let Some(found) = self.cache.get(table, key, hash, seq, filtered_by)? {
                if number.is_some() {
                    self.findings.note(space.id, key, table.file_no());
                }
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The rows of `range` in `tree` as `pin` sees them.
    ///
    /// REQUIRES: `read_state` was taken after `pin`.
    pub(crate) fn scan(
        &self,
        pin: Pin,
        read_state: Arc<ReadState>,
        tree: Option<BranchId>,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'static>> {
        Ok(Box::new(self.walk(pin, read_state, tree, keyspace, &range, direction)?))
    }

    /// The keys of the rows of `range` in `tree` as `pin` sees them.
    ///
    /// REQUIRES: `read_state` was taken after `pin`.
    pub(crate) fn keys(
        &self,
        pin: Pin,
        read_state: Arc<ReadState>,
        tree: Option<BranchId>,
        keyspace: KeyspaceId,
        range: &KeyRange,
    ) -> StoreResult<KeyIter<'static>> {
        Ok(Box::new(Keys(self.walk(pin, read_state, tree, keyspace, range, Direction::Forward)?)))
    }

    /// The same, not yet taken apart.
    ///
    /// REQUIRES: `read_state` was taken after `pin`.
    pub(crate) fn walk(
        &self,
        pin: Pin,
        read_state: Arc<ReadState>,
        tree: Option<BranchId>,
        keyspace: KeyspaceId,
        range: &KeyRange,
        direction: Direction,
    ) -> StoreResult<Rows> {
        self.health.check_open()?;
        self.metrics.scans.add(1);
        let layers = read_state.layers(tree, keyspace, pin.seq())?;
        let rows = self.rows(&read_state, &layers, range, direction)?;
        Ok(rows.holding(pin, Arc::clone(&read_state)))
    }

    /// The rows of `range` in a stack of layers.
    pub(crate) fn rows(
        &self,
        read_state: &ReadState,
        layers: &[Layer<'_>],
        range: &KeyRange,
        direction: Direction,
    ) -> StoreResult<Rows> {
        let mut rows = Rows::new(Arc::clone(&self.cache), range, direction);
        let bounds = (
            range.start.as_ref().map(|key| key.as_slice()),
            range.end.as_ref().map(|key| key.as_slice()),
        );
        if is_empty_range(bounds) {
            return Ok(rows);
        }
        for Layer { space, seq } in layers {
            let mut sources: Vec<Box<dyn Source>> = Vec::new();
            for memtable in read_state.memtables() {
                let memtable = Arc::clone(memtable);
                let source = MemorySource::new(memtable, space.id, *seq, bounds, direction);
                if source.valid() {
                    sources.push(Box::new(source));
                }
            }
            let prefix = if space.options.prefixed { common_prefix(bounds) } else { None };
            self.table_sources(&space.version, bounds, prefix, direction, &mut sources)?;
            rows.push_layer(Merge::new(sources, direction), *seq);
        }
        Ok(rows)
    }

    /// Sources for the tables that may hold rows of `range`, skipping those whose prefix filter
    /// denies the one prefix that the range is about.
    fn table_sources(
        &self,
        version: &Version,
        range: KeyBounds<'_>,
        prefix: Option<[u8; PREFIX_BYTES]>,
        direction: Direction,
        sources: &mut Vec<Box<dyn Source>>,
    ) -> StoreResult<()> {
        let map = version.map();
        let named = prefix.as_ref().and_then(|prefix| map.and_then(|map| map.of_prefix(prefix)));
        let wanted = |table: &Arc<Table>| match (&prefix, named.zip(version.number(table))) {
            (_, Some((named, number))) => {
                let may = named.contains(number);
                self.metrics.map_negatives.add(u64::from(!may));
                Ok(may)
            }
            (Some(prefix), None) => self.cache.may_hold_prefix(table, prefix),
            (None, None) => Ok(true),
        };
        for (_, sublevel) in version.sublevels() {
            let mut tables = Vec::new();
            for table in overlapping(sublevel.tables(), range) {
                if wanted(table)? {
                    tables.push(Arc::clone(table));
                }
            }
            if !tables.is_empty() {
                let (cache, keep) = (Arc::clone(&self.cache), Admission::Keep);
                let tables = tables.into_iter();
                let source = LevelSource::new(cache, tables, range, direction, keep)?;
                sources.push(Box::new(source));
            }
        }
        Ok(())
    }
}

/// The newest version of `key`, whose filter hash is `hash`, that a reader of `layer` sees in memtables.
fn in_memtables(read_state: &ReadState, layer: Layer<'_>, key: &[u8], hash: u64) -> Option<Found> {
    read_state.memtables().find_map(|memtable| memtable.get(layer.space.id, key, hash, layer.seq))
}

/// The tables of a sub-level that may hold keys of `range`.
fn overlapping<'a>(tables: &'a [Arc<Table>], range: KeyBounds<'_>) -> &'a [Arc<Table>] {
    let first = match range.0 {
        Bound::Included(start) => tables.partition_point(|t| *t.meta().largest_key < *start),
        Bound::Excluded(start) => tables.partition_point(|t| *t.meta().largest_key <= *start),
        Bound::Unbounded => 0,
    };
    let rest = &tables[first..];
    let count = match range.1 {
        Bound::Included(end) => rest.partition_point(|t| *t.meta().smallest_key <= *end),
        Bound::Excluded(end) => rest.partition_point(|t| *t.meta().smallest_key < *end),
        Bound::Unbounded => rest.len(),
    };
    &rest[..count]
}

/// A pinned state.
pub(crate) struct DbSnapshot<'a> {
    pub(crate) reads: &'a Reads,
    pub(crate) tree: Option<BranchId>,
    pub(crate) pin: Pin,
}

impl StoreSnapshot for DbSnapshot<'_> {
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>> {
        self.reads.get(self.tree, keyspace, key, self.pin.seq())
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>> {
        let (pin, read_state) = (self.pin.clone(), self.reads.read_states.get());
        self.reads.scan(pin, read_state, self.tree, keyspace, range, direction)
    }
}
