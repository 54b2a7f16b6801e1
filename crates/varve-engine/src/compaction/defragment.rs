//! Empties files of which little is needed, and so gives their room back.
//!
//! 1. When compaction has nothing to do and more than [`crate::DbOptions::dead_percent_max`] of a key space's files
//!    is needed by nobody, or when [`crate::Db::defragment`] asks for it, [`defragment::pick`] names a table.
//! 2. The table is written again: its index, its filters and what it had in the files to be emptied; at all else it points
//!    as before, its former own file included unless too little of that would be needed.
//! 3. One manifest edit exchanges the two; the files that nothing points at any more go.
//!
//! A crash before step 3 leaves a file that the next open removes. Rows and versions stay what they are, so snapshots
//! see what they saw. Only where a sequence override gives several versions of a key one number, those go that nobody sees.
//!
//! Source: KVFS thesis 3.2.1, with what it leaves open: it runs while the store is used.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use varve_format::table::Zones;
use varve_types::KeyspaceId;

use super::CLOSE_CHECK_VERSIONS;
use super::compactor::Compactor;
use super::done_if_room;
use super::memory::Memory;
use super::outputs::{Outputs, Written};
use super::policy::defragment::{self, Fit, LIVE_PERCENT_MIN, Rewrite, Room};
use super::retain::Retention;
use super::stitch::{StitchRule, Stitcher};
use crate::iter::table::TableSource;
use crate::iter::{ALL_KEYS, Source};
use crate::keyspace::Keyspace;
use crate::metrics::Fragmentation;
use crate::place::Place;
use crate::table::cache::Admission;
use crate::table::file::Table;
use crate::version::Version;
use crate::versions::changes::Changes;
use crate::{Direction, StoreResult};

/// What a defragmentation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Defragmented {
    /// The files as they were.
    pub before: Fragmentation,
    /// As they are now.
    pub after: Fragmentation,
    /// Tables that were written again.
    pub rewrites: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

/// How the files of one key space's tables are used.
pub(crate) fn fragmentation_of(version: &Version) -> Fragmentation {
    let mut found = Fragmentation::default();
    let files = defragment::uses(version.tables().map(|(_, table)| table.meta()));
    let mut live_bytes = 0;
    for file in files.values() {
        found.files += 1;
        found.bytes += file.size_bytes;
        found.dead_bytes += file.size_bytes.saturating_sub(file.live_bytes);
        if !file.is_table {
            found.zones += 1;
            found.under_utilized += u64::from(file.is_under_utilized());
            found.by_use[(file.live_bytes * 10 / file.size_bytes.max(1)).min(10) as usize] += 1;
            found.runs += file.runs;
            live_bytes += file.live_bytes;
        }
    }
    found.mean_run_bytes = live_bytes / found.runs.max(1);
    found
}

impl Compactor {
    /// Empties files of which less than three quarters are needed, as far as there is room.
    pub(crate) fn defragment(&self, fit: Fit) -> StoreResult<Defragmented> {
        self.health.check_open()?;
        let (before, written) = (self.fragmentation(), || self.metrics.defragment_bytes.get());
        let (mut rewrites, start) = (0, written());
        while self.defragment_most(0, fit)? {
            rewrites += 1;
        }
        let (after, written_bytes) = (self.fragmentation(), written() - start);
        Ok(Defragmented { before, after, rewrites, written_bytes })
    }

    /// How the files of tables are used.
    pub(crate) fn fragmentation(&self) -> Fragmentation {
        let read_state = self.read_states.get();
        let mut sum = Fragmentation::default();
        let mut live_bytes = 0;
        for part in read_state.spaces().map(|space| fragmentation_of(&space.version)) {
            sum.files += part.files;
            sum.bytes += part.bytes;
            sum.dead_bytes += part.dead_bytes;
            sum.zones += part.zones;
            sum.under_utilized += part.under_utilized;
            sum.by_use = std::array::from_fn(|at| sum.by_use[at] + part.by_use[at]);
            sum.runs += part.runs;
            live_bytes += part.mean_run_bytes * part.runs;
        }
        sum.mean_run_bytes = live_bytes / sum.runs.max(1);
        sum
    }

    fn defragment_most(&self, dead_percent_max: u64, fit: Fit) -> StoreResult<bool> {
        let mut memory = self.job.lock();
        self.health.check_changeable()?;
        self.defragment_one(&mut memory, dead_percent_max, fit)
    }

    /// Rewrites one table of a key space of whose files more than `dead_percent_max` is dead. False if there is
    /// none, or no room. `memory` is what the lock of compaction jobs is for.
    pub(crate) fn defragment_one(
        &self,
        memory: &mut BTreeMap<KeyspaceId, Memory>,
        dead_percent_max: u64,
        fit: Fit,
    ) -> StoreResult<bool> {
        let read_state = self.read_states.get();
        for space in read_state.spaces() {
            let damaged = &mut memory.entry(space.id).or_default().damaged;
            let tables: Vec<_> = space.version.tables().map(|(_, table)| table.meta()).collect();
            let mut files = defragment::uses(tables.iter().copied());
            loop {
                files.retain(|file, _| !damaged.has(*file));
                if defragment::dead_percent(&files) <= dead_percent_max {
                    break;
                }
                let (free_bytes, file_bytes) = (self.space.room()?, self.options.table_bytes);
                let room = Room { free_bytes, file_bytes };
                let Some(rewrite) = defragment::pick(&tables, &files, fit, room) else { break };
                match done_if_room(self.rewrite(space, &rewrite)) {
                    Ok(done) => return Ok(done),
                    // They stay as long as this table does.
                    Err(error) => damaged.pass_by(error, rewrite.emptied)?,
                }
            }
        }
        Ok(false)
    }

    /// Does what was picked; false if the key space was cleared meanwhile.
    pub(super) fn rewrite(&self, space: &Keyspace, rewrite: &Rewrite) -> StoreResult<bool> {
        let mut tables = space.version.tables();
        let Some((place, table)) = tables.find(|(_, table)| table.file_no() == rewrite.table)
        else {
            return Ok(false);
        };
        let new = self.rewritten(space, place.level, table, rewrite)?;
        let written = new.table_bytes() + new.segment_bytes();
        self.exchange(space, place, table, &new)?;
        self.metrics.defragmentations.add(1);
        self.metrics.defragment_bytes.add(written);
        Ok(true)
    }

    /// What takes the place of `table`: one table.
    fn rewritten(
        &self,
        space: &Keyspace,
        level: usize,
        table: &Arc<Table>,
        rewrite: &Rewrite,
    ) -> StoreResult<Written> {
        let index = self.cache.index(table)?;
        let own_end = index.zones.as_ref().map_or(0, |zones: &Zones| zones.own_bytes());
        let mut emptied = rewrite.emptied.clone();
        if own_end * 100 < table.meta().size_bytes * LIVE_PERCENT_MIN {
            // As a zone it would be the next to be emptied.
            emptied.insert(table.file_no());
        }
        let rule = StitchRule { threshold_bytes: 0, emptied };
        let options = self.plans.table_options(space, level);
        let mut outputs =
            Stitcher::new(Outputs::new(&self.maker, space, level), options, Some(rule));
        let (cache, table) = (Arc::clone(&self.cache), Arc::clone(table));
        let all = ALL_KEYS;
        // All versions of a key that share a number are of one moment, of which the first counts.
        let mut retention = table.meta().seq_override.map(|_| Retention::new(&[]));
        let mut source = TableSource::new(cache, table, all, Direction::Forward, Admission::Pass)?;
        let mut versions = 0;
        while source.valid() {
            versions += 1;
            if versions % CLOSE_CHECK_VERSIONS == 0 {
                self.health.check_open()?;
            }
            let (key, seq) = (source.key(), source.seq());
            if retention.as_mut().is_none_or(|retention| retention.keeps(key, seq, false, || true))
            {
                outputs.add(key, seq, &source.found()?, source.origin())?;
            }
            source.advance()?;
        }
        outputs.finish()
    }

    /// Installs `new` at `place` instead of `old`, unless the key space was cleared meanwhile.
    pub(super) fn exchange(
        &self,
        space: &Keyspace,
        place: Place,
        old: &Arc<Table>,
        new: &Written,
    ) -> StoreResult<()> {
        let tables = new.tables.iter();
        let added = tables.map(|table| (space.id, place, Arc::clone(table))).collect();
        let segments = new.segments.clone();
        let removed = vec![(space.id, place, Arc::clone(old))];
        let changes = Changes { added, removed, segments, ..Changes::default() };
        let installed = self.versions.sync_names().and_then(|()| self.versions.install(&changes));
        // After a failure that poisons, the edit may have reached the disk: keep the files.
        if !matches!(installed, Ok(true)) && self.health.poison.cause().is_none() {
            new.discard();
        }
        installed.map(|_| ())
    }
}
