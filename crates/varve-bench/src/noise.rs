//! The bytes of files: random, so that nothing compresses them or finds them twice, and known, so that they can
//! be checked.

use std::sync::LazyLock;

use crate::random::{Random, mix};

/// The most bytes of one call; also how long the noise is. A file takes it from another place in each such part, so that no
/// part can stand for another.
pub(crate) const CALL_BYTES_MAX: usize = 1 << 20;

/// Twice the same, so that a slice may begin anywhere in the first half.
static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random::new(0x6e_6f69_7365);
    let mut once = Vec::with_capacity(2 * CALL_BYTES_MAX);
    while once.len() < CALL_BYTES_MAX {
        once.extend_from_slice(&random.next().to_le_bytes());
    }
    once.extend_from_within(..);
    once
});

/// The bytes from `offset` on of the file of `key`: `bytes` of them, or fewer up to the next multiple of
/// [`CALL_BYTES_MAX`].
pub(crate) fn bytes_at(key: u64, offset: u64, bytes: u64) -> &'static [u8] {
    let part_bytes = CALL_BYTES_MAX as u64;
    let (part, within) = (offset / part_bytes, offset % part_bytes);
    let begin = (mix(key ^ mix(part)) % part_bytes + within) as usize;
    let length = bytes.min(part_bytes - within) as usize;
    NOISE.get(begin..begin + length).unwrap_or_default()
}

/// Where `data` is not what the file of `key` has from `offset` on, if it is not.
pub(crate) fn differs_at(data: &[u8], key: u64, offset: u64) -> Option<u64> {
    let mut at = 0;
    while at < data.len() {
        let left = &data[at..];
        let from = offset + at as u64;
        let expected = bytes_at(key, from, left.len() as u64);
        let found = &left[..expected.len()];
        if found != expected {
            let same = found.iter().zip(expected).take_while(|(one, other)| one == other).count();
            return Some(from + same as u64);
        }
        at += expected.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_however_it_is_cut() {
        let whole = bytes_at(7, 0, 5000);
        assert_eq!(&whole[1234..], bytes_at(7, 1234, 5000 - 1234));
        assert_ne!(whole, bytes_at(8, 0, 5000));
        assert_eq!(bytes_at(7, 0, u64::MAX).len(), CALL_BYTES_MAX);
        assert_eq!(bytes_at(7, u64::MAX, u64::MAX).len(), 1);
    }

    /// Bytes of a file repeated after each MiB, so that blocks at a wrong multiple of it passed for right.
    #[test]
    fn no_part_of_a_file_stands_for_another() {
        let part = CALL_BYTES_MAX as u64;
        let block = bytes_at(7, 5 * part + 4096, 4096);
        assert_eq!(differs_at(block, 7, 5 * part + 4096), None);
        for other in [0, 1, 4, 6, 500] {
            assert!(differs_at(block, 7, other * part + 4096).is_some(), "{other}");
        }
    }

    #[test]
    fn the_first_byte_that_differs_is_told_across_parts() {
        let from = CALL_BYTES_MAX as u64 - 10;
        let mut data = [bytes_at(3, from, 10), bytes_at(3, from + 10, 20)].concat();
        assert_eq!((data.len(), differs_at(&data, 3, from)), (30, None));
        data[15] ^= 1;
        assert_eq!(differs_at(&data, 3, from), Some(from + 15));
    }
}
