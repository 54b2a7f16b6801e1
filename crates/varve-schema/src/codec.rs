//! Encodes and decodes the parts of values.
//!
//! A varint is LEB128: 7 bits in each byte, the lowest first, with the high bit set in all bytes except the last.
//!
//! Invariants: a varint has at most 10 bytes and is never longer than needed, so that every value has one encoding. A
//! reader never reads beyond the row.

use bytes::Bytes;

/// Why bytes are not a row of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {offset} of the row")]
pub struct DecodeError {
    /// What is wrong.
    pub what: &'static str,
    /// Where in the row, in bytes.
    pub offset: usize,
}

/// The bit that is set in every byte of a varint except the last.
const MORE: u64 = 0x8080_8080_8080_8080;
/// The bits of a word that hold a number, 7 in each byte.
const WORD_BITS: u32 = 56;

/// Decodes a row from front to back.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    row: &'a Bytes,
    /// What has not been read yet.
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub fn new(row: &'a Bytes) -> Reader<'a> {
        Reader { row, rest: row }
    }

    /// Returns the number of bytes read so far.
    pub(crate) fn at(&self) -> usize {
        self.row.len() - self.rest.len()
    }

    /// Returns the error `what` at the present position.
    #[inline]
    pub fn error(&self, what: &'static str) -> DecodeError {
        DecodeError { what, offset: self.at() }
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes, little-endian.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes, little-endian.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        match self.rest.split_first_chunk() {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(*taken)
            }
            None => Err(self.error("the row ends too early")),
        }
    }

    /// A varint.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        if let [byte, rest @ ..] = self.rest
            && byte & 0x80 == 0
        {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        if let Some(word) = self.rest.first_chunk() {
            let (value, bytes) = first_varint(u64::from_le_bytes(*word));
            if bytes != 0 {
                self.rest = &self.rest[bytes..];
                return Ok(value);
            }
        }
        let value;
        (value, *self) = self.varint_by_bytes()?;
        Ok(value)
    }

    /// Decodes a varint that is at the end of a row, is longer than a word, or is damaged.
    #[cold]
    fn varint_by_bytes(mut self) -> Result<(u64, Reader<'a>), DecodeError> {
        let mut value = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(self.error("a number beyond 64 bits"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(self.error("a number longer than needed"));
                }
                return Ok((value, self));
            }
        }
        Err(self.error("a number beyond 64 bits"))
    }

    /// A varint that fits 32 bits.
    #[inline]
    pub fn varint32(&mut self) -> Result<u32, DecodeError> {
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| self.error("a number beyond 32 bits"))
    }

    /// Returns the next `len` bytes, which share memory with the row.
    pub fn take(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        let taken = self.borrow(len)?;
        Ok(self.row.slice_ref(taken))
    }

    /// Borrows the next `len` bytes.
    pub fn borrow(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.error("the row ends too early")),
        }
    }

    /// Borrows all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Returns the version byte that every row starts with.
    pub fn version(&mut self) -> Result<(), DecodeError> {
        match self.u8()? {
            crate::ROW_VERSION => Ok(()),
            _ => Err(DecodeError { what: "an unknown row version", offset: 0 }),
        }
    }

    /// Fails if bytes are left.
    pub fn end(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.error("bytes after the end")) }
    }
}

/// Appends `value` as a varint.
pub fn put_varint(out: &mut Vec<u8>, value: u64) {
    let mut short = Short::<VARINT_ROOM>::new();
    short.put_varint(value);
    out.extend_from_slice(short.as_slice());
}

/// The size of a buffer for a varint, which is written as two words.
const VARINT_ROOM: usize = 16;

/// A buffer for up to `N` bytes of a row.
pub(crate) struct Short<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Short<N> {
    pub(crate) fn new() -> Short<N> {
        Short { bytes: [0; N], len: 0 }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Appends `bytes`.
    #[inline(always)]
    pub(crate) fn put<const LEN: usize>(&mut self, bytes: [u8; LEN]) {
        self.bytes[self.len..][..LEN].copy_from_slice(&bytes);
        self.len += LEN;
    }

    /// Appends `value` as a varint. REQUIRES: the buffer has room for seven bytes more than the varint can have.
    #[inline(always)]
    pub(crate) fn put_varint(&mut self, mut value: u64) {
        if value < 0x80 {
            return self.put([value as u8]);
        }
        if value >> WORD_BITS != 0 {
            self.put((split_sevens(value) | MORE).to_le_bytes());
            value >>= WORD_BITS;
        }
        let (word, bytes) = varint_word(value);
        self.put(word.to_le_bytes());
        self.len -= 8 - bytes;
    }
}

/// Returns the varint at the beginning of a word, and its length. The length is 0 if the varint is longer than the
/// word or than needed.
fn first_varint(word: u64) -> (u64, usize) {
    let bits = (!word & MORE).trailing_zeros() + 1;
    let Some(after) = u64::BITS.checked_sub(bits) else { return (0, 0) };
    let sevens = word & !MORE & (u64::MAX >> after);
    match sevens >> (bits - 8) {
        0 if bits > 8 => (0, 0),
        _ => (join_sevens(sevens), bits as usize / 8),
    }
}

/// Returns `value`, which is below 2^56, as a varint, and its length.
fn varint_word(value: u64) -> (u64, usize) {
    let sevens = split_sevens(value);
    let bytes = 8 - (sevens | 1).leading_zeros() / 8;
    let more = MORE & !(u64::MAX << (8 * (bytes - 1)));
    (sevens | more, bytes as usize)
}

/// Spreads the lowest 56 bits of `value`, 7 into each byte.
fn split_sevens(value: u64) -> u64 {
    let word = (value & 0x0fff_ffff) | ((value << 4) & 0x0fff_ffff_0000_0000);
    let word = (word & 0x0000_3fff_0000_3fff) | ((word << 2) & 0x3fff_0000_3fff_0000);
    (word & 0x007f_007f_007f_007f) | ((word << 1) & 0x7f00_7f00_7f00_7f00)
}

/// Undoes [`split_sevens`].
fn join_sevens(word: u64) -> u64 {
    let word = (word & 0x007f_007f_007f_007f) | ((word & 0x7f00_7f00_7f00_7f00) >> 1);
    let word = (word & 0x0000_3fff_0000_3fff) | ((word & 0x3fff_0000_3fff_0000) >> 2);
    (word & 0x0fff_ffff) | ((word & 0x0fff_ffff_0000_0000) >> 4)
}

/// Maps small negative and positive numbers to small unsigned ones.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Undoes [`zigzag`].
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length, alone and with bytes after it, beside the definition byte by byte.
    #[test]
    fn varints_come_back() {
        let edges = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for value in edges.chain([u64::MAX - 1, u64::MAX, 0x0123_4567_89ab_cdef]) {
            let (mut defined, mut left) = (Vec::new(), value);
            while left >= 0x80 {
                defined.push(left as u8 | 0x80);
                left >>= 7;
            }
            defined.push(left as u8);
            for after in 0..9 {
                let mut out = vec![7];
                put_varint(&mut out, value);
                assert_eq!(&out[1..], &defined, "{value:#x}");
                out.extend((0..after).map(|_| 0xff));
                let bytes = Bytes::from(out);
                let mut reader = Reader::new(&bytes);
                assert_eq!((reader.u8(), reader.varint()), (Ok(7), Ok(value)));
                assert_eq!(reader.at(), 1 + defined.len());
                assert_eq!(reader.end().is_ok(), after == 0);
            }
        }
    }

    #[test]
    fn overlong_and_oversized_varints_are_refused() {
        let overlong = (1..10).map(|len| [&[0x80].repeat(len)[..], &[0]].concat());
        let oversized = [vec![0xff; 10], vec![0xff; 11], [&[0x80; 9][..], &[2]].concat()];
        for raw in overlong.chain(oversized).chain([vec![0x80], vec![0xff; 8], vec![]]) {
            for after in [0, 8] {
                let whole = after == 0 || raw.last().is_some_and(|last| last & 0x80 == 0);
                if whole {
                    let bytes = Bytes::from([&raw[..], &vec![1; after][..]].concat());
                    assert!(Reader::new(&bytes).varint().is_err(), "{raw:?}");
                }
            }
        }
    }

    #[test]
    fn zigzag_comes_back() {
        for value in [0, -1, 1, i64::MIN, i64::MAX, 1_700_000_000] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
    }
}
