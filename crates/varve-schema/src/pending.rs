//! Rows that say what a crash may leave half done, so that a mount finds it without a search.
//!
//! ```text
//! | version u8 | kind u8 |
//! ```

use bytes::Bytes;

use crate::{DecodeError, ROW_VERSION, Reader};

/// What is pending on an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Pending {
    /// It has no name left but was open: its inode row, data and attributes go.
    Orphan = 1,
    /// Its bytes are being moved into an object file that no row claims yet: the object goes.
    ObjectMaking = 2,
    /// Its rows are gone: the object file goes.
    ObjectDelete = 3,
    /// [`Pending::Orphan`] and [`Pending::ObjectMaking`] at once.
    OrphanObjectMaking = 4,
}

impl Pending {
    /// The row's value.
    pub fn encode(self) -> [u8; 2] {
        [ROW_VERSION, self as u8]
    }

    /// Reads a row's value.
    pub fn decode(bytes: &Bytes) -> Result<Pending, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let pending = match reader.u8()? {
            1 => Pending::Orphan,
            2 => Pending::ObjectMaking,
            3 => Pending::ObjectDelete,
            4 => Pending::OrphanObjectMaking,
            _ => return Err(reader.error("an unknown kind of pending work")),
        };
        reader.end()?;
        Ok(pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_back_and_others_are_refused() {
        for kind in [
            Pending::Orphan,
            Pending::ObjectMaking,
            Pending::ObjectDelete,
            Pending::OrphanObjectMaking,
        ] {
            assert_eq!(Pending::decode(&Bytes::copy_from_slice(&kind.encode())), Ok(kind));
        }
        for raw in [&[1u8, 0][..], &[1, 5], &[2, 1], &[1], &[], &[1, 1, 0]] {
            assert!(Pending::decode(&Bytes::copy_from_slice(raw)).is_err());
        }
    }
}
