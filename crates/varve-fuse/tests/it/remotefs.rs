//! A file system that other mounts change too, as over a network: it says how long what it answers may be kept, and
//! follows its answers to the kernel. Everything else is [`ModelFs`]'s.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use varve_testkit::PATIENCE;
use varve_testkit::model::ModelFs;
use varve_types::{FileName, InodeId};
use varve_vfs::{
    AccessMode, AllocateMode, Attr, Caller, DirEntry, Entry, FileType, FsResult, Handle, Keep,
    OpenFlags, Opened, Position, RenameMode, SeekFrom, SetAttr, StatFs, Vfs, Written, XattrMode,
};

use crate::objectfs::to_inner;

/// One client's view of a file system.
pub(crate) struct RemoteFs {
    inner: Arc<ModelFs>,
    /// How long names of directories, other names, and attributes may be kept.
    pub(crate) keeps: Mutex<Keeps>,
    pub(crate) lookups: AtomicU64,
    pub(crate) getattrs: AtomicU64,
    pub(crate) reads: AtomicU64,
    /// What a test wants to happen when answers have arrived.
    pub(crate) arrivals: Gate,
}

#[derive(Clone, Copy)]
pub(crate) struct Keeps {
    pub(crate) directory: Keep,
    pub(crate) name: Keep,
    pub(crate) attr: Keep,
}

thread_local! {
    /// This thread has found attributes or synced since it last said that its answers have arrived.
    static HAS_ANSWER: Cell<bool> = const { Cell::new(false) };
}

/// Holds threads while it is shut.
#[derive(Default)]
pub(crate) struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    /// Threads that it holds.
    pub(crate) held: AtomicU64,
}

impl Gate {
    pub(crate) fn shut(&self, is_shut: bool) {
        *self.is_shut.lock() = is_shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut is_shut = self.is_shut.lock();
        self.held.fetch_add(1, Ordering::SeqCst);
        self.opened.wait_while_for(&mut is_shut, |is_shut| *is_shut, PATIENCE);
        self.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RemoteFs {
    pub(crate) fn new(inner: Arc<ModelFs>, keeps: Keeps) -> RemoteFs {
        RemoteFs {
            inner,
            keeps: Mutex::new(keeps),
            lookups: AtomicU64::new(0),
            getattrs: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            arrivals: Gate::default(),
        }
    }

    fn attr(&self, attr: Attr) -> Attr {
        Attr { keep: self.keeps.lock().attr, ..attr }
    }

    fn entry(&self, Entry { attr, .. }: Entry) -> Entry {
        Entry { attr: self.attr(attr), keep: self.keep_of(attr.kind) }
    }

    fn keep_of(&self, kind: FileType) -> Keep {
        let keeps = self.keeps.lock();
        if kind == FileType::Directory { keeps.directory } else { keeps.name }
    }
}

impl Vfs for RemoteFs {
    to_inner! {
        fn readlink(&self, ino: InodeId) -> FsResult<Bytes>;
        fn forget(&self, ino: InodeId, lookups: u64) -> ();
        fn unlink(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()>;
        fn rmdir(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()>;
        fn rename(&self, parent: InodeId, name: FileName<'_>, new_parent: InodeId, new_name: FileName<'_>, mode: RenameMode) -> FsResult<()>;
        fn open(&self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened>;
        fn with_passthrough(&self, handle: Handle, take: &mut dyn FnMut(std::os::fd::BorrowedFd<'_>)) -> FsResult<()>;
        fn write(&self, ino: InodeId, handle: Handle, offset: u64, data: &[u8], kill_set_id: bool) -> FsResult<Written>;
        fn append(&self, ino: InodeId, handle: Handle, offset: u64, data: &[u8], kill_set_id: bool) -> FsResult<Written>;
        fn release(&self, ino: InodeId, handle: Handle) -> FsResult<()>;
        fn fsync_dir(&self, ino: InodeId) -> FsResult<()>;
        fn sync(&self) -> FsResult<()>;
        fn statfs(&self) -> FsResult<StatFs>;
        fn access(&self, caller: Caller, groups: &[u32], ino: InodeId, mode: AccessMode) -> FsResult<()>;
        fn fallocate(&self, ino: InodeId, handle: Handle, mode: AllocateMode, offset: u64, len: u64) -> FsResult<()>;
        fn copy_range(&self, from: Position, to: Position, len: u64) -> FsResult<u64>;
        fn lseek(&self, ino: InodeId, handle: Handle, offset: u64, what: SeekFrom) -> FsResult<u64>;
        fn getxattr(&self, ino: InodeId, name: &[u8]) -> FsResult<Bytes>;
        fn setxattr(&self, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> FsResult<()>;
        fn listxattr(&self, ino: InodeId) -> FsResult<Vec<u8>>;
        fn removexattr(&self, ino: InodeId, name: &[u8]) -> FsResult<()>;
        fn status_json(&self) -> String;
    }

    fn lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.inner.lookup(parent, name).map(|entry| self.entry(entry))
    }

    fn may_appear(&self, _parent: InodeId, _name: FileName<'_>) -> bool {
        true
    }

    fn lookup_parent(&self, dir: InodeId) -> FsResult<Entry> {
        self.inner.lookup_parent(dir).map(|entry| self.entry(entry))
    }

    fn getattr(&self, ino: InodeId) -> FsResult<Attr> {
        self.getattrs.fetch_add(1, Ordering::Relaxed);
        HAS_ANSWER.set(true);
        self.inner.getattr(ino).map(|attr| self.attr(attr))
    }

    fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> FsResult<Attr> {
        self.inner.setattr(caller, ino, set).map(|attr| self.attr(attr))
    }

    fn mknod(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        mode: u32,
        rdev: u32,
    ) -> FsResult<Entry> {
        self.inner.mknod(caller, parent, name, mode, rdev).map(|entry| self.entry(entry))
    }

    fn mkdir(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
    ) -> FsResult<Entry> {
        self.inner.mkdir(caller, parent, name, perm).map(|entry| self.entry(entry))
    }

    fn symlink(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        target: &[u8],
    ) -> FsResult<Entry> {
        self.inner.symlink(caller, parent, name, target).map(|entry| self.entry(entry))
    }

    fn link(&self, ino: InodeId, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        self.inner.link(ino, parent, name).map(|entry| self.entry(entry))
    }

    fn create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        let (entry, opened) = self.inner.create(caller, parent, name, perm, flags)?;
        Ok((self.entry(entry), opened))
    }

    fn tmpfile(
        &self,
        caller: Caller,
        parent: InodeId,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        let (entry, opened) = self.inner.tmpfile(caller, parent, perm, flags)?;
        Ok((self.entry(entry), opened))
    }

    fn read(&self, ino: InodeId, handle: Handle, offset: u64, len: usize) -> FsResult<Bytes> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read(ino, handle, offset, len)
    }

    fn fsync(&self, ino: InodeId, handle: Handle, data_only: bool) -> FsResult<()> {
        HAS_ANSWER.set(true);
        self.inner.fsync(ino, handle, data_only)
    }

    fn readdir(
        &self,
        ino: InodeId,
        cookie: u64,
        with_attr: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        self.inner.readdir(ino, cookie, with_attr, &mut |entry| {
            let attr = entry.attr.map(|attr| self.attr(attr));
            emit(&DirEntry { attr, keep: self.keep_of(entry.kind), ..*entry })
        })
    }

    fn follows_answers(&self) -> bool {
        true
    }

    fn delivered(&self) {
        if HAS_ANSWER.take() {
            self.arrivals.pass();
        }
    }
}
