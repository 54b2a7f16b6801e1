//! A store as a whole: format, open, who holds it.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
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
use varve_fuse::MountPoint;
use varve_vfs::Vfs;

use crate::mounting::find_mount;
use crate::upgrade::control;
use crate::views::store_and_view;
use crate::{Error, Result};

/// How long to wait before a store that cannot be locked counts as locked: longer than [`holder`] of another process takes
/// to see whether it is.
const GLANCE: Duration = Duration::from_millis(50);

/// How long a daemon whose mount is gone may take to close its store.
const CLOSING_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long it may go on to listen to clients before it counts as one that serves still: programs may have files open on a mount
/// that was taken away under them.
const LISTENING_WAIT_MAX: Duration = Duration::from_secs(1);

/// How often to ask whether it has.
const CLOSING_POLL: Duration = Duration::from_millis(10);

/// An open store.
#[derive(Debug)]
pub struct FileSystem {
    fs: Arc<VarveFs>,
    env: Arc<OsEnv>,
    dir: PathBuf,
    /// The file systems of transactions that are in use, by id: what one knows of its files the other would not.
    pub(crate) transactions: Mutex<BTreeMap<String, Weak<VarveFs>>>,
}

/// A store that is locked, to be opened: the same one, whatever its path leads to by then.
pub(crate) struct Locked {
    env: Arc<OsEnv>,
    lock: Box<dyn FileLock>,
}

impl FileSystem {
    /// Opens the store in `dir`. Fails if another process has it open. About SIGBUS see [`crate::open`].
    pub fn open(dir: &Path, options: &MountOptions) -> Result<FileSystem> {
        let env = OsEnv::new();
        let open = || VarveFs::open(Arc::<OsEnv>::clone(&env), dir, options.clone());
        let fs = unless_locked(open)?;
        Ok(FileSystem::new(fs, env, dir))
    }

    /// Locks the store in `dir`, to be opened. Fails if another process has it open.
    pub(crate) fn lock(dir: &Path) -> Result<Locked> {
        let env = OsEnv::new();
        let lock = unless_locked(|| VarveFs::lock(&*env, dir))?;
        Ok(Locked { env, lock })
    }

    /// Opens the store in `dir`, which the caller has locked.
    pub(crate) fn open_locked(
        dir: &Path,
        options: &MountOptions,
        Locked { env, lock }: Locked,
    ) -> Result<FileSystem> {
        let fs = VarveFs::open_locked(Arc::<OsEnv>::clone(&env), dir, options.clone(), lock)?;
        Ok(FileSystem::new(fs, env, dir))
    }

    /// Goes on with the store in `dir` where another process, or this one, has stopped.
    pub fn resume(dir: &Path, options: &MountOptions, from: HandedOver) -> Result<FileSystem> {
        let env = OsEnv::new();
        let fs = VarveFs::resume(Arc::<OsEnv>::clone(&env), dir, options.clone(), from)?;
        Ok(FileSystem::new(fs, env, dir))
    }

    fn new(fs: VarveFs, env: Arc<OsEnv>, dir: &Path) -> FileSystem {
        FileSystem { fs: Arc::new(fs), env, dir: dir.to_path_buf(), transactions: Mutex::default() }
    }

    /// The directory of the store, whatever its path leads to by now.
    pub(crate) fn directory(&self) -> Result<OwnedFd> {
        self.env.open_dir(&self.dir).map_err(|error| Error::io("open", &self.dir, &error))
    }

    /// Closes the store and keeps it locked for who goes on with it. REQUIRES: it was synced, and no call is
    /// under way.
    pub fn hand_over(self) -> Result<HandedOver> {
        Ok(self.fs.hand_over()?)
    }

    /// The file system, with what it offers beside the calls of a [`Vfs`].
    pub(crate) fn inner(&self) -> Arc<VarveFs> {
        Arc::clone(&self.fs)
    }

    /// The file system, to call or to serve.
    pub fn vfs(&self) -> Arc<dyn Vfs> {
        Arc::<VarveFs>::clone(&self.fs)
    }

    /// The dictionaries of its users.
    pub fn dictionaries(&self) -> &Arc<Dictionaries> {
        self.fs.dictionaries()
    }

    /// Makes everything durable and lets go of the store. Calls of a [`Vfs`] that is still around fail.
    pub fn close(self) -> Result<()> {
        Ok(self.fs.close()?)
    }
}

/// Does `open`, once more if the store seemed locked.
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

/// Makes a store in `dir`, which is created if it is missing.
pub fn format(dir: &Path, options: &FormatOptions) -> Result<Superblock> {
    let env: Arc<dyn Env> = OsEnv::new();
    Ok(varve_fs::format(&env, dir, options)?)
}

/// The superblock of the store in `dir`.
pub fn superblock(dir: &Path) -> Result<Superblock> {
    Superblock::read(&*OsEnv::new(), dir).map_err(unopened)
}

/// Why the superblock of a store cannot be read. What is no store may be a directory on a mount of one.
pub(crate) fn unopened(error: StoreError) -> Error {
    let StoreError::NotAStore { path } = &error else { return error.into() };
    let Ok(Some(mount)) = find_mount(path) else { return error.into() };
    let (store, _) = store_and_view(&mount.source);
    let (path, store) = (path.display(), store.display());
    Error::failed(format!("{path} is no store, it is on a mount of {store}"))
        .hint("unmount it, and name the store")
}

/// Changes what tables of the store in `dir` are made of, from its next open on.
pub fn change_design(dir: &Path, change: impl FnOnce(&mut StoreDesign)) -> Result<Superblock> {
    superblock(dir)?;
    require_free(dir)?;
    Ok(Superblock::change_design(&*OsEnv::new(), dir, change)?)
}

/// The versions of rows in the store in `dir`, and their bytes.
pub fn rows(dir: &Path) -> Result<(u64, u64)> {
    superblock(dir)?;
    Ok(stored_rows(&*OsEnv::new(), &engine_dir(dir))?)
}

/// Whether `dir` looks like a store: has a superblock or its copy, of whatever content.
pub fn is_store(dir: &Path) -> bool {
    [SUPERBLOCK_NAME, COPY_NAME].iter().any(|name| OsEnv::new().stat(&dir.join(name)).is_ok())
}

/// Why there is no store to be seen at `path`: who may not look there is told so, else it is `otherwise`.
pub(crate) fn unseen(path: &Path, otherwise: Error) -> Error {
    match OsEnv::new().stat(&path.join(SUPERBLOCK_NAME)) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Error::io("look for a store in", path, &error)
        }
        _ => otherwise,
    }
}

/// What a process that has a store open says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its process id, if it said so.
    pub pid: Option<u32>,
    /// Where it has mounted the store, if it has.
    #[serde(with = "varve_engine::paths")]
    pub mount_point: Option<PathBuf>,
}

impl Holder {
    /// For messages.
    pub fn describe(&self) -> String {
        let pid =
            self.pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
        match &self.mount_point {
            Some(dir) => format!("{pid}, mounted on {}", dir.display()),
            None => pid,
        }
    }

    /// Whether it has served a mount of `store` that is gone, so that it closes the store. A mount that only the holder and its
    /// children see is there.
    fn is_closing(&self, store: &Path) -> bool {
        if self.mount_point.is_none() || store.canonicalize().is_err() {
            return false;
        }
        let mounts = match self.pid.map(varve_fuse::find_mounts_of) {
            Some(Ok(mounts)) => Ok(mounts),
            // It is another user's, or has just ended.
            _ => varve_fuse::find_mounts(),
        };
        mounts.is_ok_and(|mounts| self.mount_among(&mounts, store).is_none())
    }

    /// Its mount of `store`, if whoever asks sees it.
    pub(crate) fn seen_mount(&self, store: &Path) -> io::Result<Option<MountPoint>> {
        let mounts = varve_fuse::find_mounts()?;
        Ok(self.mount_among(&mounts, store).cloned())
    }

    /// Its mount of `store`, of `mounts`: the directory may have been renamed meanwhile, or the store be told by another path; or
    /// another store be mounted there by now.
    fn mount_among<'a>(&self, mounts: &'a [MountPoint], store: &Path) -> Option<&'a MountPoint> {
        let is_its = |mount: &&MountPoint| {
            let source = Path::new(&mount.source);
            let is_of_store = store.canonicalize().is_ok_and(|store| source == store);
            let is_there = self.mount_point.as_ref() == Some(&mount.dir);
            (is_of_store, is_there && !are_two(source, store))
        };
        mounts.iter().filter(|mount| is_its(mount) != (false, false)).max_by_key(is_its)
    }
}

/// Whether two paths lead to two directories; what is not to be seen may be the other.
fn are_two(one: &Path, other: &Path) -> bool {
    let id = |path| std::fs::metadata(path).ok().map(|stat| (stat.dev(), stat.ino()));
    id(one).zip(id(other)).is_some_and(|(one, other)| one != other)
}

/// Who has the store in `dir` open; `None` if nobody has.
pub fn holder(dir: &Path) -> Result<Option<Holder>> {
    let env = OsEnv::new();
    let path = lock_path(dir);
    // What is no directory is no store either, and says so when it is opened.
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

/// An error if somebody has the store in `dir` open. Who has just been killed lets go of it in a moment, and whose mount was taken
/// away when all is written: umount(8) does not wait for that.
pub fn require_free(dir: &Path) -> Result<()> {
    wait_until_free(dir, |_| false)?.map_or(Ok(()), |in_use| Err(in_use.refusal(dir)))
}

/// Whether a daemon serves the store in `dir`, and so is to be asked; if not, the store can be opened. Between the two, while a
/// daemon whose mount is gone closes the store, it waits as [`require_free`] does.
pub(crate) fn is_served(dir: &Path) -> Result<bool> {
    let serves = |in_use: &InUse| match in_use {
        // Programs have files open on a mount that was taken away under them.
        InUse { closes: true, waited, .. } => {
            *waited >= LISTENING_WAIT_MAX && control::listens(dir)
        }
        InUse { holder, .. } => holder.mount_point.is_some() || control::listens(dir),
    };
    match wait_until_free(dir, serves)? {
        None => Ok(false),
        Some(in_use) if serves(&in_use) => Ok(true),
        Some(in_use) => Err(in_use.refusal(dir)),
    }
}

/// Somebody who has a store open.
struct InUse {
    holder: Holder,
    /// Its mount is gone.
    closes: bool,
    /// How long it was waited for.
    waited: Duration,
}

/// Waits until nobody has the store in `dir` open, for a limited time; not for whom `accepts` lets be.
fn wait_until_free(dir: &Path, accepts: impl Fn(&InUse) -> bool) -> Result<Option<InUse>> {
    let begin = Instant::now();
    loop {
        let Some(holder) = holder(dir)? else { return Ok(None) };
        let (closes, waited) = (holder.is_closing(dir), begin.elapsed());
        let in_use = InUse { holder, closes, waited };
        if waited >= (if closes { CLOSING_WAIT_MAX } else { GLANCE }) || accepts(&in_use) {
            return Ok(Some(in_use));
        }
        OsEnv::new().sleep(CLOSING_POLL);
    }
}

/// How one gets to a mount that only the process `pid` sees, and unmounts it.
pub fn words_of_private(pid: u32) -> String {
    format!("`nsenter --preserve-credentials -U -m -t {pid}` enters, `kill {pid}` unmounts")
}

impl InUse {
    /// What is told to who cannot use the store in `dir` for that.
    fn refusal(&self, dir: &Path) -> Error {
        let text = format!("{} is in use by {}", dir.display(), self.holder.describe());
        let error = Error::failed(text);
        match &self.holder.mount_point {
            Some(mount_point) if self.closes => error.hint(format!(
                "{} is unmounted: wait until the store is closed, when the last program that uses its files is done",
                mount_point.display()
            )),
            Some(mount_point) => {
                error.hint(match (self.holder.pid, self.holder.seen_mount(dir)) {
                    (Some(pid), Ok(None)) => {
                        format!("only process {pid} sees that mount: {}", words_of_private(pid))
                    }
                    (_, seen) => {
                        let seen = seen.ok().flatten().map(|mount| mount.dir);
                        let seen = seen.as_ref().unwrap_or(mount_point);
                        format!("`varve umount {}` first", seen.display())
                    }
                })
            }
            None => error.hint("wait for that process or stop it"),
        }
    }
}
