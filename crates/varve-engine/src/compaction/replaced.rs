//! Estimates how many rows of a table replace older ones, so that only stores that are written over and over are merged before
//! they have to be, and room is looked for where there may be some.
//!
//! 1. [`policy::asks_what_is_replaced`] says that the store would be merged early if all rows above its bottom replaced
//!    older ones.
//! 2. Of each table above, some blocks are read, spread over its keys. A row counts as replacing if it deletes, or if the
//!    filter of an older table says that it may hold the key. Without filters all count, so too where one cannot be read.
//!    A row counts as hidden if the version before it in the same table is of the same key: a merge keeps both while a
//!    snapshot sees the older.
//! 3. What was found is kept by file until the table goes, and forgotten at close. Older rows only become fewer, so that
//!    it becomes too much rather than too little.
//!
//! A table is looked at once, with a 64 KiB of reads, and only in a store of which most stands above the bottom, or where
//! room is short ([`super::reclaim`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use varve_format::EntryKind;
use varve_format::block::BlockCursor;
use varve_format::filter::filter_hash;
use varve_types::FileNo;

use super::compactor::Compactor;
use super::damaged::says_unreadable;
use super::policy::{self, Run, Shape};
use crate::StoreResult;
use crate::place::Place;
use crate::table::cache::{Admission, TableIndex};
use crate::table::file::Table;
use crate::version::Version;

/// Blocks that are read of a table.
const SAMPLED_BLOCKS: u64 = 16;
/// Of blocks of fewer rows the next one is read, too.
const FEW_ROWS: usize = 8;

/// Parts of the rows of a table, by a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampled {
    /// Replace older ones of other tables.
    pub(crate) replacing: f64,
    /// Are replaced by newer ones of the same table.
    pub(crate) hidden: f64,
}

impl Sampled {
    /// Of a table of which nothing is known: all may replace older ones.
    pub(crate) const UNKNOWN: Sampled = Sampled { replacing: 1.0, hidden: 0.0 };
}

/// How many of what was looked at are of a kind.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    all: u64,
    of_kind: u64,
}

impl Part {
    fn count(&mut self, is_of_kind: bool) {
        self.all += 1;
        self.of_kind += u64::from(is_of_kind);
    }

    /// The part that is; `unknown` if nothing was looked at.
    fn share(self, unknown: f64) -> f64 {
        if self.all == 0 { unknown } else { self.of_kind as f64 / self.all as f64 }
    }
}

/// Some of so many blocks, spread over all and in no step with rows that come again and again.
fn sampled_blocks(blocks: usize) -> impl Iterator<Item = usize> {
    /// The golden section of 2^64.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let all = blocks as u64;
    (0..all.min(SAMPLED_BLOCKS)).map(move |at| match all <= SAMPLED_BLOCKS {
        true => at as usize,
        false => ((u128::from(at.wrapping_mul(STEP)) * u128::from(all)) >> 64) as usize,
    })
}

/// What was sampled of the tables of a key space, as far as anybody looked.
pub(crate) type Shares = HashMap<FileNo, Sampled>;

impl Compactor {
    /// Puts into `runs`, those of `version`, how much of them replaces older rows, if that matters for what is merged
    /// next. `known` are the shares of tables that were looked at before.
    pub(crate) fn note_replaced(
        &self,
        shape: &Shape,
        version: &Version,
        runs: &mut [Vec<Run<'_>>],
        known: &mut Shares,
    ) -> StoreResult<()> {
        if !policy::asks_what_is_replaced(shape, runs) {
            return Ok(());
        }
        let mut shares = Shares::new();
        for (place, table) in version.tables() {
            let file = table.file_no();
            let share = match known.get(&file) {
                Some(share) => *share,
                // Who cannot be read is not merged before it has to be.
                None => match self.sample(version, place, table) {
                    Err(error) if says_unreadable(&error) => {
                        Sampled { replacing: 0.0, hidden: 0.0 }
                    }
                    other => other?,
                },
            };
            shares.insert(file, share);
        }
        for run in runs.iter_mut().flatten() {
            let replacing = run.tables.iter().map(|table| {
                let sampled = shares.get(&table.file).unwrap_or(&Sampled::UNKNOWN);
                (table.total_bytes() as f64 * sampled.replacing) as u64
            });
            run.replacing_bytes = replacing.sum();
        }
        *known = shares;
        Ok(())
    }

    /// [`Compactor::sample`] of a table of `version`, taken once.
    pub(super) fn sampled(
        &self,
        version: &Version,
        table: &Arc<Table>,
        known: &mut Shares,
    ) -> StoreResult<Sampled> {
        let file = table.file_no();
        if let Some(sampled) = known.get(&file) {
            return Ok(*sampled);
        }
        let at = version.tables().find(|(_, other)| other.file_no() == file);
        let sampled = at.map_or(Ok(Sampled::UNKNOWN), |(at, _)| self.sample(version, at, table))?;
        known.insert(file, sampled);
        Ok(sampled)
    }

    /// Parts of the rows of `table`, which stands at `at`.
    fn sample(&self, version: &Version, at: Place, table: &Arc<Table>) -> StoreResult<Sampled> {
        let index = self.cache.index(table)?;
        let blocks = index.index.block_count();
        let (mut replacing, mut hidden) = (Part::default(), Part::default());
        let mut unreadable = HashSet::new();
        for number in sampled_blocks(blocks) {
            let (mut last, mut rows) = (Vec::new(), 0);
            self.each_key(table, &index, number, |key, kind| {
                let replaces = kind == EntryKind::Delete
                    || self.older_filters_pass(version, at, key, &mut unreadable)?;
                replacing.count(replaces);
                if rows > 0 {
                    hidden.count(last == key);
                }
                rows += 1;
                last.clear();
                last.extend_from_slice(key);
                Ok(true)
            })?;
            // What stands before the first row of a block is not known, so where rows are few that of the next one counts.
            if (1..FEW_ROWS).contains(&rows) {
                self.each_key(table, &index, number + 1, |key, _| {
                    hidden.count(last == key);
                    Ok(false)
                })?;
            }
        }
        Ok(Sampled { replacing: replacing.share(1.0), hidden: hidden.share(0.0) })
    }

    /// Calls `each` with the keys of a block of `table` that count, as long as it says to go on.
    fn each_key(
        &self,
        table: &Arc<Table>,
        index: &TableIndex,
        number: usize,
        mut each: impl FnMut(&[u8], EntryKind) -> StoreResult<bool>,
    ) -> StoreResult<()> {
        let Some(place) = index.place(table, number)? else { return Ok(()) };
        let mut cursor = BlockCursor::new(self.cache.block(place, Admission::Pass)?);
        cursor.seek_first().map_err(|error| place.damaged(error))?;
        while cursor.valid() {
            if table.covers(cursor.key()) && !each(cursor.key(), cursor.kind())? {
                return Ok(());
            }
            cursor.next().map_err(|error| place.damaged(error))?;
        }
        Ok(())
    }

    /// Whether some table older than the sub-level at `at` may hold `key`, by its filter. Those that are, or turn out to be,
    /// `unreadable` may.
    fn older_filters_pass(
        &self,
        version: &Version,
        at: Place,
        key: &[u8],
        unreadable: &mut HashSet<FileNo>,
    ) -> StoreResult<bool> {
        let hash = filter_hash(key);
        for table in version.older_tables(at, key) {
            if unreadable.contains(&table.file_no()) {
                return Ok(true);
            }
            match self.cache.index(table) {
                Ok(index) if !index.may_hold(hash) => {}
                Err(error) if says_unreadable(&error) => {
                    unreadable.insert(table.file_no());
                    return Ok(true);
                }
                other => return other.map(|_| true),
            }
        }
        Ok(false)
    }
}
