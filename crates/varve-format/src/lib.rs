//! The formats of a store: log records, manifest edits, blocks, tables and filters. This crate does no I/O.
//!
//! Builders append to a `Vec<u8>`; readers work on bytes that the caller has read. The parts:
//!
//! 1. [`log`] frames records, for the write-ahead log and the manifest alike.
//! 2. [`batch`] is the payload of a write-ahead log record, [`edit`] that of a manifest record.
//! 3. [`block`] holds sorted entries; [`table`] strings blocks together with an index ([`index`]),
//!    filters ([`filter`]), properties and a footer.
//! 4. [`segment`] holds values that are stored outside of table rows.
//! 5. [`saved_map`] keeps which sub-level has the newest row of a key.
//!
//! Invariants, of every decoder:
//! - It never panics and never allocates more than the bytes it was given justify: a length is
//!   compared with what remains before it is used.
//! - It accepts only bytes with a right CRC32C. This covers the position as well as the content, so that bytes from
//!   another file or another offset never pass.
//! - An error names the offset of the fault, counted from the start of the given bytes.
//!
//! All integers are little-endian. Keys are compared as strings of bytes, so the crate above stores numbers in keys
//! as big-endian.

pub mod batch;
mod bits;
pub mod block;
mod checksum;
mod codec;
pub mod edit;
mod entry;
mod error;
pub mod filter;
mod header;
pub mod index;
pub mod log;
pub mod saved_map;
pub mod section;
pub mod section_search;
pub mod segment;
pub mod table;

pub use entry::EntryKind;
pub use error::{FormatError, FormatResult, Problem};

/// The newest version of the formats of this crate, and the only one so far. It stands in the header
/// of every log, segment and file of maps and in the footer of every table.
pub const FORMAT_VERSION: u32 = 1;
