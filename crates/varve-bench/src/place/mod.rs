//! Somewhere to work: a directory of the operating system ([`Kernel`]) or a file system that is called as a
//! library ([`Library`]).

mod apply;
mod check;
mod kernel;
mod library;

use std::path::Path;

pub(crate) use apply::Hands;
pub(crate) use check::check;
pub(crate) use kernel::Kernel;
pub(crate) use library::Library;

use crate::Failure;

/// The attributes that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Whether it is a directory.
    pub(crate) is_dir: bool,
    /// Bytes.
    pub(crate) bytes: u64,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Time of last change, in seconds.
    pub(crate) changed: i64,
}

/// What a listing tells of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Whether it is a directory.
    pub(crate) is_dir: bool,
    /// Its bytes, if attributes were asked for.
    pub(crate) bytes: u64,
}

/// A file that stays open until it is closed, or dropped because something has failed.
pub(crate) trait OpenFile: Send {
    /// Fills `buffer` from `offset`; fewer bytes only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure>;
    /// Writes all of `data` at `offset`.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Failure>;
    /// Makes the file durable.
    fn sync(&self) -> Result<(), Failure>;
    /// Closes it.
    fn close(self: Box<Self>) -> Result<(), Failure>;
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// An existing file, to read.
    Read,
    /// An existing file, to read and write.
    Write,
    /// A new file, to write; an error if it exists.
    Create,
}

/// The calls. Paths are relative to the root.
pub(crate) trait Place: Send + Sync {
    /// The directory of the operating system, if there is one to run programs in.
    fn root(&self) -> Option<&Path>;
    /// Makes a directory.
    fn make_dir(&self, path: &str) -> Result<(), Failure>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &str) -> Result<(), Failure>;
    /// Opens a file.
    fn open(&self, path: &str, how: Opening) -> Result<Box<dyn OpenFile>, Failure>;
    /// Makes an empty file and closes it; an error if it exists.
    fn create(&self, path: &str) -> Result<(), Failure>;
    /// The attributes; `None` if nothing has this name.
    fn stat(&self, path: &str) -> Result<Option<Stat>, Failure>;
    /// Sets permission bits.
    fn chmod(&self, path: &str, mode: u32) -> Result<(), Failure>;
    /// Sets the time of last change, in seconds.
    fn utime(&self, path: &str, seconds: i64) -> Result<(), Failure>;
    /// Renames.
    fn rename(&self, from: &str, to: &str) -> Result<(), Failure>;
    /// Removes a file.
    fn unlink(&self, path: &str) -> Result<(), Failure>;
    /// Calls `each` with every name of a directory; with `attributes` also asks for those of each, and fails if one has none.
    fn list(
        &self,
        path: &str,
        attributes: bool,
        each: &mut dyn FnMut(&str, Listed),
    ) -> Result<(), Failure>;
    /// Writes everything back to the device.
    fn sync(&self) -> Result<(), Failure>;
}

/// An error that says what was tried.
fn failed(action: &str, path: &str, error: impl std::fmt::Display) -> Failure {
    format!("cannot {action} {path}: {error}").into()
}
