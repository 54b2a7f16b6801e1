//! Table files: written once by [`writer`], read through [`cache`]; [`describe()`] asks the file itself.

pub(crate) mod cache;
mod describe;
pub(crate) mod writer;

pub(crate) use cache::{Admission, BlockPlace, FilteredBy, TableCache, TableIndex};
pub(crate) use describe::describe;
pub(crate) use writer::TableWriter;
