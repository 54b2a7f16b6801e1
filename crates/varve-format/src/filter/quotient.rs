//! Quotient filters: fingerprints in order (Bender et al., Don't thrash: how
//! to cache your hash on flash, 2012; the filter of KVFS's lists, KVFS thesis 3.1 and 3.2).
//!
//! A fingerprint of q + r bits is the head of a key's hash. Its first q bits, the *quotient*, are the slot
//! it wants; the other r, the *remainder*, are what the slot holds. The fingerprints of one quotient stand
//! together, a *run*; runs are in order, each as near behind its own slot as those before it let it be.
//! Three bits of each slot tell which run is whose:
//!
//! ```text
//! bytes  field
//!     1  filter: 4 quotient
//!     1  bits of a quotient, q
//!     1  bits of a remainder, r, 1 to 32
//!     1  zero
//!     4  number of slots: 2^q and those that the last runs need beyond
//!   8*n  slots, an array of r + 3 bits:
//!          bit 0: some fingerprint has this slot's number as its quotient
//!          bit 1: the slot goes on with the run of the slot before
//!          bit 2: the slot's fingerprint is not where its quotient wants it
//!          then the remainder
//! ```
//!
//! Departure from the paper: filters are made whole, from sorted fingerprints, and never added to or merged, so
//! that the last run needs no wrapping round; a table that is written has its keys at hand.

use super::{FilterKind, check_width};
use crate::bits::low_mask;
use crate::bits::packed::Packed;
use crate::codec::Reader;
use crate::{FormatResult, Problem};

const OCCUPIED: u64 = 1;
const CONTINUED: u64 = 2;
const SHIFTED: u64 = 4;
const FLAG_BITS: u32 = 3;
const REMAINDER_BITS_MAX: u32 = 32;
/// The fewest bits of a fingerprint: remainders of small filters are longer, for little room.
const FINGERPRINT_BITS_MIN: u32 = 24;
/// The most bits of a quotient: 2^30 slots.
const QUOTIENT_BITS_MAX: u32 = 30;

/// See the module's comment.
#[derive(Debug, PartialEq, Eq)]
pub struct QuotientFilter {
    slots: Packed,
    len: usize,
    quotient_bits: u32,
    remainder_bits: u32,
}

impl QuotientFilter {
    /// A filter that contains `hashes`, which may repeat. `remainder_bits` counts as 1 to 32, and as more
    /// if the whole fingerprint would else have fewer than 24.
    pub fn build(hashes: &[u64], remainder_bits: u8) -> QuotientFilter {
        let quotient_bits = quotient_bits_for(hashes.len());
        let least = FINGERPRINT_BITS_MIN.saturating_sub(quotient_bits).max(1);
        let remainder_bits = u32::from(remainder_bits).clamp(least, REMAINDER_BITS_MAX);
        let shift = 64 - quotient_bits - remainder_bits;
        let mut fingerprints: Vec<u64> = hashes.iter().map(|hash| hash >> shift).collect();
        fingerprints.sort_unstable();
        fingerprints.dedup();
        QuotientFilter::from_sorted(&fingerprints, quotient_bits, remainder_bits)
    }

    /// REQUIRES: ascending and distinct.
    fn from_sorted(sorted: &[u64], quotient_bits: u32, remainder_bits: u32) -> QuotientFilter {
        let quotient_of = |fingerprint: u64| (fingerprint >> remainder_bits) as usize;
        let after = |free: usize, &fingerprint: &u64| free.max(quotient_of(fingerprint)) + 1;
        let len = sorted.iter().fold(0, after).max(1 << quotient_bits);
        let mut slots = Packed::zeros(len, remainder_bits + FLAG_BITS);
        let (mut free, mut last) = (0, None);
        for &fingerprint in sorted {
            let quotient = quotient_of(fingerprint);
            let at = quotient.max(free);
            let continued = if last == Some(quotient) { CONTINUED } else { 0 };
            let shifted = if at == quotient { 0 } else { SHIFTED };
            let remainder = fingerprint & low_mask(remainder_bits);
            let occupied = slots.get(at) & OCCUPIED;
            slots.set(at, remainder << FLAG_BITS | continued | shifted | occupied);
            slots.set(quotient, slots.get(quotient) | OCCUPIED);
            (free, last) = (at + 1, Some(quotient));
        }
        QuotientFilter { slots, len, quotient_bits, remainder_bits }
    }

    pub(super) fn decode(content: &[u8]) -> FormatResult<QuotientFilter> {
        let mut reader = Reader::new(content);
        reader.u8()?;
        let quotient_bits = check_width(reader.u8()?, 0..=QUOTIENT_BITS_MAX as u8, 1)?;
        let remainder_bits = check_width(reader.u8()?, 1..=REMAINDER_BITS_MAX as u8, 2)?;
        let zero = reader.u8()?;
        let len = reader.u32()?;
        if zero != 0 || len < 1 << quotient_bits {
            let rule = "a quotient filter with fewer slots than quotients, or a reserved byte";
            return Err(reader.error(Problem::Invalid(rule)));
        }
        let slots = Packed::decode(&mut reader, len.into(), remainder_bits + FLAG_BITS)?;
        reader.finish()?;
        Ok(QuotientFilter { slots, len: len as usize, quotient_bits, remainder_bits })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let (quotient, remainder) = (self.quotient_bits as u8, self.remainder_bits as u8);
        out.extend_from_slice(&[FilterKind::Quotient as u8, quotient, remainder, 0]);
        out.extend_from_slice(&(self.len as u32).to_le_bytes());
        self.slots.encode(out);
    }

    /// See [`super::Filter::may_contain`].
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        let fingerprint = hash >> (64 - self.fingerprint_bits());
        let quotient = (fingerprint >> self.remainder_bits) as usize;
        if self.slot(quotient) & OCCUPIED == 0 {
            return false;
        }
        let remainder = fingerprint & low_mask(self.remainder_bits);
        let mut at = self.run_of(quotient);
        loop {
            let slot = self.slot(at);
            if slot >> FLAG_BITS == remainder && slot & (OCCUPIED | CONTINUED | SHIFTED) != 0 {
                return true;
            }
            at += 1;
            if at >= self.len || self.slot(at) & CONTINUED == 0 {
                return false;
            }
        }
    }

    /// Returns where the run of an occupied quotient begins: as many runs after the start of its cluster as quotients
    /// before it are occupied.
    fn run_of(&self, quotient: usize) -> usize {
        let mut cluster = quotient;
        while cluster > 0 && self.slot(cluster) & SHIFTED != 0 {
            cluster -= 1;
        }
        let occupied = (cluster..quotient).filter(|at| self.slot(*at) & OCCUPIED != 0).count();
        let mut run = cluster;
        for _ in 0..occupied {
            run += 1;
            while run < self.len && self.slot(run) & CONTINUED != 0 {
                run += 1;
            }
        }
        run
    }

    /// Returns the slot at `at`; an empty one beyond the last.
    #[inline]
    fn slot(&self, at: usize) -> u64 {
        if at < self.len { self.slots.get(at) } else { 0 }
    }

    fn fingerprint_bits(&self) -> u32 {
        self.quotient_bits + self.remainder_bits
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
    }
}

/// Returns the bits of a quotient that fill at most three of four slots.
fn quotient_bits_for(keys: usize) -> u32 {
    let slots = (keys as u64 * 4).div_ceil(3).max(1);
    slots.next_power_of_two().ilog2().min(QUOTIENT_BITS_MAX)
}
