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

use std::collections::HashSet;
use std::sync::Arc;

use varve_format::section::Compression;
use varve_format::table::{TableOptions, Zone};
use varve_types::{KeyspaceId, SublevelId};

use super::policy::defragment::Fit;
use super::policy::leveled::GRANDPARENT_TABLES_MAX;
use super::policy::{Job, Shape, debt_bytes, pick};
use super::retain::Retention;
use super::stitch::{Piece, StitchRule, Stitcher};
use crate::db::Inner;
use crate::db::install::Changes;
use crate::files::io_error;
use crate::iter::Source;
use crate::iter::level::LevelSource;
use crate::iter::merge::Merge;
use crate::memtable::Found;
use crate::pace::delay_ns_per_byte;
use crate::sublevel_map::Moves;
use crate::table::{Admission, TableWriter};
use crate::version::{LEVELS, Place, Table, TableFiles};
use crate::view::Keyspace;
use crate::{CompactionPolicy, Direction, StoreResult, ValuePolicy};

/// A merge asks whether the store closes every such many versions.
const CLOSE_CHECK_VERSIONS: u64 = 4096;
pub(crate) const ALL_KEYS: crate::iter::KeyBounds<'static> =
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
            self.bytes += table.meta().total_bytes();
            self.at += 1;
        }
        self.bytes
    }
}

impl Inner {
    /// Bytes that compactions have to move in all key spaces.
    pub(crate) fn compaction_debt(&self) -> u64 {
        let (view, shape) = (self.views.get(), self.shape());
        view.spaces().map(|space| debt_bytes(&shape, &space.version.runs())).sum()
    }

    /// Sets the pace of writes by the debt.
    pub(crate) fn update_pace(&self) {
        let (soft, hard) = (self.options.debt_soft_bytes, self.options.debt_hard_bytes);
        self.pace.set_delay(delay_ns_per_byte(self.compaction_debt(), soft, hard));
    }

    /// Does the most urgent compaction, or else defragments if that is due. False if there is none to do.
    /// `at_rest` says that nothing was flushed for a while.
    pub(crate) fn compact_one(&self, at_rest: bool) -> StoreResult<bool> {
        let mut states = self.compaction_job.lock();
        self.poison.check()?;
        let view = self.views.get();
        if self.retune(&view) {
            states.clear();
        }
        let shape = Shape { at_rest, ..self.shape() };
        states.retain(|id, _| view.keyspace(*id).is_ok());
        let most_urgent = view
            .spaces()
            .filter_map(|space| {
                let picked =
                    pick(&shape, &space.version.runs(), states.entry(space.id).or_default());
                picked.map(|(score, job)| (score, space, job))
            })
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, space, job)) = most_urgent else {
            drop(view);
            let dead_percent_max = self.options.dead_percent_max.into();
            let defragmented = self.defragment_one(dead_percent_max, Fit::Best)?;
            self.update_pace();
            return Ok(defragmented);
        };
        if job.is_move {
            self.move_down(space, &job)?;
        } else {
            self.merge(space, &job)?;
        }
        states.entry(space.id).or_default()[job.level] = job.state;
        drop(view);
        self.update_pace();
        Ok(true)
    }

    /// Where the rows of `job` go.
    fn output_place(&self, job: &Job) -> Place {
        // File numbers only grow, so a new sub-level is newer than all that are there.
        let new = || SublevelId::new(self.new_file_no().get());
        let sublevel = job.output_sublevel.unwrap_or_else(new);
        Place { level: job.output_level, sublevel }
    }

    fn move_down(&self, space: &Keyspace, job: &Job) -> StoreResult<()> {
        self.metrics.table_moves.add(1);
        let removed = inputs(space, job);
        let place = self.output_place(job);
        let added = removed.iter().map(|(id, _, table)| (*id, place, Arc::clone(table))).collect();
        self.install(&Changes { added, removed, ..Changes::default() })?;
        Ok(())
    }

    fn merge(&self, space: &Keyspace, job: &Job) -> StoreResult<()> {
        let removed = inputs(space, job);
        let read: u64 = removed.iter().map(|(_, _, table)| table.meta().total_bytes()).sum();
        // The outputs stand beside the inputs until the end. Without room for both, trying would fill the
        // device again and again.
        self.space.check_room(read)?;
        let place = self.output_place(job);
        let options = self.table_options(space, place.level);
        let mut outputs =
            Stitcher::new(Outputs::new(self, space, place.level), options, self.stitch_rule());
        let version = &space.version;
        let has_numbers = removed.iter().any(|(_, _, table)| version.number(table).is_some());
        let map = version.map().filter(|_| has_numbers);
        let mut moves = map.map(|map| Moves::new(map.id(), self.options.moves_bytes_max()));
        let rest_from = self.merge_into(&mut outputs, space, job, place, moves.as_mut())?;
        let tables = outputs.finish()?;
        let written: u64 = tables.iter().map(|table| table.meta().size_bytes).sum();
        if !tables.is_empty() {
            self.env
                .sync_dir(&self.dir)
                .map_err(|e| self.poison.set(&io_error("sync", &self.dir, e)))?;
        }
        let mut added: Vec<_> =
            tables.iter().map(|table| (space.id, place, Arc::clone(table))).collect();
        let rest = rest_from.map_or_else(Vec::new, |from| rest_of(&removed, &from));
        self.metrics.table_clips.add(rest.len() as u64);
        added.extend(rest);
        let changes = Changes { added, removed, moves: moves.map(Arc::new), ..Changes::default() };
        match self.install(&changes) {
            Ok(true) => {
                self.metrics.compactions.add(1);
                self.metrics.compaction_read_bytes.add(read);
                self.metrics.compaction_write_bytes[place.level].add(written);
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

    /// Merges the inputs of `job`, noting in `moves` where keys come from; returns the first key after its end, if
    /// there is one. The end comes early when there are many notes.
    fn merge_into(
        &self,
        outputs: &mut Stitcher<'_>,
        space: &Keyspace,
        job: &Job,
        place: Place,
        mut moves: Option<&mut Moves>,
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
        let mut retention = Retention::new(self.snapshots.live());
        let mut versions = 0;
        while merge.valid() {
            versions += 1;
            if versions % CLOSE_CHECK_VERSIONS == 0 {
                self.check_open()?;
            }
            let (key, seq, found) = (merge.key(), merge.seq(), merge.found());
            if retention.is_new_key(key) {
                let notes_full = moves.as_ref().is_some_and(|moves| moves.is_full());
                if notes_full || job.end.as_ref().is_some_and(|end| *key > **end) {
                    return Ok(Some(key.to_vec()));
                }
                if let Some(moves) = &mut moves {
                    moves.begin(key, merge.table().and_then(Table::map_number));
                }
                let overlapped = grandparents.pass(key);
                if outputs.bytes() >= self.options.table_bytes || overlapped > overlap_max {
                    outputs.cut()?;
                    grandparents.bytes = 0;
                }
            }
            // What a branch stands over may hold any key.
            let hidden_below = || space.branch.is_some() || version.older_may_hold(place, key);
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

/// Writes versions to one new table after the other. Tables of an unfinished run are removed.
pub(crate) struct Outputs<'a> {
    inner: &'a Inner,
    space: &'a Keyspace,
    level: usize,
    writer: Option<TableWriter>,
    /// The files that the present table points at.
    files: TableFiles,
    tables: Vec<Arc<Table>>,
}

impl<'a> Outputs<'a> {
    /// No tables yet, for `level`.
    pub(crate) fn new(inner: &'a Inner, space: &'a Keyspace, level: usize) -> Outputs<'a> {
        let files = TableFiles::new(&inner.env, &inner.dir);
        Outputs { inner, space, level, writer: None, files, tables: Vec::new() }
    }

    /// Bytes of the present table.
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, TableWriter::table_bytes)
    }

    /// Adds a version, in internal order.
    pub(crate) fn add(
        &mut self,
        key: &[u8],
        seq: varve_types::SeqNo,
        found: &Found,
    ) -> StoreResult<()> {
        let values = self.inner.options.values;
        let writer = self.writer()?;
        match values {
            ValuePolicy::InRow => writer.add(key, seq, found),
        }
    }

    /// Points at the block of `piece`, which comes next in internal order.
    pub(crate) fn stitch(&mut self, piece: &Piece) -> StoreResult<()> {
        let file = &piece.file;
        let zone = Zone { file: file.no(), salt: file.salt(), size_bytes: piece.size_bytes };
        self.files.note(file);
        self.writer()?.stitch(zone, piece.handle, &piece.block)?;
        self.inner.metrics.stitched_bytes.add(piece.handle.len.into());
        Ok(())
    }

    /// The writer of the present table, which is begun if there is none.
    fn writer(&mut self) -> StoreResult<&mut TableWriter> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                let inner = self.inner;
                let options = inner.table_options(self.space, self.level);
                let no = inner.new_file_no();
                TableWriter::create(&inner.env, &inner.dir, no, options)?
            }
        };
        Ok(self.writer.insert(writer))
    }

    /// Finishes the present table, if there is one.
    pub(crate) fn cut(&mut self) -> StoreResult<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        if let Some(meta) = writer.finish()? {
            self.tables.push(Arc::new(self.files.table(self.space.id, meta)));
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
    /// Which runs of blocks a merge leaves where they are.
    fn stitch_rule(&self) -> Option<StitchRule> {
        match self.plan().0.compaction {
            CompactionPolicy::Stitched { threshold_bytes } => {
                let threshold_bytes = threshold_bytes.into();
                Some(StitchRule { threshold_bytes, emptied: HashSet::new() })
            }
            _ => None,
        }
    }

    /// How tables of a key space are built.
    pub(crate) fn table_options(&self, space: &Keyspace, level: usize) -> TableOptions {
        let compressed = space.options.compressed;
        TableOptions {
            keyspace: space.id,
            prefixed: space.options.prefixed,
            block_bytes: self.options.block_bytes,
            compression: if compressed { Compression::Lz4 } else { Compression::None },
            index: self.options.index,
            filter: self.filter_policy(level),
            cut_after_prefix_bytes: match self.plan().0.compaction {
                CompactionPolicy::Stitched { threshold_bytes } => threshold_bytes.into(),
                _ => 0,
            },
        }
    }
}
