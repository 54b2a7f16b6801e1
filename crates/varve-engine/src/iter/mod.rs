//! Iterators over versions, and over the rows a reader sees.
//!
//! 1. A source walks one memtable ([`memory`]), one table ([`table`]) or the disjoint tables of one
//!    level ([`level`]) in internal order, or in its exact opposite.
//! 2. [`merge::Merge`] makes one sequence of many sources.
//! 3. [`rows::Rows`] shows of each key the version a snapshot sees, if that is not a deletion.
//!
//! [`newer`] walks what was written after a moment, and reads nothing else.
//!
//! Internal order: keys ascending, and of one key the newest version first.

pub(crate) mod level;
pub(crate) mod memory;
pub(crate) mod merge;
pub(crate) mod newer;
pub(crate) mod rows;
pub(crate) mod table;

use std::ops::Bound;
use std::sync::Arc;

use varve_format::block::Block;
use varve_format::filter::PREFIX_BYTES;
use varve_types::SeqNo;

use crate::memtable::Found;
use crate::table::cache::BlockPlace;
use crate::table::file::Table;
use crate::{Direction, StoreResult};

/// A position in a sequence of versions that runs in one direction.
pub(crate) trait Source: Send {
    /// Whether there is a version here; false after the last.
    fn valid(&self) -> bool;
    /// The key. REQUIRES: valid.
    fn key(&self) -> &[u8];
    /// The sequence number. REQUIRES: valid.
    fn seq(&self) -> SeqNo;
    /// What the version does. REQUIRES: valid.
    fn found(&self) -> StoreResult<Found>;
    /// The table that the version stands in, if it is in one. REQUIRES: valid.
    fn table(&self) -> Option<&Table> {
        None
    }
    /// The block that the version stands in, if it is one of a table.
    fn origin(&self) -> Option<Origin<'_>> {
        None
    }
    /// To the next version. After an error the source is not used again.
    fn advance(&mut self) -> StoreResult<()>;
}

/// The block that a version stands in.
pub(crate) struct Origin<'a> {
    pub(crate) table: &'a Arc<Table>,
    pub(crate) place: BlockPlace<'a>,
    pub(crate) block: &'a Block,
    /// Whether the version is the first of the block.
    pub(crate) is_first: bool,
    /// Whether the version is the last of the block.
    pub(crate) is_last: bool,
}

/// A range of keys by reference.
pub(crate) type KeyBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The range of all keys.
pub(crate) const ALL_KEYS: KeyBounds<'static> = (Bound::Unbounded, Bound::Unbounded);

/// Where a walk over a range begins, as a place in internal order: forward at the first version at or
/// after it, backward at the last before it. `None` is the sequence's end on that side.
pub(crate) fn start_place<'a>(
    range: KeyBounds<'a>,
    direction: Direction,
) -> Option<(&'a [u8], SeqNo)> {
    // No version has sequence number zero, and none reaches the largest.
    let (before, after) = (SeqNo::MAX, SeqNo::ZERO);
    match (direction, range) {
        (Direction::Forward, (Bound::Included(key), _)) => Some((key, before)),
        (Direction::Forward, (Bound::Excluded(key), _)) => Some((key, after)),
        (Direction::Reverse, (_, Bound::Excluded(key))) => Some((key, before)),
        (Direction::Reverse, (_, Bound::Included(key))) => Some((key, after)),
        (Direction::Forward, (Bound::Unbounded, _))
        | (Direction::Reverse, (_, Bound::Unbounded)) => None,
    }
}

/// The prefix that all keys of `range` have, if it is one.
pub(crate) fn common_prefix(range: KeyBounds<'_>) -> Option<[u8; PREFIX_BYTES]> {
    let (Bound::Included(start) | Bound::Excluded(start), end) = range else { return None };
    let prefix = *start.first_chunk::<PREFIX_BYTES>()?;
    let next = u64::from_be_bytes(prefix).checked_add(1).map(u64::to_be_bytes);
    let within = match end {
        Bound::Included(end) => end.starts_with(&prefix),
        // Up to, and not including, the first key of the next prefix; trailing 0xff bytes were cut off it.
        Bound::Excluded(end) => {
            end.starts_with(&prefix)
                || next.is_some_and(|next| {
                    let used = next.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
                    end.starts_with(&next[..used])
                        && end[used..].iter().all(|byte| *byte == 0)
                        && end.len() <= PREFIX_BYTES
                })
        }
        Bound::Unbounded => next.is_none(),
    };
    within.then_some(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyRange;

    #[test]
    fn a_range_of_one_prefix_is_recognised() {
        let bounds = |range: &KeyRange| {
            let start = range.start.as_ref().map(|key| key.as_slice());
            common_prefix((start, range.end.as_ref().map(|key| key.as_slice())))
                .map(u64::from_be_bytes)
        };
        for prefix in [0, 1, 255, 256, 0xffff, 1 << 40, u64::MAX - 1, u64::MAX] {
            let mut range = KeyRange::prefix(&prefix.to_be_bytes());
            assert_eq!(bounds(&range), Some(prefix));
            let mut after = prefix.to_be_bytes().to_vec();
            after.extend_from_slice(&[7; 8]);
            range.start = Bound::Excluded(after.clone());
            assert_eq!(bounds(&range), Some(prefix));
            range.end = Bound::Included(after);
            assert_eq!(bounds(&range), Some(prefix));
        }
        assert_eq!(bounds(&KeyRange::all()), None);
        assert_eq!(bounds(&KeyRange::prefix(&[1, 2, 3])), None);
        let mut two = KeyRange::prefix(&7u64.to_be_bytes());
        two.end = KeyRange::prefix(&8u64.to_be_bytes()).end;
        assert_eq!(bounds(&two), None);
    }
}
