//! Estimates how many rows of the upper sub-levels replace older ones, so that only stores that are written over and over are
//! merged before they have to be.
//!
//! 1. [`policy::asks_what_is_replaced`] says that the store would be merged early if all rows above its bottom replaced
//!    older ones.
//! 2. Of each table above, some blocks are read, spread over its keys. A row counts as replacing if it deletes, or if the
//!    filter of an older table says that it may hold the key. Without filters all count, so too where one cannot be read.
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

use super::damaged::says_unreadable;
use super::policy::{self, Run, Shape};
use crate::StoreResult;
use crate::db::Inner;
use crate::place::Place;
use crate::table::cache::Admission;
use crate::table::file::Table;
use crate::version::Version;

/// Blocks that are read of a table.
const SAMPLED_BLOCKS: usize = 16;

/// The part of the rows of each table of a key space that replaces older ones, as far as anybody looked.
pub(crate) type Shares = HashMap<FileNo, f64>;

impl Inner {
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
                None => match self.replacing_share(version, place, table) {
                    Err(error) if says_unreadable(&error) => 0.0,
                    other => other?,
                },
            };
            shares.insert(file, share);
        }
        for run in runs.iter_mut().flatten() {
            let replacing = run.tables.iter().map(|table| {
                let share = shares.get(&table.file).copied().unwrap_or(1.0);
                (table.total_bytes() as f64 * share) as u64
            });
            run.replacing_bytes = replacing.sum();
        }
        *known = shares;
        Ok(())
    }

    /// [`Inner::replacing_share`] of a table of `version`, looked at once.
    pub(super) fn known_share(
        &self,
        version: &Version,
        table: &Arc<Table>,
        known: &mut Shares,
    ) -> StoreResult<f64> {
        let file = table.file_no();
        if let Some(share) = known.get(&file) {
            return Ok(*share);
        }
        let at = version.tables().find(|(_, other)| other.file_no() == file);
        let share = at.map_or(Ok(1.0), |(at, _)| self.replacing_share(version, at, table))?;
        known.insert(file, share);
        Ok(share)
    }

    /// The part of the rows of `table`, which stands at `at`, that replaces older ones.
    fn replacing_share(
        &self,
        version: &Version,
        at: Place,
        table: &Arc<Table>,
    ) -> StoreResult<f64> {
        let index = self.cache.index(table)?;
        let blocks = index.index.block_count();
        let (mut rows, mut replacing) = (0u64, 0u64);
        let mut unreadable = HashSet::new();
        for number in (0..blocks).step_by(blocks.div_ceil(SAMPLED_BLOCKS).max(1)) {
            let Some(place) = index.place(table, number)? else { break };
            let mut cursor = BlockCursor::new(self.cache.block(place, Admission::Pass)?);
            cursor.seek_first().map_err(|error| place.damaged(error))?;
            while cursor.valid() {
                let key = cursor.key();
                if table.covers(key) {
                    let replaces = cursor.kind() == EntryKind::Delete
                        || self.older_filters_pass(version, at, key, &mut unreadable)?;
                    rows += 1;
                    replacing += u64::from(replaces);
                }
                cursor.next().map_err(|error| place.damaged(error))?;
            }
        }
        Ok(if rows == 0 { 1.0 } else { replacing as f64 / rows as f64 })
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
