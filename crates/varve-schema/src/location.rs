//! Where an inode's attributes are: what a file system knows of each inode that its front end has looked up.
//!
//! ```text
//! place:        | 1 |                                            in its own row
//!               | 2 | prefix varint | suffix varint | slot u8 |  in the row of its only name
//!               | 3 | inode |                                    in no row any more
//!
//! lookups row:  | lookups varint | place |                       never 3
//! ```
//!
//! Rows of lookups live no longer than a mount, and have no version of their own: a process that takes over the mount of another
//! has to read them, so their encoding is a part of what [`crate::Handover`] versions.

use bytes::Bytes;
use varve_types::InodeId;

use crate::{DecodeError, EntrySuffix, Inode, Reader, RowKey, put_varint};

/// Where an inode's attributes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InodeLocation {
    /// In the inode's own row.
    Own,
    /// In the row of its only name.
    Entry {
        /// The entry row.
        key: RowKey,
        /// The name's slot in it.
        slot: u8,
    },
    /// In no row: the last name is gone, nobody has it open, but the front end still knows it. The inode
    /// is whole: only what has no rows besides its inode is detached while known.
    Detached(Box<Inode>),
}

impl InodeLocation {
    /// Returns the directory in which `inode`, which is here, counts, if it does.
    #[inline]
    pub fn counted_in(&self, inode: &Inode) -> Option<InodeId> {
        match self {
            InodeLocation::Own => inode.home.map(|home| home.dir),
            InodeLocation::Entry { key, .. } => Some(InodeId::new(key.prefix())),
            InodeLocation::Detached(_) => None,
        }
    }

    pub(crate) fn encode_to(&self, out: &mut Vec<u8>) {
        match self {
            InodeLocation::Own => out.push(1),
            InodeLocation::Entry { key, slot } => {
                out.push(2);
                put_varint(out, key.prefix());
                put_varint(out, key.suffix());
                out.push(*slot);
            }
            InodeLocation::Detached(inode) => {
                out.push(3);
                inode.encode_to(out);
            }
        }
    }

    pub(crate) fn decode_from(reader: &mut Reader<'_>) -> Result<InodeLocation, DecodeError> {
        match reader.u8()? {
            1 => Ok(InodeLocation::Own),
            2 => {
                let dir = InodeId::new(reader.varint()?);
                let suffix = EntrySuffix::new(reader.varint()?)
                    .ok_or_else(|| reader.error("a wrong key suffix"))?;
                Ok(InodeLocation::Entry { key: RowKey::entry(dir, suffix), slot: reader.u8()? })
            }
            3 => Ok(InodeLocation::Detached(Box::new(Inode::decode_from(reader)?))),
            _ => Err(reader.error("an unknown kind of place")),
        }
    }
}

/// An inode that the front end has looked up, as the store keeps it while memory has no room for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupsRow {
    /// Lookups that were not taken back.
    pub lookups: u64,
    /// Where its attributes are; in some row.
    pub place: InodeLocation,
}

impl LookupsRow {
    /// Returns the bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        put_varint(&mut out, self.lookups);
        self.place.encode_to(&mut out);
        out
    }

    /// Reads what [`LookupsRow::encode`] wrote.
    pub fn decode(bytes: &Bytes) -> Result<LookupsRow, DecodeError> {
        let mut reader = Reader::new(bytes);
        let lookups = reader.varint()?;
        let place = InodeLocation::decode_from(&mut reader)?;
        if matches!(place, InodeLocation::Detached(_)) {
            return Err(reader.error("a place in no row"));
        }
        reader.end()?;
        Ok(LookupsRow { lookups, place })
    }
}
