//! The calls of the model.
//!
//! Invariant: each call holds the one mutex from beginning to end.

use std::os::fd::BorrowedFd;

use bytes::Bytes;
use varve_types::{FileFlags, FileName, InodeId, limits};
use varve_vfs::{
    AccessMode, AllocateMode, Attr, Caller, DirEntry, Entry, FileType, FsError, FsResult, Handle,
    Keep, OpenFlags, Opened, Position, RenameMode, SeekFrom, SetAttr, StatFs, TreeUsage, Vfs,
    Written, XattrMode,
};

use super::ModelFs;
use super::files::check_xattr_name;
use super::names::New;
use super::node::{Body, COOKIE_PARENT, COOKIE_SELF, Dir};

impl Vfs for ModelFs {
    fn lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        let mut state = self.state.lock();
        let ino = state.find(parent, name)?;
        state.count_lookup(ino).map(Entry::of)
    }

    fn lookup_parent(&self, dir: InodeId) -> FsResult<Entry> {
        let mut state = self.state.lock();
        let parent = state.node(dir)?.dir()?.parent;
        state.count_lookup(parent).map(Entry::of)
    }

    fn forget(&self, ino: InodeId, lookups: u64) {
        let mut state = self.state.lock();
        if let Ok(node) = state.node_mut(ino) {
            node.lookups = node.lookups.saturating_sub(lookups);
            state.reap(ino);
        }
    }

    fn getattr(&self, ino: InodeId) -> FsResult<Attr> {
        self.state.lock().node(ino).map(|node| node.visible())
    }

    fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> FsResult<Attr> {
        self.state.lock().setattr(caller, ino, set)
    }

    fn readlink(&self, ino: InodeId) -> FsResult<Bytes> {
        match &self.state.lock().node(ino)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(FsError::Invalid("not a symbolic link")),
        }
    }

    fn mknod(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        mode: u32,
        rdev: u32,
    ) -> FsResult<Entry> {
        let new = match FileType::from_mode(mode) {
            Some(FileType::Regular) => New::regular(mode),
            Some(kind @ (FileType::CharDevice | FileType::BlockDevice)) => {
                New { kind, body: Body::Special, perm: mode, rdev, size: 0 }
            }
            Some(kind @ (FileType::Fifo | FileType::Socket)) => {
                New { kind, body: Body::Special, perm: mode, rdev: 0, size: 0 }
            }
            _ => return Err(FsError::Invalid("mknod cannot make this type")),
        };
        let mut state = self.state.lock();
        let ino = state.make(caller, parent, name, new)?;
        state.count_lookup(ino).map(Entry::of)
    }

    fn mkdir(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
    ) -> FsResult<Entry> {
        let mut state = self.state.lock();
        let body = Body::Directory(Dir::new(parent));
        let new = New { kind: FileType::Directory, body, perm, rdev: 0, size: 0 };
        let ino = state.make(caller, parent, name, new)?;
        state.count_lookup(ino).map(Entry::of)
    }

    fn symlink(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        target: &[u8],
    ) -> FsResult<Entry> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > limits::SYMLINK_BYTES_MAX {
            return Err(FsError::TargetTooLong);
        }
        let mut state = self.state.lock();
        let body = Body::Symlink(Bytes::copy_from_slice(target));
        let size = target.len() as u64;
        let new = New { kind: FileType::Symlink, body, perm: 0o777, rdev: 0, size };
        let ino = state.make(Caller { umask: 0, ..caller }, parent, name, new)?;
        state.count_lookup(ino).map(Entry::of)
    }

    fn clone_tree(
        &self,
        dir: InodeId,
        old_name: FileName<'_>,
        parent: InodeId,
        name: FileName<'_>,
    ) -> FsResult<Entry> {
        let mut state = self.state.lock();
        let ino = state.clone_tree(dir, old_name, parent, name)?;
        state.count_lookup(ino).map(Entry::of)
    }

    fn link(&self, ino: InodeId, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        self.state.lock().link(ino, parent, name).map(Entry::of)
    }

    fn unlink(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        self.state.lock().unlink(parent, name)
    }

    fn rmdir(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        self.state.lock().rmdir(parent, name)
    }

    fn rename(
        &self,
        parent: InodeId,
        name: FileName<'_>,
        new_parent: InodeId,
        new_name: FileName<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        self.state.lock().rename(parent, name, new_parent, new_name, mode)
    }

    fn create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        let (attr, opened) = self.state.lock().create(caller, parent, name, perm, flags)?;
        Ok((Entry::of(attr), opened))
    }

    fn tmpfile(
        &self,
        caller: Caller,
        parent: InodeId,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        let (attr, opened) = self.state.lock().tmpfile(caller, parent, perm, flags)?;
        Ok((Entry::of(attr), opened))
    }

    fn open(&self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened> {
        self.state.lock().open(ino, flags)
    }

    fn with_passthrough(&self, _: Handle, _: &mut dyn FnMut(BorrowedFd<'_>)) -> FsResult<()> {
        Err(FsError::NotSupported("passthrough without a storage below"))
    }

    fn read(&self, ino: InodeId, handle: Handle, offset: u64, len: usize) -> FsResult<Bytes> {
        self.state.lock().read(ino, handle, offset, len)
    }

    fn write(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written> {
        self.state.lock().write(ino, handle, offset, data, kill_set_id)
    }

    fn release(&self, ino: InodeId, handle: Handle) -> FsResult<()> {
        self.state.lock().release(ino, handle)
    }

    fn fsync(&self, ino: InodeId, handle: Handle, _data_only: bool) -> FsResult<()> {
        self.state.lock().flags(ino, handle).map(drop)
    }

    fn fsync_dir(&self, ino: InodeId) -> FsResult<()> {
        self.state.lock().node(ino)?.dir().map(drop)
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
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.accessed(ino)?;
        let dir = state.node(ino)?.dir()?;
        let kind = FileType::Directory;
        let parent = dir.parent;
        for (at, ino, name) in [(COOKIE_SELF, ino, &b"."[..]), (COOKIE_PARENT, parent, b"..")] {
            if cookie < at
                && !emit(&DirEntry { ino, kind, name, cookie: at, attr: None, keep: Keep::Forever })
            {
                return Ok(());
            }
        }
        let mut looked_up = Vec::new();
        for (cookie, name, ino) in dir.after(cookie.max(COOKIE_PARENT)) {
            let attr = state.node(ino)?.visible();
            let shown = with_attr.then_some(attr);
            if !emit(&DirEntry {
                ino,
                kind: attr.kind,
                name,
                cookie,
                attr: shown,
                keep: Keep::Forever,
            }) {
                break;
            }
            looked_up.push(ino);
        }
        if with_attr {
            for ino in looked_up {
                state.count_lookup(ino)?;
            }
        }
        Ok(())
    }

    fn statfs(&self) -> FsResult<StatFs> {
        const BLOCKS: u64 = 1 << 32;
        Ok(StatFs {
            block_bytes: 4096,
            blocks: BLOCKS,
            blocks_free: BLOCKS,
            blocks_available: BLOCKS,
            files: BLOCKS,
            files_free: BLOCKS,
            name_bytes_max: limits::NAME_BYTES_MAX as u32,
        })
    }

    fn access(
        &self,
        caller: Caller,
        groups: &[u32],
        ino: InodeId,
        mode: AccessMode,
    ) -> FsResult<()> {
        self.state.lock().access(caller, groups, ino, mode)
    }

    fn fallocate(
        &self,
        ino: InodeId,
        handle: Handle,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> FsResult<()> {
        self.state.lock().fallocate(ino, handle, mode, offset, len)
    }

    fn copy_range(&self, from: Position, to: Position, len: u64) -> FsResult<u64> {
        let (source, target) = {
            let state = self.state.lock();
            (state.flags(from.ino, from.handle)?, state.flags(to.ino, to.handle)?)
        };
        if !source.read || !target.write || target.append {
            return Err(FsError::BadHandle);
        }
        let len = len.min(self.getattr(from.ino)?.size.saturating_sub(from.offset));
        if len == 0 {
            return Ok(0);
        }
        if from.ino == to.ino && from.offset.abs_diff(to.offset) < len {
            return Err(FsError::Invalid("the ranges overlap"));
        }
        let len = usize::try_from(len.min(1 << 20)).unwrap_or(usize::MAX);
        let bytes = self.read(from.ino, from.handle, from.offset, len)?;
        Ok(self.write(to.ino, to.handle, to.offset, &bytes, false)?.bytes as u64)
    }

    fn file_flags(&self, ino: InodeId) -> FsResult<FileFlags> {
        Ok(self.state.lock().node(ino)?.flags)
    }

    fn set_file_flags(&self, ino: InodeId, flags: FileFlags) -> FsResult<()> {
        let mut state = self.state.lock();
        let now = state.now();
        let node = state.node_mut(ino)?;
        if !node.has_flags() {
            return Err(FsError::NotSupported("file flags of special files and symbolic links"));
        }
        if node.flags != flags {
            node.flags = flags;
            node.attr.ctime = now;
        }
        Ok(())
    }

    fn lseek(&self, ino: InodeId, handle: Handle, offset: u64, what: SeekFrom) -> FsResult<u64> {
        let state = self.state.lock();
        state.flags(ino, handle)?;
        state.lseek(ino, offset, what)
    }

    fn getxattr(&self, ino: InodeId, name: &[u8]) -> FsResult<Bytes> {
        check_xattr_name(name)?;
        self.state.lock().node(ino)?.xattrs.get(name).cloned().ok_or(FsError::NoXattr)
    }

    fn setxattr(&self, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> FsResult<()> {
        self.state.lock().setxattr(ino, name, value, mode)
    }

    fn listxattr(&self, ino: InodeId) -> FsResult<Vec<u8>> {
        let state = self.state.lock();
        let mut list = Vec::new();
        for name in state.node(ino)?.xattrs.keys() {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(list)
    }

    fn removexattr(&self, ino: InodeId, name: &[u8]) -> FsResult<()> {
        self.state.lock().removexattr(ino, name)
    }

    fn usage(&self, ino: InodeId) -> FsResult<TreeUsage> {
        self.state.lock().usage(ino)
    }

    fn status_json(&self) -> String {
        format!("{{\"inodes\":{}}}", self.inode_count())
    }
}
