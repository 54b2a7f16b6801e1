//! The error of a line of a dump that makes no sense.

use varve_vfs::FsError;

/// What is wrong with a member of a line.
pub(super) fn wrong(what: impl Into<String>) -> FsError {
    FsError::Storage(what.into())
}
