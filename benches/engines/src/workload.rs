//! The rows: directories of 128, named by a hash.

/// Rows that share their first 8 bytes.
pub(crate) const ROWS_PER_DIRECTORY: u64 = 128;
/// Bytes of a value.
pub(crate) const VALUE_BYTES: usize = 256;
/// Bytes of key and value.
pub(crate) const ROW_BYTES: u64 = 16 + VALUE_BYTES as u64;

/// Directory and hash of a name.
pub(crate) type Key = [u8; 16];

/// Spreads numbers over all bits.
pub(crate) fn mixed(number: u64) -> u64 {
    varve_env::rng::Rng::new(number).next_u64()
}

/// The key of row `number`; rows are numbered directory by directory.
pub(crate) fn key(number: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&(number / ROWS_PER_DIRECTORY).to_be_bytes());
    key[8..].copy_from_slice(&mixed(number).to_be_bytes());
    key
}

/// A key of the directory of row `number` that no row has.
pub(crate) fn absent_key(number: u64) -> Key {
    let mut key = key(number);
    key[8..].copy_from_slice(&mixed(!number).to_be_bytes());
    key
}

/// The value of row `number`, which does not compress.
pub(crate) fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    for (at, bytes) in value.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&mixed(number ^ (at as u64) << 40).to_le_bytes());
    }
    value
}

/// Number `index` of the numbers below `count` in an order that looks random and has each once.
pub(crate) fn scattered(index: u64, count: u64) -> u64 {
    let bits = 64 - count.saturating_sub(1).leading_zeros();
    let mask = (1u64 << bits) - 1;
    let mut number = index;
    loop {
        // Each step can be undone within `bits` bits. Values above the count go round again.
        for round in 0..3 {
            number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(round) & mask;
            number ^= number >> (bits / 2 + 1);
        }
        if number < count {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once() {
        for count in [1, 2, 127, 128, 1000] {
            let mut seen: Vec<u64> = (0..count).map(|index| scattered(index, count)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }
    }
}
