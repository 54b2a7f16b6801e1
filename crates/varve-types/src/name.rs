//! File names. A name is checked once, when it is made.

use std::fmt;

use crate::limits::NAME_BYTES_MAX;

/// One component of a path: 1 to 255 bytes of any value but slash and NUL, and neither `.` nor `..`.
///
/// Borrowed, because a name arrives in a request's buffer and leaves in a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName<'a>(&'a [u8]);

/// Why bytes are not a file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No bytes at all.
    #[error("a file name cannot be empty")]
    Empty,
    /// More than 255 bytes.
    #[error("a file name cannot be longer than 255 bytes")]
    TooLong,
    /// A slash or a NUL inside.
    #[error("a file name cannot hold a slash or a NUL byte")]
    ForbiddenByte,
    /// `.` or `..`, which every directory has by itself.
    #[error("`.` and `..` name the directory itself and its parent")]
    Reserved,
}

impl<'a> FileName<'a> {
    /// Checks `bytes` and makes a name of them.
    pub fn new(bytes: &'a [u8]) -> Result<FileName<'a>, NameError> {
        match bytes {
            [] => Err(NameError::Empty),
            b"." | b".." => Err(NameError::Reserved),
            _ if bytes.len() > NAME_BYTES_MAX => Err(NameError::TooLong),
            _ if bytes.iter().any(|b| matches!(b, 0 | b'/')) => Err(NameError::ForbiddenByte),
            _ => Ok(FileName(bytes)),
        }
    }

    /// Returns the bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Display for FileName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for FileName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_byte_but_slash_and_nul() {
        for b in 0..=255u8 {
            let bytes = [b'x', b];
            assert_eq!(FileName::new(&bytes).is_ok(), b != 0 && b != b'/', "byte {b}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_name() {
        assert_eq!(FileName::new(b""), Err(NameError::Empty));
        assert_eq!(FileName::new(b"."), Err(NameError::Reserved));
        assert_eq!(FileName::new(b".."), Err(NameError::Reserved));
        assert!(FileName::new(b"...").is_ok());
        assert!(FileName::new(&[b'a'; 255]).is_ok());
        assert_eq!(FileName::new(&[b'a'; 256]), Err(NameError::TooLong));
    }
}
