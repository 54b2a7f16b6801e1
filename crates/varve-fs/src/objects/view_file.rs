//! A large file in a view: the store's object as the view sees it, until the view writes to it; from then on blocks of
//! its own over that ([`crate::overlay`]). One that it made, or cut to nothing, is a file of its own altogether.
//!
//! The store's object is opened for each read, as what the view sees of it may change places at any time
//! ([`crate::preimages`]). So there is no descriptor for the kernel: the bytes of views' large files come through
//! this program, and stay in the kernel's cache.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use varve_env::{Allocate, File, FileStat, Seek};
use varve_types::{InodeId, Timestamp};

use super::Objects;
use crate::overlay::{Base, Overlay};

/// What a view has of a large file.
#[derive(Clone, Debug)]
pub(crate) enum Own {
    /// All of it.
    All(Arc<dyn File>),
    /// Blocks over what it saw until it wrote to it.
    Blocks(Arc<Overlay>),
}

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct ViewFile {
    base: SeenObject,
    own: OnceLock<Own>,
}

/// The store's object of an inode, as a view sees it.
#[derive(Debug)]
struct SeenObject {
    objects: Arc<Objects>,
    ino: InodeId,
}

impl Base for SeenObject {
    fn with(&self, with: &mut dyn FnMut(&dyn File) -> io::Result<()>) -> io::Result<()> {
        self.objects.read_origin(self.ino, |file| with(file))
    }
}

impl ViewFile {
    /// The object of `ino` among those of a view.
    pub(crate) fn new(objects: Arc<Objects>, ino: InodeId) -> ViewFile {
        ViewFile { base: SeenObject { objects, ino }, own: OnceLock::new() }
    }

    /// Calls `with` with the file to read from.
    fn read<T>(&self, with: impl FnOnce(&dyn File) -> io::Result<T>) -> io::Result<T> {
        let SeenObject { objects, ino } = &self.base;
        match self.own(|| objects.own(*ino))? {
            Some(own) => self.with(&own, with),
            None => objects.read_origin(*ino, with),
        }
    }

    /// Calls `with` with the file to change; with `anew`, nothing of what the view saw until now is needed.
    fn change<T>(
        &self,
        anew: bool,
        with: impl FnOnce(&dyn File) -> io::Result<T>,
    ) -> io::Result<T> {
        let SeenObject { objects, ino } = &self.base;
        let own = self.own(|| objects.make_own(*ino, anew).map(Some))?;
        self.with(&own.ok_or(io::ErrorKind::NotFound)?, with)
    }

    fn with<T>(&self, own: &Own, with: impl FnOnce(&dyn File) -> io::Result<T>) -> io::Result<T> {
        match own {
            Own::All(file) => with(file.as_ref()),
            Own::Blocks(overlay) => with(&overlay.over(&self.base)),
        }
    }

    fn own(&self, find: impl FnOnce() -> io::Result<Option<Own>>) -> io::Result<Option<Own>> {
        if let Some(own) = self.own.get() {
            return Ok(Some(own.clone()));
        }
        Ok(find()?.map(|own| self.own.get_or_init(|| own).clone()))
    }

    fn sync(&self, all: bool) -> io::Result<()> {
        let SeenObject { objects, ino } = &self.base;
        match self.own(|| objects.own(*ino))? {
            None => Ok(()),
            Some(Own::All(file)) if all => file.sync_all(),
            Some(Own::All(file)) => file.sync_data(),
            Some(Own::Blocks(overlay)) => overlay.sync(all),
        }
    }
}

impl File for ViewFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read(|file| file.read_at(buf, offset))
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.change(false, |file| file.write_all_at(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.change(false, |file| file.write_at(buf, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(false)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync(true)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(len == 0, |file| file.set_len(len))
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        self.change(false, |file| file.allocate(how, offset, len))
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
        self.change(false, |file| file.set_times(accessed, modified))
    }

    fn copy_from(&self, source: &dyn File, from: u64, to: u64, len: u64) -> io::Result<u64> {
        self.change(false, |file| file.copy_from(source, from, to, len))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
