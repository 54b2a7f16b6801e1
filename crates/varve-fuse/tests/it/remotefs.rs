//! A file system that other mounts change too, as over a network: it says how long what it answers may be kept, and
//! follows its answers to the kernel. Everything else is [`ModelFs`]'s.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use varve_meta::{Holder, LockLimits, LockRefusal, LockTable, Requested, SessionId, Ticket};
use varve_testkit::PATIENCE;
use varve_testkit::model::ModelFs;
use varve_types::{FileName, InodeId};
use varve_vfs::{
    AccessMode, AllocateMode, Attr, Caller, DirEntry, Entry, FileLock, FileType, FsError, FsResult,
    Handle, Keep, LockDone, LockKind, LockOwner, LockRange, LockWait, OpenFlags, Opened, Position,
    RenameMode, SeekFrom, SetAttr, StatFs, Vfs, Written, XattrMode,
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
    /// The locks of all clients, and which client this is; `None` leaves locks to the kernel.
    locks: Option<(Arc<Locks>, SessionId)>,
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

/// The locks of all clients.
pub(crate) struct Locks(Mutex<LockState>);

struct LockState {
    table: LockTable,
    waiting: HashMap<Ticket, LockDone>,
}

impl Locks {
    pub(crate) fn new(limits: LockLimits) -> Arc<Locks> {
        let (table, waiting) = (LockTable::new(limits), HashMap::new());
        Arc::new(Locks(Mutex::new(LockState { table, waiting })))
    }

    /// How many locks are held, and how many requests wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.0.lock().table.counts()
    }

    /// Makes a change, and tells those whose wait it has ended.
    fn change<T>(&self, change: impl FnOnce(&mut LockState) -> T) -> T {
        let mut state = self.0.lock();
        let changed = change(&mut state);
        let resolved = state.table.resolved().into_iter();
        let done: Vec<_> = resolved
            .filter_map(|it| Some((state.waiting.remove(&it.ticket)?, it.result)))
            .collect();
        drop(state);
        for (done, result) in done {
            done(result.map_err(refused));
        }
        changed
    }
}

fn refused(refusal: LockRefusal) -> FsError {
    match refusal {
        LockRefusal::Held(_) => FsError::TryAgain,
        LockRefusal::Deadlock => FsError::Deadlock,
        LockRefusal::TooMany => FsError::TooManyLocks,
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
            locks: None,
        }
    }

    /// A client that shares locks with others.
    pub(crate) fn with_locks(inner: Arc<ModelFs>, locks: Arc<Locks>, session: u32) -> RemoteFs {
        let keep = Keep::Never;
        let keeps = Keeps { directory: keep, name: keep, attr: keep };
        let locks = Some((locks, SessionId(session)));
        RemoteFs { locks, ..RemoteFs::new(inner, keeps) }
    }

    fn locks(&self) -> (&Locks, SessionId) {
        let (locks, session) = self.locks.as_ref().expect("asked for no locks");
        (locks, *session)
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

    fn release(&self, ino: InodeId, handle: Handle) -> FsResult<()> {
        if let Some((locks, session)) = &self.locks {
            locks.change(|state| state.table.release(ino, *session, handle));
        }
        self.inner.release(ino, handle)
    }

    fn has_locks(&self) -> bool {
        self.locks.is_some()
    }

    fn test_lock(&self, ino: InodeId, _: Handle, lock: FileLock) -> FsResult<Option<FileLock>> {
        let (locks, session) = self.locks();
        let found = locks.change(|state| state.table.test(ino, session, lock));
        Ok(found.map(|Holder { session: of, lock, .. }| {
            let pid = if of == session { lock.pid } else { 0 };
            FileLock { pid, ..lock }
        }))
    }

    fn set_lock(&self, ino: InodeId, handle: Handle, lock: FileLock) -> FsResult<()> {
        let (locks, session) = self.locks();
        locks.change(|state| state.table.set(ino, session, handle, lock)).map_err(refused)
    }

    fn await_lock(&self, ino: InodeId, handle: Handle, lock: FileLock, done: LockDone) -> LockWait {
        let (locks, session) = self.locks();
        let mut done = Some(done);
        let requested = locks.change(|state| {
            let requested = state.table.wait(ino, session, handle, lock);
            if let Ok(Requested::Queued(ticket)) = requested
                && let Some(done) = done.take()
            {
                state.waiting.insert(ticket, done);
            }
            requested
        });
        match (requested, done) {
            (Ok(Requested::Queued(ticket)), _) => return LockWait(ticket.0),
            (Ok(Requested::Granted), Some(done)) => done(Ok(())),
            (Err(refusal), Some(done)) => done(Err(refused(refusal))),
            (_, None) => unreachable!("only a queued request takes it"),
        }
        LockWait(0)
    }

    fn cancel_lock(&self, LockWait(wait): LockWait) {
        let ticket = Ticket(wait);
        let cancelled = self.locks().0.change(|state| {
            state.table.cancel(ticket);
            state.waiting.remove(&ticket)
        });
        if let Some(done) = cancelled {
            done(Err(FsError::Interrupted));
        }
    }

    fn unlock(
        &self,
        ino: InodeId,
        _: Handle,
        owner: (LockOwner, LockKind),
        range: LockRange,
    ) -> FsResult<()> {
        let (locks, session) = self.locks();
        locks.change(|state| state.table.unlock(ino, session, owner, range)).map_err(refused)
    }

    fn close_locks(&self, ino: InodeId, _: Handle, owner: LockOwner) -> FsResult<()> {
        let (locks, session) = self.locks();
        locks.change(|state| state.table.close(ino, session, owner));
        Ok(())
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
