//! A simulated machine with hooks before and after some of its calls.
//!
//! Invariant: a call without a hook reaches the machine unchanged.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use varve_env::sim::SimEnv;
use varve_env::{
    Allocate, DirItem, Env, File, FileLock, FileStat, JoinHandle, OpenMode, Seek, Space, Watch,
    Window,
};
use varve_types::Timestamp;

/// What happens before something.
pub type Before = Arc<dyn Fn() + Send + Sync>;

/// What becomes of a time that is set.
pub type AsKept = fn(Timestamp) -> Timestamp;

/// What a test does before calls reach the machine.
pub trait Hooks: Send + Sync + 'static {
    /// Before a file is opened, which an error prevents.
    fn before_open(&self, _path: &Path, _mode: OpenMode) -> io::Result<()> {
        Ok(())
    }

    /// After a file was opened, before the caller has it.
    fn after_open(&self, _path: &Path, _mode: OpenMode) {}

    /// After a file has got its name `to`, before the caller knows.
    fn after_rename(&self, _to: &Path) {}

    /// After a directory was made, before the caller knows.
    fn after_create_dir(&self, _path: &Path) {}

    /// Before a file is removed.
    fn before_removal(&self, _path: &Path) {}

    /// Returns what happens before each sync of the file at `path`, which is being opened. None is copied from such a
    /// file.
    fn before_syncs_of(&self, _path: &Path) -> Option<Before> {
        None
    }

    /// Returns what becomes of times that are set on the file at `path`, which is being opened. None is copied from
    /// such a file.
    fn times_of(&self, _path: &Path) -> Option<AsKept> {
        None
    }

    /// Returns whether a sync of all below a directory is one of the whole storage.
    fn syncs_all_at_once(&self) -> bool {
        true
    }

    /// After all below a directory was synced, or could not be, before the caller knows.
    fn after_sync_below(&self) {}

    /// Returns what [`Env::is_deterministic`] answers; if false, stores run their own threads.
    fn is_deterministic(&self) -> bool {
        true
    }
}

/// A [`SimEnv`] behind hooks.
pub struct HookedEnv<H> {
    sim: Arc<SimEnv>,
    /// The hooks.
    pub hooks: H,
}

impl<H: Hooks> HookedEnv<H> {
    /// `sim` behind `hooks`.
    pub fn new(sim: &Arc<SimEnv>, hooks: H) -> HookedEnv<H> {
        HookedEnv { sim: Arc::clone(sim), hooks }
    }
}

impl<H> fmt::Debug for HookedEnv<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookedEnv").field("sim", &self.sim).finish_non_exhaustive()
    }
}

impl<H: Hooks> Env for HookedEnv<H> {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.hooks.before_open(path, mode)?;
        let opened = self.sim.open(path, mode);
        self.hooks.after_open(path, mode);
        match (self.hooks.before_syncs_of(path), self.hooks.times_of(path)) {
            (None, None) => opened,
            (before, as_kept) => Ok(Arc::new(HookedFile { file: opened?, before, as_kept })),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let renamed = self.sim.rename(from, to);
        self.hooks.after_rename(to);
        renamed
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.sim.link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.hooks.before_removal(path);
        self.sim.remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let made = self.sim.create_dir(path);
        self.hooks.after_create_dir(path);
        made
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.sim.remove_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirItem>> {
        self.sim.list(dir)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        self.sim.stat(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.sim.sync_dir(dir)
    }

    fn watch(&self, dir: &Path) -> io::Result<Watch> {
        if self.hooks.syncs_all_at_once() {
            Env::watch(self.sim.as_ref(), dir)
        } else {
            Ok(Watch::of_none())
        }
    }

    fn sync_below(&self, watch: &Watch, dir: &Path) -> io::Result<()> {
        let synced = self.sim.sync_below(watch, dir);
        self.hooks.after_sync_below();
        synced
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.sim.lock(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.sim.space(path)
    }

    fn now(&self) -> Timestamp {
        self.sim.now()
    }

    fn monotonic(&self) -> Duration {
        self.sim.monotonic()
    }

    fn boot_id(&self) -> u128 {
        self.sim.boot_id()
    }

    fn random(&self) -> u64 {
        self.sim.random()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        self.sim.spawn(name, body)
    }

    fn sleep(&self, duration: Duration) {
        self.sim.sleep(duration);
    }

    fn is_deterministic(&self) -> bool {
        self.hooks.is_deterministic()
    }
}

/// A file with hooks before its syncs and for its times.
struct HookedFile {
    file: Arc<dyn File>,
    before: Option<Before>,
    as_kept: Option<AsKept>,
}

impl HookedFile {
    fn before_sync(&self) {
        self.before.iter().for_each(|before| before());
    }

    fn kept(&self, time: Option<Timestamp>) -> Option<Timestamp> {
        time.map(|time| self.as_kept.map_or(time, |as_kept| as_kept(time)))
    }
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl File for HookedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.before_sync();
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.before_sync();
        self.file.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(how, offset, len)
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        self.file.seek(what, offset)
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.file.stat()
    }

    fn set_times(
        &self,
        accessed: Option<Timestamp>,
        modified: Option<Timestamp>,
    ) -> io::Result<()> {
        self.file.set_times(self.kept(accessed), self.kept(modified))
    }

    fn copy_from(&self, source: &dyn File, from: u64, to: u64, len: u64) -> io::Result<u64> {
        self.file.copy_from(source, from, to, len)
    }

    fn window(&self, offset: u64, len: u64) -> io::Result<Option<Box<dyn Window>>> {
        self.file.window(offset, len)
    }

    fn warm_room(&self, offset: u64, len: u64) {
        self.file.warm_room(offset, len);
    }

    fn has_writers(&self) -> io::Result<bool> {
        self.file.has_writers()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.fd()
    }
}
