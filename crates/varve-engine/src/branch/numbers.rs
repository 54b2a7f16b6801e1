//! Which numbers the key spaces of branches get.
//!
//! A number is used again only when no log and no table of the manifest has rows of it. So they are given in turn, from the
//! first above all in use on; at the end all that is in memory becomes tables, without what has ended, and the widest gap
//! between those in use is next.

use std::ops::Range;

use parking_lot::MutexGuard;
use varve_types::KeyspaceId;

use super::handle::Branches;
use crate::read_state::ReadState;
use crate::{StoreError, StoreResult};

/// The end of all numbers.
const NUMBERS: u32 = 1 << 31;

/// Numbers that nothing has rows of.
#[derive(Debug)]
pub(crate) struct SpaceNumbers(Range<u32>);

impl SpaceNumbers {
    /// Those above what `read_state` and the logs behind its memtables have.
    pub(crate) fn new(read_state: &ReadState) -> SpaceNumbers {
        let in_tables = read_state.branch_spaces.last_key_value().map(|(id, _)| *id);
        let in_memory = read_state.memtables().filter_map(|memtable| memtable.last_branch_space());
        let last = in_memory.chain(in_tables).max().map(KeyspaceId::number_of_branch);
        SpaceNumbers(last.map_or(0, |last| last + 1)..NUMBERS)
    }

    /// The first of them, which the next call gives again unless [`SpaceNumbers::used`] was called.
    pub(super) fn first(&self) -> u32 {
        self.0.start
    }

    /// The first `count` of them are in the manifest.
    pub(super) fn used(&mut self, count: usize) {
        self.0.start += count as u32;
    }
}

/// The widest range of numbers without those of `used`, which ascend.
fn widest_gap(used: impl Iterator<Item = u32>) -> Range<u32> {
    let (mut widest, mut start) = (0..0, 0);
    for end in used.chain([NUMBERS]) {
        if end - start > widest.end - widest.start {
            widest = start..end;
        }
        start = end.saturating_add(1);
    }
    widest
}

impl Branches {
    /// Numbers for `count` key spaces at least; none is given to anybody else until the lock goes, which is to be held until
    /// those that were taken are in the manifest.
    ///
    /// REQUIRES: no lock is held but gates of branches.
    pub(super) fn space_numbers(&self, count: usize) -> StoreResult<MutexGuard<'_, SpaceNumbers>> {
        let mut numbers = self.space_numbers.lock();
        if numbers.0.len() < count {
            // Nobody writes meanwhile, and no memtable or log has rows of what has ended.
            self.flusher.when_flushed(|_, read_state| {
                let used = read_state.branch_spaces.keys().map(|id| id.number_of_branch());
                numbers.0 = widest_gap(used);
                Ok(true)
            })?;
        }
        if numbers.0.len() < count {
            let message = "transactions and clones have too many key spaces; end some of them";
            return Err(StoreError::Invalid(message.to_owned()));
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_gap_is_between_numbers_in_use() {
        assert_eq!(widest_gap([].into_iter()), 0..NUMBERS);
        assert_eq!(widest_gap([0, 5, NUMBERS - 3].into_iter()), 6..NUMBERS - 3);
        assert_eq!(widest_gap([1 << 30, NUMBERS - 1].into_iter()), 0..1 << 30);
        assert_eq!(widest_gap([3].into_iter()), 4..NUMBERS);
        assert_eq!(widest_gap([0, 1, 2].into_iter()), 3..NUMBERS);
    }
}
