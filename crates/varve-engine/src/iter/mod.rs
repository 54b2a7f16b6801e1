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
use varve_types::SeqNo;

use crate::memtable::Found;
use crate::table::cache::BlockPlace;
use crate::version::Table;
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
