//! The rows a reader sees: of each key the newest version not above the reader's moment, unless it deletes.
//!
//! Where branches stand over each other there is a merge for each layer, with a moment of its own. Of a key that
//! several layers know the uppermost counts, so that its deletion hides what lies below.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use varve_types::SeqNo;

use super::Source;
use super::merge::Merge;
use crate::key::Key;
use crate::memtable::Found;
use crate::read_state::ReadState;
use crate::snapshot::Pin;
use crate::table::cache::{Admission, TableCache};
use crate::{Direction, KeyRange, Pair, StoreResult};

/// The versions of one layer.
struct LayerRows {
    merge: Merge,
    seq: SeqNo,
    /// The next key and what it is, if that was looked at already.
    head: Option<(Key, Found)>,
}

/// Rows in key order.
pub(crate) struct Rows {
    cache: Arc<TableCache>,
    /// Uppermost first.
    layers: Vec<LayerRows>,
    direction: Direction,
    /// Where the walk ends.
    limit: Bound<Vec<u8>>,
    done: bool,
    /// Keep the versions and the files the walk needs.
    _held: Option<(Pin, Arc<ReadState>)>,
}

impl Rows {
    /// A walk over `range` without layers; values that stand apart come through `cache`.
    pub(crate) fn new(cache: Arc<TableCache>, range: &KeyRange, direction: Direction) -> Rows {
        let limit = match direction {
            Direction::Forward => range.end.clone(),
            Direction::Reverse => range.start.clone(),
        };
        Rows { cache, layers: Vec::new(), direction, limit, done: false, _held: None }
    }

    /// Adds, below the others, the layer of `merge` as of `seq`; the merge begins where the range does.
    pub(crate) fn push_layer(&mut self, merge: Merge, seq: SeqNo) {
        self.layers.push(LayerRows { merge, seq, head: None });
    }

    /// The same, keeping what it reads as long as it lives.
    pub(crate) fn holding(self, pin: Pin, read_state: Arc<ReadState>) -> Rows {
        Rows { _held: Some((pin, read_state)), ..self }
    }

    /// The next key and what it is, a deletion too.
    pub(crate) fn next_found(&mut self) -> StoreResult<Option<(Key, Found)>> {
        let (direction, limit) = (self.direction, &self.limit);
        if let [only] = &mut self.layers[..] {
            return only.next_found(direction, limit);
        }
        let mut first: Option<usize> = None;
        for at in 0..self.layers.len() {
            let layer = &mut self.layers[at];
            if layer.head.is_none() {
                layer.head = layer.next_found(direction, limit)?;
            }
            let order = match first {
                Some(first) => self.compare(at, first),
                None => Ordering::Less,
            };
            match order {
                Ordering::Less if self.layers[at].head.is_some() => first = Some(at),
                // The layer above says what the key is.
                Ordering::Equal => self.layers[at].head = None,
                _ => {}
            }
        }
        Ok(first.and_then(|first| self.layers[first].head.take()))
    }

    /// The next row; `None` after the last, and after an error.
    fn next_row(&mut self) -> Option<StoreResult<(Key, Found)>> {
        while !self.done {
            match self.next_found() {
                Ok(Some((_, Found::Tombstone))) => {}
                Ok(Some(row)) => return Some(Ok(row)),
                Ok(None) => self.done = true,
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    /// The next row with its value at hand; `None` after the last, and after an error.
    fn next_value(&mut self) -> Option<StoreResult<(Key, Bytes)>> {
        let row = self.next_row()?.and_then(|(key, found)| {
            Ok((key, self.cache.value_of(found, Admission::Pass)?.unwrap_or_default()))
        });
        self.done |= row.is_err();
        Some(row)
    }

    /// Calls `visit` with each row until it says false.
    pub(crate) fn each(mut self, visit: &mut dyn FnMut(&[u8], Bytes) -> bool) -> StoreResult<()> {
        while let Some(row) = self.next_value() {
            let (key, value) = row?;
            if !visit(key.as_slice(), value) {
                break;
            }
        }
        Ok(())
    }

    /// The order in the walk of the next keys of two layers, of which `b` has one.
    fn compare(&self, a: usize, b: usize) -> Ordering {
        match (&self.layers[a].head, &self.layers[b].head) {
            (Some((a, _)), Some((b, _))) => match self.direction {
                Direction::Forward => a.cmp(b),
                Direction::Reverse => b.cmp(a),
            },
            _ => Ordering::Greater,
        }
    }
}

impl LayerRows {
    /// The next key that the layer knows at its moment; leaves the merge after all of the key's versions.
    fn next_found(
        &mut self,
        direction: Direction,
        limit: &Bound<Vec<u8>>,
    ) -> StoreResult<Option<(Key, Found)>> {
        while self.merge.valid() && !is_beyond(self.merge.key(), direction, limit) {
            let key = Key::from_slice(self.merge.key());
            let mut seen: Option<Found> = None;
            while self.merge.valid() && self.merge.key() == key.as_slice() {
                // Forward the newest version comes first and the first visible one counts; backward the last.
                let counts = direction == Direction::Reverse || seen.is_none();
                if self.merge.seq() <= self.seq && counts {
                    seen = Some(self.merge.found()?);
                }
                self.merge.advance()?;
            }
            if let Some(found) = seen {
                return Ok(Some((key, found)));
            }
        }
        Ok(None)
    }
}

fn is_beyond(key: &[u8], direction: Direction, limit: &Bound<Vec<u8>>) -> bool {
    match (direction, limit) {
        (_, Bound::Unbounded) => false,
        (Direction::Forward, Bound::Included(limit)) => key > &limit[..],
        (Direction::Forward, Bound::Excluded(limit)) => key >= &limit[..],
        (Direction::Reverse, Bound::Included(limit)) => key < &limit[..],
        (Direction::Reverse, Bound::Excluded(limit)) => key <= &limit[..],
    }
}

impl Iterator for Rows {
    type Item = StoreResult<Pair>;

    fn next(&mut self) -> Option<StoreResult<Pair>> {
        let row = self.next_value()?;
        Some(row.map(|(key, value)| (Bytes::copy_from_slice(key.as_slice()), value)))
    }
}

/// The keys of rows, without a look at values that stand apart.
pub(crate) struct Keys(pub(crate) Rows);

impl Iterator for Keys {
    type Item = StoreResult<Bytes>;

    fn next(&mut self) -> Option<StoreResult<Bytes>> {
        let row = self.0.next_row()?;
        Some(row.map(|(key, _)| Bytes::copy_from_slice(key.as_slice())))
    }
}
