//! Leaves runs of blocks where they are that a merge would only copy.
//!
//! 1. The merge hands over each version it keeps, with the block it comes from, and tells of those it drops.
//! 2. Versions that are all of a block, one after the other, are held back with the block; so are blocks that
//!    follow each other in one file. Together they are a run in the making.
//! 3. A run that reaches the threshold stays where it is: the output points at its blocks. When something else
//!    comes between before that, what was held back is copied.
//!
//! Blocks of tables whose rows point into segments are copied: their pointers have to be counted anew.
//!
//! What must not stay by a rule of retention, such as a deletion that hides nothing any more, is dropped by the
//! merge and so breaks its run: a block stays whole or not at all.
//!
//! Source: KVFS thesis 3.2 (stitching, the stitching threshold). Departure: the blocks of a run are read, as a merge
//! reads everything, so that filters and indexes are made of the keys themselves and need no list of every block's
//! keys; only the writing is saved.

use std::collections::HashSet;
use std::sync::Arc;

use varve_format::block::{Block, BlockCursor};
use varve_format::section::Handle;
use varve_format::table::TableOptions;
use varve_format::{EntryKind, FormatError, Problem};
use varve_types::{FileNo, SeqNo};

use super::outputs::{Outputs, Written};
use crate::StoreResult;
use crate::iter::Origin;
use crate::memtable::Found;
use crate::table::cache::BlockPlace;
use crate::table::file::TableFile;

/// Which runs stay.
#[derive(Clone, Debug)]
pub(crate) struct StitchRule {
    /// The fewest bytes of a run.
    pub(crate) threshold_bytes: u64,
    /// Files whose blocks are copied whatever their runs.
    pub(crate) emptied: HashSet<FileNo>,
}

/// A block of an input.
pub(crate) struct Piece {
    pub(crate) file: Arc<TableFile>,
    /// Bytes of the file.
    pub(crate) size_bytes: u64,
    pub(crate) handle: Handle,
    pub(crate) block: Block,
}

impl Piece {
    fn is_at(&self, place: BlockPlace<'_>) -> bool {
        self.file.no() == place.file.no() && self.handle == place.handle
    }
}

/// See the module's comment.
pub(crate) struct Stitcher<'a> {
    outputs: Outputs<'a>,
    /// `None`: everything is copied.
    rule: Option<StitchRule>,
    options: TableOptions,
    /// Whole blocks of the run that the output does not yet have.
    run: Vec<Piece>,
    /// Bytes of the run, those included that the output has.
    run_bytes: u64,
    /// Where the run ends.
    end: Option<(FileNo, u64)>,
    /// A block of which the output has nothing yet, and how many of its versions came.
    open: Option<(Piece, usize)>,
}

impl<'a> Stitcher<'a> {
    /// Hands on to `outputs`, whose tables are made by `options`.
    pub(crate) fn new(
        outputs: Outputs<'a>,
        options: TableOptions,
        rule: Option<StitchRule>,
    ) -> Stitcher<'a> {
        let (run, run_bytes) = (Vec::new(), 0);
        Stitcher { outputs, rule, options, run, run_bytes, end: None, open: None }
    }

    /// Whether [`Stitcher::add`] and [`Stitcher::dropped`] make use of where a version comes from.
    pub(crate) fn asks_origin(&self) -> bool {
        self.rule.is_some()
    }

    /// Bytes of the present table, with what is held back.
    pub(crate) fn bytes(&self) -> u64 {
        self.outputs.bytes() + self.run.iter().map(|piece| u64::from(piece.handle.len)).sum::<u64>()
    }

    /// Bytes of records that the rows of the present table point at.
    pub(crate) fn pointed_bytes(&self) -> u64 {
        self.outputs.pointed_bytes()
    }

    /// Adds a version, in internal order.
    pub(crate) fn add(
        &mut self,
        key: &[u8],
        seq: SeqNo,
        found: &Found,
        origin: Option<Origin<'_>>,
    ) -> StoreResult<()> {
        // Most versions of a merge stand between those of others: their block is given up already.
        let is_wanted = |origin: &Origin<'_>| origin.is_first || self.open.is_some();
        let Some(origin) = origin.filter(|origin| is_wanted(origin) && self.may_stay(origin))
        else {
            self.settle()?;
            return self.outputs.add(key, seq, found);
        };
        match &mut self.open {
            Some((piece, versions)) if piece.is_at(origin.place) => *versions += 1,
            _ if origin.is_first => {
                if self.open.is_some() {
                    self.settle()?;
                }
                self.open = Some((piece(&origin), 1));
            }
            // The rest of a block whose beginning was copied.
            _ => {
                self.settle()?;
                return self.outputs.add(key, seq, found);
            }
        }
        if origin.is_last { self.close() } else { Ok(()) }
    }

    /// Notes that a version of this origin is dropped.
    pub(crate) fn dropped(&mut self, origin: &Origin<'_>) -> StoreResult<()> {
        match &self.open {
            Some((piece, _)) if piece.is_at(origin.place) => self.settle(),
            _ => Ok(()),
        }
    }

    /// Finishes the present table.
    pub(crate) fn cut(&mut self) -> StoreResult<()> {
        self.settle()?;
        self.outputs.cut()
    }

    /// Finishes the last table; returns all.
    pub(crate) fn finish(mut self) -> StoreResult<Written> {
        self.settle()?;
        self.outputs.finish()
    }

    fn may_stay(&self, origin: &Origin<'_>) -> bool {
        let place = origin.place;
        let rule = self.rule.as_ref();
        rule.is_some_and(|rule| !rule.emptied.contains(&place.file.no()))
            && origin.table.meta().seq_override.is_none()
            && origin.table.segments().is_empty()
            && self.options.may_stitch(place.handle)
    }

    /// The open block is whole: it goes on with the run, or begins another.
    fn close(&mut self) -> StoreResult<()> {
        let Some((piece, versions)) = self.open.take() else { return Ok(()) };
        if self.end != Some((piece.file.no(), piece.handle.offset)) {
            self.open = Some((piece, versions));
            return self.begin_run();
        }
        self.end = Some((piece.file.no(), piece.handle.end()));
        self.run_bytes += u64::from(piece.handle.len);
        self.run.push(piece);
        self.point_at_run()
    }

    /// Begins a run with the open block, which is whole.
    fn begin_run(&mut self) -> StoreResult<()> {
        let open = self.open.take();
        self.settle()?;
        let Some((piece, _)) = open else { return Ok(()) };
        self.end = Some((piece.file.no(), piece.handle.end()));
        self.run_bytes = piece.handle.len.into();
        self.run.push(piece);
        self.point_at_run()
    }

    /// Lets the output point at the run if it is long enough.
    fn point_at_run(&mut self) -> StoreResult<()> {
        let threshold = self.rule.as_ref().map_or(u64::MAX, |rule| rule.threshold_bytes);
        if self.run_bytes >= threshold {
            for piece in self.run.drain(..) {
                self.outputs.stitch(&piece)?;
            }
        }
        Ok(())
    }

    /// Ends the run, and copies what is held back.
    fn settle(&mut self) -> StoreResult<()> {
        for piece in std::mem::take(&mut self.run) {
            self.copy(&piece, usize::MAX)?;
        }
        if let Some((piece, versions)) = self.open.take() {
            self.copy(&piece, versions)?;
        }
        (self.run_bytes, self.end) = (0, None);
        Ok(())
    }

    /// Copies the first versions of a block.
    fn copy(&mut self, piece: &Piece, versions: usize) -> StoreResult<()> {
        let place = BlockPlace { file: &piece.file, handle: piece.handle };
        let at = |error| place.damaged(error);
        let mut cursor = BlockCursor::new(piece.block.clone());
        cursor.seek_first().map_err(at)?;
        let mut copied = 0;
        while cursor.valid() && copied < versions {
            let found = match cursor.kind() {
                EntryKind::Put => Found::Value(cursor.value()),
                EntryKind::Delete => Found::Tombstone,
                EntryKind::Separated => {
                    let rule = "a pointer into a segment that the table does not name";
                    return Err(at(FormatError::new(0u64, Problem::Invalid(rule))));
                }
            };
            self.outputs.add(cursor.key(), cursor.seq(), &found)?;
            cursor.next().map_err(at)?;
            copied += 1;
        }
        Ok(())
    }
}

/// The block that a version comes from.
fn piece(origin: &Origin<'_>) -> Piece {
    let BlockPlace { file, handle } = origin.place;
    let meta = origin.table.meta();
    let zone = meta.zones.iter().find(|zone| zone.zone.file == file.no());
    let size_bytes = zone.map_or(meta.size_bytes, |zone| zone.zone.size_bytes);
    Piece { file: Arc::clone(file), size_bytes, handle, block: origin.block.clone() }
}
