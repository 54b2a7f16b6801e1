//! Table files: immutable, sorted versions of the rows of one key space.
//!
//! ```text
//! data blocks, filter, prefix filter, zones, index, properties, footer
//! ```
//!
//! Everything but the footer is a [section](crate::section). To read a table:
//!
//! 1. Read the last [`FOOTER_BYTES`] of the file; [`Footer::decode`] says where the sections are.
//! 2. Open the index and the filters: [`crate::index::Index`], [`crate::filter::Filter`].
//! 3. To get a key: ask the filter, find the block, read it, open it, [`crate::block::Block::get`]. If the table is
//!    *stitched*, [`Zones`] say in which file the block is.
//!
//! In a table that is not compressed, a block of no more than [`PAGE_BYTES`] does not cross a multiple
//! of it, so that a lookup reads one page: zeros fill the gap. A row that is larger than a block has a
//! block of its own. Compressed blocks vary in size and would leave a quarter of the file empty that
//! way, so they follow each other without gaps.

mod builder;
mod footer;
mod properties;
mod zones;

pub use builder::{TableBuilder, TableOptions};
pub use footer::{FOOTER_BYTES, Footer};
pub use properties::Properties;
pub use zones::{Run, Zone, Zones};

/// The unit in which the storage below reads.
pub const PAGE_BYTES: u64 = 4096;

#[cfg(test)]
mod tests;
