//! Broken file systems must be caught.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use varve_env::sim::SimEnv;
use varve_testkit::fsops::Lockstep;
use varve_testkit::model::ModelFs;
use varve_types::{FileName, InodeId};
use varve_vfs::{
    AccessMode, AllocateMode, Attr, Caller, DirEntry, Entry, FsResult, Handle, OpenFlags, Opened,
    Position, RenameMode, SeekFrom, SetAttr, StatFs, TreeUsage, Vfs, Written, XattrMode,
};

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// Nothing.
    None,
    /// An unlink is acknowledged and not done.
    DropsUnlink,
    /// Bytes read are not those written.
    FlipsByte,
    /// A rename that must not replace does.
    ReplacesOnNoReplace,
    /// A listing leaves out its last name.
    HidesName,
    /// A chmod does nothing.
    IgnoresChmod,
    /// A write near the end of the file loses its last byte.
    ShortWrite,
    /// An extended attribute cannot be removed.
    KeepsXattr,
    /// A refusal says the wrong reason.
    WrongErrno,
    /// What lies below a directory is told without its subdirectories.
    ForgetsSubtrees,
}

/// The model, wrapped; the bug strikes at every `EVERY`th chance.
struct Broken {
    inner: ModelFs,
    bug: Bug,
    chances: AtomicU64,
}

const EVERY: u64 = 6;

impl Broken {
    fn strikes(&self, bug: Bug) -> bool {
        self.bug == bug && self.chances.fetch_add(1, Ordering::Relaxed) % EVERY == EVERY - 1
    }
}

/// Runs the comparison on a file system with `bug`; true if it is caught.
fn is_caught(bug: Bug, seed: u64) -> bool {
    let fs = Broken { inner: ModelFs::new(SimEnv::new(seed)), bug, chances: AtomicU64::new(0) };
    let mut lockstep = Lockstep::new(seed);
    let ran = lockstep.run(&fs, 5000).and_then(|()| lockstep.check_tree(&fs));
    ran.and_then(|()| lockstep.check_usage(&fs)).is_err()
}

#[test]
fn canary_a_broken_file_system_is_caught() {
    let bugs = [
        Bug::DropsUnlink,
        Bug::FlipsByte,
        Bug::ReplacesOnNoReplace,
        Bug::HidesName,
        Bug::IgnoresChmod,
        Bug::ShortWrite,
        Bug::KeepsXattr,
        Bug::WrongErrno,
        Bug::ForgetsSubtrees,
    ];
    for bug in bugs {
        for seed in 0..4 {
            assert!(is_caught(bug, seed), "{bug:?} went through with seed {seed}");
        }
    }
}

#[test]
fn a_sound_file_system_is_not_caught() {
    for seed in 0..4 {
        assert!(!is_caught(Bug::None, seed));
    }
}

impl Vfs for Broken {
    fn unlink(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        if self.strikes(Bug::DropsUnlink) {
            return Ok(());
        }
        self.inner.unlink(parent, name)
    }

    fn read(&self, ino: InodeId, handle: Handle, offset: u64, len: usize) -> FsResult<Bytes> {
        let bytes = self.inner.read(ino, handle, offset, len)?;
        if !bytes.is_empty() && self.strikes(Bug::FlipsByte) {
            let mut flipped = bytes.to_vec();
            flipped[0] ^= 1;
            return Ok(flipped.into());
        }
        Ok(bytes)
    }

    fn rename(
        &self,
        parent: InodeId,
        name: FileName<'_>,
        new_parent: InodeId,
        new_name: FileName<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        let replaces = mode == RenameMode::NoReplace && self.strikes(Bug::ReplacesOnNoReplace);
        let mode = if replaces { RenameMode::Replace } else { mode };
        self.inner.rename(parent, name, new_parent, new_name, mode)
    }

    fn readdir(
        &self,
        ino: InodeId,
        cookie: u64,
        with_attr: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        let hides = self.strikes(Bug::HidesName);
        self.inner.readdir(ino, cookie, with_attr, &mut |entry| {
            (hides && entry.name == b"a") || emit(entry)
        })
    }

    fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> FsResult<Attr> {
        if set.perm.is_some() && self.strikes(Bug::IgnoresChmod) {
            return self.inner.setattr(caller, ino, SetAttr { perm: None, ..set });
        }
        self.inner.setattr(caller, ino, set)
    }

    fn write(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written> {
        if data.len() > 1 && self.strikes(Bug::ShortWrite) {
            let part = &data[..data.len() - 1];
            let written = self.inner.write(ino, handle, offset, part, kill_set_id)?;
            return Ok(Written { bytes: data.len(), ..written });
        }
        self.inner.write(ino, handle, offset, data, kill_set_id)
    }

    fn removexattr(&self, ino: InodeId, name: &[u8]) -> FsResult<()> {
        if self.strikes(Bug::KeepsXattr) {
            return self.inner.getxattr(ino, name).map(drop);
        }
        self.inner.removexattr(ino, name)
    }

    fn rmdir(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        let result = self.inner.rmdir(parent, name);
        if result.is_err() && self.strikes(Bug::WrongErrno) {
            return Err(varve_vfs::FsError::NotPermitted);
        }
        result
    }

    fn usage(&self, ino: InodeId) -> FsResult<TreeUsage> {
        let usage = self.inner.usage(ino)?;
        if usage.dirs > 0 && self.strikes(Bug::ForgetsSubtrees) {
            return Ok(TreeUsage { dirs: usage.dirs - 1, ..usage });
        }
        Ok(usage)
    }

    fn lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        self.inner.lookup(parent, name)
    }

    fn lookup_parent(&self, dir: InodeId) -> FsResult<Entry> {
        self.inner.lookup_parent(dir)
    }

    fn forget(&self, ino: InodeId, lookups: u64) {
        self.inner.forget(ino, lookups);
    }

    fn getattr(&self, ino: InodeId) -> FsResult<Attr> {
        self.inner.getattr(ino)
    }

    fn readlink(&self, ino: InodeId) -> FsResult<Bytes> {
        self.inner.readlink(ino)
    }

    fn mknod(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        mode: u32,
        rdev: u32,
    ) -> FsResult<Entry> {
        self.inner.mknod(caller, parent, name, mode, rdev)
    }

    fn mkdir(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
    ) -> FsResult<Entry> {
        self.inner.mkdir(caller, parent, name, perm)
    }

    fn symlink(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        target: &[u8],
    ) -> FsResult<Entry> {
        self.inner.symlink(caller, parent, name, target)
    }

    fn link(&self, ino: InodeId, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        self.inner.link(ino, parent, name)
    }

    fn create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        self.inner.create(caller, parent, name, perm, flags)
    }

    fn tmpfile(
        &self,
        caller: Caller,
        parent: InodeId,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        self.inner.tmpfile(caller, parent, perm, flags)
    }

    fn open(&self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened> {
        self.inner.open(ino, flags)
    }

    fn with_passthrough(
        &self,
        handle: Handle,
        take: &mut dyn FnMut(BorrowedFd<'_>),
    ) -> FsResult<()> {
        self.inner.with_passthrough(handle, take)
    }

    fn release(&self, ino: InodeId, handle: Handle) -> FsResult<()> {
        self.inner.release(ino, handle)
    }

    fn fsync(&self, ino: InodeId, handle: Handle, data_only: bool) -> FsResult<()> {
        self.inner.fsync(ino, handle, data_only)
    }

    fn fsync_dir(&self, ino: InodeId) -> FsResult<()> {
        self.inner.fsync_dir(ino)
    }

    fn sync(&self) -> FsResult<()> {
        self.inner.sync()
    }

    fn statfs(&self) -> FsResult<StatFs> {
        self.inner.statfs()
    }

    fn access(
        &self,
        caller: Caller,
        groups: &[u32],
        ino: InodeId,
        mode: AccessMode,
    ) -> FsResult<()> {
        self.inner.access(caller, groups, ino, mode)
    }

    fn fallocate(
        &self,
        ino: InodeId,
        handle: Handle,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> FsResult<()> {
        self.inner.fallocate(ino, handle, mode, offset, len)
    }

    fn copy_range(&self, from: Position, to: Position, len: u64) -> FsResult<u64> {
        self.inner.copy_range(from, to, len)
    }

    fn lseek(&self, ino: InodeId, handle: Handle, offset: u64, what: SeekFrom) -> FsResult<u64> {
        self.inner.lseek(ino, handle, offset, what)
    }

    fn getxattr(&self, ino: InodeId, name: &[u8]) -> FsResult<Bytes> {
        self.inner.getxattr(ino, name)
    }

    fn setxattr(&self, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> FsResult<()> {
        self.inner.setxattr(ino, name, value, mode)
    }

    fn listxattr(&self, ino: InodeId) -> FsResult<Vec<u8>> {
        self.inner.listxattr(ino)
    }

    fn status_json(&self) -> String {
        self.inner.status_json()
    }
}
