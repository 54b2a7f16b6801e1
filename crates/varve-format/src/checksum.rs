//! CRC32C over a position and some content.
//!
//! The position (a number for the file, and the offset) comes first. So a block or record fails that is read from
//! another position than it was written to, for example a stale sector or a swapped file.
//!
//! A CRC is linear: the CRC of a range follows from the CRCs of everything up to its two ends ([`Sums`]), where the
//! first is carried over the length of the range by a multiplication of polynomials ([`carry`]). So ranges with
//! unknown ends can be tried in time that does not grow with their lengths.

/// Bytes of a checksum.
pub(crate) const CRC_BYTES: usize = 4;

/// Returns the checksum of `parts`, one after the other, at `offset` of the file that `file` stands for: a table's
/// salt, or what a log has instead.
pub(crate) fn placed_crc(file: u64, offset: u64, parts: &[&[u8]]) -> u32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&file.to_le_bytes());
    place[8..].copy_from_slice(&offset.to_le_bytes());
    parts.iter().fold(crc32c::crc32c(&place), |crc, part| crc32c::crc32c_append(crc, part))
}

/// The CRC is kept up to every such many bytes.
const STEP_BYTES: usize = 256;
/// CRC32C's polynomial, bits reversed: the top bit is the coefficient of x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// x^(8 * 2^k) modulo the polynomial: carries a CRC over 2^k bytes.
const OVER_BYTES: [u32; usize::BITS as usize] = powers();

/// The CRCs of some bytes up to every [`STEP_BYTES`].
#[derive(Debug)]
pub(crate) struct Sums(Vec<u32>);

impl Sums {
    /// Those of `bytes`.
    pub(crate) fn new(bytes: &[u8]) -> Sums {
        let mut sums = Vec::with_capacity(bytes.len() / STEP_BYTES + 2);
        let mut sum = 0;
        sums.push(sum);
        for step in bytes.chunks(STEP_BYTES) {
            sum = crc32c::crc32c_append(sum, step);
            sums.push(sum);
        }
        Sums(sums)
    }

    /// Returns the CRC of the first `end` of the `bytes`.
    pub(crate) fn up_to(&self, bytes: &[u8], end: usize) -> u32 {
        let step = end / STEP_BYTES;
        crc32c::crc32c_append(self.0[step], &bytes[step * STEP_BYTES..end])
    }
}

/// Returns what `crc` adds to the CRC of a string that goes on for `len` bytes.
pub(crate) fn carry(mut crc: u32, len: usize) -> u32 {
    for (k, &power) in OVER_BYTES.iter().enumerate() {
        if len >> k & 1 == 1 {
            crc = multiply(power, crc);
        }
    }
    crc
}

/// Returns the product of two polynomials modulo CRC32C's.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut i = u32::BITS;
    while i > 0 {
        i -= 1;
        if a >> i & 1 == 1 {
            product ^= b;
        }
        b = if b & 1 == 1 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
    }
    product
}

const fn powers() -> [u32; usize::BITS as usize] {
    let mut powers = [0; usize::BITS as usize];
    let x_to_8 = 1 << (31 - 8);
    let mut power = x_to_8;
    let mut k = 0;
    while k < powers.len() {
        powers[k] = power;
        power = multiply(power, power);
        k += 1;
    }
    powers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_the_crc_that_its_ends_give() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * i / 8) as u8).collect();
        let sums = Sums::new(&bytes);
        for (start, end) in [(0, 0), (0, 5000), (255, 256), (256, 512), (1, 4999), (777, 778)] {
            let from_ends = carry(sums.up_to(&bytes, start), end - start) ^ sums.up_to(&bytes, end);
            assert_eq!(from_ends, crc32c::crc32c(&bytes[start..end]), "{start}..{end}");
        }
    }
}
