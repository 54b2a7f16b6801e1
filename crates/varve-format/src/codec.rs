//! Integers and strings of bytes, written to a `Vec<u8>` and read back with every length checked.
//!
//! ```text
//! varint   7 bits per byte, least significant group first, top bit set on all but the last byte;
//!          the shortest form only, so that equal values have equal bytes
//! string   varint length, bytes
//! ```

use crate::{FormatError, FormatResult, Problem};

/// The most bytes a varint takes.
pub(crate) const VARINT_BYTES_MAX: usize = 10;

/// Appends `value` as a varint.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends `bytes` with its length before it.
pub(crate) fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Returns the varint at the start of `bytes` and its length, or `None` if there is no valid one.
#[inline(always)]
pub(crate) fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    match *bytes {
        [first, ..] if first < 0x80 => Some((u64::from(first), 1)),
        [first, second, ..] if (1..0x80).contains(&second) => {
            Some((u64::from(first & 0x7f) | u64::from(second) << 7, 2))
        }
        _ => match bytes.first_chunk().and_then(short_varint) {
            None => read_long_varint(bytes),
            found => found,
        },
    }
}

/// The bit of each byte of a varint that says whether another follows.
const STOPS: u64 = 0x8080_8080_8080_8080;

/// Returns how many bytes the varint at the start of `bytes` takes, if it ends within them.
#[inline(always)]
pub(crate) fn varint_bytes(bytes: &[u8; 8]) -> Option<usize> {
    let stops = !u64::from_le_bytes(*bytes) & STOPS;
    (stops != 0).then(|| stops.trailing_zeros() as usize / 8 + 1)
}

/// Returns the varint at the start of `bytes`, if it is one that ends within them, without looking at one byte after
/// the other.
#[inline(always)]
fn short_varint(bytes: &[u8; 8]) -> Option<(u64, usize)> {
    let word = u64::from_le_bytes(*bytes);
    let len = varint_bytes(bytes)?;
    // All up to the last byte, then seven bits of each, brought together by twos.
    let word = word & (u64::MAX >> (64 - 8 * len)) & !STOPS;
    let word = (word & 0x007f_007f_007f_007f) | (word & 0x7f00_7f00_7f00_7f00) >> 1;
    let word = (word & 0x0000_3fff_0000_3fff) | (word & 0x3fff_0000_3fff_0000) >> 2;
    let word = (word & 0x0fff_ffff) | (word & 0x0fff_ffff_0000_0000) >> 4;
    (len == 1 || word >> (7 * (len - 1)) != 0).then_some((word, len))
}

#[cold]
fn read_long_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let mut value = u64::from(first & 0x7f);
    for (i, &byte) in bytes.iter().enumerate().take(VARINT_BYTES_MAX).skip(1) {
        let group = u64::from(byte & 0x7f);
        if i == VARINT_BYTES_MAX - 1 && group > 1 {
            return None;
        }
        value |= group << (7 * i);
        if byte < 0x80 {
            return (byte != 0).then_some((value, i + 1));
        }
    }
    None
}

/// Reads fields one after the other. Errors carry the offset of the field.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, pos: 0 }
    }

    /// Returns where the next field begins.
    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.pos
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// An error at the present position.
    pub(crate) fn error(&self, problem: Problem) -> FormatError {
        FormatError::new(self.pos, problem)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> FormatResult<&'a [u8]> {
        let rest = &self.bytes[self.pos..];
        let Some(field) = rest.get(..len) else {
            return Err(
                self.error(Problem::Truncated { needed: len as u64, left: rest.len() as u64 })
            );
        };
        self.pos += len;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> FormatResult<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> FormatResult<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> FormatResult<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> FormatResult<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn u128(&mut self) -> FormatResult<u128> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    #[inline(always)]
    pub(crate) fn varint(&mut self) -> FormatResult<u64> {
        match read_varint(&self.bytes[self.pos..]) {
            Some((value, len)) => {
                self.pos += len;
                Ok(value)
            }
            None => Err(self.error(Problem::Varint)),
        }
    }

    pub(crate) fn varint_u32(&mut self) -> FormatResult<u32> {
        let start = self.pos;
        u32::try_from(self.varint()?).map_err(|_| FormatError::new(start, Problem::Varint))
    }

    /// A byte that is 0 or 1.
    pub(crate) fn bool(&mut self, what: &'static str) -> FormatResult<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            id => Err(FormatError::new(self.pos - 1, Problem::Unknown { what, id: id.into() })),
        }
    }

    /// A string of at most `max` bytes.
    #[inline]
    pub(crate) fn string(&mut self, what: &'static str, max: usize) -> FormatResult<&'a [u8]> {
        let start = self.pos;
        let len = self.varint()?;
        if len > max as u64 {
            return Err(FormatError::new(start, Problem::TooLong { what, len, max: max as u64 }));
        }
        self.bytes(len as usize)
    }

    /// Fails unless everything was read.
    pub(crate) fn finish(&self) -> FormatResult<()> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(self.error(Problem::Invalid("bytes after the last field")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back_at_every_width() {
        for shift in 0..64 {
            for value in [(1u64 << shift) - 1, 1 << shift, (1 << shift) + 1] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert!(out.len() <= VARINT_BYTES_MAX);
                assert_eq!(read_varint(&out), Some((value, out.len())));
                let followed = [&out[..], &[0xff; 16]].concat();
                assert_eq!(read_varint(&followed), Some((value, out.len())));
                for cut in 0..out.len() {
                    assert_eq!(read_varint(&out[..cut]), None);
                }
            }
        }
        let mut out = Vec::new();
        put_varint(&mut out, u64::MAX);
        assert_eq!(read_varint(&out), Some((u64::MAX, 10)));
    }

    #[test]
    fn longer_forms_and_overflows_are_refused() {
        for overlong in [&[0x80, 0x00][..], &[0xff, 0x80, 0x00], &[0x80; 3], &[0xff; 8]] {
            assert_eq!(read_varint(overlong), None, "{overlong:?}");
            let followed = [overlong, &[0; 16]].concat();
            assert_eq!(read_varint(&followed), None, "{overlong:?}");
        }
        let mut overflow = [0xff; 10];
        overflow[9] = 0x02;
        assert_eq!(read_varint(&overflow), None);
        assert_eq!(read_varint(&[0xff; 11]), None);
    }

    #[test]
    fn lengths_are_checked_before_use() {
        let mut out = Vec::new();
        put_varint(&mut out, u64::MAX);
        let error = Reader::new(&out).string("key", 100).unwrap_err();
        assert_eq!(error.problem, Problem::TooLong { what: "key", len: u64::MAX, max: 100 });
        let error = Reader::new(&[5, 1, 2]).string("key", 100).unwrap_err();
        assert_eq!(error.problem, Problem::Truncated { needed: 5, left: 2 });
    }
}
