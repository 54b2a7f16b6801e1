//! The types that every crate shares: identifiers, file names, errnos, times, limits and counters.
//!
//! This crate does no I/O and does not know how a store is laid out. Every identifier is a newtype with a private
//! field and named operations, so that a caller cannot pass an inode id where a file number is wanted.

mod counter;
mod errno;
mod flags;
mod id;
pub mod limits;
mod name;
mod time;
mod timings;

pub use counter::Counter;
pub use errno::Errno;
pub use flags::FileFlags;
pub use id::{BranchId, ClientId, FileNo, FileSalt, InodeId, KeyspaceId, SeqNo, SublevelId};
pub use name::{FileName, NameError};
pub use time::Timestamp;
pub use timings::{Timed, Timings};
