//! Table files: written once by [`writer`], read through [`cache`]; [`mod@file`] says what the store knows of one, and
//! [`describe()`](describe::describe) asks the file itself.

pub(crate) mod cache;
pub(crate) mod describe;
pub(crate) mod file;
pub(crate) mod writer;
