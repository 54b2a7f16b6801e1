//! Formats and opens a store, and finds the process that has it open.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use varve_engine::tuning::stored::stored_rows;
use varve_engine::{StoreDesign, StoreError};
use varve_env::os::OsEnv;
use varve_env::{Env, FileLock};
use varve_fs::superblock::{COPY_NAME, SUPERBLOCK_NAME, engine_dir, lock_path};
use varve_fs::{Dictionaries, FormatOptions, HandedOver, MountOptions, Superblock, VarveFs};
use varve_vfs::Vfs;

use varve_storage::{RemoteEnv, SharedLock, StorageCounts};

use crate::anchor;
use crate::follower::{self, Follower, Front};
use crate::machine::{self, Machine};
use crate::{Error, Result};

/// How long a store must stay locked before it counts as locked: longer than another process's call of [`holder`] keeps it locked.
pub const GLANCE: Duration = Duration::from_millis(50);

/// How often to check whether a store is free.
const RELEASE_POLL: Duration = Duration::from_millis(10);

/// An open store.
#[derive(Debug)]
pub struct FileSystem {
    shown: Shown,
    machine: Machine,
    dir: PathBuf,
    /// The file systems of transactions that are in use, by id: two for one transaction would not know of each other's changes.
    pub(crate) transactions: Mutex<BTreeMap<String, Weak<VarveFs>>>,
}

/// What an open store shows.
#[derive(Clone, Debug)]
enum Shown {
    /// Its present state, which this process may change, or the state that it had when it was opened.
    One(Arc<VarveFs>),
    /// The states that another machine makes, one after the other.
    Followed(Arc<Follower>),
}

/// A store that is locked and can be opened, also if its path has changed.
pub struct LockedStore {
    env: Arc<OsEnv>,
    lock: Box<dyn FileLock>,
    take_over: bool,
    follows: bool,
}

impl LockedStore {
    /// Opens a store on shared storage also if a process of another machine has it open, which then can do nothing with it any more.
    #[must_use]
    pub fn taking_over(self, take_over: bool) -> LockedStore {
        LockedStore { take_over, ..self }
    }

    /// Opens a store on shared storage, to read, so that it can follow its owner ([`FileSystem::follow`]). Its snapshots and transactions
    /// are no directories then, and it cannot be handed over.
    #[must_use]
    pub fn following(self, follows: bool) -> LockedStore {
        LockedStore { follows, ..self }
    }
}

impl FileSystem {
    /// Opens the store in `dir`. Fails if another process has it open. About SIGBUS see [`crate::open`].
    pub fn open(dir: &Path, options: &MountOptions) -> Result<FileSystem> {
        if anchor::is_anchor(dir) {
            return FileSystem::open_locked(dir, options, FileSystem::lock(dir)?);
        }
        let machine = Machine::to_read(dir)?;
        let fs = unless_locked(|| VarveFs::open(machine.env(), dir, options.clone()))?;
        Ok(FileSystem::new(fs, machine, dir))
    }

    /// Locks the store in `dir`, for [`FileSystem::open_locked`]. Fails if another process has it open.
    pub fn lock(dir: &Path) -> Result<LockedStore> {
        let env = OsEnv::new();
        superblock(dir)?;
        let lock = unless_locked(|| VarveFs::lock(&*env, dir))?;
        Ok(LockedStore { env, lock, take_over: false, follows: false })
    }

    /// Opens the store in `dir`, which the caller has locked.
    pub fn open_locked(
        dir: &Path,
        options: &MountOptions,
        LockedStore { env, lock, take_over, follows }: LockedStore,
    ) -> Result<FileSystem> {
        let machine = if options.read_only {
            Machine::to_read(dir)?
        } else {
            Machine::to_write(env, dir, take_over)?
        };
        if follows && let Some(remote) = machine.followed() {
            return FileSystem::open_followed(dir, options, &machine, remote, lock);
        }
        let opened = VarveFs::open_locked(machine.env(), dir, options.clone(), lock);
        let fs = opened.inspect_err(|_| drop(machine.close()))?;
        Ok(FileSystem::new(fs, machine, dir))
    }

    /// Opens the state of `remote`, and later ones when [`FileSystem::follow`] is called.
    fn open_followed(
        dir: &Path,
        options: &MountOptions,
        machine: &Machine,
        remote: Arc<RemoteEnv>,
        lock: Box<dyn FileLock>,
    ) -> Result<FileSystem> {
        let options = MountOptions {
            memory_budget_bytes: options.memory_budget_bytes / follower::STATES_MAX,
            ..options.clone()
        };
        let lock = SharedLock(Arc::from(lock));
        let path = dir.to_path_buf();
        let open = move |env| {
            let lock = Box::new(lock.clone());
            Ok(VarveFs::open_locked(env, &path, options.clone(), lock)?)
        };
        let follower = Follower::new(remote, Box::new(open))?;
        let (shown, dir) = (Shown::Followed(Arc::new(follower)), dir.to_path_buf());
        Ok(FileSystem { shown, machine: machine.alone(), dir, transactions: Mutex::default() })
    }

    /// Looks each `interval` whether the owner has changed the store, and moves on then; `front` is told what to forget. Does nothing for a
    /// store that was not opened to follow ([`LockedStore::following`]).
    pub fn follow(&self, front: Arc<dyn Front>, interval: Duration) -> Result<()> {
        let Shown::Followed(follower) = &self.shown else { return Ok(()) };
        follower.start(front, interval).map_err(|error| Error::machine("start a thread", error))
    }

    /// Whether it moves on as its owner changes the store.
    pub fn is_followed(&self) -> bool {
        matches!(self.shown, Shown::Followed(_))
    }

    /// Opens the store in `dir` with the state that [`FileSystem::hand_over`] returned in this process or another.
    pub fn resume(dir: &Path, options: &MountOptions, from: HandedOver) -> Result<FileSystem> {
        let machine = if options.read_only {
            Machine::to_read(dir)?
        } else {
            Machine::to_write(OsEnv::new(), dir, false)?
        };
        let fs = VarveFs::resume(machine.env(), dir, options.clone(), from)?;
        Ok(FileSystem::new(fs, machine, dir))
    }

    fn new(fs: VarveFs, machine: Machine, dir: &Path) -> FileSystem {
        let (shown, dir) = (Shown::One(Arc::new(fs)), dir.to_path_buf());
        FileSystem { shown, machine, dir, transactions: Mutex::default() }
    }

    /// What was asked of shared storage since the store was opened; `None` for a local store.
    pub fn storage_counts(&self) -> Option<StorageCounts> {
        match &self.shown {
            Shown::One(_) => self.machine.storage_counts(),
            Shown::Followed(follower) => Some(follower.remote().counts()),
        }
    }

    /// The directory of the store, also if its path has changed.
    pub fn directory(&self) -> Result<OwnedFd> {
        self.machine
            .local()
            .open_dir(&self.dir)
            .map_err(|error| Error::io("open", &self.dir, &error))
    }

    /// Gives an inode that the store holds back to its device, for a name that the caller makes in [`FileSystem::directory`] where the
    /// device has no other inode. False if there is none to give.
    pub fn lend_inode(&self) -> bool {
        self.inner().lend_inode()
    }

    /// Fails if the store cannot be handed over.
    pub fn check_hand_over(&self) -> Result<()> {
        match self.shown {
            Shown::One(_) => Ok(()),
            Shown::Followed(_) => {
                Err(Error::failed("a mount that follows its owner cannot be handed over")
                    .hint("unmount it, and mount it again with the new program"))
            }
        }
    }

    /// Closes the store and keeps it locked, for [`FileSystem::resume`]. REQUIRES: it was synced, no call is under way, and
    /// [`FileSystem::check_hand_over`] has succeeded.
    pub fn hand_over(self) -> Result<HandedOver> {
        self.check_hand_over()?;
        let handed_over = self.inner().hand_over()?;
        self.machine.close()?;
        Ok(handed_over)
    }

    /// The file system, with its calls beyond those of [`Vfs`]. Of a store that is followed, its present state.
    pub fn inner(&self) -> Arc<VarveFs> {
        self.present().get()
    }

    /// The file system that is the present one when it is asked for.
    pub fn present(&self) -> Present {
        Present(self.shown.clone())
    }

    /// The file system, to call or to serve.
    pub fn vfs(&self) -> Arc<dyn Vfs> {
        match &self.shown {
            Shown::One(fs) => Arc::<VarveFs>::clone(fs),
            Shown::Followed(follower) => Arc::<Follower>::clone(follower),
        }
    }

    /// The dictionaries.
    pub fn dictionaries(&self) -> Arc<Dictionaries> {
        Arc::clone(self.inner().dictionaries())
    }

    /// Makes everything durable and releases the store. Later calls of its [`Vfs`] fail.
    pub fn close(self) -> Result<()> {
        let closed = match &self.shown {
            Shown::One(fs) => fs.close().map_err(Error::from),
            Shown::Followed(follower) => follower.close(),
        };
        self.machine.close().and(closed)
    }
}

/// The present state of an open store.
#[derive(Clone, Debug)]
pub struct Present(Shown);

impl Present {
    /// The file system. A store that is followed keeps this state open for as long as somebody has it.
    pub fn get(&self) -> Arc<VarveFs> {
        match &self.0 {
            Shown::One(fs) => Arc::clone(fs),
            Shown::Followed(follower) => follower.fs(),
        }
    }
}

/// Calls `open`, and once more if the store seemed locked.
fn unless_locked<T>(
    open: impl Fn() -> std::result::Result<T, StoreError>,
) -> std::result::Result<T, StoreError> {
    match open() {
        Err(StoreError::Locked { .. }) => {
            OsEnv::new().sleep(GLANCE);
            open()
        }
        outcome => outcome,
    }
}

/// Formats a store in `dir`. Creates the directory if it is missing.
pub fn format(dir: &Path, options: &FormatOptions) -> Result<Superblock> {
    machine::format(dir)?;
    changing(dir, |env| varve_fs::format(&env, dir, options))
}

/// Makes a change to the store in `dir`, which no process has open.
pub(crate) fn changing<T, E: Into<Error>>(
    dir: &Path,
    change: impl FnOnce(Arc<dyn Env>) -> std::result::Result<T, E>,
) -> Result<T> {
    let machine = Machine::to_write(OsEnv::new(), dir, false)?;
    let changed = change(machine.env()).map_err(Into::into);
    let closed = machine.close();
    changed.and_then(|value| closed.map(|()| value))
}

/// The machine on which the files of the store in `dir` are read, also a file below `dir`. For a store on shared storage it shows the
/// newest state, and keeps what is written in memory.
pub fn machine_to_read(dir: &Path) -> Result<Arc<dyn Env>> {
    let anchor = dir.ancestors().find(|dir| anchor::is_anchor(dir));
    Ok(Machine::to_read(anchor.unwrap_or(dir))?.env())
}

/// The superblock of the store in `dir`.
pub fn superblock(dir: &Path) -> Result<Superblock> {
    Ok(Superblock::read(&*Machine::to_read(dir)?.env(), dir)?)
}

/// Changes the design of the store in `dir`: the layout of the tables that it writes after its next open.
pub fn change_design(dir: &Path, change: impl FnOnce(&mut StoreDesign)) -> Result<Superblock> {
    superblock(dir)?;
    require_free(dir)?;
    changing(dir, |env| Superblock::change_design(&*env, dir, change))
}

/// The versions of rows in the store in `dir`, and their bytes.
pub fn rows(dir: &Path) -> Result<(u64, u64)> {
    superblock(dir)?;
    Ok(stored_rows(&*Machine::to_read(dir)?.env(), &engine_dir(dir))?)
}

/// Whether `dir` looks like a store: has a superblock or its copy, of whatever content, or stands for a store on shared storage.
pub fn is_store(dir: &Path) -> bool {
    anchor::is_anchor(dir)
        || [SUPERBLOCK_NAME, COPY_NAME]
            .iter()
            .any(|name| OsEnv::new().stat(&dir.join(name)).is_ok())
}

/// A process that has a store open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its process id, if the lock names it.
    pub pid: Option<u32>,
    /// Where it has mounted the store, if the lock names that.
    #[serde(with = "varve_engine::paths")]
    pub mount_point: Option<PathBuf>,
}

impl Holder {
    /// Its description for messages.
    pub fn describe(&self) -> String {
        let pid =
            self.pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
        match &self.mount_point {
            Some(dir) => format!("{pid}, mounted on {}", dir.display()),
            None => pid,
        }
    }
}

/// The process that has the store in `dir` open; `None` if there is none.
pub fn holder(dir: &Path) -> Result<Option<Holder>> {
    let env = OsEnv::new();
    let path = lock_path(dir);
    // If it is no directory, opening it fails with the reason.
    let _ = env.confine(dir);
    // A store that was never opened has no lock file.
    if env.stat(&path).is_err() {
        return Ok(None);
    }
    match env.is_locked(&path) {
        Ok(false) => Ok(None),
        Ok(true) => {
            let unknown = Holder { pid: None, mount_point: None };
            let note = varve_fs::holder(&*env, dir);
            Ok(Some(note.and_then(|note| serde_json::from_str(&note).ok()).unwrap_or(unknown)))
        }
        Err(error) => Err(Error::io("lock", &path, &error)),
    }
}

/// Fails if another process has the store in `dir` open. One that was just killed releases it in a moment.
pub fn require_free(dir: &Path) -> Result<()> {
    let left = wait_until_free(dir, |_, waited| waited >= GLANCE)?;
    left.map_or(Ok(()), |holder| {
        let text = format!("{} is in use by {}", dir.display(), holder.describe());
        Err(Error::failed(text).hint("wait for that process or stop it"))
    })
}

/// Waits until no process has the store in `dir` open. `gives_up` is told again and again which process has it open, and how
/// long it was waited for; once it says yes that process is returned.
pub fn wait_until_free(
    dir: &Path,
    mut gives_up: impl FnMut(&Holder, Duration) -> bool,
) -> Result<Option<Holder>> {
    let begin = Instant::now();
    loop {
        let Some(holder) = holder(dir)? else { return Ok(None) };
        if gives_up(&holder, begin.elapsed()) {
            return Ok(Some(holder));
        }
        OsEnv::new().sleep(RELEASE_POLL);
    }
}
