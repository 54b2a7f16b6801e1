//! Gives room back on a device that is nearly full: drops from a table what newer ones delete or replace.
//!
//! A merge would do that too, but needs room for all of its inputs once more, until it ends. Here one table alone is
//! written again in its place, without the rows that nobody sees any more, which takes room for what stays; blocks in
//! files of others stay where they are if they can. The deletions stand where they stood, until merges drop them.
//!
//! 1. [`Inner::reclaim`] goes through the tables that have deletions above them. Where these may be enough to matter it
//!    reads the table beside what stands above it, and counts.
//! 2. A table of which at least a part ([`DEAD_SHARES`]) is dead, and whose rest fits into half of the room, is written
//!    again. Each gives back more than it takes, so that the next may be larger.
//! 3. If there is none, segments and zones of which little is in use are emptied, of those whose rest fits.
//! 4. What was found is kept by file, until newer deletions stand above it or a state that sees its rows goes; it is
//!    forgotten at close. Who finds nothing is not asked again before tables change.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use varve_types::{FileNo, KeyspaceId, SeqNo};

use super::CLOSE_CHECK_VERSIONS;
use super::execute::Purpose;
use super::outputs::Outputs;

use super::policy::{Memory, cleaning, defragment};
use super::retain::Retention;
use super::stitch::{StitchRule, Stitcher};
use crate::db::Inner;
use crate::iter::merge::Merge;
use crate::iter::table::TableSource;
use crate::iter::{Origin, Source};
use crate::memtable::Found;
use crate::table::Admission;
use crate::version::{Place, Table};
use crate::view::Keyspace;
use crate::{Db, Direction, StoreError, StoreResult};

/// One part in so many of a table is to be dead for it to be written again: more, as long as there are such tables.
const DEAD_SHARES: [u64; 2] = [8, 32];
/// The fewest bytes to be gained from a table of which something stays: storage gives room in such pieces.
const GAINED_BYTES_MIN: u64 = 4 << 10;
/// Bytes that a table takes besides its rows, at most, where it is small.
const TABLE_OVERHEAD_BYTES: u64 = 64 << 10;

/// What became of the rows of a table, in bytes.
#[derive(Debug, Default)]
struct Counted {
    /// Somebody sees them.
    live: u64,
    /// Of these, what only those see who look at older states.
    pinned: u64,
    /// Nobody does.
    dead: u64,
    /// What is to be written again of those that somebody sees.
    copied: u64,
}

/// What is known of a table.
#[derive(Debug)]
pub(crate) struct Looked {
    /// The newest deletion above it then.
    newest_deletion: SeqNo,
    /// The older states that somebody looked at, if they pin rows.
    pinned_by: Vec<SeqNo>,
    counted: Counted,
}

/// The tables of a key space that were looked at.
pub(crate) type LookedAt = HashMap<FileNo, Looked>;

/// What newer tables make of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Seen,
    /// Seen by who looks at an older state.
    Pinned,
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

    /// Bytes of what is written again of a table of `bytes` bytes.
    fn rest_of(&self, bytes: u64) -> u64 {
        let all = u128::from(self.live + self.dead).max(1);
        (u128::from(bytes) * u128::from(self.copied) / all) as u64 + TABLE_OVERHEAD_BYTES
    }
}

impl Looked {
    /// Whether it still says what is so.
    fn holds(&self, newest_deletion: SeqNo, states: &[SeqNo]) -> bool {
        newest_deletion <= self.newest_deletion
            && (self.pinned_by.is_empty() || self.pinned_by == states)
    }
}

impl Shaded<'_> {
    /// The newest deletion above the table, and how many there are.
    fn deletions(&self) -> (SeqNo, u64) {
        let deleting = || self.above.iter().map(|table| table.meta()).filter(|m| m.tombstones > 0);
        let newest = deleting().map(|meta| meta.largest_seq).max();
        (newest.unwrap_or(SeqNo::ZERO), deleting().map(|meta| meta.tombstones).sum())
    }

    /// Calls `each` with all rows of the table in their order.
    fn each_row(
        &self,
        inner: &Inner,
        mut each: impl FnMut(Row<'_>) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let meta = self.table.meta();
        let (first, last) = (&meta.smallest_key[..], &meta.largest_key[..]);
        let range = (Bound::Included(first), Bound::Included(last));
        let source = |table: &Arc<Table>| -> StoreResult<Box<dyn Source>> {
            let (cache, table) = (Arc::clone(&inner.cache), Arc::clone(table));
            let (forward, pass) = (Direction::Forward, Admission::Pass);
            Ok(Box::new(TableSource::new(cache, table, range, forward, pass)?))
        };
        let sources = std::iter::once(self.table).chain(&self.above).map(source);
        let mut merge = Merge::new(sources.collect::<StoreResult<_>>()?, Direction::Forward);
        let mut retention = Retention::new(self.states.to_vec());
        let mut newest = Retention::new(Vec::new());
        let mut versions = 0;
        let stands_over = self.space.branch.is_some() && !self.space.private;
        while merge.valid() && merge.key() <= last {
            versions += 1;
            if versions % CLOSE_CHECK_VERSIONS == 0 {
                inner.check_open()?;
            }
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
                    (true, false) => Fate::Pinned,
                };
                each(Row { key, seq, found, fate, origin: merge.origin() })?;
            }
            merge.advance()?;
        }
        Ok(())
    }

    /// Counts what became of its rows.
    fn count(&self, inner: &Inner) -> StoreResult<Counted> {
        let mut counted = Counted::default();
        // What of the present block somebody sees, and whether it can stay where it is.
        let (mut in_block, mut may_stay) = (0, false);
        let stitches = inner.stitches();
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
                return Ok(());
            }
            // A value that stands apart stays where it is.
            (counted.live, in_block) = (counted.live + bytes, in_block + bytes);
            counted.pinned += if row.fate == Fate::Pinned { bytes + apart } else { 0 };
            Ok(())
        })?;
        counted.copied += if may_stay { 0 } else { in_block };
        Ok(counted)
    }
}

impl Db {
    /// Turns everything written so far into tables, as far as there is room, and drops from tables, segments and zones
    /// what nobody sees any more: one part in 32 of each or more, of those whose rest fits into half of the room. Says how
    /// many were written again. Readers and writers go on meanwhile.
    pub fn reclaim(&self) -> StoreResult<u64> {
        let inner = &self.inner;
        match inner.flush_all() {
            Ok(()) | Err(StoreError::NoSpace { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut written = 0;
        while inner.reclaim_one()? {
            written += 1;
        }
        Ok(written)
    }
}

impl Inner {
    /// Drops what nobody sees from one table, waiting for the compaction that goes on, if any. False if there is nothing
    /// to gain, or no room to do so.
    pub(crate) fn reclaim_one(&self) -> StoreResult<bool> {
        if !self.reclaim_is_due.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mut memory = self.compaction_job.lock();
        self.check_changeable()?;
        self.reclaim(&mut memory)
    }

    /// [`Inner::reclaim_one`] for who holds the lock of compaction jobs.
    pub(crate) fn reclaim(&self, memory: &mut BTreeMap<KeyspaceId, Memory>) -> StoreResult<bool> {
        // Before the look: what changes meanwhile is looked at again.
        if !self.reclaim_is_due.swap(false, Ordering::Relaxed) {
            return Ok(false);
        }
        let view = self.views.get();
        let shares = DEAD_SHARES.into_iter();
        for (share, space) in
            shares.flat_map(|share| view.spaces().map(move |space| (share, space)))
        {
            let looked = &mut memory.entry(space.id).or_default().looked;
            let there: HashSet<FileNo> =
                space.version.tables().map(|(_, table)| table.file_no()).collect();
            looked.retain(|file, _| there.contains(file));
            let states = self.states_within(space);
            for (place, table) in space.version.tables() {
                let above = space.version.newer_tables(place, table.meta()).cloned().collect();
                let shaded = Shaded { space, place, table, above, states: &states };
                if self.reclaim_table(&shaded, looked, share)? {
                    return Ok(true);
                }
            }
        }
        for share in DEAD_SHARES {
            for space in view.spaces() {
                if self.empty_segment(space, memory, share)? || self.empty_zone(space, share)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Copies what one table has in a file of others of which one part in `share` is not needed.
    fn empty_zone(&self, space: &Keyspace, share: u64) -> StoreResult<bool> {
        let tables: Vec<_> = space.version.tables().map(|(_, table)| table.meta()).collect();
        let files = defragment::uses(tables.iter().copied());
        let picked = defragment::pick_small(&tables, &files, self.space.room()? / 2, share);
        let Some(rewrite) = picked else { return Ok(false) };
        match self.rewrite(space, &rewrite) {
            Err(StoreError::NoSpace { .. }) => Ok(false),
            other => other,
        }
    }

    /// Takes the values that one table has in a segment of which one part in `share` is not in use to a new one.
    fn empty_segment(
        &self,
        space: &Keyspace,
        memory: &BTreeMap<KeyspaceId, Memory>,
        share: u64,
    ) -> StoreResult<bool> {
        let uses = space.version.segment_uses();
        let Some(Memory { states, .. }) = memory.get(&space.id).filter(|_| !uses.is_empty()) else {
            return Ok(false);
        };
        let (runs, used_max) = (space.version.runs(), self.space.room()? / 2);
        let picked = cleaning::pick_small(&runs, &uses, states, used_max, share);
        let Some((job, segment)) = picked else { return Ok(false) };
        match self.merge(space, &job, Purpose::Cleaning(segment)) {
            Err(StoreError::NoSpace { .. }) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Looks at a table, unless it is known, and writes it again if one part in `share` is dead and there is room.
    fn reclaim_table(
        &self,
        shaded: &Shaded<'_>,
        looked: &mut LookedAt,
        share: u64,
    ) -> StoreResult<bool> {
        let (file, meta) = (shaded.table.file_no(), shaded.table.meta());
        let (newest_deletion, deletions) = shaded.deletions();
        if deletions * share < meta.entries {
            return Ok(false);
        }
        if looked.get(&file).is_none_or(|known| !known.holds(newest_deletion, shaded.states)) {
            let counted = shaded.count(self)?;
            let pinned_by = if counted.pinned > 0 { shaded.states.to_vec() } else { Vec::new() };
            looked.insert(file, Looked { newest_deletion, pinned_by, counted });
        }
        let Some(Looked { counted, .. }) = looked.get(&file) else { return Ok(false) };
        let rest = counted.rest_of(meta.total_bytes());
        if !counted.is_worth_it(share, meta.total_bytes()) || rest > self.space.room()? / 2 {
            return Ok(false);
        }
        match self.write_rest(shaded) {
            Err(StoreError::NoSpace { .. }) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Puts in the place of a table what somebody sees of it.
    fn write_rest(&self, shaded: &Shaded<'_>) -> StoreResult<()> {
        let Shaded { space, place, table, .. } = shaded;
        let outputs = Outputs::new(self, space, place.level).emptying(BTreeSet::new(), true);
        let emptied = HashSet::from([table.file_no()]);
        let rule = self.stitches().then_some(StitchRule { threshold_bytes: 0, emptied });
        let options = self.table_options(space, place.level);
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
