//! Carries out what the policy decides.
//!
//! 1. Merge the inputs in internal order up to the job's end, dropping versions that [`super::retain`] does
//!    not keep.
//! 2. Begin a new output table between keys when the present one is large, or overlaps too much of the
//!    level after next, which would make its own compaction costly (TableFS 4.1.2).
//! 3. Sync the outputs and their names, then exchange inputs and outputs in one manifest edit. Of inputs that
//!    go on behind the end the rest stays where it is.
//!
//! Invariant: versions of one key never stand in two output tables.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use varve_types::{FileNo, KeyspaceId, SeqNo, SublevelId};

use super::CLOSE_CHECK_VERSIONS;
use super::compactor::Compactor;
use super::damaged::Damaged;
use super::memory::Memory;
use super::outputs::{Outputs, Written};
use super::policy::defragment::{self, Fit};
use super::policy::leveled::GRANDPARENT_TABLES_MAX;
use super::policy::{Job, Shape, cleaning, debt_bytes, pick};
use super::purpose::Purpose;
use super::reclaim::DEAD_SHARE_FAIR;
use super::retain::Retention;
use super::stitch::{StitchRule, Stitcher};
use crate::iter::level::LevelSource;
use crate::iter::merge::Merge;
use crate::iter::{ALL_KEYS, Source};
use crate::keyspace::Keyspace;
use crate::memtable::Found;
use crate::pace::delay_ns_per_byte;
use crate::place::{LEVELS, Place};
use crate::sublevel_map::moves::Moves;
use crate::table::cache::Admission;
use crate::table::file::Table;
use crate::versions::changes::Changes;
use crate::{Direction, StoreError, StoreResult, ValuePolicy};

/// Bytes of the level after next that the present output table overlaps.
struct Grandparents<'a> {
    tables: &'a [Arc<Table>],
    /// The first table that is not wholly before the last key.
    at: usize,
    bytes: u64,
}

impl Grandparents<'_> {
    /// Notes that the output goes on with `key`; returns the bytes overlapped so far.
    fn pass(&mut self, key: &[u8]) -> u64 {
        while let Some(table) = self.tables.get(self.at)
            && *table.meta().largest_key < *key
        {
            self.bytes += table.meta().total_bytes();
            self.at += 1;
        }
        self.bytes
    }
}

impl Compactor {
    /// Bytes that compactions have to move in all key spaces.
    pub(crate) fn compaction_debt(&self) -> u64 {
        let (read_state, shape) = (self.read_states.get(), self.plans.shape());
        let left_alone = self.left_alone.lock();
        let debts = read_state.spaces().map(|space| {
            let (version, mut uses) = (&space.version, space.version.segment_uses());
            uses.retain(|segment| !left_alone.contains(&segment.file));
            debt_bytes(&shape, &version.runs()) + cleaning::debt_bytes(&shape, &uses)
        });
        debts.sum()
    }

    /// Sets the pace of writes by the debt.
    pub(crate) fn update_pace(&self) {
        let (soft, hard) = (self.options.debt_soft_bytes, self.options.debt_hard_bytes);
        self.pace.set_delay(delay_ns_per_byte(self.compaction_debt(), soft, hard));
    }

    /// Does the most urgent compaction, or else defragments if that is due. False if there is none to do.
    /// `at_rest` says that nothing was flushed for a while.
    pub(crate) fn compact_one(&self, at_rest: bool) -> StoreResult<bool> {
        let mut memory = self.job.lock();
        self.health.check_changeable()?;
        let read_state = self.read_states.get();
        if self.plans.retune(&read_state) {
            memory.clear();
        }
        let room_bytes = self.space.room_of_merges()? / 2;
        let shape = Shape { at_rest, room_bytes, ..self.plans.shape() };
        memory.retain(|id, _| read_state.keyspace(*id).is_ok());
        let (mut picked, mut left_alone) = (Vec::new(), HashSet::new());
        for space in read_state.spaces() {
            let (mut runs, mut uses) = (space.version.runs(), space.version.segment_uses());
            let Memory { states, replacing, damaged, .. } = memory.entry(space.id).or_default();
            left_alone.extend(cleaning::leave_alone(&runs, &mut uses, |file| damaged.has(file)));
            self.note_replaced(&shape, &space.version, &mut runs, replacing)?;
            let merge =
                pick(&shape, &runs, states).map(|(score, job)| (score, space, job, Purpose::Shape));
            let cleaning = cleaning::pick(&shape, &runs, &uses, states)
                .map(|(score, job, worst)| (score, space, job, Purpose::Cleaning(worst)));
            picked.extend(merge.into_iter().chain(cleaning));
        }
        *self.left_alone.lock() = left_alone;
        let most_urgent = picked.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, space, job, purpose)) = most_urgent else {
            drop(read_state);
            let did = (self.space.is_scarce()? && self.reclaim(&mut memory, DEAD_SHARE_FAIR)?) || {
                let dead_percent_max = self.options.dead_percent_max.into();
                self.defragment_one(&mut memory, dead_percent_max, Fit::Best)?
            };
            self.update_pace();
            return Ok(did);
        };
        let known = memory.entry(space.id).or_default();
        let outcome = match job.is_move {
            true => self.move_down(space, &job),
            false => self.merge(space, &job, purpose, &known.damaged),
        };
        match outcome {
            Ok(()) => known.states[job.level] = job.state,
            Err(error @ StoreError::NoSpace { .. }) => {
                drop(read_state);
                if !self.reclaim(&mut memory, DEAD_SHARE_FAIR)? {
                    return Err(error);
                }
            }
            // It is tried again without what is damaged.
            Err(error) => known.damaged.pass_by_input(error, purpose.cleaned(&job))?,
        }
        self.update_pace();
        Ok(true)
    }

    /// Where the rows of `job` go.
    fn output_place(&self, job: &Job) -> Place {
        // File numbers only grow, so a new sub-level is newer than all that are there.
        let new = || SublevelId::new(self.file_numbers.take().get());
        let sublevel = job.output_sublevel.unwrap_or_else(new);
        Place { level: job.output_level, sublevel }
    }

    fn move_down(&self, space: &Keyspace, job: &Job) -> StoreResult<()> {
        self.metrics.table_moves.add(1);
        let removed = inputs(space, job);
        let place = self.output_place(job);
        let added = removed.iter().map(|(id, _, table)| (*id, place, Arc::clone(table))).collect();
        self.versions.install(&Changes { added, removed, ..Changes::default() })?;
        Ok(())
    }

    /// Bytes of room that a merge may take. Those for the shape alone leave some to what gives room back sooner.
    fn room_for(&self, purpose: Purpose) -> StoreResult<u64> {
        match purpose {
            Purpose::Shape => self.space.room_of_merges(),
            Purpose::Cleaning(_) | Purpose::Redesign | Purpose::Split(_) => self.space.room(),
        }
    }

    /// Merges. What stands in segments that are `damaged` is not written anew because little of them is in use.
    ///
    /// REQUIRES: the lock of compaction jobs.
    pub(super) fn merge(
        &self,
        space: &Keyspace,
        job: &Job,
        purpose: Purpose,
        damaged: &Damaged,
    ) -> StoreResult<()> {
        debug_assert!(self.job.is_locked());
        let removed = inputs(space, job);
        let room = self.room_for(purpose)?;
        let read = self.bytes_within(&removed, job, room)?;
        let for_values = room.saturating_sub(read) / 2;
        let (leaving, values) = self.leaving(space, &removed, purpose, damaged, for_values);
        // The outputs stand beside the inputs until the end. Without room for both, trying would fill the
        // device again and again.
        if room < read + values {
            return Err(StoreError::NoSpace { path: self.dir.clone() });
        }
        let place = self.output_place(job);
        let options = self.plans.table_options(space, place.level);
        let outputs = Outputs::new(&self.maker, space, place.level)
            .emptying(leaving, purpose.leaves_values());
        let rule = if purpose.copies_all() { None } else { self.stitch_rule(space) };
        let mut outputs = Stitcher::new(outputs, options, rule);
        let version = &space.version;
        let has_numbers = removed.iter().any(|(_, _, table)| version.number(table).is_some());
        let map = version.map().filter(|_| has_numbers);
        let mut moves = map.map(|map| Moves::new(map.id(), self.options.moves_bytes_max()));
        let pointed_max = purpose.pointed_max();
        let moved = moves.as_mut();
        let rest_from = self.merge_into(&mut outputs, space, job, place, moved, pointed_max)?;
        let written = outputs.finish()?;
        let mut added: Vec<_> =
            written.tables.iter().map(|table| (space.id, place, Arc::clone(table))).collect();
        let rest = rest_from.map_or_else(Vec::new, |from| rest_of(&removed, &from));
        self.metrics.table_clips.add(rest.len() as u64);
        added.extend(rest);
        let (segments, moves) = (written.segments.clone(), moves.map(Arc::new));
        let changes = Changes { added, removed, segments, moves, ..Changes::default() };
        let named = if written.tables.is_empty() { Ok(()) } else { self.versions.sync_names() };
        match named.and_then(|()| self.versions.install(&changes)) {
            Ok(true) => {
                self.count_merge(purpose, place.level, read, &written);
                Ok(())
            }
            // The key space was cleared meanwhile, or the edit found no room: the outputs are nobody's.
            Ok(false) => {
                written.discard();
                Ok(())
            }
            Err(error) => {
                // After a failure that poisons, the edit may have reached the disk: keep the files.
                if self.health.poison.cause().is_none() {
                    written.discard();
                }
                Err(error)
            }
        }
    }

    /// The segments of which a merge of `tables` writes the values anew, and bytes of all values that it writes. There is room
    /// for `room_bytes` of those in segments of little use.
    fn leaving(
        &self,
        space: &Keyspace,
        tables: &[(KeyspaceId, Place, Arc<Table>)],
        purpose: Purpose,
        damaged: &Damaged,
        room_bytes: u64,
    ) -> (BTreeSet<FileNo>, u64) {
        let shares = || tables.iter().flat_map(|(_, _, table)| &table.meta().segments);
        let pointed = |file: FileNo| -> u64 {
            shares().filter(|share| share.segment == file).map(|share| share.bytes).sum()
        };
        let mut uses = space.version.segment_uses();
        uses.retain(|segment| !damaged.has(segment.file));
        let leaving =
            cleaning::leaving(&self.plans.shape(), &uses, pointed, purpose.emptied(), room_bytes);
        let values = match self.options.values {
            ValuePolicy::InRow if !purpose.leaves_values() => {
                shares().map(|share| share.bytes).sum()
            }
            _ => leaving.iter().map(|file| pointed(*file)).sum(),
        };
        (leaving, values)
    }

    /// Bytes that `job` takes of `tables`, its inputs, nearly; where `room` is far larger, those of their files.
    fn bytes_within(
        &self,
        tables: &[(KeyspaceId, Place, Arc<Table>)],
        job: &Job,
        room: u64,
    ) -> StoreResult<u64> {
        let whole = tables.iter().map(|(_, _, table)| table.meta().total_bytes()).sum();
        if whole <= room / 2 {
            return Ok(whole);
        }
        let mut sum = 0.0;
        for (_, _, table) in tables {
            let index = self.cache.index(table)?;
            let (_, blocks) = index.blocks_within(table, job.end.as_deref());
            sum += table.meta().total_bytes() as f64 * blocks as f64
                / index.index.block_count() as f64;
        }
        Ok(sum as u64)
    }

    /// Counts a merge by what it was for.
    fn count_merge(&self, purpose: Purpose, level: usize, read: u64, written: &Written) {
        let metrics = &self.metrics;
        metrics.compaction_read_bytes.add(read);
        if purpose.copies_all() {
            metrics.redesigns.add(1);
            metrics.redesign_bytes.add(written.table_bytes() + written.segment_bytes());
            return;
        }
        let is_cleaning = matches!(purpose, Purpose::Cleaning(_));
        let kind = if is_cleaning { &metrics.cleanings } else { &metrics.compactions };
        kind.add(1);
        metrics.segment_merge_bytes.add(written.segment_bytes());
        metrics.compaction_write_bytes[level].add(written.table_bytes());
    }

    /// Merges the inputs of `job`, noting in `moves` where keys come from; returns the first key after its end, if
    /// there is one. The end comes early when there are many notes. The rows of one output point at about `pointed_max`
    /// bytes at the most.
    fn merge_into(
        &self,
        outputs: &mut Stitcher<'_>,
        space: &Keyspace,
        job: &Job,
        place: Place,
        mut moves: Option<&mut Moves>,
        pointed_max: u64,
    ) -> StoreResult<Option<Vec<u8>>> {
        let version = &space.version;
        let next = if place.level + 1 < LEVELS { version.level(place.level + 1) } else { &[] };
        let tables = match next {
            [only] => only.tables(),
            _ => &[],
        };
        let mut grandparents = Grandparents { tables, at: 0, bytes: 0 };
        let overlap_max = GRANDPARENT_TABLES_MAX * self.options.table_bytes;
        let mut merge = Merge::new(self.job_sources(space, job)?, Direction::Forward);
        let states = self.states_within(space);
        let mut retention = Retention::new(&states);
        let mut versions = 0;
        while merge.valid() {
            versions += 1;
            if versions % CLOSE_CHECK_VERSIONS == 0 {
                self.health.check_open()?;
            }
            let (key, seq, found) = (merge.key(), merge.seq(), merge.found()?);
            if retention.is_new_key(key) {
                let notes_full = moves.as_ref().is_some_and(|moves| moves.is_full());
                if notes_full || job.end.as_ref().is_some_and(|end| *key > **end) {
                    return Ok(Some(key.to_vec()));
                }
                if let Some(moves) = &mut moves {
                    moves.begin(key, merge.table().and_then(Table::map_number));
                }
                let overlapped = grandparents.pass(key);
                let is_large = outputs.bytes() >= self.options.table_bytes
                    || outputs.pointed_bytes() >= pointed_max;
                if is_large || overlapped > overlap_max {
                    outputs.cut()?;
                    grandparents.bytes = 0;
                }
            }
            // What a branch stands over may hold any key.
            let stands_over = space.branch.is_some() && !space.private;
            let hidden_below = || stands_over || version.older_tables(place, key).next().is_some();
            let keeps = retention.keeps(key, seq, found == Found::Tombstone, hidden_below);
            let origin = if outputs.asks_origin() { merge.origin() } else { None };
            if keeps {
                outputs.add(key, seq, &found, origin)?;
                if let Some(moves) = &mut moves {
                    moves.kept();
                }
            } else if let Some(origin) = origin {
                outputs.dropped(&origin)?;
            }
            merge.advance()?;
        }
        Ok(None)
    }

    /// The states for which a merge in `space` keeps versions, ascending. A branch keeps one that is older than all rows of its
    /// private key spaces, and of what was deleted there since nobody is told; elsewhere commits and differences are.
    pub(super) fn states_within(&self, space: &Keyspace) -> Vec<SeqNo> {
        let mut live = self.snapshots.live();
        if space.private {
            let tables = space.version.tables();
            let oldest = tables.map(|(_, table)| table.meta().smallest_seq).min();
            live.retain(|seq| Some(*seq) >= oldest);
        }
        live
    }

    /// A source for each sub-level that the job merges.
    fn job_sources(&self, space: &Keyspace, job: &Job) -> StoreResult<Vec<Box<dyn Source>>> {
        let (forward, pass) = (Direction::Forward, Admission::Pass);
        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        for run in inputs(space, job).chunk_by(|a, b| a.1 == b.1) {
            let tables = run.iter().map(|(_, _, table)| Arc::clone(table));
            let cache = Arc::clone(&self.cache);
            sources.push(Box::new(LevelSource::new(cache, tables, ALL_KEYS, forward, pass)?));
        }
        Ok(sources)
    }
}

/// The input tables of a job, those of one sub-level together and in the order of their keys.
fn inputs(space: &Keyspace, job: &Job) -> Vec<(KeyspaceId, Place, Arc<Table>)> {
    let tables = space.version.tables();
    let chosen = tables.filter(|(place, table)| job.inputs.contains(&(*place, table.file_no())));
    chosen.map(|(place, table)| (space.id, place, Arc::clone(table))).collect()
}

/// What is left of `tables` when all keys before `from` are gone.
fn rest_of(
    tables: &[(KeyspaceId, Place, Arc<Table>)],
    from: &[u8],
) -> Vec<(KeyspaceId, Place, Arc<Table>)> {
    let reaching = tables.iter().filter(|(_, _, table)| *table.meta().largest_key >= *from);
    let rest = |table: &Arc<Table>| match *table.meta().smallest_key < *from {
        true => Arc::new(table.clipped(from)),
        // The merge ended before it came to this one.
        false => Arc::clone(table),
    };
    reaching.map(|(id, place, table)| (*id, *place, rest(table))).collect()
}

impl Compactor {
    /// Which runs of blocks a merge leaves where they are: none in files of which little is needed, which so go as merges
    /// pass.
    fn stitch_rule(&self, space: &Keyspace) -> Option<StitchRule> {
        if !self.plans.stitches() {
            return None;
        }
        let threshold_bytes = self.plans.stitch_threshold_bytes();
        let tables = space.version.tables().map(|(_, table)| table.meta());
        let emptied = defragment::leaving(&defragment::uses(tables));
        Some(StitchRule { threshold_bytes, emptied })
    }
}

#[cfg(test)]
mod tests;
