//! Writes what flushes and merges put out: tables, one after the other, and the segments with their large values.
//!
//! 1. The caller adds versions in internal order, and says where one table ends and the next begins.
//! 2. A value that is large goes to a segment, and the table gets a pointer to it.
//! 3. At the end the content of all files is durable, their names are not; the caller makes these durable before it
//!    installs the tables ([`crate::versions`]).
//!
//! Invariant: files that nobody installs are removed, also when the run fails halfway.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use varve_env::Env;
use varve_format::edit::TableMeta;
use varve_format::table::Zone;
use varve_types::{FileNo, SeqNo};

use super::stitch::Piece;
use crate::base::Base;
use crate::files::FileNumbers;
use crate::keyspace::Keyspace;
use crate::memtable::Found;
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::plans::Plans;
use crate::reserve::Reserve;
use crate::segment::{Segment, SegmentWriter};
use crate::table::cache::{Admission, TableCache};
use crate::table::file::{Table, TableFiles};
use crate::table::writer::TableWriter;
use crate::{StoreResult, ValuePolicy};

/// Tables and segments whose content is durable, but not their names.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) tables: Vec<Arc<Table>>,
    pub(crate) segments: Vec<Arc<Segment>>,
}

impl Written {
    /// Removes the files, which no table of the store names.
    pub(crate) fn discard(&self) {
        self.tables.iter().for_each(|table| table.mark_obsolete());
        self.segments.iter().for_each(|segment| segment.mark_obsolete());
    }

    /// Bytes of the tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.meta().size_bytes).sum()
    }

    /// Bytes of the segments.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.meta().size_bytes).sum()
    }
}

/// What makes the files of tables and segments.
pub(crate) struct OutputMaker {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) dir: PathBuf,
    pub(crate) reserve: Arc<Reserve>,
    pub(crate) options: Arc<DbOptions>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) cache: Arc<TableCache>,
    pub(crate) plans: Arc<Plans>,
    pub(crate) file_numbers: Arc<FileNumbers>,
}

impl OutputMaker {
    /// Makes files of the store that `base` is of, by `plans`.
    pub(crate) fn new(base: &Base, plans: Arc<Plans>) -> OutputMaker {
        let Base { env, dir, reserve, options, metrics, cache, file_numbers, .. } = base.clone();
        OutputMaker { env, dir, reserve, options, metrics, cache, plans, file_numbers }
    }
}

/// Takes versions in internal order. Files of an unfinished run are removed.
pub(crate) struct Outputs<'a> {
    maker: &'a OutputMaker,
    /// Where files are made.
    env: &'a Arc<dyn Env>,
    space: &'a Keyspace,
    level: usize,
    /// Segments whose values are written anew.
    leaving: BTreeSet<FileNo>,
    /// Values that stand apart stay so, although new ones stand in their rows.
    stays_apart: bool,
    pointed_bytes: u64,
    writer: Option<TableWriter>,
    segment: Option<SegmentWriter>,
    metas: Vec<TableMeta>,
    /// The files that the tables point at.
    files: TableFiles,
    /// New segments.
    segments: Vec<Arc<Segment>>,
    /// Older segments that the tables point into.
    carried: BTreeMap<FileNo, Arc<Segment>>,
}

impl<'a> Outputs<'a> {
    /// No tables yet, for `level`.
    pub(crate) fn new(maker: &'a OutputMaker, space: &'a Keyspace, level: usize) -> Outputs<'a> {
        Outputs {
            maker,
            env: &maker.env,
            space,
            level,
            leaving: BTreeSet::new(),
            stays_apart: false,
            pointed_bytes: 0,
            writer: None,
            segment: None,
            metas: Vec::new(),
            files: TableFiles::new(&maker.env, &maker.dir),
            segments: Vec::new(),
            carried: BTreeMap::new(),
        }
    }

    /// The same; values in the segments `leaving` will be written anew. Where values are in rows they go there, with
    /// those of all other segments, unless what stands apart `stays_apart`.
    pub(crate) fn emptying(self, leaving: BTreeSet<FileNo>, stays_apart: bool) -> Outputs<'a> {
        let mut outputs = self;
        (outputs.leaving, outputs.stays_apart) = (leaving, stays_apart);
        outputs
    }

    /// The same for what makes the store larger, and leaves the room alone that it holds.
    pub(crate) fn growing(self) -> Outputs<'a> {
        let mut outputs = self;
        outputs.env = outputs.maker.reserve.below();
        outputs
    }

    /// Bytes of records that the rows of the present table point at.
    pub(crate) fn pointed_bytes(&self) -> u64 {
        self.pointed_bytes
    }

    /// Bytes of the present table.
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, TableWriter::table_bytes)
    }

    /// Adds a version, in internal order.
    pub(crate) fn add(&mut self, key: &[u8], seq: SeqNo, found: &Found) -> StoreResult<()> {
        let maker = self.maker;
        let (mut brought_back, mut goes_apart) = (None, false);
        if let Found::Separated(separated) = found {
            let in_row = maker.options.values == ValuePolicy::InRow;
            let leaves = self.leaving.contains(&separated.segment.file_no());
            if leaves || (in_row && !self.stays_apart) {
                goes_apart = in_row && self.stays_apart;
                brought_back = Some(Found::Value(maker.cache.value(separated, Admission::Pass)?));
            }
        }
        match brought_back.as_ref().unwrap_or(found) {
            Found::Value(value) if goes_apart || maker.options.values.separates(value.len()) => {
                let pointer = self.segment()?.add(value)?;
                self.pointed_bytes += pointer.record_bytes();
                self.writer()?.add_pointer(key, seq, &pointer)?;
            }
            Found::Separated(separated) => {
                let segment = &separated.segment;
                self.pointed_bytes += u64::from(separated.handle.len);
                self.carried.entry(segment.file_no()).or_insert_with(|| Arc::clone(segment));
                self.writer()?.add(key, seq, found)?;
            }
            found => self.writer()?.add(key, seq, found)?,
        }
        if self.segment.as_ref().is_some_and(|s| s.file_bytes() >= maker.options.table_bytes) {
            self.cut_segment()?;
        }
        Ok(())
    }

    /// Points at the block of `piece`, which comes next in internal order.
    pub(crate) fn stitch(&mut self, piece: &Piece) -> StoreResult<()> {
        let file = &piece.file;
        let zone = Zone { file: file.no(), salt: file.salt(), size_bytes: piece.size_bytes };
        self.files.note(file);
        self.writer()?.stitch(zone, piece.handle, &piece.block)?;
        self.maker.metrics.stitched_bytes.add(piece.handle.len.into());
        Ok(())
    }

    /// The writer of the present table, which is begun if there is none.
    fn writer(&mut self) -> StoreResult<&mut TableWriter> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                let (maker, options) =
                    (self.maker, self.maker.plans.table_options(self.space, self.level));
                TableWriter::create(self.env, &maker.dir, maker.file_numbers.take(), options)?
            }
        };
        Ok(self.writer.insert(writer))
    }

    /// The segment that the next value goes to.
    fn segment(&mut self) -> StoreResult<&mut SegmentWriter> {
        let segment = match self.segment.take() {
            Some(segment) => segment,
            None => {
                let (maker, compression) = (self.maker, self.space.compression());
                SegmentWriter::create(self.env, &maker.dir, maker.file_numbers.take(), compression)?
            }
        };
        Ok(self.segment.insert(segment))
    }

    fn cut_segment(&mut self) -> StoreResult<()> {
        if let Some(segment) = self.segment.take() {
            let meta = segment.finish()?;
            let segment = Segment::new(&self.maker.env, &self.maker.dir, meta);
            self.segments.push(Arc::new(segment));
        }
        Ok(())
    }

    /// Finishes the present table, if there is one.
    pub(crate) fn cut(&mut self) -> StoreResult<()> {
        if let Some(writer) = self.writer.take() {
            self.pointed_bytes = 0;
            self.metas.extend(writer.finish()?);
        }
        Ok(())
    }

    /// Finishes the last table and segment; returns all.
    pub(crate) fn finish(mut self) -> StoreResult<Written> {
        self.cut()?;
        self.cut_segment()?;
        Ok(self.take())
    }

    fn take(&mut self) -> Written {
        let segments = std::mem::take(&mut self.segments);
        let mut known = std::mem::take(&mut self.carried);
        known.extend(segments.iter().map(|new| (new.file_no(), Arc::clone(new))));
        let (files, id) = (&mut self.files, self.space.id);
        let table = |meta: TableMeta| {
            let pointed = meta.segments.iter().filter_map(|share| known.get(&share.segment));
            let pointed = pointed.cloned().collect();
            Arc::new(files.table(id, meta).with_segments(pointed))
        };
        let tables = std::mem::take(&mut self.metas).into_iter().map(table).collect();
        Written { tables, segments }
    }
}

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        self.take().discard();
    }
}
