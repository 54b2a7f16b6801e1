//! Carries out what the policy decides.
//!
//! 1. Merge the inputs in internal order, dropping versions that [`super::retain`] does not keep.
//! 2. Begin a new output table between keys when the present one is large, or overlaps too much of the
//!    level after next, which would make its own compaction costly (TableFS 4.1.2).
//! 3. Sync the outputs and their names, then exchange inputs and outputs in one manifest edit.
//!
//! Invariant: versions of one key never stand in two output tables.

use std::sync::Arc;

use varve_format::section::Compression;
use varve_format::table::TableOptions;
use varve_types::KeyspaceId;

use super::policy::{Cursors, GRANDPARENT_TABLES_MAX, Job, Shape, debt_bytes, pick};
use super::retain::Retention;
use crate::db::Inner;
use crate::db::install::Changes;
use crate::files::io_error;
use crate::iter::Source;
use crate::iter::level::LevelSource;
use crate::iter::merge::Merge;
use crate::iter::table::TableSource;
use crate::memtable::Found;
use crate::pace::delay_ns_per_byte;
use crate::table::{Admission, TableWriter};
use crate::version::{LEVELS, Table, Version};
use crate::view::Keyspace;
use crate::{CompactionPolicy, Direction, StoreResult, ValuePolicy};

/// A merge asks whether the store closes every such many versions.
const CLOSE_CHECK_VERSIONS: u64 = 4096;
const ALL_KEYS: crate::iter::KeyBounds<'static> =
    (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);

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
            self.bytes += table.meta().size_bytes;
            self.at += 1;
        }
        self.bytes
    }
}

impl Inner {
    /// The shape that compactions keep.
    pub(crate) fn shape(&self) -> Shape {
        Shape {
            l0_trigger: self.options.l0_trigger,
            level_base_bytes: self.options.level_base_bytes,
            level_multiplier: self.options.level_multiplier,
            table_bytes: self.options.table_bytes,
        }
    }

    /// Bytes that compactions have to move in all key spaces.
    pub(crate) fn compaction_debt(&self) -> u64 {
        let (view, shape) = (self.views.get(), self.shape());
        view.keyspaces.iter().map(|space| debt_bytes(&shape, &space.version.metas())).sum()
    }

    /// Sets the pace of writes by the debt.
    pub(crate) fn update_pace(&self) {
        let (soft, hard) = (self.options.debt_soft_bytes, self.options.debt_hard_bytes);
        self.pace.set_delay(delay_ns_per_byte(self.compaction_debt(), soft, hard));
    }

    /// Does the most urgent compaction. False if there is none to do.
    pub(crate) fn compact_one(&self) -> StoreResult<bool> {
        let mut cursors = self.compaction_job.lock();
        self.poison.check()?;
        let (view, shape) = (self.views.get(), self.shape());
        cursors.resize_with(view.keyspaces.len(), Cursors::default);
        let most_urgent = view
            .keyspaces
            .iter()
            .zip(cursors.iter())
            .filter_map(|(space, cursors)| {
                let picked = match self.options.compaction {
                    CompactionPolicy::Leveled => pick(&shape, &space.version.metas(), cursors),
                };
                picked.map(|(score, job)| (score, space, job))
            })
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, space, job)) = most_urgent else {
            self.update_pace();
            return Ok(false);
        };
        if job.is_move {
            self.move_down(space, &job)?;
        } else {
            self.merge(space, &job)?;
        }
        cursors[space.id.get() as usize][job.level] = job.largest_key;
        drop(view);
        self.update_pace();
        Ok(true)
    }

    fn move_down(&self, space: &Keyspace, job: &Job) -> StoreResult<()> {
        self.metrics.table_moves.add(1);
        let removed = inputs(space.id, &space.version, job);
        let added = removed.iter().map(|(id, level, table)| (*id, level + 1, Arc::clone(table)));
        let added = added.collect();
        self.install(&Changes { added, removed, ..Changes::default() })?;
        Ok(())
    }

    fn merge(&self, space: &Keyspace, job: &Job) -> StoreResult<()> {
        let removed = inputs(space.id, &space.version, job);
        let read: u64 = removed.iter().map(|(_, _, table)| table.meta().size_bytes).sum();
        // The outputs stand beside the inputs until the end. Without room for both, trying would fill the
        // device again and again.
        self.space.check_room(read)?;
        let mut outputs = Outputs::new(self, space);
        self.merge_into(&mut outputs, space, job)?;
        let tables = outputs.finish()?;
        let level = job.output_level();
        let written: u64 = tables.iter().map(|table| table.meta().size_bytes).sum();
        if !tables.is_empty() {
            self.env
                .sync_dir(&self.dir)
                .map_err(|e| self.poison.set(&io_error("sync", &self.dir, e)))?;
        }
        let added = tables.iter().map(|table| (space.id, level, Arc::clone(table))).collect();
        let changes = Changes { added, removed, ..Changes::default() };
        match self.install(&changes) {
            Ok(true) => {
                self.metrics.compactions.add(1);
                self.metrics.compaction_read_bytes.add(read);
                self.metrics.compaction_write_bytes[level].add(written);
                Ok(())
            }
            // The key space was cleared meanwhile, or the edit found no room: the outputs are nobody's.
            Ok(false) => {
                tables.iter().for_each(|table| table.mark_obsolete());
                Ok(())
            }
            Err(error) => {
                // After a failure that poisons, the edit may have reached the disk: keep the files.
                if self.poison.cause().is_none() {
                    tables.iter().for_each(|table| table.mark_obsolete());
                }
                Err(error)
            }
        }
    }

    fn merge_into(
        &self,
        outputs: &mut Outputs<'_>,
        space: &Keyspace,
        job: &Job,
    ) -> StoreResult<()> {
        let version = &space.version;
        let output_level = job.output_level();
        let deeper =
            |key: &[u8]| (output_level + 1..LEVELS).any(|level| version.find(level, key).is_some());
        let tables = if output_level + 1 < LEVELS { version.level(output_level + 1) } else { &[] };
        let mut grandparents = Grandparents { tables, at: 0, bytes: 0 };
        let overlap_max = GRANDPARENT_TABLES_MAX * self.options.table_bytes;
        let mut merge = Merge::new(self.job_sources(version, job)?, Direction::Forward);
        let mut retention = Retention::new(self.snapshots.live());
        let mut versions = 0;
        while merge.valid() {
            versions += 1;
            if versions % CLOSE_CHECK_VERSIONS == 0 {
                self.check_open()?;
            }
            let (key, seq, found) = (merge.key(), merge.seq(), merge.found());
            if retention.is_new_key(key) {
                let overlapped = grandparents.pass(key);
                if outputs.bytes() >= self.options.table_bytes || overlapped > overlap_max {
                    outputs.cut()?;
                    grandparents.bytes = 0;
                }
            }
            if retention.keeps(key, seq, found == Found::Tombstone, || deeper(key)) {
                outputs.add(key, seq, &found)?;
            }
            merge.advance()?;
        }
        Ok(())
    }

    fn job_sources(&self, version: &Version, job: &Job) -> StoreResult<Vec<Box<dyn Source>>> {
        let (forward, pass) = (Direction::Forward, Admission::Pass);
        let chosen = |level: usize, files: &[varve_types::FileNo]| {
            let tables = version.level(level).iter().filter(|t| files.contains(&t.file_no()));
            tables.cloned().collect::<Vec<_>>().into_iter()
        };
        let cache = || Arc::clone(&self.cache);
        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        if job.level == 0 {
            for table in chosen(0, &job.upper) {
                sources.push(Box::new(TableSource::new(cache(), table, ALL_KEYS, forward, pass)?));
            }
        } else {
            let upper = chosen(job.level, &job.upper);
            sources.push(Box::new(LevelSource::new(cache(), upper, ALL_KEYS, forward, pass)?));
        }
        let lower = chosen(job.output_level(), &job.lower);
        sources.push(Box::new(LevelSource::new(cache(), lower, ALL_KEYS, forward, pass)?));
        Ok(sources)
    }
}

/// The input tables of a job.
fn inputs(id: KeyspaceId, version: &Version, job: &Job) -> Vec<(KeyspaceId, usize, Arc<Table>)> {
    let of = |level: usize, files: &[varve_types::FileNo]| {
        let tables = version.level(level).iter().filter(|table| files.contains(&table.file_no()));
        tables.map(|table| (id, level, Arc::clone(table))).collect::<Vec<_>>()
    };
    let mut inputs = of(job.level, &job.upper);
    inputs.extend(of(job.output_level(), &job.lower));
    inputs
}

/// Writes versions to one new table after the other. Tables of an unfinished run are removed.
pub(crate) struct Outputs<'a> {
    inner: &'a Inner,
    space: &'a Keyspace,
    writer: Option<TableWriter>,
    tables: Vec<Arc<Table>>,
}

impl<'a> Outputs<'a> {
    /// No tables yet.
    pub(crate) fn new(inner: &'a Inner, space: &'a Keyspace) -> Outputs<'a> {
        Outputs { inner, space, writer: None, tables: Vec::new() }
    }

    /// Bytes of the present table.
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, TableWriter::file_bytes)
    }

    /// Adds a version, in internal order.
    pub(crate) fn add(
        &mut self,
        key: &[u8],
        seq: varve_types::SeqNo,
        found: &Found,
    ) -> StoreResult<()> {
        if self.writer.is_none() {
            let inner = self.inner;
            let options = inner.table_options(self.space);
            let no = inner.new_file_no();
            self.writer = Some(TableWriter::create(&inner.env, &inner.dir, no, options)?);
        }
        let Some(writer) = &mut self.writer else { return Ok(()) };
        match self.inner.options.values {
            ValuePolicy::InRow => writer.add(key, seq, found),
        }
    }

    /// Finishes the present table, if there is one.
    pub(crate) fn cut(&mut self) -> StoreResult<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        if let Some(meta) = writer.finish()? {
            let env = Arc::clone(&self.inner.env);
            let table = Table::new(env, &self.inner.dir, self.space.id, meta);
            self.tables.push(Arc::new(table));
        }
        Ok(())
    }

    /// Finishes the last table; returns all. Their content is durable, their names are not.
    pub(crate) fn finish(mut self) -> StoreResult<Vec<Arc<Table>>> {
        self.cut()?;
        Ok(std::mem::take(&mut self.tables))
    }
}

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        self.tables.iter().for_each(|table| table.mark_obsolete());
    }
}

impl Inner {
    /// How tables of a key space are built.
    fn table_options(&self, space: &Keyspace) -> TableOptions {
        let compressed = space.options.compressed;
        TableOptions {
            keyspace: space.id,
            prefixed: space.options.prefixed,
            block_bytes: self.options.block_bytes,
            compression: if compressed { Compression::Lz4 } else { Compression::None },
            index: self.options.index,
            filter: self.options.filter,
        }
    }
}
