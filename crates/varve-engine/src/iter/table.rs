//! Walks one table, block by block.
//!
//! A walk forward knows from the index where its range ends, and has the blocks up to there fetched together when it
//! meets the first that is not in memory: no more than it needs, in few requests. A long one has them fetched in
//! growing pieces, so that one that is given up early wastes little. Behind that end it reads nothing.

use std::ops::Bound;
use std::sync::Arc;

use varve_format::FormatError;
use varve_format::block::BlockCursor;
use varve_format::index::Index;
use varve_format::section::Handle;
use varve_types::SeqNo;

use super::{KeyBounds, Origin, Source, start_place};
use crate::memtable::Found;
use crate::table::cache::{Admission, TableCache, TableIndex};
use crate::table::cache::{BlockPlace, damaged};
use crate::table::file::{Table, TableFile};
use crate::{Direction, StoreError, StoreResult};

/// Blocks that a walk has fetched together at first.
const AHEAD_BLOCKS: usize = 16;
/// Blocks that it has fetched together at the most, and always in a merge.
const AHEAD_BLOCKS_MAX: usize = 64;

/// All versions of a table from some place on.
pub(crate) struct TableSource {
    cache: Arc<TableCache>,
    table: Arc<Table>,
    index: Arc<TableIndex>,
    direction: Direction,
    admission: Admission,
    block_no: usize,
    /// Where the present block stands.
    place: Option<(Arc<TableFile>, Handle)>,
    cursor: Option<BlockCursor>,
    ahead: Ahead,
}

/// What a walk has fetched before it comes to it, in block numbers.
struct Ahead {
    /// Fetched up to here.
    until: usize,
    /// Where the range ends: a walk forward goes no further.
    last: usize,
    /// The next piece.
    blocks: usize,
}

impl TableSource {
    /// A walk that begins where `range` does, or where the table does; it stops with the block in which `range` ends.
    pub(crate) fn new(
        cache: Arc<TableCache>,
        table: Arc<Table>,
        range: KeyBounds<'_>,
        direction: Direction,
        admission: Admission,
    ) -> StoreResult<TableSource> {
        let index = cache.index(&table)?;
        let smallest = table.meta().smallest_key.clone();
        let range = (not_before(range.0, &smallest), range.1);
        let ahead = Ahead {
            until: 0,
            last: last_block(&index.index, range),
            blocks: if admission == Admission::Pass { AHEAD_BLOCKS_MAX } else { AHEAD_BLOCKS },
        };
        let (block_no, place, cursor) = (0, None, None);
        let mut source = TableSource {
            cache,
            table,
            index,
            direction,
            admission,
            block_no,
            place,
            cursor,
            ahead,
        };
        source.start(range)?;
        Ok(source)
    }

    /// Whether a walk backward has come to what a clipped table no longer stands for.
    fn is_clipped(&self, key: &[u8]) -> bool {
        self.direction == Direction::Reverse && *key < *self.table.meta().smallest_key
    }

    fn start(&mut self, range: KeyBounds<'_>) -> StoreResult<()> {
        let last = self.index.index.block_count() - 1;
        match (self.direction, start_place(range, self.direction)) {
            (Direction::Forward, None) => self.enter(0),
            (Direction::Reverse, None) => self.enter(last),
            (_, Some((key, seq))) => {
                if self.seek(key, seq)? && self.direction == Direction::Reverse {
                    self.within(BlockCursor::prev)?;
                }
                self.settle()
            }
        }
    }

    /// Looks for the first version at or after (`key`, `seq`) in the blocks that the index names: first
    /// in that which holds the key if any does, then by halving. True if the cursor is at it. False if it
    /// begins the block after one that holds nothing as late; then the cursor is at the end of the walk's
    /// direction that borders on the gap.
    fn seek(&mut self, key: &[u8], seq: SeqNo) -> StoreResult<bool> {
        let index = &self.index.index;
        let Some((found, sought)) = index.find(key, seq).zip(index.seek(key, seq)) else {
            let last = index.block_count() - 1;
            self.enter(if self.direction == Direction::Forward { last + 1 } else { last })?;
            return Ok(false);
        };
        let (mut low, mut high) = sought.into_inner();
        let mut block_no = *found.start();
        loop {
            self.enter(block_no)?;
            self.within(|cursor| cursor.seek(key, seq))?;
            match &self.cursor {
                Some(cursor) if cursor.is_first() && block_no > low => high = block_no - 1,
                Some(cursor) if cursor.valid() => return Ok(true),
                _ => low = block_no + 1,
            }
            if low > high {
                self.enter(if self.direction == Direction::Forward { low } else { high })?;
                return Ok(false);
            }
            block_no = low + (high - low) / 2;
        }
    }

    /// Opens a block, at its first entry in the direction of the walk.
    fn enter(&mut self, block_no: usize) -> StoreResult<()> {
        self.block_no = block_no;
        let Some(place) = self.index.place(&self.table, block_no)? else {
            self.cursor = None;
            return Ok(());
        };
        if self.direction == Direction::Forward && !self.cache.holds(place) {
            self.ahead.fetch(&self.cache, &self.table, &self.index, block_no)?;
        }
        let block = self.cache.block(place, self.admission)?;
        self.place = Some((Arc::clone(place.file), place.handle));
        match &mut self.cursor {
            Some(cursor) => cursor.reset(block),
            None => self.cursor = Some(BlockCursor::new(block)),
        }
        let direction = self.direction;
        self.within(|cursor| match direction {
            Direction::Forward => cursor.seek_first(),
            Direction::Reverse => cursor.seek_last(),
        })
    }

    /// Goes on to the next block if the present one has no more.
    fn settle(&mut self) -> StoreResult<()> {
        if self.cursor.as_ref().is_some_and(BlockCursor::valid) {
            return Ok(());
        }
        let next = match self.direction {
            Direction::Forward => Some(self.block_no + 1).filter(|next| *next <= self.ahead.last),
            Direction::Reverse => self.block_no.checked_sub(1),
        };
        match next {
            Some(next) => self.enter(next),
            None => Ok(()),
        }
    }

    fn within(
        &mut self,
        step: impl FnOnce(&mut BlockCursor) -> varve_format::FormatResult<()>,
    ) -> StoreResult<()> {
        let Some(cursor) = &mut self.cursor else { return Ok(()) };
        let Err(error) = step(cursor) else { return Ok(()) };
        Err(self.damaged(error))
    }

    /// The error of the present block.
    fn damaged(&self, error: FormatError) -> StoreError {
        match self.place() {
            Some(place) => place.damaged(error),
            None => damaged(&self.table, 0, error),
        }
    }

    /// Where the present block stands.
    fn place(&self) -> Option<BlockPlace<'_>> {
        let (file, handle) = self.place.as_ref()?;
        Some(BlockPlace { file, handle: *handle })
    }
}

impl Ahead {
    /// Has the blocks from `first` on fetched, each piece of a file that they fill at once.
    fn fetch(
        &mut self,
        cache: &TableCache,
        table: &Table,
        index: &TableIndex,
        first: usize,
    ) -> StoreResult<()> {
        if first < self.until || first >= self.last {
            return Ok(());
        }
        let end = self.last.min(first + self.blocks - 1);
        let mut number = first;
        while number <= end
            && let Some(begin) = index.place(table, number)?
        {
            // Without zones the blocks follow each other.
            let mut last = if index.zones.is_some() { number } else { end };
            let mut upto = index.place(table, last)?.map_or(begin.handle.end(), |p| p.handle.end());
            while last < end
                && let Some(next) = index.place(table, last + 1)?
                && (next.file.no(), next.handle.offset) == (begin.file.no(), upto)
            {
                (last, upto) = (last + 1, next.handle.end());
            }
            cache.prefetch(begin.file, begin.handle.offset, upto)?;
            number = last + 1;
        }
        (self.until, self.blocks) = (end + 1, AHEAD_BLOCKS_MAX.min(2 * self.blocks));
        Ok(())
    }
}

/// The block in which `range` ends; none after it has keys of the range.
fn last_block(index: &Index, range: KeyBounds<'_>) -> usize {
    let found = match range.1 {
        Bound::Included(key) => index.seek(key, SeqNo::ZERO).map(|blocks| *blocks.end()),
        Bound::Excluded(key) => index.last_below(key),
        Bound::Unbounded => None,
    };
    found.unwrap_or(index.block_count() - 1)
}

/// The start of a range, but not before `smallest`.
fn not_before<'a>(start: Bound<&'a [u8]>, smallest: &'a [u8]) -> Bound<&'a [u8]> {
    match start {
        Bound::Included(key) | Bound::Excluded(key) if *key >= *smallest => start,
        _ => Bound::Included(smallest),
    }
}

impl Source for TableSource {
    fn valid(&self) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.valid() && !self.is_clipped(cursor.key()))
    }

    fn key(&self) -> &[u8] {
        self.cursor.as_ref().map_or(&[], BlockCursor::key)
    }

    fn seq(&self) -> SeqNo {
        self.cursor.as_ref().map_or(SeqNo::ZERO, |cursor| self.table.seq_of(cursor.seq()))
    }

    fn table(&self) -> Option<&Table> {
        Some(&self.table)
    }

    fn origin(&self) -> Option<Origin<'_>> {
        let cursor = self.cursor.as_ref()?;
        let place = self.place()?;
        let (is_first, is_last) = (cursor.is_first(), cursor.is_last());
        Some(Origin { table: &self.table, place, block: cursor.block(), is_first, is_last })
    }

    fn found(&self) -> StoreResult<Found> {
        let Some(cursor) = &self.cursor else { return Ok(Found::Tombstone) };
        self.table.found(cursor.kind(), cursor.value()).map_err(|error| self.damaged(error))
    }

    fn advance(&mut self) -> StoreResult<()> {
        let direction = self.direction;
        self.within(|cursor| match direction {
            Direction::Forward => cursor.next(),
            Direction::Reverse => cursor.prev(),
        })?;
        self.settle()
    }
}
