//! A simulated machine on which the store runs its threads.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_env::sim::SimEnv;
use varve_env::{DirItem, Env, File, FileLock, FileStat, JoinHandle, OpenMode, Space};
use varve_types::Timestamp;

/// A [`SimEnv`] that does not ask for determinism, and on which compaction can be held.
#[derive(Debug)]
pub(crate) struct Threaded {
    sim: Arc<SimEnv>,
    compaction_is_held: Mutex<bool>,
    changed: Condvar,
}

impl Threaded {
    pub(crate) fn new(sim: &Arc<SimEnv>) -> Threaded {
        let compaction_is_held = Mutex::new(false);
        Threaded { sim: Arc::clone(sim), compaction_is_held, changed: Condvar::new() }
    }

    /// Lets compactions begin no table, or go on.
    pub(crate) fn hold_compaction(&self, hold: bool) {
        *self.compaction_is_held.lock() = hold;
        self.changed.notify_all();
    }

    fn wait_if_held(&self) {
        if std::thread::current().name() != Some("varve-compact") {
            return;
        }
        let mut held = self.compaction_is_held.lock();
        while *held {
            self.changed.wait(&mut held);
        }
    }
}

impl Env for Threaded {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        if mode == OpenMode::CreateNew {
            self.wait_if_held();
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
        false
    }
}
