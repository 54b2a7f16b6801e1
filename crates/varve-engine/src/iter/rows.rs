//! The rows a snapshot sees: of each key the newest version not above the snapshot, unless it deletes.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use varve_types::SeqNo;

use super::Source;
use super::merge::Merge;
use crate::memtable::{Found, Key};
use crate::snapshot::Pin;
use crate::view::View;
use crate::{Direction, KeyRange, Pair, StoreResult};

/// Rows in key order.
pub(crate) struct Rows {
    merge: Merge,
    direction: Direction,
    seq: SeqNo,
    /// Where the walk ends.
    limit: Bound<Vec<u8>>,
    done: bool,
    /// Keep the versions and the files the walk needs.
    _pin: Pin,
    _view: Arc<View>,
}

impl Rows {
    /// The rows of `merge`, which begins where `range` does, as `pin` sees them.
    pub(crate) fn new(
        merge: Merge,
        range: KeyRange,
        direction: Direction,
        pin: Pin,
        view: Arc<View>,
    ) -> Rows {
        let limit = match direction {
            Direction::Forward => range.end,
            Direction::Reverse => range.start,
        };
        let seq = pin.seq();
        Rows { merge, direction, seq, limit, done: false, _pin: pin, _view: view }
    }

    fn beyond_limit(&self) -> bool {
        let key = self.merge.key();
        match (self.direction, &self.limit) {
            (_, Bound::Unbounded) => false,
            (Direction::Forward, Bound::Included(limit)) => key > &limit[..],
            (Direction::Forward, Bound::Excluded(limit)) => key >= &limit[..],
            (Direction::Reverse, Bound::Included(limit)) => key < &limit[..],
            (Direction::Reverse, Bound::Excluded(limit)) => key <= &limit[..],
        }
    }

    /// The next key and what it is; leaves the merge after all of the key's versions.
    fn next_key(&mut self) -> StoreResult<Option<(Key, Option<Found>)>> {
        if !self.merge.valid() || self.beyond_limit() {
            return Ok(None);
        }
        let key = Key::from_slice(self.merge.key());
        let mut seen: Option<Found> = None;
        while self.merge.valid() && self.merge.key() == key.as_slice() {
            // Forward the newest version comes first and the first visible one counts; backward the last.
            let counts = self.direction == Direction::Reverse || seen.is_none();
            if self.merge.seq() <= self.seq && counts {
                seen = Some(self.merge.found());
            }
            self.merge.advance()?;
        }
        Ok(Some((key, seen)))
    }
}

impl Iterator for Rows {
    type Item = StoreResult<Pair>;

    fn next(&mut self) -> Option<StoreResult<Pair>> {
        while !self.done {
            match self.next_key() {
                Ok(Some((key, Some(Found::Value(value))))) => {
                    return Some(Ok((Bytes::copy_from_slice(key.as_slice()), value)));
                }
                Ok(Some(_)) => {}
                Ok(None) => self.done = true,
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
