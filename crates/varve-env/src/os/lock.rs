//! The lock that keeps a second process, or a second opener in this one, out of a store.
//!
//! flock(2) belongs to the open file description, so two opens in one process exclude each other too,
//! and the kernel drops the lock with the last descriptor, however the process ends.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{self, FlockOperation};
use rustix::io::Errno;

use super::file::OsFile;
use crate::{File, FileLock};

/// A lock that is held until its descriptor is closed.
#[derive(Debug)]
pub(super) struct OsLock {
    file: OsFile,
}

/// Returns the lock that `fd` holds already.
pub(super) fn adopt(fd: OwnedFd) -> OsLock {
    OsLock { file: OsFile::new(fd) }
}

/// Locks the file of `fd`; `None` if another opener holds the lock.
pub(super) fn acquire(fd: OwnedFd) -> io::Result<Option<OsLock>> {
    match fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(adopt(fd))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns whether an opener holds the lock of the file of `fd`. Several callers may ask at the same time.
pub(super) fn is_held(fd: OwnedFd) -> io::Result<bool> {
    match fs::flock(&fd, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

impl FileLock for OsLock {
    fn write_note(&self, note: &[u8]) -> io::Result<()> {
        self.file.write_all_at(note, 0)?;
        self.file.set_len(note.len() as u64)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.fd()
    }
}
