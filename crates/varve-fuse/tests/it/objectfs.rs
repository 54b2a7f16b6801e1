//! A file system whose files named `big...` each live in a file of the machine, as large files do in a
//! store; everything else is [`ModelFs`]'s.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tempfile::TempDir;
use varve_testkit::PATIENCE;
use varve_testkit::model::ModelFs;
use varve_types::{FileName, InodeId, Timestamp};
use varve_vfs::{
    AccessMode, AllocateMode, Attr, Blocked, Caller, DirEntry, Entry, FsError, FsResult, Handle,
    OpenFlags, Opened, Position, RenameMode, SeekFrom, SetAttr, SetIdTaken, StatFs, Vfs, Written,
    XattrMode,
};

use crate::support::model;

/// The file system, with what a test wants to know.
pub(crate) struct ObjectFs {
    inner: Arc<ModelFs>,
    dir: TempDir,
    objects: Mutex<HashMap<InodeId, Arc<std::fs::File>>>,
    handles: Mutex<HashMap<Handle, InodeId>>,
    /// Whether opens of objects offer passthrough.
    pub(crate) offers: AtomicBool,
    /// Reads and writes of objects that came through this program.
    pub(crate) transfers: AtomicU64,
    /// Lookups that the kernel has taken back.
    pub(crate) forgotten: AtomicU64,
    /// Names looked up.
    pub(crate) lookups: AtomicU64,
    /// Ranges copied here.
    pub(crate) copies: AtomicU64,
    /// Values of extended attributes asked for.
    pub(crate) getxattrs: AtomicU64,
    /// Lets a sync of a file end only when this many are under way.
    pub(crate) syncs_together: Option<Barrier>,
    /// Files made durable, without those whose sync failed.
    pub(crate) synced: Mutex<Vec<InodeId>>,
    /// Makes syncs of a file fail.
    pub(crate) sync_fails: Mutex<Option<InodeId>>,
    /// Directories made durable.
    pub(crate) dir_syncs: AtomicU64,
    /// Makes syncs of directories fail.
    pub(crate) dir_syncs_fail: AtomicBool,
    /// Makes opens of files fail.
    pub(crate) opens_fail: AtomicBool,
    /// Makes changes of attributes fail.
    pub(crate) setattrs_fail: AtomicBool,
    /// Opens whose every write is to be durable.
    pub(crate) sync_opens: AtomicU64,
    /// Descriptors given to the kernel.
    pub(crate) registered: AtomicU64,
    /// Makes lookups and syncs panic.
    pub(crate) panics: AtomicBool,
    /// Makes locks be in the way of lookups, which may wait for so long; what is asked about locks panics.
    pub(crate) blocks: Mutex<Option<Duration>>,
    /// Locks that are in the way of opens and removals, until they go.
    pub(crate) locks: Locks,
    /// Makes a thread that serves a lookup fail, after so long.
    pub(crate) breaks: Mutex<Option<Duration>>,
}

/// Locks that calls wait for.
#[derive(Default)]
pub(crate) struct Locks {
    are_held: Mutex<bool>,
    gone: Condvar,
    /// Calls that were refused.
    refused: AtomicU64,
    /// Those of them that wait, by number.
    pub(crate) waiting: Mutex<HashSet<u64>>,
}

impl Locks {
    pub(crate) fn take(&self) {
        *self.are_held.lock() = true;
    }

    pub(crate) fn let_go(&self) {
        *self.are_held.lock() = false;
        self.gone.notify_all();
    }

    fn check(&self) -> FsResult<()> {
        if !*self.are_held.lock() {
            return Ok(());
        }
        let wait = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        Err(FsError::Blocked(Blocked { wait, by: Vec::new(), released: 0 }))
    }

    /// Whether they are gone, after so long at most.
    fn wait(&self, blocked: &Blocked, wait_max: Duration) -> bool {
        self.waiting.lock().insert(blocked.wait);
        let mut are_held = self.are_held.lock();
        self.gone.wait_while_for(&mut are_held, |are_held| *are_held, wait_max);
        !*are_held
    }
}

/// Methods of a [`Vfs`] that pass calls on to the file system in `inner`.
macro_rules! to_inner {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {$(
        fn $name(&self, $($argument: $type),*) -> $result {
            self.inner.$name($($argument),*)
        }
    )*};
}

pub(crate) use to_inner;

fn storage(error: std::io::Error) -> FsError {
    FsError::Storage(error.to_string())
}

impl ObjectFs {
    pub(crate) fn new() -> ObjectFs {
        ObjectFs {
            inner: model(),
            dir: tempfile::tempdir().unwrap(),
            objects: Mutex::new(HashMap::new()),
            handles: Mutex::new(HashMap::new()),
            offers: AtomicBool::new(true),
            transfers: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            lookups: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            getxattrs: AtomicU64::new(0),
            syncs_together: None,
            synced: Mutex::default(),
            sync_fails: Mutex::default(),
            dir_syncs: AtomicU64::new(0),
            dir_syncs_fail: AtomicBool::new(false),
            opens_fail: AtomicBool::new(false),
            setattrs_fail: AtomicBool::new(false),
            sync_opens: AtomicU64::new(0),
            registered: AtomicU64::new(0),
            panics: AtomicBool::new(false),
            blocks: Mutex::default(),
            locks: Locks::default(),
            breaks: Mutex::default(),
        }
    }

    /// Inodes that a name, a handle or the kernel still has.
    pub(crate) fn inode_count(&self) -> usize {
        self.inner.inode_count()
    }

    pub(crate) fn open_files(&self) -> usize {
        self.handles.lock().len()
    }

    fn panic_if_told_to(&self) {
        assert!(!self.panics.load(Ordering::Relaxed), "as the test wants it");
    }

    fn object(&self, ino: InodeId) -> Option<Arc<std::fs::File>> {
        self.objects.lock().get(&ino).cloned()
    }

    fn with_object(&self, mut attr: Attr) -> FsResult<Attr> {
        if let Some(object) = self.object(attr.ino) {
            let found = object.metadata().map_err(storage)?;
            (attr.size, attr.blocks) = (found.len(), found.blocks());
            attr.mtime =
                Timestamp::new(found.mtime(), found.mtime_nsec() as u32).unwrap_or_default();
        }
        Ok(attr)
    }
}

impl Vfs for ObjectFs {
    to_inner! {
        fn lookup_parent(&self, dir: InodeId) -> FsResult<Entry>;
        fn readlink(&self, ino: InodeId) -> FsResult<Bytes>;
        fn mknod(&self, caller: Caller, parent: InodeId, name: FileName<'_>, mode: u32, rdev: u32) -> FsResult<Entry>;
        fn mkdir(&self, caller: Caller, parent: InodeId, name: FileName<'_>, perm: u32) -> FsResult<Entry>;
        fn symlink(&self, caller: Caller, parent: InodeId, name: FileName<'_>, target: &[u8]) -> FsResult<Entry>;
        fn link(&self, ino: InodeId, parent: InodeId, name: FileName<'_>) -> FsResult<Entry>;
        fn rmdir(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()>;
        fn rename(&self, parent: InodeId, name: FileName<'_>, new_parent: InodeId, new_name: FileName<'_>, mode: RenameMode) -> FsResult<()>;
        fn tmpfile(&self, caller: Caller, parent: InodeId, perm: u32, flags: OpenFlags) -> FsResult<(Entry, Opened)>;
        fn sync(&self) -> FsResult<()>;
        fn readdir(&self, ino: InodeId, cookie: u64, with_attr: bool, emit: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> FsResult<()>;
        fn statfs(&self) -> FsResult<StatFs>;
        fn access(&self, caller: Caller, groups: &[u32], ino: InodeId, mode: AccessMode) -> FsResult<()>;
        fn fallocate(&self, ino: InodeId, handle: Handle, mode: AllocateMode, offset: u64, len: u64) -> FsResult<()>;
        fn lseek(&self, ino: InodeId, handle: Handle, offset: u64, what: SeekFrom) -> FsResult<u64>;
        fn setxattr(&self, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> FsResult<()>;
        fn listxattr(&self, ino: InodeId) -> FsResult<Vec<u8>>;
        fn removexattr(&self, ino: InodeId, name: &[u8]) -> FsResult<()>;
        fn status_json(&self) -> String;
    }

    fn unlink(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        self.locks.check()?;
        self.inner.unlink(parent, name)
    }

    fn forget(&self, ino: InodeId, lookups: u64) {
        self.forgotten.fetch_add(lookups, Ordering::Relaxed);
        self.inner.forget(ino, lookups);
    }

    fn copy_range(&self, from: Position, to: Position, len: u64) -> FsResult<u64> {
        self.copies.fetch_add(1, Ordering::Relaxed);
        let len = usize::try_from(len.min(1 << 20)).unwrap_or(usize::MAX);
        let bytes = self.read(from.ino, from.handle, from.offset, len)?;
        Ok(self.write(to.ino, to.handle, to.offset, &bytes, false)?.bytes as u64)
    }

    fn release(&self, ino: InodeId, handle: Handle) -> FsResult<()> {
        self.inner.release(ino, handle)?;
        self.handles.lock().remove(&handle);
        Ok(())
    }

    fn getxattr(&self, ino: InodeId, name: &[u8]) -> FsResult<Bytes> {
        self.getxattrs.fetch_add(1, Ordering::Relaxed);
        self.inner.getxattr(ino, name)
    }

    fn fsync(&self, ino: InodeId, handle: Handle, data_only: bool) -> FsResult<()> {
        self.panic_if_told_to();
        if let Some(together) = &self.syncs_together {
            together.wait();
        }
        if *self.sync_fails.lock() == Some(ino) {
            return Err(FsError::Storage("as the test wants it".to_owned()));
        }
        self.inner.fsync(ino, handle, data_only)?;
        self.synced.lock().push(ino);
        Ok(())
    }

    fn fsync_dir(&self, ino: InodeId) -> FsResult<()> {
        self.dir_syncs.fetch_add(1, Ordering::Relaxed);
        if self.dir_syncs_fail.load(Ordering::Relaxed) {
            return Err(FsError::Storage("as the test wants it".to_owned()));
        }
        self.inner.fsync_dir(ino)
    }

    fn lock_wait_max(&self) -> Duration {
        assert!(self.breaks.lock().is_none(), "as the test wants it");
        self.blocks.lock().unwrap_or(PATIENCE)
    }

    fn wait_for_locks(&self, blocked: &Blocked, wait_max: Duration) -> bool {
        assert!(self.blocks.lock().is_none(), "as the test wants it");
        self.locks.wait(blocked, wait_max)
    }

    fn overrule(&self, _blocked: &Blocked) -> bool {
        panic!("as the test wants it");
    }

    fn lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        self.panic_if_told_to();
        let breaks_after = *self.breaks.lock();
        breaks_after.into_iter().for_each(std::thread::sleep);
        if breaks_after.is_some() || self.blocks.lock().is_some() {
            return Err(FsError::Blocked(Blocked { wait: 1, by: Vec::new(), released: 0 }));
        }
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let entry = self.inner.lookup(parent, name)?;
        Ok(Entry { attr: self.with_object(entry.attr)?, ..entry })
    }

    fn getattr(&self, ino: InodeId) -> FsResult<Attr> {
        self.with_object(self.inner.getattr(ino)?)
    }

    fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> FsResult<Attr> {
        if self.setattrs_fail.load(Ordering::Relaxed) {
            return Err(FsError::Storage("as the test wants it".to_owned()));
        }
        if let (Some(object), Some(size)) = (self.object(ino), set.size) {
            object.set_len(size).map_err(storage)?;
        }
        self.with_object(self.inner.setattr(caller, ino, set)?)
    }

    fn create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        self.locks.check()?;
        self.sync_opens.fetch_add(u64::from(flags.sync), Ordering::Relaxed);
        let (entry, opened) = self.inner.create(caller, parent, name, perm, flags)?;
        if name.as_bytes().starts_with(b"big") {
            let path = self.dir.path().join(entry.attr.ino.to_string());
            let mut options = std::fs::File::options();
            let object =
                options.read(true).write(true).create_new(true).open(path).map_err(storage)?;
            self.objects.lock().insert(entry.attr.ino, Arc::new(object));
        }
        self.handles.lock().insert(opened.handle, entry.attr.ino);
        Ok((entry, opened))
    }

    fn open(&self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened> {
        self.locks.check()?;
        if self.opens_fail.load(Ordering::Relaxed) {
            return Err(FsError::Storage("as the test wants it".to_owned()));
        }
        self.sync_opens.fetch_add(u64::from(flags.sync), Ordering::Relaxed);
        let mut opened = self.inner.open(ino, flags)?;
        if let Some(object) = self.object(ino) {
            if flags.truncate {
                object.set_len(0).map_err(storage)?;
            }
            opened.passthrough = self.offers.load(Ordering::Relaxed);
        }
        self.handles.lock().insert(opened.handle, ino);
        Ok(opened)
    }

    fn with_passthrough(
        &self,
        handle: Handle,
        take: &mut dyn FnMut(BorrowedFd<'_>),
    ) -> FsResult<()> {
        let ino = self.handles.lock().get(&handle).copied().ok_or(FsError::BadHandle)?;
        let object = self.object(ino).ok_or(FsError::NotSupported("passthrough"))?;
        self.registered.fetch_add(1, Ordering::Relaxed);
        take(object.as_fd());
        Ok(())
    }

    fn read(&self, ino: InodeId, handle: Handle, offset: u64, len: usize) -> FsResult<Bytes> {
        let Some(object) = self.object(ino) else {
            return self.inner.read(ino, handle, offset, len);
        };
        self.transfers.fetch_add(1, Ordering::Relaxed);
        let mut data = vec![0u8; len];
        let read = object.read_at(&mut data, offset).map_err(storage)?;
        data.truncate(read);
        Ok(Bytes::from(data))
    }

    fn write(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written> {
        let Some(object) = self.object(ino) else {
            return self.inner.write(ino, handle, offset, data, kill_set_id);
        };
        self.transfers.fetch_add(1, Ordering::Relaxed);
        object.write_all_at(data, offset).map_err(storage)?;
        Ok(Written { offset, bytes: data.len(), set_id: SetIdTaken::None })
    }

    fn append(
        &self,
        ino: InodeId,
        handle: Handle,
        _offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written> {
        let at = self.getattr(ino)?.size;
        self.write(ino, handle, at, data, kill_set_id)
    }
}
