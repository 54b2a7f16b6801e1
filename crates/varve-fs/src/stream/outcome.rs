//! What came of sending or receiving: how much, or why not.

use varve_vfs::FsError;

use super::frame::SnapshotId;
use crate::commit::{CommitError, Committed};

/// What was sent or received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rows.
    pub rows: u64,
    /// Large files.
    pub files: u64,
    /// Bytes of large files, without holes.
    pub bytes: u64,
}

/// Called with what was done so far.
pub type Progress<'a> = &'a mut dyn FnMut(&Totals);

/// Why nothing was received, unless it is [`CommitError::Unfinished`].
#[derive(Debug)]
pub enum ReceiveError {
    /// The stream ended or is damaged from here on. What came is stored, so that the next stream can continue it.
    Interrupted(std::io::Error),
    /// The stream is wrong.
    Stream(String),
    /// The store has not what the stream needs: what that is, and what to do.
    Refused(String, &'static str),
    /// The snapshot could not be taken over.
    Commit(CommitError),
}

impl ReceiveError {
    /// What has changed all the same.
    pub fn committed(&self) -> Option<&Committed> {
        match self {
            ReceiveError::Commit(error) => error.committed(),
            _ => None,
        }
    }
}

impl From<FsError> for ReceiveError {
    fn from(error: FsError) -> ReceiveError {
        ReceiveError::Commit(CommitError::Failed(error))
    }
}

/// What was received.
#[derive(Debug)]
pub struct Received {
    /// The snapshot that there is now.
    pub snapshot: SnapshotId,
    /// How much has come.
    pub totals: Totals,
    /// What the kernel may know of.
    pub committed: Committed,
}
