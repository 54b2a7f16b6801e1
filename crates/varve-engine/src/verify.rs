//! Reads every table and compares it with what the manifest and the table itself say.
//!
//! For each table: footer, index, filters and properties decode; every block has its checksum; versions
//! are in order and within the table's range of keys and sequence numbers; a table with a sequence override holds one
//! version of each key; the filters deny none of them; their number is right; the segments that they point into have
//! their headers, the values their checksums. For each key space: tables of a sub-level do not overlap.
//!
//! Nothing is taken from the cache, and one table's damage does not hide another's.

use std::collections::BTreeMap;

use varve_format::EntryKind;
use varve_format::block::{Block, BlockCursor, internal_cmp};
use varve_format::filter::{PREFIX_BYTES, SubLevel, filter_hash};
use varve_format::section::Handle;
use varve_format::segment::{SegmentShare, ValuePointer};
use varve_format::table::Properties;
use varve_types::{FileNo, SeqNo};

use crate::memtable::Found;
use crate::reads::Reads;
use crate::segment::Separated;
use crate::sublevel_map::map::SublevelMap;
use crate::table::cache::BlockPlace;
use crate::table::cache::{TableCache, TableIndex};
use crate::table::file::Table;
use crate::{StoreError, StoreResult};

/// How far a verification is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Tables in all.
    pub tables: u64,
    /// Tables done.
    pub tables_done: u64,
    /// Bytes of all tables.
    pub bytes: u64,
    /// Bytes of the tables done.
    pub bytes_done: u64,
}

/// What a verification found.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// Tables read.
    pub tables: u64,
    /// Blocks read.
    pub blocks: u64,
    /// Versions found.
    pub versions: u64,
    /// What is wrong; nothing if all is well.
    pub errors: Vec<StoreError>,
}

/// What the versions of a table, read one after the other, amount to.
struct Walk<'a> {
    cache: &'a TableCache,
    table: &'a Table,
    index: &'a TableIndex,
    prefixed: bool,
    /// The map of the sub-levels, if the table has a number in it.
    map: Option<(&'a SublevelMap, SubLevel)>,
    /// Keys may have several versions although all count as of one write.
    may_repeat: bool,
    last: Option<(Vec<u8>, SeqNo)>,
    versions: u64,
    tombstones: u64,
    /// Bytes of records that versions point at, by segment.
    segments: BTreeMap<FileNo, u64>,
}

/// Reads every table of the store as it is now; calls `progress` after each.
pub(crate) fn verify(
    reads: &Reads,
    progress: &mut dyn FnMut(VerifyProgress),
) -> StoreResult<VerifyReport> {
    reads.health.check_open()?;
    let read_state = reads.read_states.get();
    let mut report = VerifyReport::default();
    let mut done = VerifyProgress::default();
    for (_, table) in read_state.spaces().flat_map(|space| space.version.tables()) {
        done.tables += 1;
        done.bytes += table.meta().total_bytes();
    }
    for space in read_state.spaces() {
        if let Err(broken) = space.version.check() {
            let message = format!("key space {}: {broken}", space.name);
            report.errors.push(StoreError::Invalid(message));
        }
        for (_, table) in space.version.tables() {
            reads.health.check_open()?;
            let prefixed = space.options.prefixed;
            let number = space.version.number(table);
            let map = space.version.map().map(|map| &**map).zip(number);
            if let Err(error) = verify_table(&reads.cache, table, prefixed, map, &mut report) {
                report.errors.push(error);
            }
            report.tables += 1;
            done.tables_done += 1;
            done.bytes_done += table.meta().total_bytes();
            progress(done);
        }
    }
    Ok(report)
}

/// Reads `table`, past the cache, and compares it with what the manifest says of it.
pub(crate) fn verify_table(
    cache: &TableCache,
    table: &Table,
    prefixed: bool,
    map: Option<(&SublevelMap, SubLevel)>,
    report: &mut VerifyReport,
) -> StoreResult<()> {
    let index = cache.load_index(table)?;
    let handle = index.footer.properties;
    let properties = cache.section(table, handle, |content| Properties::decode(content))?;
    for segment in table.segments() {
        cache.check_header(segment)?;
    }
    let mut walk = Walk {
        cache,
        table,
        index: &index,
        prefixed,
        map,
        may_repeat: is_from_branch(table, &properties),
        last: None,
        versions: 0,
        tombstones: 0,
        segments: BTreeMap::new(),
    };
    for block_no in 0..index.index.block_count() {
        let Some(place) = index.place(table, block_no)? else { break };
        walk.block(cache.load_block(place)?, place, properties.newest.get(block_no).copied())?;
        report.blocks += 1;
    }
    report.versions += walk.versions;
    walk.finish(&properties, handle)
}

/// The error of what stands at `place`.
fn wrong(place: BlockPlace<'_>, detail: &str) -> StoreError {
    let path = place.file.path().to_path_buf();
    StoreError::Damaged { path, offset: place.handle.offset, detail: detail.to_owned() }
}

/// Whether `table` came to its key space by the commit of a branch, whose own key space its file still names.
fn is_from_branch(table: &Table, properties: &Properties) -> bool {
    properties.keyspace.is_of_branch() && table.meta().seq_override.is_some()
}

impl Walk<'_> {
    /// Whether the map says that no table with a number holds `key`, or that this one has nothing of its prefix.
    fn map_denies(&self, key: &[u8]) -> bool {
        let Some((map, number)) = self.map else { return false };
        let named = key.first_chunk().and_then(|prefix| map.of_prefix(prefix));
        map.lookup(key, filter_hash(key)).is_empty()
            || (self.prefixed && named.is_some_and(|named| !named.contains(number)))
    }

    /// Reads a block whose newest version is `newest`, if the table says so.
    fn block(
        &mut self,
        block: Block,
        place: BlockPlace<'_>,
        newest: Option<SeqNo>,
    ) -> StoreResult<()> {
        let mut cursor = BlockCursor::new(block);
        cursor.seek_first().map_err(|error| place.damaged(error))?;
        while cursor.valid() {
            if newest.is_some_and(|newest| cursor.seq() > newest) {
                return Err(wrong(place, "a version newer than the table says of its block"));
            }
            self.version(cursor.key(), cursor.seq(), cursor.kind(), place)?;
            let found = self.table.found(cursor.kind(), cursor.value());
            if let Found::Separated(separated) = found.map_err(|error| place.damaged(error))? {
                self.cache.load_value(&separated)?;
                let Separated { segment, handle } = separated;
                let pointer = ValuePointer { segment: segment.file_no(), handle };
                *self.segments.entry(pointer.segment).or_default() += pointer.record_bytes();
            }
            cursor.next().map_err(|error| place.damaged(error))?;
        }
        Ok(())
    }

    fn version(
        &mut self,
        key: &[u8],
        seq: SeqNo,
        kind: EntryKind,
        place: BlockPlace<'_>,
    ) -> StoreResult<()> {
        let meta = self.table.meta();
        if let Some((last_key, last_seq)) = &self.last
            && internal_cmp((last_key, *last_seq), (key, seq)).is_ge()
        {
            return Err(wrong(place, "versions that are out of order"));
        }
        // What lies before the smallest key belongs to the file, but no longer to the store.
        if *key > *meta.largest_key {
            return Err(wrong(place, "a key outside of the range the manifest gives"));
        }
        let seen = self.table.seq_of(seq);
        if seen < meta.smallest_seq || seen > meta.largest_seq {
            return Err(wrong(place, "a sequence number outside of the manifest's range"));
        }
        let is_new_key = self.last.as_ref().is_none_or(|(last, _)| last != key);
        if !is_new_key && meta.seq_override.is_some() && !self.may_repeat {
            return Err(wrong(place, "two versions of a key in a table with a sequence override"));
        }
        if is_new_key && !self.index.may_hold(filter_hash(key)) {
            return Err(wrong(place, "a key that the filter denies"));
        }
        if let Some(prefix) = key.first_chunk::<PREFIX_BYTES>()
            && self.prefixed
            && !self.index.may_hold_prefix(prefix)
        {
            return Err(wrong(place, "a prefix that the prefix filter denies"));
        }
        if is_new_key && *key >= *meta.smallest_key && self.map_denies(key) {
            return Err(wrong(place, "a key that the map of the sub-levels denies"));
        }
        self.last = Some((key.to_vec(), seq));
        self.versions += 1;
        self.tombstones += u64::from(kind == EntryKind::Delete);
        Ok(())
    }

    fn finish(&self, properties: &Properties, handle: Handle) -> StoreResult<()> {
        let place = BlockPlace { file: self.table.file(), handle };
        let meta = self.table.meta();
        let counted = (self.versions, self.tombstones);
        if counted != (meta.entries, meta.tombstones) {
            return Err(wrong(place, "another number of versions than the manifest says"));
        }
        let shares = self
            .segments
            .iter()
            .map(|(segment, bytes)| SegmentShare { segment: *segment, bytes: *bytes });
        if !shares.eq(meta.segments.iter().copied()) {
            return Err(wrong(place, "other segments pointed into than the manifest says"));
        }
        if counted != (properties.entries, properties.tombstones)
            || !(properties.keyspace == self.table.keyspace() || self.may_repeat)
            || properties.prefixed != self.prefixed
            || properties.smallest_key > meta.smallest_key
            || properties.largest_key != meta.largest_key
            || properties.segments != meta.segments
        {
            return Err(wrong(place, "properties that contradict the manifest"));
        }
        Ok(())
    }
}
