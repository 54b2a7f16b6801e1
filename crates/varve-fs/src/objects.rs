//! Large files: one file each in the storage below, `objects/K/J/I` with J = I / 10000 and
//! K = J / 10000, where I is the inode id.
//!
//! An object that a row claims must be durable before that row is. The writer of such a row first calls
//! [`Objects::claim`] and marks the batch as depending on external data; the store then calls
//! [`Objects::sync_claimed`] before the batch becomes durable. Some objects are held open for that
//! ([`crate::descriptors`]). If there are more, one sync of the whole tree costs less than one for each; so it
//! is done too by the first sync of a process, which covers what earlier ones wrote, also in transactions that nobody has opened since
//! ([`crate::transactions`]).
//!
//! An object that was made since the last such sync, and that no row claims any more, need never be durable: it goes at once, mostly
//! without having been written to the device ([`Objects::remove_made`], [`crate::reaper`]).
//!
//! A view has objects of its own, `views/E/K/J/I`, where E is its epoch, for what it has made, and blocks of its own,
//! `views/E/K/J/I.blocks` ([`crate::overlay`]), for what it has changed; of all others it sees those of the store, as they
//! were when it began ([`crate::preimages`], [`crate::views`]).
//!
//! Source: TableFS 4.2.1.

mod durable;
mod install;
mod mapped;
mod paths;
mod stamps;
mod unclaimed;
mod view_file;
mod walk;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use varve_engine::{StoreError, StoreResult};
use varve_env::{Env, File, FileStat, OpenMode, Watch};
use varve_schema::overlay::OverlayKind;
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use crate::descriptors::{Claim, Descriptors};
use crate::epoch::Epoch;
use crate::error;
use crate::files::{copy_file, create_dirs_between, exists};
use crate::main_file::MainFile;
use crate::overlay::{Overlays, blocks_path};
use crate::preimages::Preimages;
use crate::superblock::{objects_dir, preimages_dir};
pub(crate) use install::Staged;
pub(crate) use mapped::Mapped;
#[cfg(test)]
pub(crate) use mapped::NOTED_MAX;
pub(crate) use paths::{begun_path, object_path};
pub(crate) use stamps::Stamp;
use stamps::Stamps;
use unclaimed::Unclaimed;
pub(crate) use view_file::Own;
use view_file::ViewFile;

/// Objects known to be made since the last sync. Of more it is not known.
const MADE_MAX: usize = 16_384;

/// Objects that are not removed, with why if it was tried.
pub(crate) type Left = Vec<(InodeId, Option<FsError>)>;

/// The object files of a store.
#[derive(Debug)]
pub(crate) struct Objects {
    env: Arc<dyn Env>,
    dir: PathBuf,
    claimed: Mutex<Claimed>,
    /// The first failed sync of an object. What was written before it is unknown, so nothing that
    /// depends on it may be called durable again.
    failed: OnceLock<String>,
    /// Held during a sync, so that the next one waits for its end.
    syncing: Mutex<()>,
    unclaimed: Unclaimed,
    storage: Arc<Storage>,
    /// Those of the store and of all its views.
    overlays: Arc<Overlays>,
    /// Held for reading while several bytes are read that must belong together, for writing while a commit changes
    /// objects. Whoever holds it waits for no lock of a row.
    pub(crate) installing: RwLock<()>,
    /// Of a view: held while an object of its own is made.
    making: Mutex<()>,
    origin: Origin,
    pub(crate) stamps: Stamps,
    /// Those of the store that were closed and may still be written to; its views know of them, too.
    pub(crate) mapped: Arc<Mapped>,
}

/// Where the bytes of objects that are not in the directory are.
#[derive(Debug)]
enum Origin {
    /// Nowhere: these are the store's own. What views still see of them has preimages.
    Store(Arc<Preimages>),
    /// In the store, as a view of this epoch sees it; `None`: as it is, which locks keep so.
    View { store: Arc<Objects>, epoch: Option<Epoch> },
}

/// The storage below a store and all its views.
#[derive(Debug)]
struct Storage {
    /// Opened before anything is written.
    watch: Watch,
    /// Held by the one who asks it: it tells of a failure once, and whoever hears of it tells all others by `failed`.
    asking: Mutex<()>,
    /// The first sync of all that failed. It tells of whatever failed, in whose objects ever, and only once.
    failed: OnceLock<String>,
    descriptors: Arc<Descriptors>,
}

#[derive(Debug, Default)]
struct Claimed {
    files: BTreeMap<InodeId, (Arc<dyn File>, Claim)>,
    /// There are others.
    more: bool,
    /// Nothing becomes durable any more that claims one.
    ended: bool,
    /// The objects made since: no row that claims one of them is durable.
    made: HashSet<InodeId>,
    /// Directories with new names.
    dirs: BTreeSet<PathBuf>,
}

impl Claimed {
    /// What has been claimed until now.
    fn take(&mut self) -> Claimed {
        let ended = self.ended;
        std::mem::replace(self, Claimed { ended, ..Claimed::default() })
    }
}

impl Objects {
    /// The objects of the store in `store`, which nobody has written to yet. At most `open_max` are open at once, objects of views included.
    pub(crate) fn new(env: Arc<dyn Env>, store: &Path, open_max: usize) -> StoreResult<Objects> {
        let fail = |source| StoreError::Io { action: "open", path: store.to_path_buf(), source };
        let (watch, asking) = (env.watch(store).map_err(fail)?, Mutex::default());
        let descriptors = Arc::new(Descriptors::new(open_max));
        let storage = Arc::new(Storage { watch, asking, failed: OnceLock::new(), descriptors });
        let overlays = Arc::new(Overlays::new(Arc::clone(&env)));
        let preimages =
            Preimages::new(Arc::clone(&env), preimages_dir(store), Arc::clone(&overlays));
        let origin = Origin::Store(Arc::new(preimages));
        Ok(Objects::with(env, objects_dir(store), (storage, overlays, Arc::default()), origin))
    }

    /// Those of a view, whose own are in `dir`: it sees the others as of the epoch `epoch`, or as they are. REQUIRES: these are
    /// the store's.
    pub(crate) fn of_view(self: &Arc<Self>, dir: PathBuf, epoch: Option<Epoch>) -> Objects {
        let origin = Origin::View { store: Arc::clone(self), epoch };
        let shared =
            (Arc::clone(&self.storage), Arc::clone(&self.overlays), Arc::clone(&self.mapped));
        Objects::with(Arc::clone(&self.env), dir, shared, origin)
    }

    fn with(
        env: Arc<dyn Env>,
        dir: PathBuf,
        (storage, overlays, mapped): (Arc<Storage>, Arc<Overlays>, Arc<Mapped>),
        origin: Origin,
    ) -> Objects {
        // A copy of a store may lack their directory.
        let may_be_left = exists(env.as_ref(), &dir).unwrap_or(true);
        Objects {
            env,
            dir,
            claimed: Mutex::default(),
            failed: OnceLock::new(),
            syncing: Mutex::default(),
            unclaimed: Unclaimed::new(may_be_left),
            storage,
            overlays,
            installing: RwLock::default(),
            making: Mutex::default(),
            origin,
            stamps: Stamps::default(),
            mapped,
        }
    }

    /// Those of the store and of all its views.
    pub(crate) fn descriptors(&self) -> &Descriptors {
        &self.storage.descriptors
    }

    /// By what objects are removed and installed: it takes room that is held for that where there is no other.
    fn freeing(&self) -> &Arc<dyn Env> {
        match &self.origin {
            Origin::Store(preimages) => preimages.freeing(),
            Origin::View { store, .. } => store.freeing(),
        }
    }

    /// The preimages of the store's objects; `None` for those of a view.
    pub(crate) fn preimages(&self) -> Option<&Arc<Preimages>> {
        match &self.origin {
            Origin::Store(preimages) => Some(preimages),
            Origin::View { .. } => None,
        }
    }

    /// Saves all of the object of `ino` for the views that see it, before a change that is not reported.
    pub(crate) fn save_all(&self, ino: InodeId) -> FsResult<()> {
        let Some(preimages) = self.preimages() else { return Ok(()) };
        let path = self.path(ino);
        preimages
            .save_all(ino, &path)
            .map_err(|error| error::object("keep for a view", &path, error))
    }

    /// Whether the object of `ino` may be changed without a report, without copying it.
    pub(crate) fn is_free(&self, ino: InodeId, object: &dyn File) -> FsResult<bool> {
        let Some(preimages) = self.preimages() else { return Ok(true) };
        let fail = |error| error::object("keep for a view", &self.path(ino), error);
        preimages.is_free(ino, object).map_err(fail)
    }

    /// The object of `ino`, which is `file`, to read and change it.
    pub(crate) fn wrap(&self, ino: InodeId, file: Arc<dyn File>) -> Arc<dyn File> {
        match self.preimages() {
            Some(preimages) => Arc::new(MainFile::new(Arc::clone(preimages), ino, file)),
            None => file,
        }
    }

    /// Of a view: calls `with` with the object of `ino` in the store, as the view sees it.
    pub(crate) fn read_origin<T>(
        &self,
        ino: InodeId,
        with: impl FnOnce(&dyn File) -> io::Result<T>,
    ) -> io::Result<T> {
        match &self.origin {
            Origin::View { store, epoch } => store.read_as_of(*epoch, ino, with),
            Origin::Store(_) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Of the store: calls `with` with the object of `ino` as a view of `epoch` sees it, or as it is.
    pub(crate) fn read_as_of<T>(
        &self,
        epoch: Option<Epoch>,
        ino: InodeId,
        with: impl FnOnce(&dyn File) -> io::Result<T>,
    ) -> io::Result<T> {
        let path = self.path(ino);
        match (self.preimages(), epoch) {
            (Some(preimages), Some(epoch)) => preimages.read(epoch, ino, &path, with),
            (Some(_), None) => with(self.env.open(&path, OpenMode::Read)?.as_ref()),
            (None, _) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Of the store: whether somebody has the object of `ino` open for writing, besides this program.
    pub(crate) fn has_writers(&self, ino: InodeId) -> FsResult<bool> {
        // It is open for writing, too.
        self.descriptors().close(ino);
        let path = self.path(ino);
        let object = match self.env.open(&path, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            object => object.map_err(|error| error::object("open", &path, error))?,
        };
        self.claim_by(ino, &object);
        object.has_writers().map_err(|error| error::object("ask who writes to", &path, error))
    }

    /// Of a view: whether somebody who has closed the object of `ino` in the store goes on writing to it.
    pub(crate) fn is_mapped_below(&self, ino: InodeId) -> FsResult<bool> {
        match &self.origin {
            Origin::View { store, .. }
                if self.mapped.is_noted(ino) && store.has_writers(ino)? =>
            {
                // A sync under way has it open for writing.
                drop(store.syncing.lock());
                store.has_writers(ino)
            }
            _ => Ok(false),
        }
    }

    /// The path of the object of `ino`.
    pub(crate) fn path(&self, ino: InodeId) -> PathBuf {
        object_path(&self.dir, ino)
    }

    /// Makes an empty object, also where an earlier one was left over. No view sees it yet; who changes it later does so
    /// by [`Objects::wrap`].
    pub(crate) fn create(&self, ino: InodeId) -> FsResult<Arc<dyn File>> {
        let path = self.path(ino);
        let make = || match self.env.open(&path, OpenMode::CreateNew) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create_dirs(&path)?;
                self.env.open(&path, OpenMode::CreateNew)
            }
            made => made,
        };
        let fail = |error| error::object("create", &path, error);
        match make() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Which rows have claimed it is not known here, so it is not among those made since the last sync. Only here is it
                // cut, as ext4 writes a file that was cut to nothing to the device when it is closed.
                let left = self.env.open(&path, OpenMode::ReadWrite);
                left.and_then(|file| file.set_len(0).map(|()| file)).map_err(fail)
            }
            made => {
                let made = made.map_err(fail)?;
                let mut claimed = self.claimed.lock();
                if claimed.made.len() < MADE_MAX {
                    claimed.made.insert(ino);
                }
                Ok(made)
            }
        }
    }

    fn create_dirs(&self, path: &Path) -> io::Result<()> {
        self.create_dirs_by(&self.env, path)
    }

    fn create_dirs_by(&self, env: &Arc<dyn Env>, path: &Path) -> io::Result<()> {
        let Some(upper) = path.parent().and_then(Path::parent) else { return Ok(()) };
        let top = self.dir.parent().and_then(Path::parent);
        // Whoever claims a file in what is made here has both parents synced, also if someone else made it a moment ago.
        let mut claimed = self.claimed.lock();
        create_dirs_between(env.as_ref(), top, path)?;
        claimed.dirs.insert(self.dir.clone());
        if self.preimages().is_none() {
            // The directory of a view's own is made with its first object.
            claimed.dirs.extend(self.dir.ancestors().skip(1).take(2).map(Path::to_path_buf));
        }
        claimed.dirs.insert(upper.to_path_buf());
        Ok(())
    }

    /// Opens the object of `ino`.
    pub(crate) fn open(self: &Arc<Self>, ino: InodeId, mode: OpenMode) -> FsResult<Arc<dyn File>> {
        let path = self.path(ino);
        if let Origin::View { .. } = self.origin {
            return Ok(Arc::new(ViewFile::new(Arc::clone(self), ino)));
        }
        let file =
            self.env.open(&path, mode).map_err(|error| error::object("open", &path, error))?;
        Ok(self.wrap(ino, file))
    }

    /// What the storage below says of the object of `ino`.
    pub(crate) fn stat(self: &Arc<Self>, ino: InodeId) -> FsResult<FileStat> {
        let path = self.path(ino);
        let stat = match &self.origin {
            Origin::View { .. } => ViewFile::new(Arc::clone(self), ino).stat(),
            Origin::Store(_) => self.env.stat(&path),
        };
        stat.map_err(|error| error::object("stat", &path, error))
    }

    /// Of a view: makes all that it sees of the object of `ino` a file of its own. REQUIRES: it has nothing of that.
    pub(crate) fn copy_own(self: &Arc<Self>, ino: InodeId) -> FsResult<()> {
        let path = self.path(ino);
        let begun = begun_path(&path);
        let copy = || {
            self.create_dirs(&path)?;
            // Asks for each piece anew, so that whoever changes the object need not wait for all.
            let seen = ViewFile::new(Arc::clone(self), ino);
            copy_file(self.env.as_ref(), &seen, &begun)?;
            self.env.rename(&begun, &path)
        };
        copy().map_err(|error| error::object("copy", &path, error))
    }

    /// Of a view: what it has of the object of `ino`.
    pub(crate) fn own(&self, ino: InodeId) -> io::Result<Option<Own>> {
        let path = self.path(ino);
        match self.env.open(&path, OpenMode::ReadWrite) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            file => return file.map(|file| Some(Own::All(file))),
        }
        Ok(self.overlays.get(&blocks_path(&path))?.map(Own::Blocks))
    }

    /// Whether it has anything.
    pub(crate) fn has_own(&self, ino: InodeId) -> io::Result<bool> {
        let path = self.path(ino);
        Ok(exists(self.env.as_ref(), &path)? || exists(self.env.as_ref(), &blocks_path(&path))?)
    }

    /// What it has of it, made if there is nothing: an empty file if it is to begin `anew`, else blocks over what the view saw until
    /// now.
    pub(crate) fn make_own(&self, ino: InodeId, anew: bool) -> io::Result<Own> {
        let _making = self.making.lock();
        if let Some(own) = self.own(ino)? {
            return Ok(own);
        }
        let path = self.path(ino);
        self.create_dirs(&path)?;
        let blocks = blocks_path(&path);
        let begin = || {
            let seen = self.read_origin(ino, |file| file.stat())?;
            self.overlays.begin(&blocks, OverlayKind::Written, &seen)
        };
        // It is synced, for which nobody else waits.
        let begun = if anew { None } else { Some(begin()?) };
        // Whoever finds it and syncs it has its name synced, too.
        let mut claimed = self.claimed.lock();
        let own = match begun {
            None => Own::All(self.env.open(&path, OpenMode::CreateNew)?),
            Some(begun) => Own::Blocks(self.overlays.put(&blocks, begun)?),
        };
        claimed.dirs.extend(path.parent().map(Path::to_path_buf));
        Ok(own)
    }

    /// The same, or `None` if there is no object of `ino`.
    pub(crate) fn find(&self, ino: InodeId) -> FsResult<Option<FileStat>> {
        let path = self.path(ino);
        match self.env.stat(&path) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error::object("stat", &path, error)),
        }
    }

    /// Removes the object of `ino`, not durably, if it was made since claimed objects were synced last and no view sees it. Does
    /// nothing else. REQUIRES: the batch is written after which no row claims it.
    ///
    /// After a power cut no row will miss it: before the next sync none that ever claimed it is there, as none is covered by a
    /// barrier, and from then on that batch is, which stands before the barrier.
    pub(crate) fn remove_made(&self, ino: InodeId) -> FsResult<()> {
        let Some(preimages) = self.preimages() else { return Ok(()) };
        {
            let mut claimed = self.claimed.lock();
            if !claimed.made.remove(&ino) || preimages.may_be_seen(ino) {
                return Ok(());
            }
            claimed.files.remove(&ino);
        }
        let path = self.path(ino);
        self.env.remove_file(&path).map_err(|error| error::object("remove", &path, error))
    }

    /// Removes the object of `ino`, durably, which no row has claimed and no view sees.
    pub(crate) fn remove_begun(&self, ino: InodeId) -> FsResult<()> {
        {
            let mut claimed = self.claimed.lock();
            claimed.files.remove(&ino);
            claimed.made.remove(&ino);
        }
        let path = self.path(ino);
        match self.env.remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error::object("remove", &path, error));
            }
            _ => {}
        }
        match path.parent().map_or(Ok(()), |dir| self.env.sync_dir(dir)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error::object("sync", &path, error))
            }
            _ => Ok(()),
        }
    }

    /// Removes the objects of `inos`, durably; those that are not there are no error.
    pub(crate) fn remove(&self, inos: &[InodeId]) -> FsResult<()> {
        let left = self.remove_while(inos, &|| true)?;
        left.into_iter().find_map(|(_, failed)| failed).map_or(Ok(()), Err)
    }

    /// The same until `go_on` says no before one. Gives those that are still there, each with why it could not be removed, if it
    /// was tried: none waits for another.
    pub(crate) fn remove_while(
        &self,
        inos: &[InodeId],
        go_on: &dyn Fn() -> bool,
    ) -> FsResult<Left> {
        let (mut kept, mut dirs, mut left) = (BTreeSet::new(), BTreeSet::new(), Left::new());
        for ino in inos {
            if !go_on() {
                left.push((*ino, None));
                continue;
            }
            self.claimed.lock().files.remove(ino);
            self.stamps.forget(*ino);
            let path = self.path(*ino);
            match self.remove_one(*ino, &path, &mut kept) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    left.push((*ino, Some(error::object("remove", &path, error))));
                }
                _ => dirs.extend(path.parent().map(Path::to_path_buf)),
            }
        }
        // What is kept has its new name before it loses the old one.
        let sync = || {
            kept.iter().rev().chain(&dirs).try_for_each(|dir| match self.env.sync_dir(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(error::object("sync", dir, error))
                }
                _ => Ok(()),
            })
        };
        self.preimages().map_or_else(sync, |versions| versions.marking(&kept, sync))?;
        Ok(left)
    }

    /// Removes the object at `path`, or moves it to where it is kept.
    fn remove_one(
        &self,
        ino: InodeId,
        path: &Path,
        unsynced: &mut BTreeSet<PathBuf>,
    ) -> io::Result<()> {
        match self.preimages() {
            Some(preimages) if preimages.take(ino, path, unsynced)? => Ok(()),
            _ => self.freeing().remove_file(path),
        }
    }

    /// Forgets the overlays below `dir`, which nobody uses any more.
    pub(crate) fn forget_below(&self, dir: &Path) {
        self.overlays.forget_below(dir);
    }

    /// Makes the object of `from` that of `to`, durably.
    pub(crate) fn rename(&self, from: InodeId, to: InodeId) -> FsResult<()> {
        let (from, to) = (self.path(from), self.path(to));
        let rename = || {
            self.create_dirs(&to)?;
            self.env.rename(&from, &to)?;
            for path in [&to, &from] {
                path.parent().map_or(Ok(()), |dir| self.env.sync_dir(dir))?;
            }
            self.sync_claimed()
        };
        rename().map_err(|error| error::object("rename", &from, error))
    }
}

#[cfg(test)]
mod tests;
