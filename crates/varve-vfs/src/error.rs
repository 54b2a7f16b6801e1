//! The causes of failures, and the one map from a cause to an errno.

use varve_types::{Errno, NameError};

/// The result of a file system call.
pub type FsResult<T> = Result<T, FsError>;

/// Which transactions have locked what a refused call needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The number by which the file system knows this wait; 0 if the call does not count as waiting.
    pub wait: u64,
    /// The transactions, by numbers that the file system chose.
    pub by: Vec<u64>,
    /// How often locks had been released when the call was refused.
    pub released: u64,
}

/// Why a file system call failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The name, or the object that an inode id stands for, does not exist.
    #[error("no such file or directory")]
    NotFound,
    /// The inode id stands for an object that is gone.
    #[error("the object is gone")]
    Stale,
    /// The name is taken.
    #[error("the name exists already")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// Anything but a directory was needed.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A directory would become its own ancestor.
    #[error("a directory cannot move into its own subtree")]
    IntoOwnSubtree,
    /// The operation makes no sense for this object or with these arguments.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The mode bits or ownership forbid it.
    #[error("permission denied")]
    AccessDenied,
    /// Only the owner or a privileged caller may do it.
    #[error("operation not permitted")]
    NotPermitted,
    /// The file handle is not open, or not in the mode needed.
    #[error("bad file handle")]
    BadHandle,
    /// A program runs from the file, a large file is still open as it was before a commit, or files that a commit
    /// would change are open for writing.
    #[error("the file is in use")]
    TextBusy,
    /// The file would exceed the largest size.
    #[error("file too large")]
    FileTooLarge,
    /// A result or argument does not fit.
    #[error("value too large")]
    TooLarge,
    /// The inode has as many names as it can have.
    #[error("too many links")]
    TooManyLinks,
    /// The storage below, or a bucket of names with one hash, is full.
    #[error("no space left: {0}")]
    NoSpace(String),
    /// Others have changed the same objects since the transaction began. The text lists them.
    #[error("others have changed the same: {0}")]
    Conflict(String),
    /// More would lie below a directory than its limits allow.
    #[error("the limits on a directory tree are reached")]
    QuotaExceeded,
    /// One file would have names in trees with different limits.
    #[error("a file cannot have names in trees with different limits")]
    CrossesLimits,
    /// Mounted read-only.
    #[error("the file system is mounted read-only")]
    ReadOnly,
    /// The name breaks the rules for names.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A symbolic link's target is too long.
    #[error("the target of a symbolic link cannot be longer than 4095 bytes")]
    TargetTooLong,
    /// No extended attribute of that name.
    #[error("no such extended attribute")]
    NoXattr,
    /// An extended attribute of that name exists already.
    #[error("the extended attribute exists already")]
    XattrExists,
    /// An extended attribute's value is too long.
    #[error("the extended attribute is too large")]
    XattrTooLarge,
    /// An extended attribute's name is too long.
    #[error("the name of the extended attribute is too long")]
    XattrNameTooLong,
    /// The offset of a seek lies past the end.
    #[error("no data or hole past this offset")]
    NoSuchOffset,
    /// This file system does not support it; docs/semantics.md says what it supports.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The call is not implemented. The kernel stops asking upon this answer.
    #[error("not implemented")]
    NotImplemented,
    /// Transactions have locked what the call needs. Nothing has changed; the caller can repeat the call when locks
    /// have been released ([`crate::Vfs::wait_for_locks`]).
    #[error("a transaction has locked it")]
    Blocked(Blocked),
    /// The transaction was a deadlock victim: it lost its locks so that others could go on. It can only be aborted.
    #[error("the transaction gave way to others; abort it and begin again")]
    DeadlockVictim,
    /// Processes would wait for each other's locks of files for ever.
    #[error("processes wait for each other's locks")]
    Deadlock,
    /// There are as many locks of files, or requests that wait for one, as there can be.
    #[error("too many locks of files, or requests that wait for one")]
    TooManyLocks,
    /// The wait was ended for its caller, who has got a signal.
    #[error("interrupted by a signal")]
    Interrupted,
    /// It does not work at this moment; the same call will work soon.
    #[error("not at this moment; try again")]
    TryAgain,
    /// A large file is open for writing outside of the transaction.
    #[error("the file is open for writing outside of the transaction")]
    Busy,
    /// The storage below failed. The text names the file and the next step.
    #[error("{0}")]
    Storage(String),
    /// The storage below does not hold what was written. The text names the file, the offset and the next step.
    #[error("{0}")]
    Damaged(String),
}

impl FsError {
    /// Returns the errno for this cause.
    pub fn errno(&self) -> Errno {
        match self {
            FsError::NotFound => Errno::NotFound,
            FsError::Stale => Errno::Stale,
            FsError::Exists => Errno::Exists,
            FsError::NotDirectory => Errno::NotDir,
            FsError::IsDirectory => Errno::IsDir,
            FsError::NotEmpty => Errno::NotEmpty,
            FsError::IntoOwnSubtree | FsError::Invalid(_) => Errno::Invalid,
            FsError::AccessDenied => Errno::Access,
            FsError::NotPermitted => Errno::Perm,
            FsError::BadHandle => Errno::BadHandle,
            FsError::TextBusy => Errno::TextBusy,
            FsError::FileTooLarge => Errno::TooBig,
            FsError::TooLarge => Errno::Overflow,
            FsError::TooManyLinks => Errno::TooManyLinks,
            FsError::NoSpace(_) => Errno::NoSpace,
            FsError::Conflict(_) => Errno::Busy,
            FsError::QuotaExceeded => Errno::Quota,
            FsError::CrossesLimits => Errno::CrossDevice,
            FsError::ReadOnly => Errno::ReadOnly,
            FsError::Name(NameError::TooLong) | FsError::TargetTooLong => Errno::NameTooLong,
            FsError::Name(NameError::Empty) => Errno::NotFound,
            FsError::Name(NameError::ForbiddenByte | NameError::Reserved) => Errno::Invalid,
            FsError::NoXattr => Errno::NoData,
            FsError::XattrExists => Errno::Exists,
            FsError::XattrTooLarge => Errno::ArgListTooLong,
            FsError::XattrNameTooLong => Errno::Range,
            FsError::NoSuchOffset => Errno::NoDevice,
            FsError::NotSupported(_) => Errno::NotSupported,
            FsError::NotImplemented => Errno::NoSys,
            FsError::Blocked(_) | FsError::Busy => Errno::Busy,
            FsError::DeadlockVictim | FsError::Deadlock => Errno::Deadlock,
            FsError::TooManyLocks => Errno::NoLocks,
            FsError::Interrupted => Errno::Interrupted,
            FsError::TryAgain => Errno::Again,
            FsError::Storage(_) | FsError::Damaged(_) => Errno::Io,
        }
    }
}
