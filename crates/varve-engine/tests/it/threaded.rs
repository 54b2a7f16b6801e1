//! A simulated machine on which the store runs its threads.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use varve_env::sim::SimEnv;
use varve_env::{DirItem, Env, File, FileLock, FileStat, JoinHandle, OpenMode, Space};
use varve_types::Timestamp;

/// A [`SimEnv`] that does not ask for determinism.
#[derive(Debug)]
pub(crate) struct Threaded(pub(crate) Arc<SimEnv>);

impl Env for Threaded {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.0.open(path, mode)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.0.remove_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirItem>> {
        self.0.list(dir)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        self.0.stat(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.0.lock(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.0.space(path)
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn boot_id(&self) -> u128 {
        self.0.boot_id()
    }

    fn random(&self) -> u64 {
        self.0.random()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        self.0.spawn(name, body)
    }

    fn sleep(&self, duration: Duration) {
        self.0.sleep(duration);
    }

    fn is_deterministic(&self) -> bool {
        false
    }
}
