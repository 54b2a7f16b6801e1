//! Binary fuse filters: one equation per key, for tables that are written once (Graf and Lemire, Binary
//! fuse filters: fast and smaller than xor filters, 2022).
//!
//! A key's hash picks three cells, in three neighbouring segments, whose exclusive or is to be the key's
//! fingerprint. Building solves these equations: a cell that only one key picks is decided last, which
//! frees that key's other cells, until no key is left. If some are left, another seed is tried.
//!
//! ```text
//! bytes  field
//!     1  filter: 5 fuse
//!     1  bits of a fingerprint, 1 to 32
//!     1  log2 of the cells of a segment, 0 to 18
//!     1  zero
//!     4  number of segments that a key's first cell may be in; 0 if there are no keys
//!     8  seed
//!   8*n  cells of two segments more, an array of that width
//! ```

use super::{FilterKind, check_width, mixed};
use crate::bits::low_mask;
use crate::bits::packed::Packed;
use crate::codec::Reader;
use crate::{FormatResult, Problem};

const SEGMENT_BITS_MAX: u32 = 18;
/// Seeds that are tried. Most sets need one or two; each that fails adds a hundredth of room.
const SEEDS_MAX: u64 = 200;

/// See the module's comment.
#[derive(Debug, PartialEq, Eq)]
pub struct FuseFilter {
    cells: Packed,
    shape: Shape,
    fingerprint_bits: u32,
}

/// How hashes pick cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    segments: u32,
    segment_bits: u32,
    seed: u64,
}

impl Shape {
    /// Returns the sizes that the paper found, and a hundredth of the room more for each of `tries`.
    fn for_keys(keys: usize, tries: u64) -> Shape {
        let log = (keys.max(2) as f64).ln();
        let segment_bits = ((log / 3.33f64.ln() + 2.25) as u32).min(SEGMENT_BITS_MAX);
        let factor = (0.875 + 0.25 * 1e6f64.ln() / log).max(1.125) + 0.01 * tries as f64;
        let cells = (keys as f64 * factor) as u64;
        let segments = cells.div_ceil(1 << segment_bits).saturating_sub(2).max(1);
        let segments = if keys == 0 { 0 } else { segments.min(u32::MAX.into()) as u32 };
        Shape { segments, segment_bits, seed: mixed(tries + 1) }
    }

    fn cells(self) -> u64 {
        if self.segments == 0 { 0 } else { (u64::from(self.segments) + 2) << self.segment_bits }
    }

    /// Returns the three cells of a hash that [`Shape::seeded`] returned.
    #[inline]
    fn cells_of(self, seeded: u64) -> [usize; 3] {
        let firsts = u64::from(self.segments) << self.segment_bits;
        let first = ((u128::from(seeded) * u128::from(firsts)) >> 64) as u64;
        let within = low_mask(self.segment_bits);
        let second = (first + within + 1) ^ (seeded >> 18 & within);
        let third = (first + 2 * (within + 1)) ^ (seeded & within);
        [first as usize, second as usize, third as usize]
    }

    #[inline]
    fn seeded(self, hash: u64) -> u64 {
        mixed(hash.wrapping_add(self.seed))
    }
}

impl FuseFilter {
    /// A filter that contains `hashes`. `fingerprint_bits` counts as 1 to 32. `None` if no seed was
    /// found.
    ///
    /// REQUIRES: distinct hashes, fewer than 2^31.
    pub fn build(hashes: &[u64], fingerprint_bits: u8) -> Option<FuseFilter> {
        let fingerprint_bits = u32::from(fingerprint_bits.clamp(1, 32));
        (0..SEEDS_MAX).find_map(|tries| {
            let shape = Shape::for_keys(hashes.len(), tries);
            let order = peel(shape, hashes)?;
            let mut cells = Packed::zeros(shape.cells() as usize, fingerprint_bits);
            for (seeded, free) in order.into_iter().rev() {
                let others = shape.cells_of(seeded).into_iter().filter(|cell| *cell != free);
                let sum = others.fold(fingerprint(seeded), |sum, cell| sum ^ cells.get(cell));
                cells.set(free, sum);
            }
            Some(FuseFilter { cells, shape, fingerprint_bits })
        })
    }

    pub(super) fn decode(content: &[u8]) -> FormatResult<FuseFilter> {
        let mut reader = Reader::new(content);
        reader.u8()?;
        let fingerprint_bits = check_width(reader.u8()?, 1..=32, 1)?;
        let segment_bits = check_width(reader.u8()?, 0..=SEGMENT_BITS_MAX as u8, 2)?;
        if reader.u8()? != 0 {
            return Err(reader.error(Problem::Invalid("a reserved byte that is not zero")));
        }
        let segments = reader.u32()?;
        let shape = Shape { segments, segment_bits, seed: reader.u64()? };
        let cells = Packed::decode(&mut reader, shape.cells(), fingerprint_bits)?;
        reader.finish()?;
        Ok(FuseFilter { cells, shape, fingerprint_bits })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let (width, segment_bits) = (self.fingerprint_bits as u8, self.shape.segment_bits as u8);
        out.extend_from_slice(&[FilterKind::Fuse as u8, width, segment_bits, 0]);
        out.extend_from_slice(&self.shape.segments.to_le_bytes());
        out.extend_from_slice(&self.shape.seed.to_le_bytes());
        self.cells.encode(out);
    }

    /// See [`super::Filter::may_contain`].
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        if self.shape.segments == 0 {
            return false;
        }
        let seeded = self.shape.seeded(hash);
        let cells = self.shape.cells_of(seeded).map(|cell| self.cells.get(cell));
        let sum = cells.into_iter().fold(fingerprint(seeded), |sum, cell| sum ^ cell);
        sum & low_mask(self.fingerprint_bits) == 0
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.cells.memory_bytes()
    }
}

/// Returns the bits of a hash that its cells must add up to.
#[inline]
fn fingerprint(seeded: u64) -> u64 {
    (seeded ^ (seeded >> 32)) & u64::from(u32::MAX)
}

/// An order in which each key, with all before it gone, has a cell of its own: the seeded hashes and those
/// cells. `None` if there is none.
fn peel(shape: Shape, hashes: &[u64]) -> Option<Vec<(u64, usize)>> {
    let len = shape.cells() as usize;
    // Of each cell: how many keys pick it, and the exclusive or of their hashes.
    let mut picks = vec![(0u32, 0u64); len];
    for &hash in hashes {
        let seeded = shape.seeded(hash);
        for cell in shape.cells_of(seeded) {
            picks[cell] = (picks[cell].0 + 1, picks[cell].1 ^ seeded);
        }
    }
    let mut alone: Vec<usize> = (0..len).filter(|cell| picks[*cell].0 == 1).collect();
    let mut order = Vec::with_capacity(hashes.len());
    while let Some(cell) = alone.pop() {
        let (count, seeded) = picks[cell];
        if count != 1 {
            continue;
        }
        order.push((seeded, cell));
        for own in shape.cells_of(seeded) {
            picks[own] = (picks[own].0 - 1, picks[own].1 ^ seeded);
            if picks[own].0 == 1 {
                alone.push(own);
            }
        }
    }
    (order.len() == hashes.len()).then_some(order)
}
