//! Finds the valid records after a bad one.
//!
//! A record may begin at every multiple of 8 bytes. Bytes that look like a header with a long payload would each cost
//! a checksum of that payload. A log full of such bytes, which file data may be, would take hours. So:
//!
//! 1. One pass keeps the CRC of the log up to every 256th byte.
//! 2. A CRC is linear: the CRC of a range follows from the CRCs of the log up to its two ends, where the first is
//!    carried over the length of the range by a multiplication of polynomials. A candidate costs less than a
//!    microsecond, whatever length it claims.
//! 3. A candidate with a right checksum is read like any other record.

use bytes::Bytes;

use super::reader::record_at;
use super::record::{Framing, HEADER_BYTES, KIND_AT, decode_framing, encoded_len};
use super::{ALIGN_BYTES, LogId, Record};
use crate::checksum::{CRC_BYTES, Sums, carry, placed_crc};

/// Returns the valid records of `bytes`, the whole of `log`, at or after offset `from`, found by trying every place
/// where one may begin. Takes time in proportion to the length of the log.
pub fn resync(bytes: Bytes, log: LogId, from: u64) -> impl Iterator<Item = Record> {
    let align = ALIGN_BYTES as u64;
    let mut pos = usize::try_from(from.div_ceil(align).saturating_mul(align)).unwrap_or(usize::MAX);
    let sums = Sums::new(if pos < bytes.len() { &bytes } else { &[] });
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

/// Returns whether a header stands at `pos` whose checksum is right.
///
/// REQUIRES: `HEADER_BYTES` bytes at `pos`.
fn may_begin(bytes: &[u8], sums: &Sums, log: LogId, pos: usize) -> bool {
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
    let before = placed_crc(file, pos as u64, &[]) ^ sums.up_to(bytes, start);
    carry(before, end - start) ^ sums.up_to(bytes, end) == stored_crc
}

#[cfg(test)]
mod tests {
    use varve_types::FileNo;

    use super::*;

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
