//! The one trait between front ends and file systems.
//!
//! A front end (the kernel through FUSE, the library, later NFS) turns its requests into calls of
//! [`Vfs`]; a file system answers them. Neither sees the other's insides. A failure is an [`FsError`],
//! which says what went wrong; [`FsError::errno`] is the only place where an errno is chosen.

mod attr;
mod error;
mod locks;
mod ops;

pub use attr::{Attr, FileType, SetAttr, SetTime, TreeLimits, TreeQuota, TreeUsage};
pub use error::{Blocked, FsError, FsResult};
pub use locks::{in_time, insist};
pub use ops::{
    AccessMode, AllocateMode, Caller, DirEntry, Entry, Handle, OpenFlags, Opened, Position,
    RenameMode, SeekFrom, SetIdTaken, StatFs, Transact, Vfs, Written, XattrMode,
};
