//! A large file in a view: its own copy once it has written to it, until then the store's object as the view sees it.
//!
//! The store's object is opened for each read, as what the view sees of it may change places at any time
//! ([`crate::kept`]). So there is no descriptor for the kernel: the bytes of views' large files come through
//! this program, and stay in the kernel's cache.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use varve_env::{Allocate, File, FileStat, Seek};
use varve_types::{InodeId, Timestamp};

use crate::objects::Objects;

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct ViewFile {
    objects: Arc<Objects>,
    ino: InodeId,
    own: OnceLock<Arc<dyn File>>,
}

impl ViewFile {
    /// The object of `ino` among those of a view.
    pub(crate) fn new(objects: Arc<Objects>, ino: InodeId) -> ViewFile {
        ViewFile { objects, ino, own: OnceLock::new() }
    }

    /// Calls `with` with the file to read from.
    fn read<T>(&self, with: impl FnOnce(&dyn File) -> io::Result<T>) -> io::Result<T> {
        match self.own(false)? {
            Some(own) => with(own.as_ref()),
            None => self.objects.read_origin(self.ino, with),
        }
    }

    /// Calls `with` with the file to change.
    fn change<T>(&self, with: impl FnOnce(&dyn File) -> io::Result<T>) -> io::Result<T> {
        let own = self.own(true)?.ok_or(io::ErrorKind::NotFound)?;
        with(own.as_ref())
    }

    fn own(&self, make: bool) -> io::Result<Option<Arc<dyn File>>> {
        if let Some(own) = self.own.get() {
            return Ok(Some(Arc::clone(own)));
        }
        let own = self.objects.own(self.ino, make)?;
        Ok(own.map(|own| Arc::clone(self.own.get_or_init(|| own))))
    }
}

impl File for ViewFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read(|file| file.read_at(buf, offset))
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.change(|file| file.write_all_at(buf, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.own(false)?.map_or(Ok(()), |own| own.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.own(false)?.map_or(Ok(()), |own| own.sync_all())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|file| file.set_len(len))
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        self.change(|file| file.allocate(how, offset, len))
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        self.read(|file| file.seek(what, offset))
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.read(|file| file.stat())
    }

    fn set_times(
        &self,
        accessed: Option<Timestamp>,
        modified: Option<Timestamp>,
    ) -> io::Result<()> {
        self.change(|file| file.set_times(accessed, modified))
    }

    fn copy_from(&self, source: &dyn File, from: u64, to: u64, len: u64) -> io::Result<u64> {
        self.change(|file| file.copy_from(source, from, to, len))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
