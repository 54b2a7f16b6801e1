//! Makes a store what its design says at once, instead of as merges pass.
//!
//! 1. What is due goes first: merges bring the levels into the shape of the design, and what they write is of it.
//! 2. Then one table after the other that is of another design is merged alone and in its place: one with another index or
//!    filter, with blocks in other files although nothing is stitched, with values apart that belong into rows, or the
//!    other way round. All of it is copied.
//! 3. [`crate::Db::redesign`] does one step of this; who wants all calls it until nothing is left. Readers and writers go on.
//!
//! What a table is made of stands in the table, so nothing is noted on disk: whoever was interrupted finds what is
//! left by looking, and a crash leaves the old table or the new.
//!
//! Room: a step copies one table and the values that go from segments into its rows or the other way, and gives back what the
//! table had to itself. So that this is bounded, a table whose rows point at more than [`Compactor::step_bytes_max`] is split
//! first, which copies pointers. Segments and zones that several tables point into go when the last of them is done;
//! what becomes unused in them meanwhile is bounded as always, by cleaning and defragmentation, which are due work of
//! step 1.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use varve_types::FileNo;

use super::CLOSE_CHECK_VERSIONS;
use super::compactor::Compactor;
use super::memory::TableDesign;
use super::policy::{Job, States};
use super::purpose::Purpose;
use crate::iter::table::TableSource;
use crate::iter::{ALL_KEYS, Source};
use crate::keyspace::Keyspace;
use crate::memtable::Found;
use crate::table::cache::Admission;
use crate::table::file::Table;
use crate::{Direction, StoreResult, ValuePolicy};

/// A step copies a table, and of values at most this many tables' worth and what one key more brings.
const STEP_TABLES: u64 = 4;

/// How far a change of design is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redesign {
    /// Nothing is left to do.
    pub done: bool,
    /// Tables in all.
    pub tables: u64,
    /// Those that are not known to be of the store's design.
    pub tables_left: u64,
    /// Bytes of these.
    pub bytes_left: u64,
    /// Tables that were written again for it since the store was opened, a part of one counting as one.
    pub rewrites: u64,
    /// Bytes that were written for it.
    pub written_bytes: u64,
}

impl Compactor {
    /// Takes the next step to make all tables what the design says that the store was opened with.
    pub(crate) fn redesign(&self) -> StoreResult<Redesign> {
        self.health.check_open()?;
        let did = self.compact_one(false)? || self.redesign_one()?;
        Ok(self.redesign_left(!did))
    }

    /// Rewrites one table that is of another design; false if there is none.
    fn redesign_one(&self) -> StoreResult<bool> {
        let mut memory = self.job.lock();
        self.health.check_changeable()?;
        let read_state = self.read_states.get();
        let mut known = self.redesigned.lock();
        let tables = read_state.spaces().flat_map(|space| space.version.tables());
        let there: HashSet<FileNo> = tables.map(|(_, table)| table.file_no()).collect();
        known.retain(|file, _| there.contains(file));
        for space in read_state.spaces() {
            for (place, table) in space.version.tables() {
                let file = table.file_no();
                let is_small = match known.get(&file) {
                    Some(TableDesign::Fine) => continue,
                    Some(TableDesign::Small) => true,
                    None => false,
                };
                if self.is_of_design(space, place.level, table)? {
                    known.insert(file, TableDesign::Fine);
                    continue;
                }
                let pointed: u64 = table.meta().segments.iter().map(|share| share.bytes).sum();
                let in_row = self.options.values == ValuePolicy::InRow;
                let (purpose, becomes) =
                    match in_row && !is_small && pointed > self.step_bytes_max() {
                        true => (Purpose::Split(self.step_bytes_max()), TableDesign::Small),
                        false => (Purpose::Redesign, TableDesign::Fine),
                    };
                let first = self.file_numbers.next();
                let job = Job::in_place(place, file, &States::default());
                let damaged = &mut memory.entry(space.id).or_default().damaged;
                if let Err(error) = self.merge(space, &job, purpose, damaged) {
                    // It is tried again without what is damaged, unless it is what has to be read.
                    damaged.pass_by_input(error, None)?;
                    return Ok(true);
                }
                // What came out is what it is, even if a filter is another for want of a seed, or one key has values
                // beyond measure: the next try would end so, too.
                let now = self.read_states.get();
                let written = now.keyspace(space.id).into_iter().flat_map(|s| s.version.tables());
                let new = written.map(|(_, table)| table.file_no()).filter(|file| *file >= first);
                known.extend(new.map(|file| (file, becomes)));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Bytes of values that a step takes out of segments, nearly.
    fn step_bytes_max(&self) -> u64 {
        STEP_TABLES * self.options.table_bytes
    }

    fn redesign_left(&self, done: bool) -> Redesign {
        let read_state = self.read_states.get();
        let known = self.redesigned.lock();
        let mut left = Redesign {
            done,
            rewrites: self.metrics.redesigns.get(),
            written_bytes: self.metrics.redesign_bytes.get(),
            ..Redesign::default()
        };
        for (_, table) in read_state.spaces().flat_map(|space| space.version.tables()) {
            left.tables += 1;
            if known.get(&table.file_no()) != Some(&TableDesign::Fine) {
                left.tables_left += 1;
                left.bytes_left += table.meta().total_bytes();
            }
        }
        left
    }

    /// Whether `table` is as a new one in its place would be.
    fn is_of_design(
        &self,
        space: &Keyspace,
        level: usize,
        table: &Arc<Table>,
    ) -> StoreResult<bool> {
        let (options, meta) = (self.plans.table_options(space, level), table.meta());
        let (is_stitched, points) = (!meta.zones.is_empty(), !meta.segments.is_empty());
        let values = self.options.values;
        if (is_stitched && !self.plans.stitches()) || (points && values == ValuePolicy::InRow) {
            return Ok(false);
        }
        let (footer, _) = self.cache.load_footer(table)?;
        if footer.index_policy != options.index_policy()
            || footer.filter_kind != options.filter.kind()
        {
            return Ok(false);
        }
        Ok(values == ValuePolicy::InRow || !self.has_large_values(table)?)
    }

    /// Whether values stand in the rows of `table` that belong into segments.
    fn has_large_values(&self, table: &Arc<Table>) -> StoreResult<bool> {
        let (cache, table) = (Arc::clone(&self.cache), Arc::clone(table));
        let (forward, pass) = (Direction::Forward, Admission::Pass);
        let mut source = TableSource::new(cache, table, ALL_KEYS, forward, pass)?;
        let mut versions = 0;
        while source.valid() {
            versions += 1;
            if versions % CLOSE_CHECK_VERSIONS == 0 {
                self.health.check_open()?;
            }
            if let Found::Value(value) = source.found()?
                && self.options.values.separates(value.len())
            {
                return Ok(true);
            }
            source.advance()?;
        }
        Ok(false)
    }
}
