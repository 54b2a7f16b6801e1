//! Keys on their way from a batch into the memtable and out of it.
//!
//! Most are of one length: those of the file system have 8 + 8 bytes. Such a key is copied without an allocation, and compared
//! with another without a call and a loop over bytes.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The length of the file system's keys, in bytes. Only a longer key needs an allocation.
pub(crate) const SHORT_KEY_BYTES: usize = 16;

/// A key of any length.
#[derive(Clone)]
pub struct Key(Held);

#[derive(Clone)]
enum Held {
    /// At most [`SHORT_KEY_BYTES`].
    Short { len: u8, bytes: [u8; SHORT_KEY_BYTES] },
    /// More, which copies share.
    Long(Arc<[u8]>),
}

impl Key {
    /// A copy of these bytes.
    #[inline]
    pub fn from_slice(slice: &[u8]) -> Key {
        if let Ok(bytes) = slice.try_into() {
            return Key(Held::Short { len: SHORT_KEY_BYTES as u8, bytes });
        }
        Key::of_other_length(slice)
    }

    fn of_other_length(slice: &[u8]) -> Key {
        let mut bytes = [0; SHORT_KEY_BYTES];
        match bytes.get_mut(..slice.len()) {
            Some(first) => first.copy_from_slice(slice),
            None => return Key(Held::Long(slice.into())),
        }
        Key(Held::Short { len: slice.len() as u8, bytes })
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Held::Short { len, bytes } => &bytes[..usize::from(*len)],
            Held::Long(bytes) => bytes,
        }
    }

    /// Whether it has these bytes.
    #[inline]
    pub(crate) fn is(&self, other: &[u8]) -> bool {
        match (&self.0, <&[u8; SHORT_KEY_BYTES]>::try_from(other)) {
            (Held::Short { len, bytes }, Ok(other)) => {
                usize::from(*len) == SHORT_KEY_BYTES && bytes == other
            }
            _ => self.as_slice() == other,
        }
    }
}

impl Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.is(other.as_slice())
    }
}

impl Eq for Key {}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        self.as_slice().cmp(other.as_slice())
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
                assert_eq!(Key::from_slice(one).is(other), expected.is_eq());
                let (one, other) = (Key::from_slice(one), Key::from_slice(other));
                assert_eq!(one == other, expected.is_eq());
                assert_eq!(
                    (one.clone().as_slice(), other.is(one.as_slice())),
                    (one.as_slice(), one == other)
                );
            }
        }
    }
}
