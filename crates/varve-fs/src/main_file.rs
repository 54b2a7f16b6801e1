//! A large file in the main tree: the object, whose preimage is saved for the views that see it before it changes
//! ([`crate::preimages`]).
//!
//! A holder of its descriptor, like the kernel, goes past that; so it is only given away when all of the object is
//! kept or no view sees it ([`crate::open`]).

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use varve_env::{Allocate, File, FileStat, Seek};
use varve_types::{InodeId, Timestamp};

use crate::preimages::Preimages;

/// See the module's comment.
pub(crate) struct MainFile {
    preimages: Arc<Preimages>,
    ino: InodeId,
    file: Arc<dyn File>,
}

impl MainFile {
    /// The object of `ino`, which is `file`.
    pub(crate) fn new(preimages: Arc<Preimages>, ino: InodeId, file: Arc<dyn File>) -> MainFile {
        MainFile { preimages, ino, file }
    }

    fn change<T>(
        &self,
        bytes: Range<u64>,
        change: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.preimages.change(self.ino, self.file.as_ref(), bytes, change)
    }
}

impl File for MainFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        self.change(offset..end, || self.file.write_all_at(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let end = offset.saturating_add(buf.len() as u64);
        self.change(offset..end, || self.file.write_at(buf, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(len..u64::MAX, || self.file.set_len(len))
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        let zeroed = match how {
            Allocate::Extend | Allocate::KeepSize => offset..offset,
            Allocate::PunchHole | Allocate::ZeroRange | Allocate::ZeroKeepSize => {
                offset..offset.saturating_add(len)
            }
        };
        self.change(zeroed, || self.file.allocate(how, offset, len))
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        self.file.seek(what, offset)
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.file.stat()
    }

    fn set_times(
        &self,
        accessed: Option<Timestamp>,
        modified: Option<Timestamp>,
    ) -> io::Result<()> {
        self.change(0..0, || self.file.set_times(accessed, modified))
    }

    fn copy_from(&self, source: &dyn File, from: u64, to: u64, len: u64) -> io::Result<u64> {
        let end = to.saturating_add(len);
        self.change(to..end, || self.file.copy_from(source, from, to, len))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.fd()
    }
}

impl fmt::Debug for MainFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MainFile").field(&self.file).finish()
    }
}
