//! The calls of a [`Follower`]: each goes to one state. Nothing can be changed.

use std::os::fd::BorrowedFd;

use bytes::Bytes;
use varve_types::{FileFlags, FileName, InodeId};
use varve_vfs::{
    AccessMode, AllocateMode, Attr, Caller, DirEntry, Entry, FsError, FsResult, Handle, OpenFlags,
    Opened, Place, Position, RenameMode, SeekFrom, SetAttr, StatFs, TreeQuota, TreeUsage, Vfs,
    Written, XattrMode,
};

use super::Follower;

impl Vfs for Follower {
    fn lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        let state = self.at(parent)?;
        self.found(&state, state.fs.lookup(parent, name)?)
    }

    fn lookup_parent(&self, dir: InodeId) -> FsResult<Entry> {
        let state = self.at(dir)?;
        self.found(&state, state.fs.lookup_parent(dir)?)
    }

    fn lookup_inode(&self, ino: InodeId) -> FsResult<Entry> {
        self.lookup_at(ino, None, true)
    }

    fn place(&self, ino: InodeId) -> FsResult<Option<Place>> {
        self.at(ino)?.fs.place(ino)
    }

    fn lookup_at(&self, ino: InodeId, place: Option<Place>, walk: bool) -> FsResult<Entry> {
        let state = self.now();
        self.found(&state, state.fs.lookup_at(ino, place, walk)?)
    }

    fn forget(&self, ino: InodeId, lookups: u64) {
        self.forgotten(ino, lookups);
    }

    fn getattr(&self, ino: InodeId) -> FsResult<Attr> {
        self.at(ino)?.fs.getattr(ino)
    }

    fn setattr(&self, _caller: Caller, _ino: InodeId, _set: SetAttr) -> FsResult<Attr> {
        Err(FsError::ReadOnly)
    }

    fn readlink(&self, ino: InodeId) -> FsResult<Bytes> {
        self.at(ino)?.fs.readlink(ino)
    }

    fn mknod(
        &self,
        _caller: Caller,
        _parent: InodeId,
        _name: FileName<'_>,
        _mode: u32,
        _rdev: u32,
    ) -> FsResult<Entry> {
        Err(FsError::ReadOnly)
    }

    fn mkdir(
        &self,
        _caller: Caller,
        _parent: InodeId,
        _name: FileName<'_>,
        _perm: u32,
    ) -> FsResult<Entry> {
        Err(FsError::ReadOnly)
    }

    fn symlink(
        &self,
        _caller: Caller,
        _parent: InodeId,
        _name: FileName<'_>,
        _target: &[u8],
    ) -> FsResult<Entry> {
        Err(FsError::ReadOnly)
    }

    fn link(&self, _ino: InodeId, _parent: InodeId, _name: FileName<'_>) -> FsResult<Entry> {
        Err(FsError::ReadOnly)
    }

    fn unlink(&self, _parent: InodeId, _name: FileName<'_>) -> FsResult<()> {
        Err(FsError::ReadOnly)
    }

    fn rmdir(&self, _parent: InodeId, _name: FileName<'_>) -> FsResult<()> {
        Err(FsError::ReadOnly)
    }

    fn rename(
        &self,
        _parent: InodeId,
        _name: FileName<'_>,
        _new_parent: InodeId,
        _new_name: FileName<'_>,
        _mode: RenameMode,
    ) -> FsResult<()> {
        Err(FsError::ReadOnly)
    }

    fn create(
        &self,
        _caller: Caller,
        _parent: InodeId,
        _name: FileName<'_>,
        _perm: u32,
        _flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        Err(FsError::ReadOnly)
    }

    fn tmpfile(
        &self,
        _caller: Caller,
        _parent: InodeId,
        _perm: u32,
        _flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        Err(FsError::ReadOnly)
    }

    fn open(&self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened> {
        loop {
            let state = self.at(ino)?;
            let opened = state.fs.open(ino, flags)?;
            let changed = state.fs.getattr(ino).map(|attr| attr.ctime);
            let changed = match changed {
                Ok(changed) => changed,
                Err(error) => {
                    let _ = state.fs.release(ino, opened.handle);
                    return Err(error);
                }
            };
            let Some(drops_pages) = self.is_opened(&state, ino, changed) else {
                // Another thread has opened it in another state.
                state.fs.release(ino, opened.handle)?;
                continue;
            };
            if drops_pages && let Some(front) = &*self.front.read() {
                // The size that the front end has may be of another state.
                front.attributes_changed(ino);
            }
            let handle = self.add_handle(super::Opened { state, handle: opened.handle });
            let reread = opened.reread || drops_pages;
            return Ok(Opened { handle, passthrough: false, reread });
        }
    }

    fn with_passthrough(
        &self,
        _handle: Handle,
        _take: &mut dyn FnMut(BorrowedFd<'_>),
    ) -> FsResult<()> {
        Err(FsError::NotSupported("files of shared storage in the kernel"))
    }

    fn read(&self, ino: InodeId, handle: Handle, offset: u64, len: usize) -> FsResult<Bytes> {
        let opened = self.opened(handle)?;
        opened.state.fs.read(ino, opened.handle, offset, len)
    }

    fn write(
        &self,
        _ino: InodeId,
        _handle: Handle,
        _offset: u64,
        _data: &[u8],
        _kill_set_id: bool,
    ) -> FsResult<Written> {
        Err(FsError::ReadOnly)
    }

    fn release(&self, ino: InodeId, handle: Handle) -> FsResult<()> {
        let opened = self.handles.write().remove(&handle).ok_or(FsError::BadHandle)?;
        let Some(opened) = opened else { return Ok(()) };
        let released = opened.state.fs.release(ino, opened.handle);
        self.is_released(&opened.state, ino);
        released
    }

    fn fsync(&self, _ino: InodeId, handle: Handle, _data_only: bool) -> FsResult<()> {
        self.opened(handle).map(drop)
    }

    fn fsync_dir(&self, ino: InodeId) -> FsResult<()> {
        self.at(ino).map(drop)
    }

    fn sync(&self) -> FsResult<()> {
        Ok(())
    }

    fn readdir(
        &self,
        ino: InodeId,
        cookie: u64,
        with_attr: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        let state = self.at(ino)?;
        let mut found = Vec::new();
        let mut failed = None;
        let listed = state.fs.readdir(ino, cookie, with_attr, &mut |entry| {
            let attr = match entry.attr.map(|attr| self.attr(&state, attr)).transpose() {
                Ok(attr) => attr,
                Err(error) => {
                    failed = Some(error);
                    return false;
                }
            };
            let is_taken = emit(&DirEntry { attr, ..*entry });
            found.extend(entry.attr.filter(|_| is_taken));
            is_taken
        });
        for attr in &found {
            self.note(&state, attr, 1);
        }
        // What was listed before the failure is there.
        match failed.filter(|_| found.is_empty()) {
            Some(error) => Err(error),
            None => listed,
        }
    }

    fn statfs(&self) -> FsResult<StatFs> {
        self.now().fs.statfs()
    }

    fn access(
        &self,
        caller: Caller,
        groups: &[u32],
        ino: InodeId,
        mode: AccessMode,
    ) -> FsResult<()> {
        self.at(ino)?.fs.access(caller, groups, ino, mode)
    }

    fn fallocate(
        &self,
        _ino: InodeId,
        _handle: Handle,
        _mode: AllocateMode,
        _offset: u64,
        _len: u64,
    ) -> FsResult<()> {
        Err(FsError::ReadOnly)
    }

    fn copy_range(&self, _from: Position, _to: Position, _len: u64) -> FsResult<u64> {
        Err(FsError::ReadOnly)
    }

    fn file_flags(&self, ino: InodeId) -> FsResult<FileFlags> {
        self.at(ino)?.fs.file_flags(ino)
    }

    fn set_file_flags(&self, _ino: InodeId, _flags: FileFlags) -> FsResult<()> {
        Err(FsError::ReadOnly)
    }

    fn lseek(&self, ino: InodeId, handle: Handle, offset: u64, what: SeekFrom) -> FsResult<u64> {
        let opened = self.opened(handle)?;
        opened.state.fs.lseek(ino, opened.handle, offset, what)
    }

    fn getxattr(&self, ino: InodeId, name: &[u8]) -> FsResult<Bytes> {
        self.at(ino)?.fs.getxattr(ino, name)
    }

    fn setxattr(
        &self,
        _ino: InodeId,
        _name: &[u8],
        _value: &[u8],
        _mode: XattrMode,
    ) -> FsResult<()> {
        Err(FsError::ReadOnly)
    }

    fn listxattr(&self, ino: InodeId) -> FsResult<Vec<u8>> {
        self.at(ino)?.fs.listxattr(ino)
    }

    fn removexattr(&self, _ino: InodeId, _name: &[u8]) -> FsResult<()> {
        Err(FsError::ReadOnly)
    }

    fn usage(&self, ino: InodeId) -> FsResult<TreeUsage> {
        self.at(ino)?.fs.usage(ino)
    }

    fn quotas(&self, ino: InodeId) -> FsResult<Vec<TreeQuota>> {
        self.at(ino)?.fs.quotas(ino)
    }

    fn quotas_of(&self, ino: InodeId) -> FsResult<Vec<TreeQuota>> {
        self.at(ino)?.fs.quotas_of(ino)
    }

    fn status_json(&self) -> String {
        self.now().fs.status_json()
    }
}
