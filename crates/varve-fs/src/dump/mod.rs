//! A whole file system as a stream of JSON lines, and back.
//!
//! 1. [`dump_store`] opens the store as a mount does, so that nothing is left half done, and writes one snapshot of
//!    it in the order of inode ids ([`line`] has the lines).
//! 2. [`load_store`] makes a new store from such a stream: rows and object files as the lines come, then a check
//!    of all of it, then the superblock, without which a directory is no store.
//!
//! Invariants: neither needs memory in proportion to the store; the same tree gives the same bytes, and what was
//! loaded gives the dump again, byte for byte; a dump that was cut or changed is refused, and what a refused or
//! interrupted load leaves is not taken for a store.

mod inode;
mod line;
mod load;
mod objects;
mod pairs;
mod read;
mod rows;
mod write;

use serde::Serialize;

pub use read::load_store;
pub use write::dump_store;

/// What a dump holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Lines besides the last.
    pub lines: u64,
    /// Inodes.
    pub inodes: u64,
    /// Names, each hard link counted.
    pub names: u64,
}
