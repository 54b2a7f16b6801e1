//! What can go wrong in a store.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use varve_types::KeyspaceId;

use crate::txn::terms::{Blocked, GaveWay};

/// The result of a store call.
pub type StoreResult<T> = Result<T, StoreError>;

/// Why a store call failed. The text names the file and, for damage, the offset.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An operation on a file of the store failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A file of the store does not hold what was written.
    #[error("{} is damaged at offset {offset}: {detail}; run `varve fsck`, restore the file from a backup", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
        /// What is wrong.
        detail: String,
    },
    /// There is no room for the write. Nothing changed.
    #[error("no space left on the device that holds {}; free some room there", path.display())]
    NoSpace {
        /// The store's directory.
        path: PathBuf,
    },
    /// An earlier sync failed, so what is on disk is unknown; no more writes are taken.
    #[error(
        "the store stopped taking writes after a failure: {cause}; unmount, check the device, open again"
    )]
    Poisoned {
        /// The failure.
        cause: String,
    },
    /// Another process has the store open.
    #[error("{} is in use by another process ({holder}); unmount it there first", path.display())]
    Locked {
        /// The store's directory.
        path: PathBuf,
        /// What the holder says of itself.
        holder: String,
    },
    /// The store was written by a newer version.
    #[error("{} has format version {found}, this program reads up to {supported}; use a newer varve", path.display())]
    NewerFormat {
        /// The file that says so.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version this program knows.
        supported: u32,
    },
    /// The directory holds no store.
    #[error("{} holds no store; make one with `varve format`", path.display())]
    NotAStore {
        /// The directory.
        path: PathBuf,
    },
    /// The call was wrong: an unknown key space, a key or value beyond its limits.
    #[error("{0}")]
    Invalid(String),
    /// What a branch changed was changed in its parent since the branch began. Nothing changed; the branch goes on.
    #[error("{} rows that this transaction changed were changed by another since it began; abort it and begin again", keys.len())]
    Conflict {
        /// The first such keys, in their order.
        keys: Vec<(KeyspaceId, Bytes)>,
    },
    /// A serializable branch lost its locks, so that others can go on. It can only be aborted.
    #[error("this transaction gave way, as {}; abort it and begin again", why.reason())]
    GaveWay {
        /// To whom.
        why: GaveWay,
    },
    /// Serializable branches hold locks in the way that did not come free in the time given.
    #[error("another transaction holds a lock that did not come free in time; try again")]
    Blocked(Blocked),
    /// The branch was committed or dropped.
    #[error("the transaction has ended; begin another")]
    Ended,
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
}
