//! Finds the valid records after a bad one.
//!
//! Every multiple of 8 bytes may begin a record. Bytes that look like a record's header and name a
//! long payload would cost a checksum of that payload each; a log full of such bytes (file data can
//! be anything) would take hours. So:
//!
//! 1. One pass keeps the CRC of the log up to every 256th byte.
//! 2. A CRC is linear: that of a range follows from those of the log up to its two ends, where the
//!    first is carried over the range's length by a multiplication of polynomials. A candidate costs
//!    less than a microsecond, however long it says it is.
//! 3. What passes is read as any other record.

use bytes::Bytes;

use super::reader::record_at;
use super::record::{Framing, HEADER_BYTES, KIND_AT, decode_framing, encoded_len};
use super::{ALIGN_BYTES, LogId, Record};
use crate::checksum::{CRC_BYTES, placed_crc};

/// The CRC of the log is kept up to every such many bytes.
const STEP_BYTES: usize = 256;
/// CRC32C's polynomial, bits reversed: the top bit is the coefficient of x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// x^(8 * 2^k) modulo the polynomial: carries a CRC over 2^k bytes.
const OVER_BYTES: [u32; usize::BITS as usize] = powers();

/// The valid records of `bytes`, the whole of `log`, at or after offset `from`, found by trying
/// every place where one may begin. Takes time in proportion to the length of the log.
pub fn resync(bytes: Bytes, log: LogId, from: u64) -> impl Iterator<Item = Record> {
    let align = ALIGN_BYTES as u64;
    let mut pos = usize::try_from(from.div_ceil(align).saturating_mul(align)).unwrap_or(usize::MAX);
    let sums = if pos < bytes.len() { sums(&bytes) } else { Vec::new() };
    std::iter::from_fn(move || {
        while bytes.len().saturating_sub(pos) >= HEADER_BYTES {
            if may_begin(&bytes, &sums, log, pos)
                && let Ok(record) = record_at(&bytes, log, pos)
            {
                pos += encoded_len(record.payload.len());
                return Some(record);
            }
            pos += ALIGN_BYTES;
        }
        None
    })
}

/// Whether a header stands at `pos` whose checksum is right.
///
/// REQUIRES: `HEADER_BYTES` bytes at `pos`.
fn may_begin(bytes: &[u8], sums: &[u32], log: LogId, pos: usize) -> bool {
    // No kind is zero. A hole may be most of a file, so that is asked before anything else.
    if bytes[pos + KIND_AT] == 0 {
        return false;
    }
    let Ok(Framing { payload_len, stored_crc, .. }) = decode_framing(&bytes[pos..], pos as u64)
    else {
        return false;
    };
    let (start, end) = (pos + CRC_BYTES, pos + HEADER_BYTES + payload_len);
    let file = log.in_checksum(pos as u64);
    let before = placed_crc(file, pos as u64, &[]) ^ sum_up_to(bytes, sums, start);
    carry(before, end - start) ^ sum_up_to(bytes, sums, end) == stored_crc
}

/// The CRC up to every [`STEP_BYTES`].
fn sums(bytes: &[u8]) -> Vec<u32> {
    let mut sums = Vec::with_capacity(bytes.len() / STEP_BYTES + 2);
    let mut sum = 0;
    sums.push(sum);
    for step in bytes.chunks(STEP_BYTES) {
        sum = crc32c::crc32c_append(sum, step);
        sums.push(sum);
    }
    sums
}

/// The CRC of the first `end` bytes.
fn sum_up_to(bytes: &[u8], sums: &[u32], end: usize) -> u32 {
    let step = end / STEP_BYTES;
    crc32c::crc32c_append(sums[step], &bytes[step * STEP_BYTES..end])
}

/// What `crc` adds to the CRC of a string that goes on for `len` bytes.
fn carry(mut crc: u32, len: usize) -> u32 {
    for (k, &power) in OVER_BYTES.iter().enumerate() {
        if len >> k & 1 == 1 {
            crc = multiply(power, crc);
        }
    }
    crc
}

/// The product of two polynomials modulo CRC32C's.
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
    use varve_types::FileNo;

    use super::*;

    #[test]
    fn a_range_has_the_crc_that_its_ends_give() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * i / 8) as u8).collect();
        let sums = sums(&bytes);
        for (start, end) in [(0, 0), (0, 5000), (255, 256), (256, 512), (1, 4999), (777, 778)] {
            let from_ends =
                carry(sum_up_to(&bytes, &sums, start), end - start) ^ sum_up_to(&bytes, &sums, end);
            assert_eq!(from_ends, crc32c::crc32c(&bytes[start..end]), "{start}..{end}");
        }
    }

    /// Every 24 bytes of this log are a header that names all the rest as its payload: 12 MiB, and
    /// 3 TiB to sum up if each candidate were read by itself, which would take minutes.
    #[test]
    fn long_candidates_cost_no_more_than_short_ones() {
        let total: usize = 24 * 524_288;
        let mut log = Vec::with_capacity(total);
        while log.len() < total {
            let payload_len = (total - log.len() - 24) as u32;
            log.extend_from_slice(&[1, 2, 3, 4]);
            log.extend_from_slice(&payload_len.to_le_bytes());
            log.extend_from_slice(&[2, 0, 0, 0]);
            log.extend_from_slice(&[0; 12]);
        }
        assert!(decode_framing(&log, 0).is_ok());
        let id = LogId { file: FileNo::new(1), salt: 0 };
        assert_eq!(resync(Bytes::from(log), id, 0).count(), 0);
    }
}
