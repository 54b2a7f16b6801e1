//! Makes one sequence of many sources that run in the same direction.
//!
//! The few sources of a store (memtables, tables of level 0, one per further level) are compared one by
//! one; a heap would cost more. The runner-up is remembered, so that a run of versions from one source
//! costs one comparison each.

use std::cmp::Ordering;

use varve_format::block::internal_cmp;
use varve_types::SeqNo;

use super::{Origin, Source};
use crate::memtable::Found;
use crate::table::file::Table;
use crate::{Direction, StoreResult};

/// See the module's comment.
pub(crate) struct Merge {
    sources: Vec<Box<dyn Source>>,
    direction: Direction,
    /// The source that is first; none if all are at their end.
    first: Option<usize>,
    /// The source that is first among the others.
    second: Option<usize>,
}

impl Merge {
    /// Merges `sources`.
    pub(crate) fn new(sources: Vec<Box<dyn Source>>, direction: Direction) -> Merge {
        let mut merge = Merge { sources, direction, first: None, second: None };
        merge.rank();
        merge
    }

    /// True if source `a` comes before source `b`.
    fn precedes(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.sources[a], &self.sources[b]);
        let order = internal_cmp((a.key(), a.seq()), (b.key(), b.seq()));
        order
            == if self.direction == Direction::Forward { Ordering::Less } else { Ordering::Greater }
    }

    fn rank(&mut self) {
        (self.first, self.second) = (None, None);
        for i in 0..self.sources.len() {
            if !self.sources[i].valid() {
                continue;
            }
            match (self.first, self.second) {
                (None, _) => self.first = Some(i),
                (Some(first), _) if self.precedes(i, first) => {
                    (self.first, self.second) = (Some(i), Some(first));
                }
                (Some(_), Some(second)) if !self.precedes(i, second) => {}
                (Some(_), _) => self.second = Some(i),
            }
        }
    }
}

impl Source for Merge {
    fn valid(&self) -> bool {
        self.first.is_some()
    }

    fn key(&self) -> &[u8] {
        self.first.map_or(&[], |first| self.sources[first].key())
    }

    fn seq(&self) -> SeqNo {
        self.first.map_or(SeqNo::ZERO, |first| self.sources[first].seq())
    }

    fn origin(&self) -> Option<Origin<'_>> {
        self.sources[self.first?].origin()
    }

    fn found(&self) -> StoreResult<Found> {
        self.first.map_or(Ok(Found::Tombstone), |first| self.sources[first].found())
    }

    fn table(&self) -> Option<&Table> {
        self.first.and_then(|first| self.sources[first].table())
    }

    fn advance(&mut self) -> StoreResult<()> {
        let Some(first) = self.first else { return Ok(()) };
        self.sources[first].advance()?;
        let still_first = self.sources[first].valid()
            && self.second.is_none_or(|second| !self.precedes(second, first));
        if !still_first {
            self.rank();
        }
        Ok(())
    }
}
