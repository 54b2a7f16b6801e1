//! The trait between front ends and file systems.
//!
//! A front end (the kernel through FUSE, the library, NFS) turns its requests into calls of [`Vfs`], and a file
//! system answers them. Neither knows how the other works. A failure is an [`FsError`], which names the cause. Only
//! [`FsError::errno`] chooses an errno.

mod attr;
mod error;
mod file_locks;
mod locks;
mod ops;
mod place;
mod requests;

pub use attr::{Attr, FileType, Keep, SetAttr, SetTime, TreeLimits, TreeQuota, TreeUsage};
pub use error::{Blocked, FsError, FsResult};
pub use file_locks::{FileLock, LockKind, LockMode, LockOwner, LockRange, LockWait};
pub use locks::{in_time, insist};
pub use ops::{
    AccessMode, AllocateMode, Caller, DirEntry, Entry, Handle, LockDone, OpenFlags, Opened,
    Position, RenameMode, SeekFrom, SetIdTaken, StatFs, Transact, Vfs, Written, XattrMode,
};
pub use place::Place;
pub use requests::{Gave, RequestDone, RequestId};
pub use varve_types::ClientId;
