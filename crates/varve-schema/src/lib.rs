//! The rows of the file system: keys, values and the hash of names. This crate does no I/O.
//!
//! Two key spaces hold a file system; a third, `lookups`, is volatile, and varve-fs says what its keys are. Every key of these
//! is a [`RowKey`]: 8 bytes of prefix and 8 bytes of suffix. Each dictionary of a user has a key space of its own,
//! whose keys and values the user chooses; one more key space has their names.
//!
//! | key space | key | value |
//! | --- | --- | --- |
//! | [`META`] | (directory id, hash of name) | [`EntryRow`]: the names that share the hash, each with its inode or a reference |
//! | [`META`] | (inode id, 0) | [`Inode`] of a directory, of a file with more than one name, of an orphan |
//! | [`META`] | (0, 1) | the inode ids handed out so far ([`key::ID_MARK`]) |
//! | [`META`] | (0, 2) | [`StoreId`]: which store the rows belong to ([`key::STORE_ID`]) |
//! | [`META`] | (0, 3) | JSON: the received snapshot that this state is to be, until it is one ([`key::RECEIVED`]) |
//! | [`META`] | (2, inode id) | [`Pending`]: work that a crash may have left half done |
//! | [`META`] | (3, slot) | [`Mark`]: a directory whose parent may not know all of its usage |
//! | [`META`] | (4, directory id) | [`Limits`] on what lies below |
//! | [`META`] | (inode id, 2^63 + hash of a name) | [`ParentRow`]: where names of a file that has or had several are |
//! | [`META`] | (epoch of a state, 2^63 + 2^62 + inode id) | [`CloneReference`]: what an inode still reads from that state |
//! | [`META`] | (clone, 2^63 + 2^62 + 2^61 + inode id) | [`CloneRemap`]: what a file of several names became in the clone |
//! | [`DATA`] | (inode id, chunk index) | up to [`CHUNK_BYTES`] of a small file; absent means a hole; one byte more than that, all zero: [lost](lost_chunk) |
//! | [`DATA`] | (inode id, 2^63 + hash of name) | [`XattrRow`]: the extended attributes that share the hash; access control lists among them ([`acl`]) |
//! | `lookups` | | [`LookupsRow`]: where an inode is that the front end has looked up |
//! | [`REQUESTS`] | [`RequestsKey`]: a client, or a slot of one | [`ClientRow`], [`RequestRow`]: the last request that was done in the slot |
//! | [`DICTIONARIES`] | a dictionary's name | [`DictionaryRow`]: which key space has its pairs |
//!
//! Invariants: integers in keys are big-endian, so that keys sort as their numbers do. Integers in values are
//! little-endian or varints. Every value begins with a version byte, except the values of `lookups`, the value under
//! [`key::RECEIVED`], and bytes that are stored as they are given. No decoder panics, whatever the bytes.
//! docs/format/rows.md describes the rows too.
//!
//! Source: TableFS (thesis section 4.2.2, 4.2.3): one row for each name, with attributes and small data in it, and an
//! inode row of its own from the second hard link on. Departures: the key holds a hash of the name instead of the
//! name, so that keys have a fixed size and a directory's cookie is the key; directories always have an inode row, so
//! that a create changes its parent's times and counts in the row that sorts right before the new one.

pub mod acl;
mod clone;
mod codec;
mod dictionary;
mod entry;
mod handover;
mod hash;
mod inode;
pub mod key;
mod location;
pub mod overlay;
mod parent;
mod pending;
mod request;
mod store_id;
mod usage;
mod xattr;

pub use clone::{CloneReference, CloneRemap, Folded};
pub use codec::{DecodeError, Reader, put_varint};
pub use dictionary::{DICTIONARIES, DICTIONARIES_MAX, DictionaryRow};
pub use entry::{Body, EntryRow, Inlined, Listed, NAMES_PER_ROW_MAX, Named};
pub use handover::{Handover, KnownInode, OpenHandle};
pub use hash::NameHasher;
pub use inode::{
    Content, DirInfo, FileKind, Home, Inode, SharedContent, Times, decode_inode_row,
    encode_inode_row,
};
pub use key::{EntrySuffix, RowKey};
pub use location::{InodeLocation, LookupsRow};
pub use parent::{ParentPointer, ParentRow};
pub use pending::Pending;
pub use request::{ClientRow, REQUESTS, RequestResult, RequestRow, RequestsKey};
pub use store_id::StoreId;
pub use usage::{Limits, Mark, Usage, UsageChange};
pub use xattr::{Xattr, XattrRow};

/// Name of the key space for entries and inodes.
pub const META: &str = "meta";
/// Name of the key space for file data and extended attributes.
pub const DATA: &str = "data";
/// Bytes of a small file that one row of [`DATA`] holds.
pub const CHUNK_BYTES: usize = 16 * 1024;
/// The length of a row that stands for a lost chunk. No chunk with bytes is as long.
const LOST_CHUNK_BYTES: usize = CHUNK_BYTES + 1;
/// The most bytes of a file that are stored within its inode.
pub const INLINE_BYTES_MAX: usize = 512;
/// The largest file that is stored in rows, whatever threshold a store has.
pub const STORED_FILE_BYTES_MAX: u64 = 1 << 24;
/// The first byte of every value with a version. It changes with the encoding.
pub const ROW_VERSION: u8 = 1;

/// Returns the row that a repair puts in place of a lost chunk, because an absent row would be a hole.
pub fn lost_chunk() -> bytes::Bytes {
    static ZEROS: [u8; LOST_CHUNK_BYTES] = [0; LOST_CHUNK_BYTES];
    bytes::Bytes::from_static(&ZEROS)
}

/// Returns whether a chunk row stands for a lost chunk.
pub fn is_lost_chunk(row: &[u8]) -> bool {
    row.len() == LOST_CHUNK_BYTES && row.iter().all(|byte| *byte == 0)
}
