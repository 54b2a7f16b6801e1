//! The parent filter: which sub-levels hold rows of a directory, so that a scan of one directory opens no
//! others (SlimDB 5.3.3 must open an iterator in each; the parent inode filter of TableFS 4.2.4, for all
//! sub-levels at once).
//!
//! A cuckoo table maps the fingerprint of a prefix to a set of sub-levels. Prefixes with equal fingerprints
//! share a set, so that it may be too large, never too small. What finds no slot makes the filter *full*:
//! from then on it names all sub-levels.
//!
//! ```text
//! bytes  field
//!     1  bits of a fingerprint, 4 to 32
//!     1  the largest number of a sub-level
//!     1  1 if full, else 0
//!     1  zero
//!     4  number of buckets
//!   8*n  slots, four to a bucket, an array of both widths; 0 is free
//!     8  the numbers that are in it, a bit for each
//! ```

use super::cuckoo::Buckets;
use super::{SubLevel, SubLevels, check_width, check_zero};
use crate::FormatResult;
use crate::codec::Reader;

/// See the module's comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentFilter {
    buckets: Buckets,
    fingerprint_bits: u8,
    /// The largest number of a sub-level.
    level_max: u8,
    levels: SubLevels,
    full: bool,
}

impl ParentFilter {
    /// A filter with room for `prefixes` different prefixes in sub-levels 1 to `level_max`. `fingerprint_bits`
    /// counts as 4 to 32, and both together as 64 at most.
    pub fn new(prefixes: usize, fingerprint_bits: u8, level_max: u8) -> ParentFilter {
        let fingerprint_bits = fingerprint_bits.clamp(4, 32);
        let level_max = level_max.clamp(1, (64 - fingerprint_bits).min(SubLevel::MAX.get()));
        ParentFilter {
            buckets: Buckets::for_keys(prefixes, fingerprint_bits.into(), level_max.into()),
            fingerprint_bits,
            level_max,
            levels: SubLevels::NONE,
            full: false,
        }
    }

    /// The largest number a sub-level may have in it.
    pub fn level_max(&self) -> u8 {
        self.level_max
    }

    /// Puts in that `level` holds rows of the prefix with this [`super::filter_hash`].
    ///
    /// REQUIRES: `level` is at most the largest.
    pub fn insert(&mut self, hash: u64, level: SubLevel) {
        debug_assert!(level.get() <= self.level_max, "a sub-level that does not fit its bits");
        self.levels.insert(level);
        let spot = self.buckets.spot(hash);
        let bit = SubLevels::from(level).bits() >> 1;
        let known = self.buckets.matching(spot).next();
        match known {
            Some((slot, held)) => self.buckets.set_payload(slot, held | bit),
            None => self.full |= self.buckets.insert(spot, bit).is_err(),
        }
    }

    /// Returns the sub-levels that may hold rows of the prefix with this hash.
    pub fn lookup(&self, hash: u64) -> SubLevels {
        if self.full {
            return self.levels;
        }
        let held =
            self.buckets.matching(self.buckets.spot(hash)).fold(0, |all, (_, held)| all | held);
        SubLevels::from_bits(held << 1)
    }

    /// Forgets `level`, since it was merged away.
    pub fn forget(&mut self, level: SubLevel) {
        let bit = SubLevels::from(level).bits() >> 1;
        self.buckets.clear_payload_bit(bit);
        self.levels.remove(level);
        self.full &= !self.levels.is_empty();
    }

    /// Returns whether it names all sub-levels for every prefix, since it has more prefixes than room.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Appends the filter as it stands in the file of a map.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.fingerprint_bits, self.level_max, u8::from(self.full), 0]);
        self.buckets.encode(out);
        out.extend_from_slice(&self.levels.bits().to_le_bytes());
    }

    /// Reads what [`ParentFilter::encode`] appended.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> FormatResult<ParentFilter> {
        let start = reader.pos();
        let fingerprint_bits = reader.u8()?;
        let width = check_width(fingerprint_bits, 4..=32, start)?;
        let level_max = reader.u8()?;
        let most = SubLevel::MAX.get().min(64 - fingerprint_bits);
        let payload_bits = check_width(level_max, 1..=most, start + 1)?;
        let full = reader.bool("fullness of a filter")?;
        check_zero(reader)?;
        let buckets = Buckets::decode(reader, width, payload_bits)?;
        let levels = SubLevels::decode(reader, level_max)?;
        Ok(ParentFilter { buckets, fingerprint_bits, level_max, levels, full })
    }

    /// Bytes of memory the filter takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<ParentFilter>() + self.buckets.memory_bytes()
    }
}
