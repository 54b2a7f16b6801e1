//! The same work on a plain directory, on a mount and through the library.

mod directory;
mod library;
mod timed;

pub(crate) use directory::Directory;
pub(crate) use library::Library;
pub(crate) use timed::{Timed, Times};

use varve::Result;

/// A file as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listed {
    /// Its name.
    pub(crate) name: String,
    /// Its size in bytes.
    pub(crate) bytes: u64,
}

/// Somewhere to work: a root with directories, which hold files.
pub(crate) trait Place {
    /// Makes the directory `dir` in the root.
    fn make_dir(&self, dir: &str) -> Result<()>;
    /// Makes an empty file and closes it.
    fn create(&self, dir: &str, name: &str) -> Result<()>;
    /// Makes or cuts a file, writes `data`, makes it durable if `durable`, and closes it.
    fn write(&self, dir: &str, name: &str, data: &[u8], durable: bool) -> Result<()>;
    /// The bytes of a file.
    fn read(&self, dir: &str, name: &str) -> Result<Vec<u8>>;
    /// The size from a file's attributes.
    fn stat(&self, dir: &str, name: &str) -> Result<u64>;
    /// The names in a directory with their attributes (ls -l), sorted.
    fn list(&self, dir: &str) -> Result<Vec<Listed>>;
    /// Sets the permission bits.
    fn chmod(&self, dir: &str, name: &str, mode: u32) -> Result<()>;
    /// Renames within a directory.
    fn rename(&self, dir: &str, from: &str, to: &str) -> Result<()>;
    /// Removes a file.
    fn unlink(&self, dir: &str, name: &str) -> Result<()>;
}
