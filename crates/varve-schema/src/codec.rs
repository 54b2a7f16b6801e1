//! Reading and writing the parts that values are made of.
//!
//! A varint is LEB128: 7 bits a byte, lowest first, the high bit set on all bytes but the last; at most
//! 10 bytes, and never longer than needed, so that every value has one encoding.

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

/// Takes a row apart from front to back.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a Bytes) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// The error `what` at the present position.
    pub fn error(&self, what: &'static str) -> DecodeError {
        DecodeError { what, offset: self.at }
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        match self.bytes.get(self.at) {
            Some(byte) => {
                self.at += 1;
                Ok(*byte)
            }
            None => Err(self.error("the row ends too early")),
        }
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes([self.u8()?, self.u8()?]))
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes([self.u8()?, self.u8()?, self.u8()?, self.u8()?]))
    }

    /// A varint.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        match self.bytes.get(self.at) {
            Some(byte) if byte & 0x80 == 0 => {
                self.at += 1;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
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
                return Ok(value);
            }
        }
        Err(self.error("a number beyond 64 bits"))
    }

    /// A varint that fits 32 bits.
    pub fn varint32(&mut self) -> Result<u32, DecodeError> {
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| self.error("a number beyond 32 bits"))
    }

    /// The next `len` bytes, shared with the row.
    pub fn take(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        let at = self.at;
        self.borrow(len)?;
        Ok(self.bytes.slice(at..self.at))
    }

    /// The next `len` bytes, as long as the row lives.
    pub fn borrow(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(self.error("the row ends too early"))?;
        let borrowed = &self.bytes[self.at..end];
        self.at = end;
        Ok(borrowed)
    }

    /// The version byte that every row starts with.
    pub fn version(&mut self) -> Result<(), DecodeError> {
        match self.u8()? {
            crate::ROW_VERSION => Ok(()),
            _ => Err(DecodeError { what: "an unknown row version", offset: 0 }),
        }
    }

    /// Checks that nothing is left.
    pub fn end(&self) -> Result<(), DecodeError> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.error("bytes after the end")) }
    }
}

/// Appends `value` as a varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
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

    #[test]
    fn varints_come_back() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let bytes = Bytes::from(out);
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.varint(), Ok(value));
            assert_eq!(reader.end(), Ok(()));
        }
    }

    #[test]
    fn overlong_and_oversized_varints_are_refused() {
        for raw in [&[0x80, 0x00][..], &[0xff; 10], &[0xff; 11], &[0x80], &[]] {
            let bytes = Bytes::copy_from_slice(raw);
            assert!(Reader::new(&bytes).varint().is_err(), "{raw:?}");
        }
    }

    #[test]
    fn zigzag_comes_back() {
        for value in [0, -1, 1, i64::MIN, i64::MAX, 1_700_000_000] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
    }
}
