//! A simulated machine with hooks before some of its calls.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use varve_env::sim::SimEnv;
use varve_env::{DirItem, Env, File, FileLock, FileStat, JoinHandle, OpenMode, Space};
use varve_types::Timestamp;

/// What a test does before calls reach the machine.
pub trait Hooks: fmt::Debug + Send + Sync + 'static {
    /// Before a file is opened, which an error prevents.
    fn before_open(&self, _path: &Path, _mode: OpenMode) -> io::Result<()> {
        Ok(())
    }

    /// After a file was opened, before the caller has it.
    fn after_open(&self, _path: &Path, _mode: OpenMode) {}

    /// After a directory was made, before the caller knows.
    fn after_create_dir(&self, _path: &Path) {}

    /// Before a file is removed.
    fn before_removal(&self, _path: &Path) {}

    /// What [`Env::is_deterministic`] answers; if false, stores run their own threads.
    fn is_deterministic(&self) -> bool;
}

/// A [`SimEnv`] behind hooks.
#[derive(Debug)]
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

impl<H: Hooks> Env for HookedEnv<H> {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.hooks.before_open(path, mode)?;
        let opened = self.sim.open(path, mode);
        self.hooks.after_open(path, mode);
        opened
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.sim.rename(from, to)
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
