//! Versions of large files that are kept for views.
//!
//! A view, which is a snapshot or a transaction, sees rows as of its beginning, but the bytes of large files lie in
//! objects that the main view goes on to change in place. So whoever changes an object first keeps what views still
//! see of it, in a file of its own:
//!
//! ```text
//! kept/E/K/J/I      object I as the views up to E see it, E the newest view when I was changed
//! ```
//!
//! 1. Each view has an epoch: an inode id that was handed out for it. Later views have larger ones, and a file
//!    whose id is larger than an epoch is unknown to that view.
//! 2. Before an object changes it is copied to the place of the newest view ([`Kept::keep`]), unless it is younger than
//!    that view or kept there already. The copy is durable, with its name, before the object changes. An object
//!    that is removed moves there.
//! 3. A view of epoch `e` reads the first version at or after `e`, else the object ([`Kept::read`]).
//! 4. When a view ends, what is kept at its epoch moves to that of the view before it, which may need it, unless that
//!    has its own version ([`Kept::end`]).
//!
//! A copy shares the room of the original where the storage below can do so.
//!
//! Source: the deadlists of ZFS (`dsl_deadlist.c`) for 4; KVFS, thesis section 3.3, keeps whole tables instead.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use varve_env::{Env, File, FileKind, OpenMode};
use varve_types::InodeId;

use crate::objects::object_path;

/// The kept versions of a store's objects.
#[derive(Debug)]
pub(crate) struct Kept {
    env: Arc<dyn Env>,
    dir: PathBuf,
    /// The epochs of the views there are. Held for reading while a version is looked for and read, for writing when
    /// the version that views see has changed places: nobody reads the old place after that.
    epochs: RwLock<BTreeSet<InodeId>>,
    /// The newest epoch, or 0: so that without views nothing costs anything.
    newest: AtomicU64,
    /// Held by the one who keeps.
    keeping: Mutex<()>,
}

impl Kept {
    /// Those in `dir`, which need not exist.
    pub(crate) fn new(env: Arc<dyn Env>, dir: PathBuf) -> Kept {
        let (epochs, newest) = (RwLock::default(), AtomicU64::new(0));
        Kept { env, dir, epochs, newest, keeping: Mutex::new(()) }
    }

    /// From now on objects are kept for a view of this epoch.
    pub(crate) fn begin(&self, epoch: InodeId) {
        let mut epochs = self.epochs.write();
        epochs.insert(epoch);
        self.set_newest(&epochs);
    }

    fn set_newest(&self, epochs: &BTreeSet<InodeId>) {
        self.newest.store(epochs.last().map_or(0, |epoch| epoch.get()), Ordering::Release);
    }

    /// The place where object `ino` is to be kept before it changes, if a view may still see it.
    fn place_for(&self, ino: InodeId) -> io::Result<Option<PathBuf>> {
        let newest = InodeId::new(self.newest.load(Ordering::Acquire));
        if ino >= newest {
            return Ok(None);
        }
        let path = self.path(newest, ino);
        match self.env.stat(&path) {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(path)),
            Err(error) => Err(error),
        }
    }

    fn path(&self, epoch: InodeId, ino: InodeId) -> PathBuf {
        object_path(&self.dir.join(epoch.get().to_string()), ino)
    }

    /// Keeps the object `ino`, which lies at `object` and is about to change. When this returns, views do not see the
    /// change.
    pub(crate) fn keep(&self, ino: InodeId, object: &Path) -> io::Result<()> {
        if self.newest.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let _keeping = self.keeping.lock();
        let Some(path) = self.place_for(ino)? else { return Ok(()) };
        let original = match self.env.open(object, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            original => original?,
        };
        self.create_dirs(&path)?;
        let begun = path.with_extension("begun");
        copy_file(self.env.as_ref(), original.as_ref(), &begun)?;
        self.env.rename(&begun, &path)?;
        self.sync_dirs(&path)?;
        drop(self.epochs.write());
        Ok(())
    }

    /// Moves the object `ino`, which lies at `object` and is to be removed, to where it is kept. False if no view sees it.
    pub(crate) fn take(&self, ino: InodeId, object: &Path) -> io::Result<bool> {
        if self.newest.load(Ordering::Acquire) == 0 {
            return Ok(false);
        }
        let _keeping = self.keeping.lock();
        let Some(path) = self.place_for(ino)? else { return Ok(false) };
        self.create_dirs(&path)?;
        let _nobody_reads = self.epochs.write();
        match self.env.rename(object, &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            moved => moved?,
        }
        self.sync_dirs(&path)?;
        Ok(true)
    }

    /// Calls `with` with the object `ino` as a view of `epoch` sees it, which lies at `object` unless it is kept.
    pub(crate) fn read<T>(
        &self,
        epoch: InodeId,
        ino: InodeId,
        object: &Path,
        with: impl FnOnce(&dyn File) -> io::Result<T>,
    ) -> io::Result<T> {
        let epochs = self.epochs.read();
        for later in epochs.range(epoch..) {
            match self.env.open(&self.path(*later, ino), OpenMode::Read) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                kept => return with(kept?.as_ref()),
            }
        }
        with(self.env.open(object, OpenMode::Read)?.as_ref())
    }

    /// No view of this epoch is left: what nobody else needs goes. Costs what is kept there.
    pub(crate) fn end(&self, epoch: InodeId) -> io::Result<()> {
        let _keeping = self.keeping.lock();
        let before = self.epochs.read().range(..epoch).next_back().copied();
        let top = self.dir.join(epoch.get().to_string());
        for upper in self.list(&top)? {
            for lower in self.list(&upper)? {
                for path in self.list(&lower)? {
                    self.pass_on(&path, before)?;
                }
                self.env.remove_dir(&lower)?;
            }
            self.env.remove_dir(&upper)?;
        }
        let mut epochs = self.epochs.write();
        epochs.remove(&epoch);
        self.set_newest(&epochs);
        drop(epochs);
        match self.env.remove_dir(&top) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Moves the version at `path` to the epoch `before`, or removes it.
    fn pass_on(&self, path: &Path, before: Option<InodeId>) -> io::Result<()> {
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let needed = number.map(InodeId::new).zip(before).filter(|(ino, before)| ino < before);
        if let Some((ino, before)) = needed {
            let earlier = self.path(before, ino);
            if self.env.stat(&earlier).is_err() {
                self.create_dirs(&earlier)?;
                let _nobody_reads = self.epochs.write();
                self.env.rename(path, &earlier)?;
                return self.sync_dirs(&earlier);
            }
        }
        self.env.remove_file(path)
    }

    /// The objects that changed after the view `from` began and before the view `until` did, or until now: those that were
    /// kept in between. What was kept because a writer had it open may be as it was. Costs what is kept.
    pub(crate) fn changed_between(
        &self,
        from: InodeId,
        until: Option<InodeId>,
    ) -> io::Result<BTreeSet<InodeId>> {
        let _keeping = self.keeping.lock();
        let until = until.unwrap_or(InodeId::new(u64::MAX));
        let epochs: Vec<InodeId> = self.epochs.read().range(from..until).copied().collect();
        let mut changed = BTreeSet::new();
        for epoch in epochs {
            for upper in self.list(&self.dir.join(epoch.get().to_string()))? {
                for lower in self.list(&upper)? {
                    let kept = self.list(&lower)?;
                    let numbers =
                        kept.iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
                    changed.extend(numbers.map(InodeId::new));
                }
            }
        }
        Ok(changed)
    }

    /// The epochs of which something is kept although no such view is there any more: of views that were ending.
    pub(crate) fn ended(&self) -> io::Result<Vec<InodeId>> {
        let epochs = self.epochs.read();
        let listed = self.list(&self.dir)?.into_iter().filter_map(|path| {
            let epoch = InodeId::new(path.file_name()?.to_str()?.parse().ok()?);
            (!epochs.contains(&epoch)).then_some(epoch)
        });
        Ok(listed.collect())
    }

    /// What is in a directory, or nothing.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        match self.env.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            items => Ok(items?.into_iter().map(|item| dir.join(item.name)).collect()),
        }
    }

    /// Makes the directories above `path`, durably: a name that moves must not arrive in one that a power cut takes away.
    fn create_dirs(&self, path: &Path) -> io::Result<()> {
        if path.parent().is_some_and(|dir| self.env.stat(dir).is_ok()) {
            return Ok(());
        }
        create_dirs_between(self.env.as_ref(), self.dir.parent(), path)?;
        self.sync_dirs(path)
    }

    /// Makes the name `path` durable, and those of the directories above it.
    fn sync_dirs(&self, path: &Path) -> io::Result<()> {
        let dirs = path.ancestors().skip(1).take_while(|dir| dir.starts_with(&self.dir));
        let above = self.dir.parent();
        dirs.chain(above).try_for_each(|dir| self.env.sync_dir(dir))
    }
}

/// Makes the directories between `top`, which exists, and the file `path`.
pub(crate) fn create_dirs_between(
    env: &dyn Env,
    top: Option<&Path>,
    path: &Path,
) -> io::Result<()> {
    let is_below = |dir: &&Path| top.is_none_or(|top| *dir != top && dir.starts_with(top));
    let mut dirs: Vec<&Path> = path.ancestors().skip(1).take_while(is_below).collect();
    dirs.reverse();
    for dir in dirs {
        match env.create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    Ok(())
}

/// Copies all of `original`, with the time of its last change, to `path`, durably but for the name.
pub(crate) fn copy_file(env: &dyn Env, original: &dyn File, path: &Path) -> io::Result<()> {
    let copy = env.open(path, OpenMode::CreateOrOpen)?;
    let stat = original.stat()?;
    copy.set_len(0)?;
    let mut at = 0;
    while at < stat.len {
        match copy.copy_from(original, at, at, stat.len - at)? {
            0 => break,
            count => at += count,
        }
    }
    copy.set_len(stat.len)?;
    copy.set_times(None, Some(stat.modified))?;
    copy.sync_all()
}

/// Removes the directory `dir` with all that is in it, if it exists.
pub(crate) fn remove_tree(env: &dyn Env, dir: &Path) -> io::Result<()> {
    let items = match env.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        items => items?,
    };
    for item in items {
        let path = dir.join(&item.name);
        match item.kind {
            FileKind::Dir => remove_tree(env, &path)?,
            FileKind::File | FileKind::Other => env.remove_file(&path)?,
        }
    }
    env.remove_dir(dir)
}
