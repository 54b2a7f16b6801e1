//! The bytes of a store: log records, manifest edits, blocks, tables and filters. No I/O.
//!
//! Builders append to a `Vec<u8>`; readers work on bytes somebody else fetched. Who reads what:
//!
//! 1. [`log`] frames records, for the write-ahead log and the manifest alike.
//! 2. [`batch`] is the payload of a write-ahead log record, [`edit`] that of a manifest record.
//! 3. [`block`] holds sorted entries; [`table`] strings blocks together with an index ([`index`]),
//!    filters ([`filter`]), properties and a footer.
//! 4. [`segment`] holds values that stand apart from the rows of tables.
//! 5. [`saved_map`] keeps which sub-level has the newest row of a key.
//!
//! Invariants, of every decoder:
//! - It never panics and never allocates more than the bytes it was given justify: a length is
//!   compared with what remains before it is used.
//! - What it accepts was checked by a CRC32C that covers the place as well as the content, so that
//!   bytes that moved (to another file or another offset) never pass.
//! - An error names the offset at which it noticed, counted from the start of the bytes given.
//!
//! All integers are little-endian; keys are compared as strings of bytes, so what must sort by number
//! is big-endian inside keys, which is the business of the room above.

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
