//! Gives room back on a device that is nearly full or small: drops from a table what newer rows delete or replace.
//!
//! A merge would do that too, but needs room for all of its inputs once more, until it ends. Here one table alone is
//! written again in its place, without the rows that nobody sees any more, which takes room for what stays; blocks in
//! files of others stay where they are if they can. The deletions stand where they stood, until merges drop them.
//!
//! 1. [`Compactor::reclaim`] goes through the tables. Where those above hold enough rows in a table's range that replace older
//!    ones, or the table itself does ([`super::replaced`]), as a merge keeps both while a snapshot sees the older, it reads
//!    the table beside those above, and counts.
//!    Of a table that a merge has clipped the beginning is dead too.
//! 2. A table of which at least a part ([`DEAD_SHARES`]) is dead, and whose rest fits into half of the room, is written
//!    again. Each gives back more than it takes, so that the next may be larger.
//! 3. If there is none, segments and zones of which little is in use are emptied, of those whose rest fits.
//! 4. What was found is kept by file, until enough new rows stand above it, or the last states go that see enough of its
//!    rows, or a quarter of all where it is known only roughly who sees which ([`super::pinned`]); it is forgotten at close.
//!    Who finds nothing is not asked again before tables change, such states go, or there is more
//!    room.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use varve_format::edit::TableMeta;
use varve_types::{FileNo, KeyspaceId, SeqNo};

use super::compactor::Compactor;
use super::damaged::file_of;
use super::done_if_room;
use super::memory::Memory;
use super::outputs::Outputs;
use super::pinned::{PAIRS_MAX, Pinned, PinnedBy, StatesThen, pairs_max};
use super::policy::{cleaning, defragment};
use super::purpose::Purpose;
use super::replaced::{Sampled, Shares};
use super::retain::Retention;
use super::stitch::{StitchRule, Stitcher};
use crate::files::StoreFile;
use crate::iter::merge::Merge;
use crate::iter::table::TableSource;
use crate::iter::{Origin, Source};
use crate::keyspace::Keyspace;
use crate::memtable::Found;
use crate::place::Place;
use crate::table::cache::Admission;
use crate::table::file::Table;
use crate::{Direction, StoreError, StoreResult};

/// One part in so many of a table is to be dead for it to be written again: more, as long as there are such tables.
const DEAD_SHARES: [u64; 3] = [DEAD_SHARE_LEAST, DEAD_SHARE_FAIR, DEAD_SHARE_MAX];
/// What is done although there is room is done for this part.
pub(crate) const DEAD_SHARE_LEAST: u64 = 2;
/// What nobody asked for is done for this part.
pub(crate) const DEAD_SHARE_FAIR: u64 = 8;
/// For less it is not worth the writing.
pub(crate) const DEAD_SHARE_MAX: u64 = 32;
/// The fewest bytes to be gained from a table of which something stays: storage gives room in such pieces.
const GAINED_BYTES_MIN: u64 = 4 << 10;
/// Bytes that a table takes besides its rows, at most: where it is small, and for each row.
const TABLE_OVERHEAD_BYTES: u64 = 64 << 10;
const ROW_OVERHEAD_BYTES: u64 = 2;

/// Who found nothing looks again when there is this part more of room: what is written again depends on it.
const ROOM_SHARE: u64 = 8;

/// The part of a table's file that merges have taken, before its smallest key.
#[derive(Clone, Copy, Debug, Default)]
struct CutOff {
    /// Rows there, nearly.
    rows: u64,
    /// How many times what is left of the file that is.
    ratio: f64,
}

/// What became of the rows of a table, in bytes.
#[derive(Debug, Default)]
struct Counted {
    /// Rows that nobody sees.
    dead_rows: u64,
    /// Somebody sees them.
    live: u64,
    /// Of these, what only those see who look at older states, with values that stand apart.
    pinned: Pinned,
    /// Nobody does.
    dead: u64,
    /// What is to be written again of those that somebody sees.
    copied: u64,
}

/// What is known of a table.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    /// Rows in its range, of each table above, that replace older ones.
    above: Vec<(FileNo, u64)>,
    /// Its own rows that newer ones of it replace, at the most nearly.
    hidden: u64,
    /// What was counted of it, and how many such rows there were then, or were cut off.
    counted: Option<(u64, Counted)>,
    /// What merges have cut off, and its smallest key then.
    cut: Option<(Bytes, CutOff)>,
}

/// What the last search in vain was about.
#[derive(Debug, Default)]
pub(crate) struct Searched {
    /// One part in so many was to be dead; 0: there was no search.
    share: u64,
    /// Rows that it came by were seen by these.
    pinned: Pinned,
    /// Tables, for which there is one each at most, are counted again when few of these are left.
    unclear_after: BTreeSet<StatesThen>,
    /// Bytes that the device had room for.
    room: u64,
    /// How often tables or states with names had changed ([`crate::versions::VersionSet::installs`]).
    changes: u64,
}

/// The tables of a key space that were looked at.
pub(crate) type LookedAt = HashMap<FileNo, Looked>;

/// What newer tables make of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Seen,
    /// Seen by who looks at an older state.
    Pinned(PinnedBy),
    Dead,
}

/// A version of the table.
struct Row<'a> {
    key: &'a [u8],
    seq: SeqNo,
    found: Found,
    fate: Fate,
    /// Where it stands.
    origin: Option<Origin<'a>>,
}

/// A table with those above it that may hold its keys.
struct Shaded<'a> {
    space: &'a Keyspace,
    place: Place,
    table: &'a Arc<Table>,
    above: Vec<Arc<Table>>,
    /// The older states that somebody looks at.
    states: &'a [SeqNo],
    /// So many pairs of them are told apart.
    pairs_max: usize,
}

impl Counted {
    /// Whether one part in `share` is dead of a table of `bytes` bytes, and enough to give room back.
    fn is_worth_it(&self, share: u64, bytes: u64) -> bool {
        let all = self.live + self.dead;
        let gained = u128::from(bytes) * u128::from(self.dead) / u128::from(all.max(1));
        self.dead > 0
            && self.dead * share >= all
            && (self.live == 0 || gained >= GAINED_BYTES_MIN.into())
    }

    /// Whether one part in `share` is dead now that of older states only `states` are looked at, some having gone since.
    fn is_let_go(&self, share: u64, states: &[SeqNo]) -> bool {
        self.is_enough(share, self.pinned.let_go(states))
            || self.unclear_after(share).is_some_and(|then| then.are_few_by_now(states))
    }

    /// The states of which a quarter may have seen enough rows for one part in `share` to be dead without them, although
    /// [`Pinned::let_go`] does not tell.
    fn unclear_after(&self, share: u64) -> Option<StatesThen> {
        let may_be_enough = self.is_enough(share, self.pinned.total_bytes());
        self.pinned.unclear_after().filter(|_| may_be_enough)
    }

    /// Whether one part in `share` is dead if `freed` bytes of pinned rows are, too.
    fn is_enough(&self, share: u64, freed: u64) -> bool {
        freed > 0 && (self.dead + freed) * share >= self.dead + self.live
    }

    /// Bytes of what is written again of the table `meta`.
    fn rest_of(&self, meta: &TableMeta) -> u64 {
        let all = u128::from(self.live + self.dead).max(1);
        let rows = u128::from(meta.total_bytes()) * u128::from(self.copied) / all;
        rows as u64 + TABLE_OVERHEAD_BYTES + ROW_OVERHEAD_BYTES * meta.entries
    }
}

impl Looked {
    /// Whether to count (again), if one part in `share` of `entries` rows is to be dead: there may be so many by now.
    /// Somebody looks at the older `states`.
    fn is_due(&self, share: u64, entries: u64, states: &[SeqNo]) -> bool {
        let replaced = self.gone();
        let Some((then, counted)) = &self.counted else { return replaced * share >= entries };
        let may_be_dead = counted.dead_rows + replaced.saturating_sub(*then);
        (replaced > *then && may_be_dead * share >= entries) || counted.is_let_go(share, states)
    }

    /// Rows that are replaced, at the most, or cut off.
    fn gone(&self) -> u64 {
        self.above.iter().map(|(_, rows)| rows).sum::<u64>() + self.hidden + self.cut_off().rows
    }

    fn cut_off(&self) -> CutOff {
        self.cut.as_ref().map_or_else(CutOff::default, |(_, cut)| *cut)
    }
}

impl Searched {
    /// Whether a search for one part in `share` would be in vain again, when somebody looks at the older `states`, the
    /// device has room for `room` bytes, and tables or states with names have changed `changes` times.
    fn covers(&self, share: u64, states: &[SeqNo], room: u64, changes: u64) -> bool {
        self.share >= share
            && self.changes == changes
            && self.pinned.are_seen(states)
            && !self.unclear_after.iter().any(|then| then.are_few_by_now(states))
            && room <= self.room.saturating_add(self.room / ROOM_SHARE)
    }
}

/// Rows of a table that delete or replace others, if one part, `share`, of all does by a sample.
fn replacing_rows(meta: &TableMeta, share: f64) -> u64 {
    // Deletions stand close together, so that a sample may miss them.
    meta.tombstones.max((meta.entries as f64 * share).round() as u64)
}

impl Shaded<'_> {
    /// Rows of the table `above` in the range of this one that delete or replace older ones: all deletions, and of the
    /// others one part, `share`.
    fn replacing_in_range(
        &self,
        inner: &Compactor,
        above: &Arc<Table>,
        share: f64,
    ) -> StoreResult<u64> {
        let (meta, other) = (self.table.meta(), above.meta());
        if meta.smallest_key <= other.smallest_key && other.largest_key <= meta.largest_key {
            return Ok(replacing_rows(other, share));
        }
        let (mut deletions, mut others) = (0, 0);
        let mut source = self.source(inner, above)?;
        // More than it has do not matter.
        while source.valid()
            && source.key() <= &meta.largest_key[..]
            && deletions + others < 2 * meta.entries
        {
            inner.health.check_open()?;
            *(if source.found()? == Found::Tombstone { &mut deletions } else { &mut others }) += 1;
            source.advance()?;
        }
        Ok(deletions + (others as f64 * share).round() as u64)
    }

    /// The rows of `table` in the range of this one, and some behind it.
    fn source(&self, inner: &Compactor, table: &Arc<Table>) -> StoreResult<TableSource> {
        let meta = self.table.meta();
        let range =
            (Bound::Included(&meta.smallest_key[..]), Bound::Included(&meta.largest_key[..]));
        let (cache, table) = (Arc::clone(&inner.cache), Arc::clone(table));
        TableSource::new(cache, table, range, Direction::Forward, Admission::Pass)
    }

    /// Calls `each` with all rows of the table in their order.
    fn each_row(
        &self,
        inner: &Compactor,
        mut each: impl FnMut(Row<'_>) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let last = &self.table.meta().largest_key[..];
        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        for table in std::iter::once(self.table).chain(&self.above) {
            sources.push(Box::new(self.source(inner, table)?));
        }
        let mut merge = Merge::new(sources, Direction::Forward);
        let mut retention = Retention::new(self.states);
        let mut newest = Retention::new(&[]);
        let stands_over = self.space.branch.is_some() && !self.space.private;
        // The version before, which is newer if it is of the same key.
        let mut newer = SeqNo::MAX;
        while merge.valid() && merge.key() <= last {
            // Rows may be large.
            inner.health.check_open()?;
            let (key, seq, found) = (merge.key(), merge.seq(), merge.found()?);
            let below =
                || stands_over || self.space.version.older_tables(self.place, key).next().is_some();
            let deletes = found == Found::Tombstone;
            let is_newest = newest.keeps(key, seq, deletes, || true);
            let is_kept = retention.keeps(key, seq, deletes, below);
            let is_own = merge.table().is_some_and(|own| own.file_no() == self.table.file_no());
            if is_own {
                let fate = match (is_kept, is_newest) {
                    (false, _) => Fate::Dead,
                    (true, true) => Fate::Seen,
                    (true, false) => Fate::Pinned(PinnedBy::of(self.states, seq, newer)),
                };
                each(Row { key, seq, found, fate, origin: merge.origin() })?;
            }
            newer = seq;
            merge.advance()?;
        }
        Ok(())
    }

    /// The table that `error` is about: this one, or one above.
    fn named_by(&self, error: &StoreError) -> FileNo {
        let named = file_of(error).and_then(StoreFile::number);
        let mut tables = std::iter::once(self.table).chain(&self.above);
        let found = tables.find(|table| table.files().any(|file| Some(file.no()) == named));
        found.unwrap_or(self.table).file_no()
    }

    /// What merges have cut off. Those of the last level do not stay so for long.
    fn cut_off(&self, inner: &Compactor) -> StoreResult<CutOff> {
        let last = self.space.version.sublevels().last();
        if last.is_none_or(|(level, _)| level <= self.place.level) {
            return Ok(CutOff::default());
        }
        let index = inner.cache.index(self.table)?;
        let (first, left) = index.blocks_within(self.table, None);
        let all = index.index.block_count().max(1) as f64;
        let rows = self.table.meta().entries as f64 * first as f64 / all;
        Ok(CutOff { rows: rows as u64, ratio: first as f64 / left.max(1) as f64 })
    }

    /// Counts what became of its rows, of which `cut` are cut off.
    fn count(&self, inner: &Compactor, cut: CutOff) -> StoreResult<Counted> {
        let mut counted = Counted { pinned: Pinned::new(self.states), ..Counted::default() };
        // What of the present block somebody sees, and whether it can stay where it is.
        let (mut in_block, mut may_stay) = (0, false);
        let stitches = inner.plans.stitches();
        self.each_row(inner, |row| {
            let apart = match &row.found {
                Found::Separated(value) => u64::from(value.handle.len),
                Found::Value(_) | Found::Tombstone => 0,
            };
            let bytes = (row.key.len() + row.found.len()) as u64;
            let origin = row.origin.as_ref();
            if origin.is_none_or(|origin| origin.is_first) {
                let is_own = origin.is_none_or(|o| o.place.file.no() == self.table.file_no());
                counted.copied += if may_stay { 0 } else { in_block };
                (in_block, may_stay) = (0, stitches && !is_own);
            }
            if row.fate == Fate::Dead {
                (counted.dead, may_stay) = (counted.dead + bytes + apart, false);
                counted.dead_rows += 1;
                return Ok(());
            }
            // A value that stands apart stays where it is.
            (counted.live, in_block) = (counted.live + bytes, in_block + bytes);
            if let Fate::Pinned(pinned_by) = row.fate {
                counted.pinned.add(pinned_by, bytes + apart, self.pairs_max);
            }
            Ok(())
        })?;
        counted.copied += if may_stay { 0 } else { in_block };
        counted.dead += ((counted.live + counted.dead) as f64 * cut.ratio) as u64;
        counted.dead_rows += cut.rows;
        Ok(counted)
    }
}

impl Compactor {
    /// Drops what nobody sees from one table of which one part in `share_max` is dead, waiting for the compaction that
    /// goes on, if any. False if there is none, or no room to do so.
    pub(crate) fn reclaim_one(&self, share_max: u64) -> StoreResult<bool> {
        if !self.may_reclaim(share_max)? {
            return Ok(false);
        }
        let mut memory = self.job.lock();
        self.health.check_changeable()?;
        self.reclaim(&mut memory, share_max)
    }

    /// Whether a search for a table of which one part in `share_max` is dead is not known to be in vain.
    pub(crate) fn may_reclaim(&self, share_max: u64) -> StoreResult<bool> {
        let (states, room) = (self.snapshots.live(), self.space.room()?);
        let changes = self.versions.installs();
        Ok(!self.searched.lock().covers(share_max, &states, room, changes))
    }

    /// [`Compactor::reclaim_one`] for who holds the lock of compaction jobs.
    pub(crate) fn reclaim(
        &self,
        memory: &mut BTreeMap<KeyspaceId, Memory>,
        share_max: u64,
    ) -> StoreResult<bool> {
        let (states, room) = (self.snapshots.live(), self.space.room()?);
        let changes = self.versions.installs();
        if self.searched.lock().covers(share_max, &states, room, changes) {
            return Ok(false);
        }
        if self.search(memory, share_max)? {
            return Ok(true);
        }
        let (mut pinned, mut unclear_after) = (Pinned::new(&states), BTreeSet::new());
        let looked = memory.values().flat_map(|memory| memory.looked.values());
        for (_, counted) in looked.filter_map(|table| table.counted.as_ref()) {
            // Of those that are free already there was not enough.
            let seen = counted.pinned.seen(&states);
            seen.for_each(|(pinned_by, bytes)| pinned.add(pinned_by, bytes, PAIRS_MAX));
            unclear_after.extend(counted.unclear_after(share_max));
        }
        unclear_after.extend(pinned.unclear_after());
        // Nor was there of those that are few already.
        unclear_after.retain(|then| !then.are_few_by_now(&states));
        // What changed meanwhile is looked at: then this does not cover the next search.
        *self.searched.lock() = Searched { share: share_max, pinned, unclear_after, room, changes };
        Ok(false)
    }

    fn search(
        &self,
        memory: &mut BTreeMap<KeyspaceId, Memory>,
        share_max: u64,
    ) -> StoreResult<bool> {
        let read_state = self.read_states.get();
        let pairs_max =
            pairs_max(read_state.spaces().map(|space| space.version.tables().count()).sum());
        let shares = || DEAD_SHARES.into_iter().filter(|share| *share <= share_max);
        for (share, space) in
            shares().flat_map(|share| read_state.spaces().map(move |space| (share, space)))
        {
            let files = space.version.files();
            let memory = memory.entry(space.id).or_default();
            memory.looked.retain(|file, _| files.contains(file));
            let counted = memory.looked.values_mut().filter_map(|table| table.counted.as_mut());
            counted.for_each(|(_, counted)| counted.pinned.keep_to(pairs_max));
            memory.replacing.retain(|file, _| files.contains(file));
            let segments = space.version.segments();
            memory.damaged.retain(|file| files.contains(&file) || segments.contains_key(&file));
            let states = self.states_within(space);
            for (place, table) in space.version.tables() {
                let above = space.version.newer_tables(place, table.meta()).cloned().collect();
                let shaded = Shaded { space, place, table, above, states: &states, pairs_max };
                if self.reclaim_table(shaded, memory, share)? {
                    return Ok(true);
                }
            }
        }
        for share in shares() {
            for space in read_state.spaces() {
                let memory = memory.entry(space.id).or_default();
                if self.empty_segment(space, memory, share)?
                    || self.empty_zone(space, memory, share)?
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Copies what one table has in a file of others of which one part in `share` is not needed.
    fn empty_zone(&self, space: &Keyspace, memory: &mut Memory, share: u64) -> StoreResult<bool> {
        let tables: Vec<_> = space.version.tables().map(|(_, table)| table.meta()).collect();
        let mut files = defragment::uses(tables.iter().copied());
        let room_bytes = self.space.room()? / 2;
        loop {
            files.retain(|file, _| !memory.damaged.has(*file));
            let picked = defragment::pick_small(&tables, &files, room_bytes, share);
            let Some(rewrite) = picked else { return Ok(false) };
            let mut zones = rewrite.emptied.clone();
            zones.remove(&rewrite.table);
            match done_if_room(self.rewrite(space, &rewrite)) {
                Ok(done) => return Ok(done),
                Err(error) => memory.damaged.pass_by(error, zones)?,
            }
        }
    }

    /// Takes the values that one table has in a segment of which one part in `share` is not in use to a new one.
    fn empty_segment(
        &self,
        space: &Keyspace,
        memory: &mut Memory,
        share: u64,
    ) -> StoreResult<bool> {
        let mut uses = space.version.segment_uses();
        if uses.is_empty() {
            return Ok(false);
        }
        let (runs, used_max) = (space.version.runs(), self.space.room()? / 2);
        loop {
            cleaning::leave_alone(&runs, &mut uses, |file| memory.damaged.has(file));
            let picked = cleaning::pick_small(&runs, &uses, &memory.states, used_max, share);
            let Some((job, segment)) = picked else { return Ok(false) };
            let purpose = Purpose::Cleaning(segment);
            let merged = self.merge(space, &job, purpose, &memory.damaged);
            match done_if_room(merged.map(|()| true)) {
                Ok(done) => return Ok(done),
                Err(error) => memory.damaged.pass_by_input(error, purpose.cleaned(&job))?,
            }
        }
    }

    /// Looks at a table, unless it is known, and writes it again if one part in `share` is dead and there is room.
    fn reclaim_table(
        &self,
        mut shaded: Shaded<'_>,
        memory: &mut Memory,
        share: u64,
    ) -> StoreResult<bool> {
        while !memory.damaged.has(shaded.table.file_no()) {
            self.health.check_open()?;
            shaded.above.retain(|above| !memory.damaged.has(above.file_no()));
            let done = self.look(&shaded, memory, share).and_then(|is_due| match is_due {
                true => done_if_room(self.write_rest(&shaded).map(|()| true)),
                false => Ok(false),
            });
            match done {
                Ok(done) => return Ok(done),
                // Without a table above, what that deletes or replaces counts as seen.
                Err(error) => {
                    let damaged = shaded.named_by(&error);
                    memory.damaged.pass_by(error, [damaged])?;
                }
            }
        }
        Ok(false)
    }

    /// Whether one part in `share` of a table is dead, and there is room for the rest.
    fn look(&self, shaded: &Shaded<'_>, memory: &mut Memory, share: u64) -> StoreResult<bool> {
        let (meta, version) = (shaded.table.meta(), &shaded.space.version);
        let looked = memory.looked.entry(shaded.table.file_no()).or_default();
        if looked.cut.as_ref().is_none_or(|(smallest_key, _)| *smallest_key != meta.smallest_key) {
            looked.cut = Some((meta.smallest_key.clone(), shaded.cut_off(self)?));
        }
        let own = self.sampled(version, shaded.table, &mut memory.replacing)?;
        looked.hidden = replacing_rows(meta, own.hidden);
        let mut possible = looked.cut_off().rows + looked.hidden;
        for above in &shaded.above {
            let above_sampled = self.sampled(version, above, &mut memory.replacing)?;
            possible += replacing_rows(above.meta(), above_sampled.replacing);
        }
        if possible * share < meta.entries {
            return Ok(false);
        }
        let looked = memory.looked.entry(shaded.table.file_no()).or_default();
        self.look_above(shaded, looked, &memory.replacing)?;
        if looked.is_due(share, meta.entries, shaded.states) {
            looked.counted = Some((looked.gone(), shaded.count(self, looked.cut_off())?));
        }
        let Some((_, counted)) = &looked.counted else { return Ok(false) };
        let is_worth_it = counted.is_worth_it(share, meta.total_bytes());
        Ok(is_worth_it && counted.rest_of(meta) <= self.space.room()? / 2)
    }

    /// Notes in `looked` what stands above the table by now; `replacing` has the shares of those tables.
    fn look_above(
        &self,
        shaded: &Shaded<'_>,
        looked: &mut Looked,
        replacing: &Shares,
    ) -> StoreResult<()> {
        let is_above = |file: FileNo| shaded.above.iter().any(|above| above.file_no() == file);
        looked.above.retain(|(file, _)| is_above(*file));
        for above in &shaded.above {
            let file = above.file_no();
            let share = replacing.get(&file).unwrap_or(&Sampled::UNKNOWN).replacing;
            let known = looked.above.iter().any(|(known, _)| *known == file);
            if !known && replacing_rows(above.meta(), share) > 0 {
                looked.above.push((file, shaded.replacing_in_range(self, above, share)?));
            }
        }
        Ok(())
    }

    /// Puts in the place of a table what somebody sees of it.
    fn write_rest(&self, shaded: &Shaded<'_>) -> StoreResult<()> {
        let Shaded { space, place, table, .. } = shaded;
        let outputs = Outputs::new(&self.maker, space, place.level).emptying(BTreeSet::new(), true);
        let emptied = HashSet::from([table.file_no()]);
        let rule = self.plans.stitches().then_some(StitchRule { threshold_bytes: 0, emptied });
        let options = self.plans.table_options(space, place.level);
        let mut outputs = Stitcher::new(outputs, options, rule);
        let mut last = Vec::new();
        shaded.each_row(self, |row| {
            let origin = row.origin.filter(|_| outputs.asks_origin());
            if row.fate == Fate::Dead {
                return origin.map_or(Ok(()), |origin| outputs.dropped(&origin));
            }
            if *last != *row.key {
                if outputs.bytes() >= self.options.table_bytes {
                    outputs.cut()?;
                }
                last.clear();
                last.extend_from_slice(row.key);
            }
            outputs.add(row.key, row.seq, &row.found, origin)
        })?;
        let rest = outputs.finish()?;
        let written = rest.table_bytes() + rest.segment_bytes();
        self.exchange(space, *place, table, &rest)?;
        self.metrics.reclaims.add(1);
        self.metrics.reclaim_bytes.add(written);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
