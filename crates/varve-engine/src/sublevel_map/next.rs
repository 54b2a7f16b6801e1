//! What becomes of a map when tables come and go.
//!
//! 1. The map ends if tables with numbers went without a word of where their keys are, or if keys leave it while
//!    older rows of them may stay in it: its invariant would no longer hold.
//! 2. Keys that a merge moved are named anew. Its output has a number if all its keys were known, and the level is
//!    one of those above the leveled bottom.
//! 3. Keys of a flush are put in. Without room, or without a free number, a new map begins with them, larger if
//!    the budget allows.
//! 4. Numbers without tables are forgotten.

use std::collections::HashMap;
use std::sync::Arc;

use varve_format::filter::multi_level::Prior;
use varve_format::filter::{PREFIX_BYTES, SubLevel, SubLevels};
use varve_types::FileNo;

use super::findings::Findings;
use super::map::{BYTES_MIN, BYTES_PER_KEY, NUMBER_MAX, SublevelMap, bytes_for};
use super::moves::Moves;
use super::number::{MapId, MapNumber};
use crate::StoreResult;
use crate::compaction::policy::{Shape, mapped_levels};
use crate::keyspace::Keyspace;
use crate::memtable::Memtable;
use crate::metrics::Metrics;
use crate::place::Place;
use crate::table::cache::TableCache;
use crate::table::file::Table;
use crate::version::Version;

/// How many times larger a map is than the one that had no room, or than what the levels hold.
const GROWTH: usize = 2;
/// Memtables that a first map has room for, at least.
const MEMTABLES_MIN: usize = 8;

/// What happens to a key space.
pub(crate) struct Next<'a> {
    pub(crate) space: &'a Keyspace,
    pub(crate) added: &'a [(Place, Arc<Table>)],
    pub(crate) removed: &'a [(Place, Arc<Table>)],
    /// Where the keys of `removed` came from, if a merge says so.
    pub(crate) moves: Option<&'a Moves>,
    /// The memtable whose rows `added` holds.
    pub(crate) flushed: Option<&'a Arc<Memtable>>,
    pub(crate) shape: Shape,
    pub(crate) findings: &'a Findings,
    pub(crate) cache: &'a Arc<TableCache>,
    pub(crate) metrics: &'a Metrics,
    /// For the next map, should one begin.
    pub(crate) id: MapId,
}

/// The map in the making.
struct Draft<'a> {
    next: &'a Next<'a>,
    /// The map as it was, unless it ended.
    old: Option<&'a SublevelMap>,
    /// As it will be, if it changes.
    new: Option<SublevelMap>,
}

/// Gives `version`, which is what becomes of the key space, its map, and the new tables their numbers.
pub(crate) fn next_map(next: &Next<'_>, version: &mut Version) -> StoreResult<()> {
    let before = next.space.version.map();
    let mut draft = Draft { next, old: before.map(|map| &**map), new: None };
    let mapped = mapped_levels(&next.shape, &version.runs());
    if draft.is_broken(version, mapped) {
        draft.end();
    }
    let merged = draft.apply_moves(version, mapped);
    let flushed = draft.insert_flushed(version, mapped)?;
    let is_new = |file: FileNo| !next.removed.iter().any(|(_, table)| table.file_no() == file);
    for (place, table) in next.added {
        let kept = table.map_number().filter(|_| place.level < mapped);
        let new = if place.level == 0 { merged.or(flushed) } else { merged };
        let wanted = if is_new(table.file_no()) { new } else { kept };
        if wanted != table.map_number() {
            version.set_number(*place, table.file_no(), wanted);
        }
    }
    let map = draft.finish(version);
    version.set_map(match map {
        Some(map) => Some(Arc::new(map)),
        None => before.filter(|_| draft.old.is_some()).cloned(),
    });
    Ok(())
}

impl<'a> Draft<'a> {
    fn id(&self) -> Option<MapId> {
        self.new.as_ref().or(self.old).map(|map| map.id)
    }

    /// The number of a table in the map.
    fn number(&self, table: &Table) -> Option<SubLevel> {
        table.map_number().filter(|number| Some(number.map) == self.id()).map(|at| at.number)
    }

    fn end(&mut self) {
        (self.old, self.new) = (None, None);
    }

    /// The map to change.
    fn change(&mut self) -> Option<&mut SublevelMap> {
        if self.new.is_none() {
            let old = self.old?;
            match self.next.cache.reserve(old.memory_bytes()) {
                Some(room) => self.new = Some(old.copy(room)),
                None => self.end(),
            }
        }
        self.new.as_mut()
    }

    /// Whether the map would no longer name the newest row of every key.
    fn is_broken(&self, version: &Version, mapped: usize) -> bool {
        let Some(id) = self.id() else { return false };
        let listed = self.next.moves.is_some_and(|moves| moves.map() == id);
        let re_added = |file: FileNo| self.next.added.iter().find(|(_, t)| t.file_no() == file);
        for (_, table) in self.next.removed {
            if self.number(table).is_none() {
                continue;
            }
            match re_added(table.file_no()) {
                None if !listed => return true,
                // It leaves the map, whose labels for it stay.
                Some((place, table)) if place.level >= mapped => {
                    let range = (&table.meta().smallest_key[..], &table.meta().largest_key[..]);
                    if self.older_numbered(version, *place, range) {
                        return true;
                    }
                }
                _ => {}
            }
        }
        false
    }

    /// Whether tables with numbers, older than `place`, may hold keys of `range`.
    fn older_numbered(&self, version: &Version, place: Place, range: (&[u8], &[u8])) -> bool {
        version.tables().any(|(there, table)| {
            let older = (there.level, std::cmp::Reverse(there.sublevel))
                > (place.level, std::cmp::Reverse(place.sublevel));
            let meta = table.meta();
            let overlaps = *meta.smallest_key <= *range.1 && *meta.largest_key >= *range.0;
            older && overlaps && self.number(table).is_some()
        })
    }

    /// Names the keys anew that a merge moved; returns the number of its output.
    fn apply_moves(&mut self, version: &Version, mapped: usize) -> Option<MapNumber> {
        let id = self.id()?;
        let moves = self.next.moves.filter(|moves| moves.map() == id)?;
        let output = self.next.added.iter().find(|(_, added)| {
            !self.next.removed.iter().any(|(_, table)| table.file_no() == added.file_no())
        });
        let place = output.map(|(place, _)| *place);
        let to = place
            .filter(|place| moves.is_complete() && place.level < mapped)
            .and_then(|place| self.number_for(version, place));
        if to.is_none()
            && let Some(place) = place
            && let Some(range) = moves.range()
            && self.older_numbered(version, place, range)
        {
            self.end();
            return None;
        }
        let map = self.change()?;
        for each in moves.iter() {
            let hash = varve_format::filter::filter_hash(each.key);
            map.keys.moved(each.key, hash, each.from, to.filter(|_| each.kept));
        }
        if let Some(to) = to {
            map.insert_prefixes(moves.iter().filter(|each| each.kept).map(|each| each.key), to);
        }
        to.map(|number| MapNumber { map: id, number })
    }

    /// The number that new tables at `place` get: that of the tables which are there, if no others have it.
    fn number_for(&self, version: &Version, place: Place) -> Option<SubLevel> {
        let mut own = SubLevels::NONE;
        let mut others = SubLevels::NONE;
        for (there, table) in version.tables() {
            if let Some(number) = self.number(table) {
                if there == place { own.insert(number) } else { others.insert(number) }
            }
        }
        let shared = own.newest_first().find(|number| !others.contains(*number));
        shared.or_else(|| self.free_number(version))
    }

    /// A number that no table has, nor had before.
    fn free_number(&self, version: &Version) -> Option<SubLevel> {
        let mut used = SubLevels::NONE;
        for (_, table) in version.tables().chain(self.next.space.version.tables()) {
            if let Some(number) = self.number(table) {
                used.insert(number);
            }
        }
        (1..=NUMBER_MAX).filter_map(SubLevel::new).find(|number| !used.contains(*number))
    }

    /// Puts in the keys of the flush; returns the number of its tables.
    fn insert_flushed(
        &mut self,
        version: &Version,
        mapped: usize,
    ) -> StoreResult<Option<MapNumber>> {
        let Some(memtable) = self.next.flushed.filter(|_| !self.next.added.is_empty()) else {
            return Ok(None);
        };
        let rows = memtable.rows(self.next.space.id);
        let room = self.new.as_ref().or(self.old);
        let has_room = room.is_some_and(|map| map.keys.used() + rows <= map.keys.capacity());
        let mut number = if has_room { self.free_number(version) } else { None };
        if number.is_none() {
            self.begin(rows, version, mapped);
            number = SubLevel::new(1);
        }
        let files = self.numbered_files();
        let (space, findings) = (self.next.space.id, self.next.findings);
        let metrics = self.next.metrics;
        let Some((number, map)) = number.zip(self.change()) else { return Ok(None) };
        let (mut last, mut first) = (Vec::new(), true);
        memtable.each_version(space, |key, _, _| {
            if first || *last != *key {
                let prefix = key.first_chunk::<PREFIX_BYTES>();
                if let Some(prefix) = prefix.filter(|_| first || prefix != last.first_chunk()) {
                    map.insert_prefix(prefix, number);
                }
                let found = findings.take(space, key).and_then(|file| files.get(&file));
                let held = found.filter(|(table, _)| table.covers(key));
                let noted = if held.is_some() { &metrics.map_notes } else { &metrics.map_unnoted };
                noted.add(1);
                map.insert(key, number, held.map_or(Prior::Unknown, |(_, at)| Prior::At(*at)));
                first = false;
                last.clear();
                last.extend_from_slice(key);
            }
            Ok(())
        })?;
        Ok(Some(MapNumber { map: map.id, number }))
    }

    /// The tables with numbers, by file.
    fn numbered_files(&self) -> HashMap<FileNo, (&'a Table, SubLevel)> {
        let next = self.next;
        let tables = next.space.version.tables();
        let numbered = tables
            .filter_map(|(_, table)| Some((table.file_no(), (&**table, self.number(table)?))));
        numbered.collect()
    }

    /// Begins a new map, if there is room for one that takes `rows`.
    fn begin(&mut self, rows: usize, version: &Version, mapped: usize) {
        let before = self.new.as_ref().or(self.old).map_or(0, |map| map.keys.capacity());
        self.end();
        let cache = self.next.cache;
        let most = cache.reserve_max().saturating_sub(BYTES_MIN) / BYTES_PER_KEY;
        let memtables = MEMTABLES_MIN.max(2 * self.next.shape.sublevels_trigger);
        let upper = version.tables().filter(|(place, _)| place.level < mapped);
        let held: u64 = upper.map(|(_, table)| table.meta().entries).sum();
        let keys = (rows * memtables).max(before.max(held as usize) * GROWTH).min(most);
        if keys < rows {
            return;
        }
        let prefixed = self.next.space.options.prefixed;
        let room = cache.reserve(bytes_for(keys));
        self.new = room.map(|room| SublevelMap::new(self.next.id, keys, prefixed, room));
    }

    /// The map if it changed, without the numbers that no table has any more.
    fn finish(&mut self, version: &Version) -> Option<SublevelMap> {
        let numbers = |version: &Version| {
            let mut used = SubLevels::NONE;
            for number in version.tables().filter_map(|(_, table)| self.number(table)) {
                used.insert(number);
            }
            used
        };
        let (before, after) = (numbers(&self.next.space.version), numbers(version));
        if after.is_empty() {
            self.end();
            return None;
        }
        for gone in before.newest_first().filter(|number| !after.contains(*number)) {
            self.change()?.forget(gone);
        }
        self.new.take()
    }
}

impl SublevelMap {
    /// Puts in that `number` holds rows of the prefixes of `keys`, which ascend.
    fn insert_prefixes<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>, number: SubLevel) {
        let mut last = None;
        for prefix in keys.filter_map(|key| key.first_chunk::<PREFIX_BYTES>()) {
            if last != Some(prefix) {
                self.insert_prefix(prefix, number);
                last = Some(prefix);
            }
        }
    }
}
