//! Where a file system found an inode, for those who keep inodes for longer than it does.
//!
//! A server cannot remember all inodes that its clients know. So each client keeps the place of an inode beside its
//! id, and sends it when the server has forgotten the inode ([`crate::Vfs::lookup_at`]).
//!
//! Invariant: only the file system that made a place knows what its bytes mean, and it believes none of them without a
//! look. They are valid over restarts, and on other machines that serve the same store.

/// A hint where an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place([u8; Place::BYTES]);

impl Place {
    /// The size of every place, in bytes.
    pub const BYTES: usize = 18;

    /// Returns the place with these bytes. Any bytes are a place.
    pub const fn from_bytes(bytes: [u8; Place::BYTES]) -> Place {
        Place(bytes)
    }

    /// Returns the bytes.
    pub const fn to_bytes(self) -> [u8; Place::BYTES] {
        self.0
    }
}
