//! The machine with the files of one directory on shared storage: [`RemoteEnv`].

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_env::{
    DirItem, Env, File, FileKind, FileLock, FileStat, JoinHandle, OpenMode, Space, Watch,
};
use varve_types::Timestamp;

use crate::collect::Collected;
use crate::file::{RemoteFile, stat_of};
use crate::options::Remote;
use crate::record::{Change, Owner};
use crate::requests::Requests;
use crate::store::{StorageCounts, Store};
use crate::tree::Found;

/// The space that an object store reports, in bytes: it has no end that it knows.
const SPACE_BYTES: u64 = 1 << 50;
/// The upkeep looks for work so often.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A machine that shows the files of a store on shared storage in the place of a local directory, the anchor.
///
/// Everything below the anchor is on the storage, except for lock files, which keep other processes of this machine away, while the
/// owner's fence does that to all others. They are in the anchor itself, with `-` for each `/` of their paths. Paths elsewhere, clocks and threads are those of the machine.
///
/// It promises what [`varve_env`] asks for, except for the first point: what was written and not synced is lost when the process dies.
/// [`Env::boot_id`] is another one in each process, so that recovery knows.
pub struct RemoteEnv {
    machine: Arc<dyn Env>,
    anchor: PathBuf,
    store: Arc<Store>,
    upkeep: Option<Upkeep>,
    locks: Arc<Locks>,
    /// It is a later state of one that is open, and shares its locks.
    is_later: bool,
}

/// The locks of all states of a store that this process reads, by name.
type Locks = Mutex<HashMap<String, Weak<dyn FileLock>>>;

/// A lock that several states of a store hold.
#[derive(Clone, Debug)]
pub struct SharedLock(pub Arc<dyn FileLock>);

impl FileLock for SharedLock {
    fn write_note(&self, note: &[u8]) -> io::Result<()> {
        self.0.write_note(note)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
}

/// The thread that runs [`keep_up`].
struct Upkeep {
    stop: Arc<Stop>,
    thread: Mutex<Option<Box<dyn JoinHandle>>>,
}

#[derive(Debug, Default)]
struct Stop {
    is_stopping: Mutex<bool>,
    stopping: Condvar,
}

impl fmt::Debug for RemoteEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteEnv")
            .field("anchor", &self.anchor)
            .field("address", &self.store.requests.address())
            .finish_non_exhaustive()
    }
}

/// Makes an empty store. Fails, and changes nothing, if there is an object below the prefix.
pub fn format(machine: &Arc<dyn Env>, remote: &Remote) -> io::Result<()> {
    Store::format(machine, &Arc::new(Requests::new(machine, remote)))
}

/// What is below the anchor.
enum At {
    /// The path in the store.
    Store(String),
    /// The machine's own file.
    Machine,
}

impl RemoteEnv {
    /// The newest state of a store, to read. Whoever writes there is not disturbed.
    pub fn read(
        machine: Arc<dyn Env>,
        anchor: &Path,
        remote: Remote,
    ) -> io::Result<Arc<RemoteEnv>> {
        let store = Store::read(Arc::clone(&machine), remote)?;
        let (locks, is_later) = (Arc::default(), false);
        let anchor = anchor.to_path_buf();
        Ok(Arc::new(RemoteEnv { machine, anchor, store, upkeep: None, locks, is_later }))
    }

    /// The newest state of the same store once more, to read. Both share their cache, their counts and their locks.
    pub fn read_again(&self) -> io::Result<Arc<RemoteEnv>> {
        let (machine, anchor) = (Arc::clone(&self.machine), self.anchor.clone());
        let (store, locks) = (self.store.read_again()?, Arc::clone(&self.locks));
        Ok(Arc::new(RemoteEnv { machine, anchor, store, upkeep: None, locks, is_later: true }))
    }

    /// Whether the owner has changed the store since this state was read, by one request. REQUIRES: this was the newest state
    /// less than [`RemoteEnv::reader_age`] ago; after that the owner may have removed what says so.
    pub fn is_behind(&self) -> io::Result<bool> {
        self.store.is_behind()
    }

    /// The place in the journal of the newest record of this state.
    pub fn seq(&self) -> u64 {
        self.store.live.lock().seq
    }

    /// How long a state can be read after it was the newest one: owners remove nothing of it earlier.
    pub fn reader_age(&self) -> Duration {
        self.store.options.reader_age
    }

    /// Becomes the owner of a store. Fails with `ResourceBusy` if another process owns it; its message says which, and for how long.
    /// `is_dead` tells of an owner for certain that it no longer runs.
    pub fn own(
        machine: Arc<dyn Env>,
        anchor: &Path,
        remote: Remote,
        owner: Owner,
        is_dead: impl Fn(&Owner) -> bool,
    ) -> io::Result<Arc<RemoteEnv>> {
        let store = Store::own(Arc::clone(&machine), remote, owner, is_dead)?;
        let upkeep = if machine.is_deterministic() {
            None
        } else {
            let (stop, of) = (Arc::new(Stop::default()), Arc::clone(&store));
            let thread = Arc::clone(&stop);
            let body = Box::new(move || keep_up(&of, &thread));
            let handle = machine.spawn("varve-storage", body)?;
            Some(Upkeep { stop, thread: Mutex::new(Some(handle)) })
        };
        let (locks, is_later) = (Arc::default(), false);
        let anchor = anchor.to_path_buf();
        Ok(Arc::new(RemoteEnv { machine, anchor, store, upkeep, locks, is_later }))
    }

    /// Makes everything durable, and gives the store up. Later changes fail.
    pub fn close(&self) -> io::Result<()> {
        self.end_upkeep();
        self.store.close()
    }

    fn end_upkeep(&self) {
        let Some(Upkeep { stop, thread }) = &self.upkeep else { return };
        *stop.is_stopping.lock() = true;
        stop.stopping.notify_all();
        if let Some(thread) = thread.lock().take() {
            // A panic has said what it is.
            let _ = thread.join();
        }
    }

    /// Finds the objects that nobody needs. If this process owns the store, they are removed once the oldest reader has moved on
    /// ([`crate::StoreOptions::reader_age`]), by this process or a later owner. Reads every directory.
    pub fn collect(&self) -> io::Result<Collected> {
        let collected = self.store.collect()?;
        self.store.upkeep()?;
        Ok(collected)
    }

    /// What was asked of the storage since the store was opened.
    pub fn counts(&self) -> StorageCounts {
        self.store.counts()
    }

    /// The address of the store.
    pub fn address(&self) -> String {
        self.store.requests.address()
    }

    fn lock_store(&self, name: String) -> io::Result<Option<Box<dyn FileLock>>> {
        let mut locks = self.locks.lock();
        let held = locks.get(&name).filter(|_| self.is_later).and_then(Weak::upgrade);
        if let Some(held) = held {
            return Ok(Some(Box::new(SharedLock(held))));
        }
        let Some(lock) = self.machine.lock(&self.anchor.join(&name))? else { return Ok(None) };
        let lock: Arc<dyn FileLock> = Arc::from(lock);
        locks.insert(name, Arc::downgrade(&lock));
        Ok(Some(Box::new(SharedLock(lock))))
    }

    fn at(&self, path: &Path) -> io::Result<At> {
        let Ok(below) = path.strip_prefix(&self.anchor) else { return Ok(At::Machine) };
        let mut names = Vec::new();
        for component in below.components() {
            match component {
                Component::Normal(name) => {
                    let name = name.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
                    names.push(name);
                }
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            }
        }
        Ok(At::Store(names.join("/")))
    }

    /// The paths of two names, which must both be in the store or both elsewhere.
    fn two(&self, one: &Path, other: &Path) -> io::Result<Option<(String, String)>> {
        match (self.at(one)?, self.at(other)?) {
            (At::Store(one), At::Store(other)) => Ok(Some((one, other))),
            (At::Machine, At::Machine) => Ok(None),
            _ => Err(io::ErrorKind::CrossesDevices.into()),
        }
    }
}

impl Drop for RemoteEnv {
    fn drop(&mut self) {
        self.end_upkeep();
    }
}

/// Renews the lease, writes what has waited long enough, and does the store's upkeep, until it is stopped.
fn keep_up(store: &Store, stop: &Stop) {
    let machine = &store.machine;
    let (mut renewed, mut flushed) = (machine.monotonic(), machine.monotonic());
    let mut is_stopping = stop.is_stopping.lock();
    while !*is_stopping {
        let interval = UPKEEP_INTERVAL.min(store.options.lease / 6);
        stop.stopping.wait_for(&mut is_stopping, interval);
        if *is_stopping {
            return;
        }
        drop(is_stopping);
        let now = machine.monotonic();
        let mut outcome = store.upkeep();
        if outcome.is_ok() && now.saturating_sub(renewed) >= store.options.lease / 3 {
            renewed = now;
            outcome = store.renew();
        }
        if outcome.is_ok() && now.saturating_sub(flushed) >= store.options.flush_interval {
            flushed = now;
            outcome = store.sync_all(|_| true);
        }
        if store.is_deposed() {
            return;
        }
        if let Err(error) = outcome {
            log::warn!("upkeep of the storage: {error}");
        }
        is_stopping = stop.is_stopping.lock();
    }
}

impl Env for RemoteEnv {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let At::Store(path) = self.at(path)? else { return self.machine.open(path, mode) };
        let can_write = mode != OpenMode::Read;
        let mut live = if can_write { self.store.change()? } else { self.store.files()? };
        let node = match live.tree.find(&path) {
            Ok(Found::File(_)) if mode == OpenMode::CreateNew => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Ok(Found::File(node)) => node,
            Ok(Found::Dir) => return Err(io::ErrorKind::IsADirectory.into()),
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && matches!(mode, OpenMode::CreateNew | OpenMode::CreateOrOpen) =>
            {
                let now = self.machine.now();
                let node = live.tree.make(&path, now)?;
                live.pending.push(Change::Make(path, now.into()));
                node
            }
            Err(error) => return Err(error),
        };
        let file = RemoteFile::open(&self.store, node, can_write);
        drop(live);
        Ok(Arc::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let Some((from, to)) = self.two(from, to)? else { return self.machine.rename(from, to) };
        let mut live = self.store.change()?;
        live.tree.rename(&from, &to)?;
        live.pending.push(Change::Rename { from, to });
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let Some((from, to)) = self.two(from, to)? else { return self.machine.link(from, to) };
        let node = self.store.change()?.tree.file(&from)?;
        self.store.sync(&node)?;
        let mut live = self.store.change()?;
        live.tree.link(&from, &to)?;
        live.pending.push(Change::Link { from, to });
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let At::Store(path) = self.at(path)? else { return self.machine.remove_file(path) };
        let mut live = self.store.change()?;
        live.tree.remove(&path)?;
        live.pending.push(Change::Remove(path));
        Ok(())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let At::Store(path) = self.at(path)? else { return self.machine.create_dir(path) };
        let mut live = self.store.change()?;
        live.tree.make_dir(&path)?;
        live.pending.push(Change::MakeDir(path));
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let At::Store(path) = self.at(path)? else { return self.machine.remove_dir(path) };
        let mut live = self.store.change()?;
        live.tree.remove_dir(&path)?;
        live.pending.push(Change::RemoveDir(path));
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirItem>> {
        let At::Store(path) = self.at(dir)? else { return self.machine.list(dir) };
        let names = self.store.files()?.tree.list(&path)?;
        Ok(names.into_iter().map(|(name, kind)| DirItem { name: name.into(), kind }).collect())
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        let At::Store(path) = self.at(path)? else { return self.machine.stat(path) };
        match self.store.files()?.tree.find(&path)? {
            Found::File(node) => Ok(stat_of(&node)),
            Found::Dir => {
                let (modified, accessed) = (Timestamp::EPOCH, Timestamp::EPOCH);
                Ok(FileStat { kind: FileKind::Dir, len: 0, allocated: 0, modified, accessed })
            }
        }
    }

    fn confine(&self, dir: &Path) -> io::Result<()> {
        self.machine.confine(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        match self.at(dir)? {
            At::Store(_) => self.store.commit(&[]),
            // The anchor's own directory, whose name is not in the store.
            At::Machine => self.machine.sync_dir(dir),
        }
    }

    fn watch(&self, dir: &Path) -> io::Result<Watch> {
        match self.at(dir)? {
            At::Store(_) => Ok(Watch::of_none()),
            At::Machine => self.machine.watch(dir),
        }
    }

    fn sync_below(&self, watch: &Watch, dir: &Path) -> io::Result<()> {
        let At::Store(path) = self.at(dir)? else { return self.machine.sync_below(watch, dir) };
        self.store.sync_all(|file| {
            path.is_empty() || file.strip_prefix(&path).is_some_and(|rest| rest.starts_with('/'))
        })
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        match self.at(path)? {
            At::Store(name) => self.lock_store(name.replace('/', "-")),
            At::Machine => self.machine.lock(path),
        }
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        match self.at(path)? {
            At::Store(_) => Ok(Space {
                total_bytes: SPACE_BYTES,
                free_bytes: SPACE_BYTES,
                available_bytes: SPACE_BYTES,
            }),
            At::Machine => self.machine.space(path),
        }
    }

    fn now(&self) -> Timestamp {
        self.machine.now()
    }

    fn monotonic(&self) -> Duration {
        self.machine.monotonic()
    }

    fn boot_id(&self) -> u128 {
        self.store.boot_id()
    }

    fn random(&self) -> u64 {
        self.machine.random()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        self.machine.spawn(name, body)
    }

    fn sleep(&self, duration: Duration) {
        self.machine.sleep(duration);
    }

    fn is_deterministic(&self) -> bool {
        self.machine.is_deterministic()
    }

    fn storage_counters(&self) -> Vec<(&'static str, u64)> {
        self.store.counts().named()
    }
}
