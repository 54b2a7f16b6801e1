//! Walks those blocks of disjoint tables in which something is newer than a moment.
//!
//! A table says of each of its blocks how new the newest version in it is (`varve_format`, `table/properties.rs`). One that
//! does not, as an earlier version of this program made it, is walked as a whole, and so is one all of whose versions
//! are newer: what was written at once, or came by a commit by reference or from outside.
//!
//! Invariant: every version after the moment is met, in internal order; others of the same blocks are met too.

use std::collections::VecDeque;
use std::sync::Arc;

use varve_format::block::BlockCursor;
use varve_format::table::Properties;
use varve_types::SeqNo;

use super::Source;
use crate::memtable::Found;
use crate::table::cache::{Admission, TableCache, TableIndex};
use crate::table::file::Table;
use crate::{StoreError, StoreResult};

/// See the module's comment.
pub(crate) struct NewerSource {
    cache: Arc<TableCache>,
    after: SeqNo,
    /// Not yet opened, by key.
    rest: VecDeque<Arc<Table>>,
    current: Option<Open>,
}

/// The table that the walk is in.
struct Open {
    table: Arc<Table>,
    index: Arc<TableIndex>,
    /// How new its blocks are; empty if all are to be read.
    newest: Vec<SeqNo>,
    block_no: usize,
    cursor: BlockCursor,
}

impl NewerSource {
    /// A walk over the versions after `after` in `tables`, which are sorted by key and disjoint.
    pub(crate) fn new(
        cache: &Arc<TableCache>,
        tables: &[Arc<Table>],
        after: SeqNo,
    ) -> StoreResult<NewerSource> {
        let newer = tables.iter().filter(|table| table.meta().largest_seq > after);
        let (rest, cache) = (newer.map(Arc::clone).collect(), Arc::clone(cache));
        let mut source = NewerSource { cache, after, rest, current: None };
        source.open_next()?;
        Ok(source)
    }

    /// Opens tables until one has a version to show.
    fn open_next(&mut self) -> StoreResult<()> {
        self.current = None;
        while let Some(table) = self.rest.pop_front() {
            let index = self.cache.index(&table)?;
            let newest = self.newest(&table, &index)?;
            if self.enter(table, index, newest, 0)? {
                break;
            }
        }
        Ok(())
    }

    /// How new the blocks of `table` are, if that tells which to read.
    fn newest(&self, table: &Table, index: &TableIndex) -> StoreResult<Vec<SeqNo>> {
        if table.meta().seq_override.is_some() || table.meta().smallest_seq > self.after {
            return Ok(Vec::new());
        }
        let handle = index.footer.properties;
        Ok(self.cache.section(table, handle, |content| Properties::decode(content))?.newest)
    }

    /// Goes to the first version of the table from block `block_no` on that is to be met; false if there is none.
    fn enter(
        &mut self,
        table: Arc<Table>,
        index: Arc<TableIndex>,
        newest: Vec<SeqNo>,
        mut block_no: usize,
    ) -> StoreResult<bool> {
        loop {
            while newest.get(block_no).is_some_and(|newest| *newest <= self.after) {
                block_no += 1;
            }
            let Some(place) = index.place(&table, block_no)? else { return Ok(false) };
            let mut cursor = BlockCursor::new(self.cache.block(place, Admission::Pass)?);
            let at = |error| place.damaged(error);
            cursor.seek_first().map_err(at)?;
            // What lies before the smallest key belongs to the file, but no longer to the store.
            while cursor.valid() && *cursor.key() < *table.meta().smallest_key {
                cursor.next().map_err(at)?;
            }
            if cursor.valid() {
                self.current = Some(Open { table, index, newest, block_no, cursor });
                return Ok(true);
            }
            block_no += 1;
        }
    }
}

impl Open {
    fn damaged(&self, error: varve_format::FormatError) -> StoreError {
        match self.index.place(&self.table, self.block_no) {
            Ok(Some(place)) => place.damaged(error),
            Ok(None) => crate::table::cache::damaged(&self.table, 0, error),
            Err(unplaced) => unplaced,
        }
    }
}

impl Source for NewerSource {
    fn valid(&self) -> bool {
        self.current.is_some()
    }

    fn key(&self) -> &[u8] {
        self.current.as_ref().map_or(&[], |open| open.cursor.key())
    }

    fn seq(&self) -> SeqNo {
        self.current.as_ref().map_or(SeqNo::ZERO, |open| open.table.seq_of(open.cursor.seq()))
    }

    fn table(&self) -> Option<&Table> {
        self.current.as_ref().map(|open| &*open.table)
    }

    fn found(&self) -> StoreResult<Found> {
        let Some(open) = &self.current else { return Ok(Found::Tombstone) };
        let found = open.table.found(open.cursor.kind(), open.cursor.value());
        found.map_err(|error| open.damaged(error))
    }

    fn advance(&mut self) -> StoreResult<()> {
        let Some(open) = &mut self.current else { return Ok(()) };
        if let Err(error) = open.cursor.next() {
            return Err(open.damaged(error));
        }
        if open.cursor.valid() {
            return Ok(());
        }
        let Some(Open { table, index, newest, block_no, .. }) = self.current.take() else {
            return Ok(());
        };
        if self.enter(table, index, newest, block_no + 1)? { Ok(()) } else { self.open_next() }
    }
}
