//! The order of a key space's rows.
//!
//! The keys of the file system, of 8 + 8 bytes, are numbers, and stand as such in a tree of their own: the search for the
//! place of a new one compares some forty. Keys of other lengths stand beside them in a second tree. A walk merges the two,
//! of which one is mostly empty.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::ops::Bound;

use super::rows::RowId;
use crate::key::{Key, SHORT_KEY_BYTES};

/// A key of 8 + 8 bytes; its numbers are ordered as its bytes are.
type Pair = u128;

/// Row ids by key.
#[derive(Debug, Default)]
pub(super) struct Order {
    pairs: BTreeMap<Pair, RowId>,
    /// Those of keys of all other lengths.
    others: BTreeMap<Key, RowId>,
}

impl Order {
    pub(super) fn len(&self) -> usize {
        self.pairs.len() + self.others.len()
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<RowId> {
        match pair_of(key) {
            Some(pair) => self.pairs.get(&pair).copied(),
            None => self.others.get(key).copied(),
        }
    }

    /// REQUIRES: `key` has no row yet.
    pub(super) fn insert(&mut self, key: &Key, id: RowId) {
        match pair_of(key.as_slice()) {
            Some(pair) => self.pairs.insert(pair, id),
            None => self.others.insert(key.clone(), id),
        };
    }

    /// The rows of a range, keys ascending or, if `reverse`, descending.
    ///
    /// REQUIRES: some key may be in the range.
    pub(super) fn range(&self, range: (Bound<&[u8]>, Bound<&[u8]>), reverse: bool) -> Ids<'_> {
        let start = bound_of_pairs(range.0, Bound::Included, Bound::Excluded);
        let end = bound_of_pairs(range.1, Bound::Excluded, Bound::Included);
        let pairs = self.pairs.range((start, end));
        let others = self.others.range::<[u8], _>(range);
        let mut ids = Ids { pairs, others, reverse, next_pair: None, next_other: None };
        ids.next_pair = step(&mut ids.pairs, reverse);
        ids.next_other = step(&mut ids.others, reverse);
        ids
    }
}

fn pair_of(key: &[u8]) -> Option<Pair> {
    <[u8; SHORT_KEY_BYTES]>::try_from(key).ok().map(Pair::from_be_bytes)
}

/// A bound of byte strings, for pairs. The first pair that goes on from a shorter key is above it, the pair that a longer
/// key goes on from below it: `shorter` and `longer` say whether such a one is within.
fn bound_of_pairs(
    bound: Bound<&[u8]>,
    shorter: fn(Pair) -> Bound<Pair>,
    longer: fn(Pair) -> Bound<Pair>,
) -> Bound<Pair> {
    let (Bound::Included(key) | Bound::Excluded(key)) = bound else { return Bound::Unbounded };
    let mut bytes = [0; SHORT_KEY_BYTES];
    let len = key.len().min(SHORT_KEY_BYTES);
    bytes[..len].copy_from_slice(&key[..len]);
    let pair = Pair::from_be_bytes(bytes);
    match key.len().cmp(&SHORT_KEY_BYTES) {
        Ordering::Less => shorter(pair),
        Ordering::Equal => bound.map(|_| pair),
        Ordering::Greater => longer(pair),
    }
}

/// The rows of a range in order.
pub(super) struct Ids<'a> {
    pairs: Range<'a, Pair, RowId>,
    others: Range<'a, Key, RowId>,
    reverse: bool,
    /// Taken out of `pairs` already.
    next_pair: Option<(&'a Pair, &'a RowId)>,
    /// Taken out of `others` already.
    next_other: Option<(&'a Key, &'a RowId)>,
}

impl Iterator for Ids<'_> {
    type Item = RowId;

    #[inline]
    fn next(&mut self) -> Option<RowId> {
        let pair_is_next = match (self.next_pair, self.next_other) {
            (Some((pair, _)), Some((other, _))) => {
                (pair.to_be_bytes()[..] < *other.as_slice()) != self.reverse
            }
            (pair, _) => pair.is_some(),
        };
        if pair_is_next {
            let next = step(&mut self.pairs, self.reverse);
            return std::mem::replace(&mut self.next_pair, next).map(|(_, id)| *id);
        }
        let next = step(&mut self.others, self.reverse);
        std::mem::replace(&mut self.next_other, next).map(|(_, id)| *id)
    }
}

#[inline]
fn step<I: DoubleEndedIterator>(from: &mut I, reverse: bool) -> Option<I::Item> {
    if reverse { from.next_back() } else { from.next() }
}
