//! Table files: written once by [`writer`], read through [`cache`].

pub(crate) mod cache;
pub(crate) mod writer;

pub(crate) use cache::{Admission, TableCache, TableIndex};
pub(crate) use writer::TableWriter;
