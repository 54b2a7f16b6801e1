//! A simulated machine on which something happens while a file is opened or removed.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use varve_env::sim::SimEnv;
use varve_env::{DirItem, Env, File, FileLock, FileStat, JoinHandle, OpenMode, Space};
use varve_types::Timestamp;

/// What happens instead of one opening, which fails.
pub(crate) type Instead = Box<dyn FnOnce() + Send>;

/// What happens before each removal of an object file.
pub(crate) type BeforeRemoval = Arc<dyn Fn() + Send + Sync>;

/// A [`SimEnv`] whose next opening of an object file fails, after something else happened.
pub(crate) struct Interposed {
    pub(crate) sim: Arc<SimEnv>,
    pub(crate) instead: Mutex<Option<Instead>>,
    pub(crate) before_removal: Mutex<Option<BeforeRemoval>>,
    threads: bool,
}

impl Interposed {
    /// The machine as it is, until [`Interposed::instead`] is set.
    pub(crate) fn new(sim: &Arc<SimEnv>) -> Interposed {
        let (instead, before_removal) = (Mutex::new(None), Mutex::new(None));
        Interposed { sim: Arc::clone(sim), instead, before_removal, threads: false }
    }

    /// The same with the file system's own threads.
    pub(crate) fn with_threads(sim: &Arc<SimEnv>) -> Interposed {
        Interposed { threads: true, ..Interposed::new(sim) }
    }
}

impl fmt::Debug for Interposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interposed").field(&self.sim).finish()
    }
}

impl Env for Interposed {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        const EIO: i32 = 5;
        if path.to_string_lossy().contains("/objects/")
            && let Some(instead) = self.instead.lock().take()
        {
            instead();
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.sim.open(path, mode)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.sim.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.sim.link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let before = self.before_removal.lock().clone();
        if let Some(before) = before.filter(|_| path.to_string_lossy().contains("/objects/")) {
            before();
        }
        self.sim.remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.sim.create_dir(path)
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
        !self.threads
    }
}
