//! Each request of the kernel as one call of the `Vfs`.
//!
//! Rules that the kernel's protocol adds to the calls:
//!
//! - Names that are absent are answered with inode number 0, so that the kernel remembers the absence.
//! - FLUSH, OPENDIR and what is not served are answered with ENOSYS, after which the kernel stops asking.
//!   Locks are not claimed, so the kernel keeps them itself, which is right for a single mount.
//! - The kernel leaves the removal of set-id bits to the file system (FUSE_HANDLE_KILLPRIV_V2): a write says
//!   when by a flag; truncation and change of owner are recognised here.
//! - A listing that has already handed out entries with attributes ends well, whatever happens after: each
//!   entry counts as a lookup that the kernel must learn of. The next request meets the error again.
//! - Every handle given is released once, however the request ended.
//! - fsync leaves the reader threads (`waiters`), so that nobody waits behind it and many share one commit.
//! - The mount options `sync` and `dirsync` are kept here; the kernel does nothing about them.
//!
//! Failures of the storage are logged here, where they are turned into an errno; the others are the
//! caller's everyday business.

mod rules;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use varve_types::InodeId;
use varve_vfs::{Entry, FsError, FsResult, Handle, SetAttr, SetTime, Vfs};

use crate::backing::{BackingTable, Route};
use crate::convert;
use crate::readers::Readers;
use crate::session::SessionOptions;
use crate::waiters::Waiters;
use rules::{check_xattr_name, empty, errno, xattr};

/// Inode ids are never reused, so one generation does for all.
const GENERATION: Generation = Generation(0);
/// The largest write in one request, in bytes; the kernel's own limit by default.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// How many requests that no program waits for (readahead, release) may be under way.
const BACKGROUND_REQUESTS_MAX: u16 = 64;
/// Objects may lie on any file system that is not itself stacked on another.
const STACK_DEPTH_MAX: u32 = 1;
/// The attribute of the root directory that holds [`Vfs::status_json`]; no listing shows it.
const STATUS_XATTR: &[u8] = b"user.varve.status";

/// A `Vfs` as fuser wants to see it.
pub(crate) struct Adapter {
    vfs: Arc<dyn Vfs>,
    options: SessionOptions,
    readers: Readers,
    backing: BackingTable,
    waiters: Waiters,
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adapter").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Adapter {
    pub(crate) fn new(vfs: Arc<dyn Vfs>, options: SessionOptions) -> Adapter {
        let readers = Readers::new(options.placement);
        Adapter { vfs, options, readers, backing: BackingTable::new(), waiters: Waiters::new() }
    }

    /// The file system, for one request.
    fn vfs(&self) -> &dyn Vfs {
        self.readers.place();
        &*self.vfs
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for capability in self.capabilities().iter() {
            if config.add_capabilities(capability).is_err() {
                log::debug!("the kernel lacks {capability:?}");
            }
        }
        if self.options.passthrough
            && !self.options.sync_writes
            && config.set_max_stack_depth(STACK_DEPTH_MAX).is_ok()
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
        {
            self.backing.agree();
        }
        let limits = [
            config.set_max_write(WRITE_BYTES_MAX).is_ok(),
            config.set_max_background(BACKGROUND_REQUESTS_MAX).is_ok(),
        ];
        debug_assert!(limits.iter().all(|&accepted| accepted));
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found =
            convert::name(name).and_then(|name| self.vfs().lookup(convert::inode(parent), name));
        let negative = self.options.negative_timeout;
        match found {
            Err(FsError::NotFound) if !negative.is_zero() => {
                reply.entry_with_ttls(&negative, &negative, &convert::absent(), GENERATION);
            }
            found => self.entry("lookup", found, reply),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        self.vfs().forget(convert::inode(ino), lookups);
    }

    fn getattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        match self.vfs().getattr(convert::inode(ino)) {
            Ok(attr) => reply.attr(&self.options.attr_timeout, &convert::attr(&attr)),
            Err(err) => reply.error(errno("getattr", &err)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let time = |time: Option<TimeOrNow>| -> FsResult<Option<SetTime>> {
            time.map(convert::set_time).transpose()
        };
        let changed = time(atime).and_then(|atime| {
            let perm = mode.map(|mode| mode & 0o7777);
            let set =
                SetAttr { perm, uid, gid, size, atime, mtime: time(mtime)?, kill_set_id: false };
            self.change(convert::caller(request, 0), convert::inode(ino), set)
        });
        match changed {
            Ok(attr) => reply.attr(&self.options.attr_timeout, &convert::attr(&attr)),
            Err(err) => reply.error(errno("setattr", &err)),
        }
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.vfs().readlink(convert::inode(ino)) {
            Ok(target) => reply.data(&target),
            Err(err) => reply.error(errno("readlink", &err)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let caller = convert::caller(request, umask);
        let parent = convert::inode(parent);
        let made =
            convert::name(name).and_then(|name| self.vfs().mknod(caller, parent, name, mode, rdev));
        self.entry("mknod", self.settled(parent, made), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let caller = convert::caller(request, umask);
        let (parent, perm) = (convert::inode(parent), mode & 0o7777);
        let made =
            convert::name(name).and_then(|name| self.vfs().mkdir(caller, parent, name, perm));
        self.entry("mkdir", self.settled(parent, made), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let parent = convert::inode(parent);
        let removed = convert::name(name).and_then(|name| self.vfs().unlink(parent, name));
        empty("unlink", self.settled(parent, removed), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let parent = convert::inode(parent);
        let removed = convert::name(name).and_then(|name| self.vfs().rmdir(parent, name));
        empty("rmdir", self.settled(parent, removed), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let caller = convert::caller(request, 0);
        let (parent, target) = (convert::inode(parent), target.as_os_str().as_bytes());
        let made =
            convert::name(name).and_then(|name| self.vfs().symlink(caller, parent, name, target));
        self.entry("symlink", self.settled(parent, made), reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = convert::rename_mode(flags).and_then(|mode| {
            let (name, new_name) = (convert::name(name)?, convert::name(new_name)?);
            let (parent, new_parent) = (convert::inode(parent), convert::inode(new_parent));
            let renamed = self.vfs().rename(parent, name, new_parent, new_name, mode);
            self.settled(new_parent, self.settled(parent, renamed))
        });
        empty("rename", renamed, reply);
    }

    fn link(
        &self,
        _request: &Request,
        ino: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (ino, parent) = (convert::inode(ino), convert::inode(new_parent));
        let linked = convert::name(new_name).and_then(|name| self.vfs().link(ino, parent, name));
        self.entry("link", self.settled(parent, linked), reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: fuser::OpenFlags, reply: ReplyOpen) {
        let ino = convert::inode(ino);
        let (caller, flags) = (convert::caller(request, 0), self.open_flags(flags.0));
        let opened = match self.open_file(caller, ino, flags) {
            Ok(opened) => opened,
            Err(err) => return reply.error(errno("open", &err)),
        };
        let handle = FileHandle(opened.handle.0);
        let route = self.route(ino, opened, |fd| reply.open_backing(fd));
        if matches!(route, Route::Straight(_))
            && flags.write
            && caller.uid != 0
            && let Err(err) = self.kill_set_id(caller, ino)
        {
            // Writes that pass us by cannot take the set-id bits, so the open does.
            self.backing.released(ino);
            let released = self.vfs.release(ino, opened.handle);
            return reply.error(errno("open", &released.err().unwrap_or(err)));
        }
        match route {
            // Drops the pages cached so far, which the kernel is about to write past.
            Route::Straight(backing) => {
                reply.opened_passthrough(handle, FopenFlags::empty(), &backing)
            }
            // This mount is the only writer, so what is cached holds.
            Route::Cached => reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let caller = convert::caller(request, umask);
        let made = convert::name(name).and_then(|name| {
            let (parent, flags) = (convert::inode(parent), self.open_flags(flags));
            let made = self.vfs().create(caller, parent, name, mode & 0o7777, flags)?;
            self.settled(parent, Ok(())).inspect_err(|_| self.undo_create(made))?;
            Ok(made)
        });
        let (Entry { attr }, opened) = match made {
            Ok(made) => made,
            Err(err) => return reply.error(errno("create", &err)),
        };
        let handle = FileHandle(opened.handle.0);
        let (ttl, attr_out) = (&self.common_timeout(), convert::attr(&attr));
        match self.route(attr.ino, opened, |fd| reply.open_backing(fd)) {
            Route::Straight(backing) => {
                let flags = FopenFlags::empty();
                reply.created_passthrough(ttl, &attr_out, GENERATION, handle, flags, &backing);
            }
            Route::Cached => reply.created(ttl, &attr_out, GENERATION, handle, FopenFlags::empty()),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.vfs().read(convert::inode(ino), Handle(handle.0), offset, size as usize) {
            Ok(data) => reply.data(&data),
            Err(err) => reply.error(errno("read", &err)),
        }
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill_set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        match self.vfs().write(convert::inode(ino), Handle(handle.0), offset, data, kill_set_id) {
            Ok(written) => reply.written(u32::try_from(written).unwrap_or(u32::MAX)),
            Err(err) => reply.error(errno("write", &err)),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let ino = convert::inode(ino);
        let released = self.vfs().release(ino, Handle(handle.0));
        self.backing.released(ino);
        empty("release", released, reply);
    }

    fn fsync(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.readers.place();
        let (vfs, ino, handle) = (self.vfs.clone(), convert::inode(ino), Handle(handle.0));
        self.waiters
            .run(Box::new(move || empty("fsync", vfs.fsync(ino, handle, data_only), reply)));
    }

    fn opendir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _flags: fuser::OpenFlags,
        reply: ReplyOpen,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut taken = 0usize;
        let listed = self.vfs().readdir(convert::inode(ino), cookie, false, &mut |entry| {
            let ino = INodeNo(entry.ino.get());
            let name = OsStr::from_bytes(entry.name);
            let full = reply.add(ino, entry.cookie, convert::kind(entry.kind), name);
            taken += usize::from(!full);
            !full
        });
        match listed {
            Err(err) if taken == 0 => reply.error(errno("readdir", &err)),
            _ => reply.ok(),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let ttl = self.common_timeout();
        let mut taken = 0usize;
        let listed = self.vfs().readdir(convert::inode(ino), cookie, true, &mut |entry| {
            let attr = match &entry.attr {
                Some(attr) => convert::attr(attr),
                // `.` and `..`, of which the kernel takes number and type only.
                None => fuser::FileAttr {
                    ino: INodeNo(entry.ino.get()),
                    kind: convert::kind(entry.kind),
                    ..convert::absent()
                },
            };
            let name = OsStr::from_bytes(entry.name);
            let full = reply.add(attr.ino, entry.cookie, name, &ttl, &attr, GENERATION);
            taken += usize::from(!full);
            !full
        });
        match listed {
            Err(err) if taken == 0 => reply.error(errno("readdir", &err)),
            _ => reply.ok(),
        }
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.readers.place();
        let (vfs, ino) = (self.vfs.clone(), convert::inode(ino));
        self.waiters.run(Box::new(move || empty("fsyncdir", vfs.fsync_dir(ino), reply)));
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.vfs().statfs() {
            Ok(room) => reply.statfs(
                room.blocks,
                room.blocks_free,
                room.blocks_available,
                room.files,
                room.files_free,
                room.block_bytes,
                room.name_bytes_max,
                room.block_bytes,
            ),
            Err(err) => reply.error(errno("statfs", &err)),
        }
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if !self.options.xattr {
            return reply.error(Errno::ENOSYS);
        }
        let set = check_xattr_name(name).and_then(|name| {
            let mode = convert::xattr_mode(flags)?;
            self.vfs().setxattr(convert::inode(ino), name, value, mode)
        });
        empty("setxattr", set, reply);
    }

    fn getxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if !self.options.xattr {
            return reply.error(Errno::ENOSYS);
        }
        let ino = convert::inode(ino);
        if ino == InodeId::ROOT && name.as_bytes() == STATUS_XATTR {
            return xattr("getxattr", Ok(self.vfs().status_json()), size, reply);
        }
        let value = check_xattr_name(name).and_then(|name| self.vfs().getxattr(ino, name));
        xattr("getxattr", value, size, reply);
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        if !self.options.xattr {
            return reply.error(Errno::ENOSYS);
        }
        xattr("listxattr", self.vfs().listxattr(convert::inode(ino)), size, reply);
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if !self.options.xattr {
            return reply.error(Errno::ENOSYS);
        }
        let ino = convert::inode(ino);
        let removed = check_xattr_name(name).and_then(|name| self.vfs().removexattr(ino, name));
        empty("removexattr", removed, reply);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _input: &[u8],
        _output_bytes: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::from_i32(libc::ENOTTY));
    }

    fn poll(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocated = convert::allocate_mode(mode).and_then(|mode| {
            self.vfs().fallocate(convert::inode(ino), Handle(handle.0), mode, offset, len)
        });
        empty("fallocate", allocated, reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = convert::seek_from(whence).and_then(|what| {
            let offset = u64::try_from(offset).map_err(|_| FsError::NoSuchOffset)?;
            let found = self.vfs().lseek(convert::inode(ino), Handle(handle.0), offset, what)?;
            i64::try_from(found).map_err(|_| FsError::TooLarge)
        });
        match found {
            Ok(offset) => reply.offset(offset),
            Err(err) => reply.error(errno("lseek", &err)),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _ino_in: INodeNo,
        _handle_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _handle_out: FileHandle,
        _offset_out: u64,
        _len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
