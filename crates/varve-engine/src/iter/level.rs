//! Walks disjoint tables one after the other, opening each when it is reached.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use varve_types::SeqNo;

use super::table::TableSource;
use super::{KeyBounds, Origin, Source};
use crate::key::Key;
use crate::memtable::Found;
use crate::table::cache::{Admission, TableCache};
use crate::table::file::Table;
use crate::{Direction, StoreResult};

/// All versions of a level's tables from some place on.
pub(crate) struct LevelSource {
    cache: Arc<TableCache>,
    /// Not yet opened, in the order of the walk.
    rest: VecDeque<Arc<Table>>,
    direction: Direction,
    /// Where a walk forward ends.
    end: Bound<Key>,
    admission: Admission,
    current: Option<TableSource>,
}

impl LevelSource {
    /// A walk over `tables`, sorted by key and disjoint, that begins where `range` does.
    pub(crate) fn new(
        cache: Arc<TableCache>,
        tables: impl Iterator<Item = Arc<Table>>,
        range: KeyBounds<'_>,
        direction: Direction,
        admission: Admission,
    ) -> StoreResult<LevelSource> {
        let mut rest: VecDeque<_> = tables.collect();
        if direction == Direction::Reverse {
            rest.make_contiguous().reverse();
        }
        let end = match direction {
            Direction::Forward => range.1.map(Key::from_slice),
            Direction::Reverse => Bound::Unbounded,
        };
        let mut source = LevelSource { cache, rest, direction, end, admission, current: None };
        source.open_next(range)?;
        Ok(source)
    }

    /// Opens tables until one has a version in the direction of the walk.
    fn open_next(&mut self, range: KeyBounds<'_>) -> StoreResult<()> {
        self.current = None;
        while let Some(table) = self.rest.pop_front() {
            let cache = Arc::clone(&self.cache);
            let source = TableSource::new(cache, table, range, self.direction, self.admission)?;
            if source.valid() {
                self.current = Some(source);
                break;
            }
        }
        Ok(())
    }
}

impl Source for LevelSource {
    fn valid(&self) -> bool {
        self.current.as_ref().is_some_and(TableSource::valid)
    }

    fn key(&self) -> &[u8] {
        self.current.as_ref().map_or(&[], TableSource::key)
    }

    fn seq(&self) -> SeqNo {
        self.current.as_ref().map_or(SeqNo::ZERO, TableSource::seq)
    }

    fn origin(&self) -> Option<Origin<'_>> {
        self.current.as_ref()?.origin()
    }

    fn found(&self) -> StoreResult<Found> {
        self.current.as_ref().map_or(Ok(Found::Tombstone), TableSource::found)
    }

    fn table(&self) -> Option<&Table> {
        self.current.as_ref().and_then(TableSource::table)
    }

    fn advance(&mut self) -> StoreResult<()> {
        if let Some(current) = &mut self.current {
            current.advance()?;
            if !current.valid() {
                // The tables after the first lie wholly within the range's start.
                let end = self.end.clone();
                self.open_next((Bound::Unbounded, end.as_ref().map(Key::as_slice)))?;
            }
        }
        Ok(())
    }
}
