//! The Bloom filter, divided into lines of 64 bytes, one cache line each: the upper half of a key's hash
//! picks the line, the lower half the bits in it, so that a probe touches one line of memory. At 10 bits
//! per key about 1 of 100 absent keys passes.
//!
//! ```text
//! bytes  field
//!     1  filter: 2 Bloom
//!     1  probes per key
//!     2  zero
//!     4  number of lines
//!  64*n  lines; bit b of a line is bit b % 64 of its (b / 64)th u64
//! ```
//!
//! Departure from the paper: LevelDB's filters are one per 2 KiB of data, here there is one per table,
//! loaded once and then probed without reading.

use std::fmt;

use super::FilterKind;
use crate::codec::Reader;
use crate::{FormatError, FormatResult, Problem};

const BLOOM: u8 = FilterKind::Bloom as u8;
const LINE_BITS: u64 = 512;
const LINE_BYTES: usize = LINE_BITS as usize / 8;
const PROBES_MAX: u8 = 16;
/// 2^32 divided by the golden ratio: successive multiples spread over all bits.
const GOLDEN: u32 = 0x9e37_79b9;

/// A Bloom filter in lines.
pub struct Bloom {
    lines: Box<[Line]>,
    probes: u8,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; 8]);

impl Bloom {
    /// A filter that contains `hashes`.
    pub(super) fn build(hashes: &[u64], bits_per_key: u8) -> Bloom {
        let bits = (hashes.len() as u64).saturating_mul(bits_per_key.into());
        let lines = bits.div_ceil(LINE_BITS).clamp(1, u64::from(u32::MAX));
        let mut bloom = Bloom {
            lines: vec![Line([0; 8]); lines as usize].into_boxed_slice(),
            probes: probes_for(bits_per_key),
        };
        for &hash in hashes {
            let line = bloom.line_of(hash);
            for (word, mask) in bits_of(hash, bloom.probes) {
                bloom.lines[line].0[word] |= mask;
            }
        }
        bloom
    }

    /// Appends the section's content.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[BLOOM, self.probes, 0, 0]);
        out.extend_from_slice(&(self.lines.len() as u32).to_le_bytes());
        out.reserve(self.lines.len() * LINE_BYTES);
        for word in self.lines.iter().flat_map(|line| line.0) {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    pub(super) fn decode(content: &[u8]) -> FormatResult<Bloom> {
        let mut reader = Reader::new(content);
        reader.u8()?;
        let probes = reader.u8()?;
        if !(1..=PROBES_MAX).contains(&probes) {
            let rule = "a Bloom filter with no probes or too many";
            return Err(FormatError::new(1u64, Problem::Invalid(rule)));
        }
        if reader.bytes(2)? != [0; 2] {
            let rule = "reserved bytes that are not zero";
            return Err(FormatError::new(2u64, Problem::Invalid(rule)));
        }
        let count = reader.u32()? as usize;
        if count == 0 || count.checked_mul(LINE_BYTES) != Some(reader.remaining()) {
            let rule = "a Bloom filter whose number of lines does not match its length";
            return Err(FormatError::new(4u64, Problem::Invalid(rule)));
        }
        let mut lines = vec![Line([0; 8]); count].into_boxed_slice();
        for word in lines.iter_mut().flat_map(|line| &mut line.0) {
            *word = reader.u64()?;
        }
        Ok(Bloom { lines, probes })
    }

    #[inline]
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        let line = &self.lines[self.line_of(hash)];
        bits_of(hash, self.probes).all(|(word, mask)| line.0[word] & mask != 0)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }

    #[inline]
    fn line_of(&self, hash: u64) -> usize {
        (((hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }
}

impl fmt::Debug for Bloom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.lines.len() * LINE_BYTES;
        f.debug_struct("Bloom").field("bytes", &bytes).field("probes", &self.probes).finish()
    }
}

/// Returns the words and masks of a hash's bits within its line.
#[inline]
fn bits_of(hash: u64, probes: u8) -> impl Iterator<Item = (usize, u64)> {
    let mut state = hash as u32;
    (0..probes).map(move |_| {
        let bit = state >> 23;
        state = state.wrapping_mul(GOLDEN);
        ((bit / 64) as usize, 1 << (bit % 64))
    })
}

/// Returns the number of probes that lets the fewest absent keys pass: bits per key times ln 2, a little less because
/// the keys of a line share its bits.
fn probes_for(bits_per_key: u8) -> u8 {
    let probes = u32::from(bits_per_key) * 60 / 100;
    (probes as u8).clamp(1, PROBES_MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{Filter, filter_hash};
    use super::*;

    fn hashes(from: u64, count: u64) -> Vec<u64> {
        (from..from + count).map(|i| filter_hash(&i.to_be_bytes())).collect()
    }

    fn decoded(bloom: &Bloom) -> Filter {
        let mut out = Vec::new();
        bloom.encode(&mut out);
        Filter::decode(&out).unwrap()
    }

    #[test]
    fn no_key_is_denied() {
        for count in [0, 1, 2, 51, 52, 1000, 30_000] {
            for bits_per_key in [1, 5, 10, 16, 255] {
                let keys = hashes(7, count);
                let filter = decoded(&Bloom::build(&keys, bits_per_key));
                assert!(keys.iter().all(|&hash| filter.may_contain(hash)));
            }
        }
    }

    #[test]
    fn absent_keys_pass_as_rarely_as_promised() {
        for (bits_per_key, per_thousand_max) in [(5, 120), (10, 13), (16, 3)] {
            let filter = decoded(&Bloom::build(&hashes(0, 50_000), bits_per_key));
            let absent = hashes(1 << 40, 100_000);
            let passed = absent.iter().filter(|&&hash| filter.may_contain(hash)).count();
            let per_thousand = passed as f64 / 100.0;
            assert!(per_thousand <= f64::from(per_thousand_max), "{bits_per_key}: {per_thousand}");
            let bits = filter.memory_bytes() as f64 * 8.0 / 50_000.0;
            assert!(bits < f64::from(bits_per_key) + 0.1, "{bits} bits per key");
        }
    }

    #[test]
    fn an_empty_filter_denies_everything() {
        let filter = decoded(&Bloom::build(&[], 10));
        assert!(!hashes(0, 100).into_iter().any(|hash| filter.may_contain(hash)));
    }

    #[test]
    fn bad_filters_are_refused() {
        let mut good = Vec::new();
        Bloom::build(&hashes(0, 100), 10).encode(&mut good);
        for cut in 0..good.len() {
            assert!(Filter::decode(&good[..cut]).is_err());
        }
        for (at, byte) in [(0, 1), (0, 9), (1, 0), (1, 17), (2, 1), (4, 1), (7, 255)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(Filter::decode(&bad).is_err(), "byte {at} as {byte}");
        }
        assert!(Filter::decode(&[BLOOM, 6, 0, 0, 0, 0, 0, 0]).is_err());
    }
}
