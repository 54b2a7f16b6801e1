//! Rows about the parts of clones that are not copied yet.
//!
//! A clone reads from a *source*: a state of the store, identified by its epoch. A directory that still takes its
//! names from a directory of the source is *folded*. A file may still share its bytes with a file of the source. Each
//! such directory or file has a reference row, whose key holds the source and its own id:
//!
//! ```text
//! reference row of a file:              | version u8 | 1 |
//! reference row of a folded directory:  | version u8 | 2 | directory varint | top varint | clone varint |
//!                                  | next varint | end varint | after varint | made time |
//! remap row:                        | version u8 | ino varint | left varint |
//! ```
//!
//! A cloned file with several names has a remap row while some of its names are in folded directories. By this row
//! they become names of the same file.

use bytes::Bytes;
use varve_types::{InodeId, Timestamp};

use crate::codec::Short;
use crate::inode::take_time;
use crate::{DecodeError, EntrySuffix, ROW_VERSION, Reader, put_varint};

const FILE: u8 = 1;
const DIRECTORY: u8 = 2;
/// Room for the row of a folded directory, and for a word.
const DIRECTORY_ROOM: usize = 96;

/// How a folded directory gets the names that it does not have yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folded {
    /// The directory of the source that has the names.
    pub dir: InodeId,
    /// The directory of the source that was cloned: this one or one above it.
    pub top: InodeId,
    /// The id of the clone.
    pub clone: InodeId,
    /// The first inode id that is reserved for what lies below.
    pub next: InodeId,
    /// The end of the reserved ids.
    pub end: InodeId,
    /// The last row of names that is copied already.
    pub after: Option<EntrySuffix>,
    /// When the clone was made.
    pub made: Timestamp,
}

/// A reference row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneReference {
    /// The reference of a file, whose content says where its bytes are.
    File,
    /// The reference of a folded directory.
    Directory(Folded),
}

impl CloneReference {
    /// Returns the row's value.
    pub fn encode(self) -> Vec<u8> {
        let CloneReference::Directory(folded) = self else { return vec![ROW_VERSION, FILE] };
        let Folded { dir, top, clone, next, end, after, made } = folded;
        let mut out = Short::<DIRECTORY_ROOM>::new();
        out.put([ROW_VERSION, DIRECTORY]);
        for number in [dir, top, clone, next, end] {
            out.put_varint(number.get());
        }
        out.put_varint(after.map_or(0, EntrySuffix::get));
        out.put_time(made);
        out.as_slice().to_vec()
    }

    /// Decodes a row's value.
    pub fn decode(bytes: &Bytes) -> Result<CloneReference, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let loan = match reader.u8()? {
            FILE => CloneReference::File,
            DIRECTORY => {
                let mut id = || reader.varint().map(InodeId::new);
                let (dir, top, clone) = (id()?, id()?, id()?);
                let (next, end) = (id()?, id()?);
                if next > end {
                    return Err(reader.error("inode ids that end before they begin"));
                }
                let after = match reader.varint()? {
                    0 => None,
                    raw => Some(
                        EntrySuffix::new(raw).ok_or_else(|| reader.error("a wrong key suffix"))?,
                    ),
                };
                let made = take_time(&mut reader)?;
                CloneReference::Directory(Folded { dir, top, clone, next, end, after, made })
            }
            _ => return Err(reader.error("an unknown kind of clone reference")),
        };
        reader.end()?;
        Ok(loan)
    }
}

/// A remap row: what a file of several names became in a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloneRemap {
    /// The file in the clone.
    pub ino: InodeId,
    /// How many of its names are in folded directories; not 0.
    pub left: u64,
}

impl CloneRemap {
    /// Returns the row's value.
    pub fn encode(self) -> Vec<u8> {
        let mut out = vec![ROW_VERSION];
        put_varint(&mut out, self.ino.get());
        put_varint(&mut out, self.left);
        out
    }

    /// Decodes a row's value.
    pub fn decode(bytes: &Bytes) -> Result<CloneRemap, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let (ino, left) = (InodeId::new(reader.varint()?), reader.varint()?);
        if left == 0 {
            return Err(reader.error("a clone remap without names to come"));
        }
        reader.end()?;
        Ok(CloneRemap { ino, left })
    }
}
