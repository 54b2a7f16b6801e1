//! Decodes and encodes XDR: big-endian units of four bytes (RFC 4506).
//!
//! Invariant: the decoder allocates no more than the message holds. It compares a claimed length with a limit and
//! with what is left first.

/// A message that does not follow the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Garbage(pub(crate) &'static str);

/// Decodes a message.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Reader<'a> {
        Reader { rest: message }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Garbage> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Garbage("it ends too early"))?;
        self.rest = rest;
        Ok(u32::from_be_bytes(*bytes))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Garbage> {
        Ok(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Garbage> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbage("neither true nor false")),
        }
    }

    /// Decodes bytes of a fixed length.
    pub(crate) fn fixed(&mut self, len: usize) -> Result<&'a [u8], Garbage> {
        let padded = len.next_multiple_of(4);
        let (bytes, rest) =
            self.rest.split_at_checked(padded).ok_or(Garbage("it ends too early"))?;
        self.rest = rest;
        Ok(&bytes[..len])
    }

    /// Decodes bytes after their length, at most `max`.
    pub(crate) fn opaque(&mut self, max: usize) -> Result<&'a [u8], Garbage> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(Garbage("it has more bytes than allowed"));
        }
        self.fixed(len)
    }

    /// Decodes an optional part.
    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Garbage>,
    ) -> Result<Option<T>, Garbage> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }
}

/// Encodes a message.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer::default()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Cuts the message to its first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.bytes.extend_from_slice(&number.to_be_bytes());
    }

    pub(crate) fn u32s(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|number| self.u32(*number));
    }

    pub(crate) fn u64(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_be_bytes());
    }

    pub(crate) fn bool(&mut self, is: bool) {
        self.u32(is.into());
    }

    pub(crate) fn fixed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// REQUIRES: fewer than 2^32 bytes.
    pub(crate) fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.fixed(bytes);
    }

    /// Appends what another encoder holds.
    pub(crate) fn append(&mut self, other: &Writer) {
        self.bytes.extend_from_slice(&other.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::new();
        writer.u32(7);
        writer.u64(1 << 40 | 3);
        writer.bool(true);
        writer.opaque(b"hello");
        writer.fixed(b"12345678");
        writer.bool(false);
        let bytes = writer.into_bytes();
        assert_eq!(bytes.len(), 4 + 8 + 4 + 12 + 8 + 4);
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.u32(), reader.u64(), reader.bool()), (Ok(7), Ok(1 << 40 | 3), Ok(true)));
        assert_eq!(reader.opaque(5), Ok(&b"hello"[..]));
        assert_eq!(reader.fixed(8), Ok(&b"12345678"[..]));
        assert_eq!(reader.option(Reader::u32), Ok(None));
        assert!(reader.u32().is_err());
    }

    #[test]
    fn a_length_that_is_claimed_takes_no_memory() {
        for claimed in [6_u32, u32::MAX] {
            let bytes = [&claimed.to_be_bytes()[..], b"hello\0\0\0"].concat();
            assert!(Reader::new(&bytes).opaque(5).is_err());
            assert_eq!(Reader::new(&bytes).opaque(usize::MAX).is_ok(), claimed == 6);
        }
    }
}
