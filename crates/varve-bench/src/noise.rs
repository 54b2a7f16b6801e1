//! The bytes of files: random, so that nothing compresses them or finds them twice, and known, so that they can
//! be checked.

use std::sync::LazyLock;

use crate::random::{Random, mix};

/// The most bytes of one call; also how long the noise is before it repeats.
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

/// The bytes from `offset` on of the file of `key`, at most [`CALL_BYTES_MAX`] of them.
pub(crate) fn bytes_at(key: u64, offset: u64, bytes: u64) -> &'static [u8] {
    let modulus = CALL_BYTES_MAX as u64;
    let begin = ((mix(key) % modulus + offset % modulus) % modulus) as usize;
    let length = bytes.min(modulus) as usize;
    NOISE.get(begin..begin + length).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_however_it_is_cut() {
        let whole = bytes_at(7, 0, 5000);
        assert_eq!(&whole[1234..], bytes_at(7, 1234, 5000 - 1234));
        assert_ne!(whole, bytes_at(8, 0, 5000));
        assert_eq!(bytes_at(7, u64::MAX, u64::MAX).len(), CALL_BYTES_MAX);
    }
}
