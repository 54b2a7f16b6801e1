//! Pending rows: they name the work that a crash may leave half done, so that a mount finds it without a search.
//!
//! ```text
//! | version u8 | kind u8 |
//! | version u8 | 6 | view varint |                      object to install
//! | version u8 | 5 | directory varint | suffix varint |   object dirty; both 0: in the inode's own row
//! ```

use bytes::Bytes;
use varve_types::InodeId;

use crate::{DecodeError, EntrySuffix, ROW_VERSION, Reader, put_varint};

const ORPHAN: u8 = 1;
const OBJECT_MAKING: u8 = 2;
const OBJECT_DELETE: u8 = 3;
const ORPHAN_OBJECT_MAKING: u8 = 4;
const OBJECT_DIRTY: u8 = 5;
const OBJECT_INSTALL: u8 = 6;

/// What is pending on an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// It has no name left but was open: recovery removes its inode row, data and attributes.
    Orphan,
    /// Its bytes are being moved into an object file that no row claims yet: recovery removes the object file.
    ObjectMaking,
    /// Its rows are removed: recovery removes the object file.
    ObjectDelete,
    /// [`Pending::Orphan`] and [`Pending::ObjectMaking`] at once.
    OrphanObjectMaking,
    /// It has a name, and its object file has a newer size than its row: recovery updates the row.
    ObjectDirty {
        /// The directory and the key suffix of the name whose row holds the inode; `None` if the inode has a row of
        /// its own.
        entry: Option<(InodeId, EntrySuffix)>,
    },
    /// A committed transaction had written to it: recovery replaces the object file of the store by the one of the
    /// view, unless that is done already.
    ObjectInstall {
        /// The epoch of the view.
        view: InodeId,
    },
}

impl Pending {
    /// Returns the row's value.
    pub fn encode(self) -> Vec<u8> {
        let kind = match self {
            Pending::Orphan => ORPHAN,
            Pending::ObjectMaking => OBJECT_MAKING,
            Pending::ObjectDelete => OBJECT_DELETE,
            Pending::OrphanObjectMaking => ORPHAN_OBJECT_MAKING,
            Pending::ObjectDirty { .. } => OBJECT_DIRTY,
            Pending::ObjectInstall { .. } => OBJECT_INSTALL,
        };
        let mut out = vec![ROW_VERSION, kind];
        if let Pending::ObjectInstall { view } = self {
            put_varint(&mut out, view.get());
        }
        if let Pending::ObjectDirty { entry } = self {
            put_varint(&mut out, entry.map_or(0, |(dir, _)| dir.get()));
            put_varint(&mut out, entry.map_or(0, |(_, suffix)| suffix.get()));
        }
        out
    }

    /// Decodes a row's value.
    pub fn decode(bytes: &Bytes) -> Result<Pending, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let pending = match reader.u8()? {
            ORPHAN => Pending::Orphan,
            OBJECT_MAKING => Pending::ObjectMaking,
            OBJECT_DELETE => Pending::ObjectDelete,
            ORPHAN_OBJECT_MAKING => Pending::OrphanObjectMaking,
            OBJECT_INSTALL => Pending::ObjectInstall { view: InodeId::new(reader.varint()?) },
            OBJECT_DIRTY => match (reader.varint()?, reader.varint()?) {
                (0, 0) => Pending::ObjectDirty { entry: None },
                (dir, raw) => {
                    let suffix =
                        EntrySuffix::new(raw).ok_or_else(|| reader.error("a wrong key suffix"))?;
                    Pending::ObjectDirty { entry: Some((InodeId::new(dir), suffix)) }
                }
            },
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
        let entry = Some((InodeId::new(99), EntrySuffix::from_hash(1 << 54)));
        for kind in [
            Pending::Orphan,
            Pending::ObjectMaking,
            Pending::ObjectDelete,
            Pending::OrphanObjectMaking,
            Pending::ObjectDirty { entry },
            Pending::ObjectDirty { entry: None },
            Pending::ObjectInstall { view: InodeId::new(1 << 40) },
        ] {
            assert_eq!(Pending::decode(&Bytes::from(kind.encode())), Ok(kind));
        }
        for raw in [&[1u8, 0][..], &[1, 6], &[2, 1], &[1], &[], &[1, 1, 0], &[1, 5, 7, 7]] {
            assert!(Pending::decode(&Bytes::copy_from_slice(raw)).is_err());
        }
    }
}
