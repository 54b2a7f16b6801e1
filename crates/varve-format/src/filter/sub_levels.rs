//! Numbers of sub-levels and sets of them.

use std::fmt;

use crate::bits::low_mask;
use crate::codec::Reader;
use crate::{FormatError, FormatResult, Problem};

/// A sub-level of a level, from 1 to 63; which of two is newer the store knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubLevel(u8);

/// A set of sub-levels.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SubLevels(u64);

impl SubLevel {
    /// The largest number there may be.
    pub const MAX: SubLevel = SubLevel(63);

    /// Returns the sub-level numbered `number`; `None` unless from 1 to 63.
    pub const fn new(number: u8) -> Option<SubLevel> {
        if number >= 1 && number <= SubLevel::MAX.0 { Some(SubLevel(number)) } else { None }
    }

    /// Its number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl SubLevels {
    /// The set of none.
    pub const NONE: SubLevels = SubLevels(0);

    /// Returns the set whose members have their bits set; bit 0 is nobody's.
    pub(super) fn from_bits(bits: u64) -> SubLevels {
        SubLevels(bits & !1)
    }

    /// Reads a set of numbers up to `max`.
    pub(super) fn decode(reader: &mut Reader<'_>, max: u8) -> FormatResult<SubLevels> {
        let start = reader.pos();
        let bits = reader.u64()?;
        if bits & 1 != 0 || bits & !low_mask(u32::from(max) + 1) != 0 {
            let rule = "a set of sub-levels with one that cannot be";
            return Err(FormatError::new(start, Problem::Invalid(rule)));
        }
        Ok(SubLevels(bits))
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// Adds `level`.
    pub fn insert(&mut self, level: SubLevel) {
        self.0 |= 1 << level.0;
    }

    /// Removes `level`.
    pub fn remove(&mut self, level: SubLevel) {
        self.0 &= !(1 << level.0);
    }

    /// Returns the members of either.
    #[must_use]
    pub fn union(self, other: SubLevels) -> SubLevels {
        SubLevels(self.0 | other.0)
    }

    /// Returns whether it has no member.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of members.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether `level` is a member.
    pub fn contains(self, level: SubLevel) -> bool {
        self.0 >> level.0 & 1 == 1
    }

    /// Returns the members, the newest first.
    pub fn newest_first(self) -> impl Iterator<Item = SubLevel> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let newest = left.checked_ilog2()? as u8;
            left ^= 1 << newest;
            Some(SubLevel(newest))
        })
    }
}

impl From<SubLevel> for SubLevels {
    fn from(level: SubLevel) -> SubLevels {
        SubLevels(1 << level.0)
    }
}

impl fmt::Debug for SubLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.newest_first().map(SubLevel::get)).finish()
    }
}
