//! [`Vfs`] for [`VarveFs`]: every call goes to the module of its kind.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use std::sync::atomic::Ordering;

use bytes::Bytes;
use varve_namespace::{NameIn, NewInode, Remove};
use varve_schema::{Content, FileKind};
use varve_types::limits::{NAME_BYTES_MAX, SYMLINK_BYTES_MAX};
use varve_types::{ClientId, FileFlags, FileName, InodeId};
use varve_vfs::{
    AccessMode, AllocateMode, Attr, Blocked, Caller, DirEntry, Entry, FileType, FsError, FsResult,
    Handle, OpenFlags, Opened, Place, Position, RenameMode, RequestDone, RequestId, SeekFrom,
    SetAttr, StatFs, Transact, TreeLimits, TreeQuota, TreeUsage, Vfs, Written, XattrMode,
};

use crate::clones::Original;
use crate::data::At;
use crate::fs::VarveFs;

/// Unit of the block counts of statfs, in bytes.
const BLOCK_BYTES: u32 = 4096;
/// Room that a small file takes, for the estimate of how many more there may be, in bytes.
const FILE_ROOM_BYTES: u64 = 256;

impl VarveFs {
    /// Begins an operation that may change what directories hold.
    fn enter(&self) {
        self.touch();
        self.accounts.make_room();
        if self.accounts.should_propagate_soon() {
            self.reaper.propagate_soon();
        }
        self.settle_waiting();
        self.drop_returned_sources();
    }

    /// Notes that somebody uses it, which nobody asks of the main tree.
    fn touch(&self) {
        if self.views.is_none() {
            self.used.store(self.monotonic_ms(), Ordering::Relaxed);
        }
    }
}

impl Vfs for VarveFs {
    fn lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        self.touch();
        self.do_lookup(parent, name)
    }

    fn lookup_parent(&self, dir: InodeId) -> FsResult<Entry> {
        self.do_lookup_parent(dir)
    }

    fn lookup_inode(&self, ino: InodeId) -> FsResult<Entry> {
        self.touch();
        self.do_lookup_at(ino, None, true)
    }

    fn place(&self, ino: InodeId) -> FsResult<Option<Place>> {
        self.do_place(ino)
    }

    fn lookup_at(&self, ino: InodeId, place: Option<Place>, walk: bool) -> FsResult<Entry> {
        self.touch();
        self.do_lookup_at(ino, place, walk)
    }

    fn forget(&self, ino: InodeId, lookups: u64) {
        if let Err(error) = self.do_forget(ino, lookups) {
            log::warn!("inode {ino} stays until the next mount: {error}");
        }
    }

    fn getattr(&self, ino: InodeId) -> FsResult<Attr> {
        self.touch();
        self.under_locks(self.read_inode(ino).and_then(|inode| self.attr(&inode)))
    }

    fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> FsResult<Attr> {
        self.enter();
        self.do_setattr(caller, ino, set).map_err(|error| self.or_lost_locks(error))
    }

    fn readlink(&self, ino: InodeId) -> FsResult<Bytes> {
        let inode = self.read_inode(ino)?;
        let Content::Symlink(target) = &inode.content else {
            return Err(FsError::Invalid("not a symbolic link"));
        };
        if !ino.is_synthetic() {
            self.touch_atime(&inode);
        }
        Ok(target.clone())
    }

    fn mknod(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        mode: u32,
        rdev: u32,
    ) -> FsResult<Entry> {
        let (kind, rdev) = match FileType::from_mode(mode) {
            Some(FileType::Regular) => (FileKind::Regular, 0),
            Some(FileType::Fifo) => (FileKind::Fifo, 0),
            Some(FileType::Socket) => (FileKind::Socket, 0),
            Some(FileType::CharDevice) => (FileKind::CharDevice, rdev),
            Some(FileType::BlockDevice) => (FileKind::BlockDevice, rdev),
            Some(FileType::Directory | FileType::Symlink) | None => {
                return Err(FsError::Invalid("mknod makes files, fifos, sockets and device nodes"));
            }
        };
        self.enter();
        let new = NewInode { kind, perm: mode, rdev, content: Content::None };
        self.make(caller, parent, name, &new)
    }

    fn mkdir(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
    ) -> FsResult<Entry> {
        self.enter();
        self.make(caller, parent, name, &NewInode::directory(perm))
    }

    fn symlink(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        target: &[u8],
    ) -> FsResult<Entry> {
        match target.len() {
            0 => return Err(FsError::NotFound),
            len if len > SYMLINK_BYTES_MAX => return Err(FsError::TargetTooLong),
            _ => {}
        }
        let content = Content::Symlink(Bytes::copy_from_slice(target));
        self.enter();
        self.make(
            caller,
            parent,
            name,
            &NewInode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, content },
        )
    }

    fn link(&self, ino: InodeId, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        self.enter();
        self.do_link(ino, parent, name)
    }

    fn unlink(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        self.enter();
        self.moving(parent, name, self.remove_name(parent, name, Remove::File))
    }

    fn rmdir(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        self.enter();
        self.moving(parent, name, self.remove_name(parent, name, Remove::Directory))
    }

    fn rename(
        &self,
        parent: InodeId,
        name: FileName<'_>,
        new_parent: InodeId,
        new_name: FileName<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        self.enter();
        let from = NameIn::new(&self.hasher, parent, name);
        let to = NameIn::new(&self.hasher, new_parent, new_name);
        let renamed = self.do_rename(from, to, mode);
        self.moving(new_parent, new_name, self.moving(parent, name, renamed))
    }

    fn create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        self.enter();
        self.do_create(caller, parent, name, perm, flags).map_err(|error| self.or_lost_locks(error))
    }

    fn tmpfile(
        &self,
        caller: Caller,
        parent: InodeId,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        self.do_tmpfile(caller, parent, perm, flags)
    }

    fn open(&self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened> {
        self.enter();
        self.do_open(ino, flags).map_err(|error| self.or_lost_locks(error))
    }

    fn reopen(&self, ino: InodeId, place: Option<Place>, flags: OpenFlags) -> FsResult<Opened> {
        self.enter();
        self.do_reopen(ino, place, flags).map_err(|error| self.or_lost_locks(error))
    }

    fn end_grace(&self) -> FsResult<()> {
        self.do_end_grace()
    }

    fn with_passthrough(
        &self,
        handle: Handle,
        take: &mut dyn FnMut(BorrowedFd<'_>),
    ) -> FsResult<()> {
        self.do_with_passthrough(handle, take)
    }

    fn read(&self, ino: InodeId, handle: Handle, offset: u64, len: usize) -> FsResult<Bytes> {
        self.touch();
        self.under_locks(self.do_read(ino, handle, offset, len))
    }

    fn write(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written> {
        self.enter();
        let at = At::Offset(offset);
        self.write_what_fits(ino, handle, at, data, kill_set_id)
            .map_err(|error| self.or_lost_locks(error))
    }

    fn append(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written> {
        self.enter();
        let at = At::Append(offset);
        self.write_what_fits(ino, handle, at, data, kill_set_id)
            .map_err(|error| self.or_lost_locks(error))
    }

    fn release(&self, ino: InodeId, handle: Handle) -> FsResult<()> {
        self.enter();
        self.do_release(ino, handle)
    }

    fn fsync(&self, ino: InodeId, handle: Handle, data_only: bool) -> FsResult<()> {
        self.do_fsync(ino, handle, data_only).map_err(|error| self.or_lost_locks(error))
    }

    fn fsync_dir(&self, _ino: InodeId) -> FsResult<()> {
        self.reaper.sync_and_drain()
    }

    fn sync(&self) -> FsResult<()> {
        self.sync_open_objects()?;
        self.reaper.sync_and_drain()
    }

    fn readdir(
        &self,
        ino: InodeId,
        cookie: u64,
        with_attr: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        self.touch();
        self.do_readdir(ino, cookie, with_attr, emit)
    }

    fn statfs(&self) -> FsResult<StatFs> {
        let space = self.room_below()?;
        let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
        // Of a read-only mount that keeps in memory what it writes, more seems to be available than is free.
        let available = space.available_bytes.min(space.free_bytes);
        let files_free = available / FILE_ROOM_BYTES;
        let files = self.recorded_usage(InodeId::ROOT)?.inodes();
        Ok(self.accounts.within_root_limits(StatFs {
            block_bytes: BLOCK_BYTES,
            blocks: blocks(space.total_bytes),
            blocks_free: blocks(space.free_bytes),
            blocks_available: blocks(available),
            files: files.saturating_add(files_free),
            files_free,
            name_bytes_max: NAME_BYTES_MAX as u32,
        }))
    }

    fn access(
        &self,
        caller: Caller,
        groups: &[u32],
        ino: InodeId,
        mode: AccessMode,
    ) -> FsResult<()> {
        self.do_access(caller, groups, ino, mode)
    }

    fn fallocate(
        &self,
        ino: InodeId,
        handle: Handle,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> FsResult<()> {
        self.enter();
        self.do_fallocate(ino, handle, mode, offset, len).map_err(|error| self.or_lost_locks(error))
    }

    fn copy_range(&self, from: Position, to: Position, len: u64) -> FsResult<u64> {
        self.enter();
        self.under_locks(self.do_copy_range(from, to, len))
    }

    fn file_flags(&self, ino: InodeId) -> FsResult<FileFlags> {
        Ok(self.read_inode(ino)?.flags)
    }

    fn set_file_flags(&self, ino: InodeId, flags: FileFlags) -> FsResult<()> {
        self.enter();
        self.do_set_file_flags(ino, flags)
    }

    fn lseek(&self, ino: InodeId, handle: Handle, offset: u64, what: SeekFrom) -> FsResult<u64> {
        self.under_locks(self.do_lseek(ino, handle, offset, what))
    }

    fn getxattr(&self, ino: InodeId, name: &[u8]) -> FsResult<Bytes> {
        self.do_getxattr(ino, name)
    }

    fn setxattr(&self, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> FsResult<()> {
        self.do_setxattr(ino, name, value, mode)
    }

    fn listxattr(&self, ino: InodeId) -> FsResult<Vec<u8>> {
        self.do_listxattr(ino)
    }

    fn removexattr(&self, ino: InodeId, name: &[u8]) -> FsResult<()> {
        self.do_removexattr(ino, name)
    }

    fn clone_tree(
        &self,
        dir: InodeId,
        old_name: FileName<'_>,
        parent: InodeId,
        name: FileName<'_>,
    ) -> FsResult<Entry> {
        let original = Original { snapshot: None, dir, name: Some(old_name) };
        self.do_clone(original, parent, name)?;
        self.do_lookup(parent, name)
    }

    fn is_awaited(&self, ino: InodeId) -> bool {
        crate::synthetic::is_place(ino)
    }

    fn is_fleeting(&self, ino: InodeId) -> bool {
        crate::synthetic::is_fleeting(ino)
    }

    fn may_appear(&self, parent: InodeId, name: FileName<'_>) -> bool {
        self.name_may_appear(parent, name)
    }

    fn arrive(&self, ino: InodeId) -> FsResult<()> {
        self.do_arrive(ino)
    }

    fn wait_for_locks(&self, blocked: &Blocked, wait_max: Duration) -> bool {
        self.do_wait_for_locks(blocked, wait_max)
    }

    fn lock_wait_max(&self) -> Duration {
        self.do_lock_wait_max()
    }

    fn wait_is_over(&self, blocked: &Blocked) {
        self.do_wait_is_over(blocked);
    }

    fn overrule(&self, blocked: &Blocked) -> bool {
        self.do_overrule(blocked)
    }

    fn usage(&self, ino: InodeId) -> FsResult<TreeUsage> {
        self.total(ino)
    }

    fn set_limits(&self, ino: InodeId, limits: TreeLimits) -> FsResult<()> {
        self.do_set_limits(ino, limits)
    }

    fn quotas(&self, ino: InodeId) -> FsResult<Vec<TreeQuota>> {
        self.do_quotas(ino)
    }

    fn quotas_of(&self, ino: InodeId) -> FsResult<Vec<TreeQuota>> {
        self.do_quotas_of(ino)
    }

    fn transact(&self, what: Transact) -> FsResult<u64> {
        self.do_transact(what)
    }

    fn controlled(&self, ino: InodeId) -> FsResult<u64> {
        crate::synthetic::controlled(ino)
    }

    fn numbered(&self, request: RequestId, call: &mut dyn FnMut()) {
        self.do_numbered(request, call);
    }

    fn request_done(&self, client: ClientId, slot: u32) -> FsResult<Option<RequestDone>> {
        self.do_request_done(client, slot)
    }

    fn remember_client(&self, client: ClientId) -> FsResult<()> {
        self.do_remember_client(client)
    }

    fn remembered_clients(&self) -> FsResult<Vec<ClientId>> {
        self.do_remembered_clients()
    }

    fn forget_client(&self, client: ClientId) -> FsResult<()> {
        self.do_forget_client(client)
    }

    fn status_json(&self) -> String {
        self.do_status_json()
    }
}
