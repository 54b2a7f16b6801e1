//! Growth of files where limits hold.
//!
//! A small file's size is in the batch of its write, which is refused as a whole if it does not fit. A large file's
//! bytes go to its object, so its growth is counted first: the row gets the new size, then the object the bytes. A
//! crash between the two leaves too much counted, never too little, and the next mount corrects it by the
//! pending row of the dirty object.

use varve_env::File;
use varve_schema::{Content, Inode};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, Handle, Position, SetIdTaken, Written};

use super::{At, end_of};
use crate::fs::VarveFs;
use crate::held::Held;
use crate::open::OpenFile;

impl VarveFs {
    /// [`VarveFs::do_write`], and where limits leave room for a part of `data` only, that part.
    pub(crate) fn write_what_fits(
        &self,
        ino: InodeId,
        handle: Handle,
        at: At,
        data: &[u8],
        kill: bool,
    ) -> FsResult<Written> {
        match self.do_write(ino, handle, at, data, kill) {
            Err(FsError::QuotaExceeded) => {
                let flags = self.session.handles.get(ino, handle)?.flags;
                match self.fitting(ino, at.by(flags), data.len())? {
                    0 => Err(FsError::QuotaExceeded),
                    fitting => {
                        let written = self.do_write(ino, handle, at, &data[..fitting], kill)?;
                        // The first try may have taken the bits.
                        let at_least = if kill { SetIdTaken::All } else { SetIdTaken::None };
                        Ok(Written { set_id: written.set_id.max(at_least), ..written })
                    }
                }
            }
            written => written,
        }
    }

    /// How many of `len` bytes limits leave room for there.
    fn fitting(&self, ino: InodeId, at: At, len: usize) -> FsResult<usize> {
        let held = self.hold_counted(ino)?;
        let Some(dir) = held.counted_in() else { return Ok(len) };
        let size = self.size_now(&held.inode)?;
        let end = size.saturating_add(self.accounts.bytes_left(dir)?);
        let room = end.saturating_sub(self.now_at(at).before(size));
        Ok(len.min(usize::try_from(room).unwrap_or(usize::MAX)))
    }

    /// How large a file is, or counts as if that is more.
    pub(super) fn size_now(&self, inode: &Inode) -> FsResult<u64> {
        match inode.content {
            Content::Object { dirty: true, .. } => {
                Ok(self.object_stat(inode.ino)?.len.max(inode.size))
            }
            _ => Ok(inode.size),
        }
    }

    /// [`VarveFs::write_object`], after counting what it grows by.
    pub(super) fn write_counted(
        &self,
        file: &OpenFile,
        object: &dyn File,
        at: At,
        data: &[u8],
    ) -> FsResult<(u64, usize)> {
        let ino = file.node.ino;
        let fail = |error| self.object_error("write", ino, error);
        let _growing = file.node.append.lock();
        let len = object.stat().map_err(fail)?.len;
        let offset = self.now_at(at).before(len);
        let end = end_of(offset, data.len() as u64)?;
        let mut written = 0;
        self.growing(ino, object, end.max(len), || {
            written = object.write_at(data, offset).map_err(fail)?;
            Ok(())
        })?;
        if written < data.len() {
            self.count_what_is(ino, object);
        }
        Ok((offset, written))
    }

    /// Copies to `file` what limits leave room for, after counting what the object grows by.
    pub(super) fn copy_counted(
        &self,
        (file, object): (&OpenFile, &dyn File),
        to: Position,
        len: u64,
        copy: impl FnOnce(u64) -> FsResult<u64>,
    ) -> FsResult<u64> {
        let _growing = file.node.append.lock();
        let all = usize::try_from(len).unwrap_or(usize::MAX);
        let fits = self.fitting(to.ino, At::Offset(to.offset), all)?;
        if fits == 0 && len > 0 {
            return Err(FsError::QuotaExceeded);
        }
        let (fits, mut copied) = (fits as u64, 0);
        self.growing(to.ino, object, to.offset.saturating_add(fits), || {
            copied = copy(fits)?;
            Ok(())
        })?;
        if copied < fits {
            self.count_what_is(to.ino, object);
        }
        Ok(copied)
    }

    /// Counts the held object's growth to `size`, then lets `grow` happen; if it fails, counts what there is.
    pub(super) fn growing(
        &self,
        ino: InodeId,
        object: &dyn File,
        size: u64,
        grow: impl FnOnce() -> FsResult<()>,
    ) -> FsResult<()> {
        let counted = self.count_size(ino, |counted| counted.max(size))?;
        let grown = grow();
        if counted && grown.is_err() {
            self.count_what_is(ino, object);
        }
        grown
    }

    /// Counts a dirty object as it is. A failure leaves it as it counted, until its last writer's release.
    fn count_what_is(&self, ino: InodeId, object: &dyn File) {
        let len = object.stat().map_err(|error| self.object_error("stat", ino, error));
        if let Err(error) = len.and_then(|stat| self.count_size(ino, |_| stat.len)) {
            log::warn!("inode {ino} counts for more than it holds for now: {error}");
        }
    }

    /// `QuotaExceeded` if limits leave no room for the held file to grow to `size`.
    pub(super) fn check_growth(&self, held: &Held<'_>, size: u64) -> FsResult<()> {
        let growth = size.saturating_sub(held.inode.size);
        match held.counted_in().filter(|_| self.accounts.has_quotas()) {
            Some(dir) if self.accounts.bytes_left(dir)? < growth => Err(FsError::QuotaExceeded),
            _ => Ok(()),
        }
    }

    /// Counts the growth of the held dirty object to `size` before it happens, where limits hold. Commits.
    pub(super) fn count_held(&self, held: &mut Held<'_>, size: u64) -> FsResult<()> {
        if !self.accounts.limits(held.counted_in())? {
            return Ok(());
        }
        held.inode.size = size;
        self.write_back(held)
    }

    /// Changes the size that counts for a dirty object; says whether that is another than before.
    fn count_size(&self, ino: InodeId, size: impl FnOnce(u64) -> u64) -> FsResult<bool> {
        let mut held = self.hold_counted(ino)?;
        let dirty = held.inode.content.is_dirty();
        let size = size(held.inode.size);
        let limited = self.accounts.limits(held.counted_in())?;
        if !dirty || !limited || size == held.inode.size {
            return Ok(false);
        }
        held.inode.size = size;
        self.write_back(&mut held)?;
        Ok(true)
    }
}
