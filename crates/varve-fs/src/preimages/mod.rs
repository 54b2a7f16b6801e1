//! Preimages: what views still see of large files that changed.
//!
//! A view, which is a snapshot or a transaction, sees rows as of its beginning, but the bytes of large files lie in
//! objects that the main tree goes on to change in place. So a change of an object first saves the blocks that it replaces,
//! for the views that still see them:
//!
//! ```text
//! kept/E/K/J/I.blocks   blocks of object I as the views up to E see them, E the newest view when they changed
//! kept/E/K/J/I          all of object I as those views see it, below the blocks
//! ```
//!
//! In: the epochs of views, changes of objects before they are made. Out: an object as a view sees it, which objects and ranges differ
//! between two views. Never: changes an object, or knows a row.
//!
//! 1. Each view has an [epoch](crate::epoch). A view does not know a file that was not born before its epoch.
//! 2. Before bytes, length or times of an object change ([`Preimages::change`]), its length and the blocks that will change
//!    go to the overlay ([`crate::overlay`]) of the newest view, unless that view does not know the object or the blocks are there
//!    already. They are durable, with their name, before the object changes, and from then on nobody reads them from the object. What
//!    another process has left, or a failed sync, is made durable once ([`Preimages::rely_on`]).
//! 3. The preimage of a whole object is saved where the storage below shares its room, where the kernel may write to the object without
//!    a request ([`Preimages::save_all`]), and when the object is removed: then the object moves there ([`Preimages::take`]).
//! 4. A view of epoch `e` reads each block from the first version at or after `e` that has it, else from the object
//!    ([`Preimages::read`]).
//! 5. When a view ends, the preimages at its epoch go to that of the view before it, which may need them, block by block
//!    where that has none of its own ([`Preimages::end`]). From the beginning of the end on no preimage is saved for it.
//! 6. If a preimage got lost, the view would see later bytes instead. So each preimage has a *mark* beside it, once its name is durable
//!    ([`Preimages::mark`]): where a view misses a preimage that has a mark, reading fails, and no other takes its place
//!    ([`Preimages::is_lost`]).
//!
//! ```text
//! kept/E/K/J/I.mark         kept/E/K/J/I is there; its length, if it can be read
//! kept/E/K/J/I.blocks-mark  kept/E/K/J/I.blocks is there
//! ```
//!
//! Marks are not synced: without a mark a loss is not noticed, no more. Marks of views that have ended say nothing, as the preimages that
//! they mark move on.
//!
//! Lock order: `writing`, `saving`, `epochs`, the locks of overlays.
//!
//! Source: the deadlists of ZFS (`dsl_deadlist.c`) for 5. KVFS, thesis section 3.3, saves whole tables instead.

mod changes;
mod durable;
mod ending;
mod marks;
mod stack;

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use varve_env::{Env, File, OpenMode};
use varve_schema::overlay::OverlayKind;
use varve_types::InodeId;

use crate::epoch::Epoch;
use crate::files::{copy_file, exists};
use crate::objects::{begun_path, object_path};
use crate::overlay::{FileBase, Overlay, Overlays, blocks_path};
pub use marks::inspect_mark;
pub(crate) use marks::marked_by;
use stack::Stack;

/// The preimages of a store's objects.
#[derive(Debug)]
pub(crate) struct Preimages {
    env: Arc<dyn Env>,
    dir: PathBuf,
    overlays: Arc<Overlays>,
    /// Held for reading while a version is looked for and read, for writing when what views see has changed places:
    /// nobody reads the old place after that.
    epochs: RwLock<Epochs>,
    /// The newest epoch for which preimages are saved, or 0: so that without views nothing costs anything.
    newest: AtomicU64,
    /// Held for reading from before a preimage is saved until the object has changed, for writing by a view that begins
    /// or ends: a change is before it or after it.
    writing: RwLock<()>,
    /// Held while versions are made or moved.
    saving: Mutex<()>,
    /// Overlays that are durable as far as they go and whole objects, both with their names; and directories all names in which are.
    /// Of others that is not known.
    durable: Mutex<HashSet<PathBuf>>,
    /// Files whose names are not durable yet, so that they have no mark.
    unmarked: Mutex<BTreeSet<PathBuf>>,
    /// The storage below may share room between copies.
    shares: AtomicBool,
    /// For what must go on where there is no room: it takes some that is held for that.
    freeing: OnceLock<Arc<dyn Env>>,
}

#[derive(Debug, Default)]
struct Epochs {
    /// The epochs at which there may be preimages.
    all: BTreeSet<Epoch>,
    /// The epochs among them whose views have ended.
    ended: BTreeSet<Epoch>,
}

impl Epochs {
    /// Whether there is a view of this epoch.
    fn is_live(&self, epoch: Epoch) -> bool {
        self.all.contains(&epoch) && !self.ended.contains(&epoch)
    }

    /// The epochs of the views that there are, the newest first.
    fn live(&self) -> impl Iterator<Item = Epoch> {
        self.all.iter().rev().filter(|epoch| !self.ended.contains(epoch)).copied()
    }
}

impl Preimages {
    /// The preimages in `dir`, which need not exist.
    pub(crate) fn new(env: Arc<dyn Env>, dir: PathBuf, overlays: Arc<Overlays>) -> Preimages {
        Preimages {
            env,
            dir,
            overlays,
            epochs: RwLock::default(),
            newest: AtomicU64::new(0),
            writing: RwLock::default(),
            saving: Mutex::default(),
            durable: Mutex::default(),
            unmarked: Mutex::default(),
            shares: AtomicBool::new(true),
            freeing: OnceLock::new(),
        }
    }

    /// From now on removals and installations are made by `freeing`, which takes room where there is none otherwise.
    pub(crate) fn free_by(&self, freeing: Arc<dyn Env>) {
        let _ = self.freeing.set(freeing);
    }

    /// By what removals and installations are made.
    pub(crate) fn freeing(&self) -> &Arc<dyn Env> {
        self.freeing.get().unwrap_or(&self.env)
    }

    /// From now on preimages are saved for a view of this epoch.
    pub(crate) fn begin(&self, epoch: Epoch) {
        self.alter(|epochs| {
            epochs.all.insert(epoch);
        });
    }

    /// From now on no preimage is saved for the view of this epoch, which has ended. Its preimages serve the views before it.
    pub(crate) fn retire(&self, epoch: Epoch) {
        self.alter(|epochs| {
            epochs.all.insert(epoch);
            epochs.ended.insert(epoch);
        });
    }

    fn alter(&self, alter: impl FnOnce(&mut Epochs)) {
        let _nobody_writes = self.writing.write();
        let mut epochs = self.epochs.write();
        alter(&mut epochs);
        let newest = epochs.live().next().map_or(0, Epoch::get);
        self.newest.store(newest, Ordering::Release);
    }

    /// Waits for the changes that are under way. They may take long, as they save preimages first. A caller that then takes locks that
    /// all changes wait for, and begins a view, waits only for changes that have begun since. REQUIRES: no row is locked.
    pub(crate) fn wait_for_changes(&self) {
        drop(self.writing.write());
    }

    /// Whether a view may see the object of `ino`.
    pub(crate) fn may_be_seen(&self, ino: InodeId) -> bool {
        self.newest_for(ino).is_some()
    }

    /// The newest epoch, if a view of it may see the object of `ino`.
    fn newest_for(&self, ino: InodeId) -> Option<Epoch> {
        let newest = Epoch::new(self.newest.load(Ordering::Acquire));
        newest.knows(ino).then_some(newest)
    }

    fn path(&self, epoch: Epoch, ino: InodeId) -> PathBuf {
        object_path(&self.dir.join(epoch.get().to_string()), ino)
    }

    fn blocks(&self, epoch: Epoch, ino: InodeId) -> io::Result<Option<Arc<Overlay>>> {
        self.overlays.get(&blocks_path(&self.path(epoch, ino)))
    }

    /// Whether there is a preimage of the whole object at an epoch.
    fn has_all(&self, epoch: Epoch, ino: InodeId) -> io::Result<bool> {
        exists(self.env.as_ref(), &self.path(epoch, ino))
    }

    /// Calls `change`, which changes the range `bytes` of the object of `ino`, or its length or times, after the preimage that
    /// views see is saved.
    pub(crate) fn change<T>(
        &self,
        ino: InodeId,
        object: &dyn File,
        bytes: Range<u64>,
        change: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let _writing = self.writing.read();
        if let Some(newest) = self.newest_for(ino) {
            self.save(newest, ino, object, &bytes)?;
        }
        change()
    }

    fn save(
        &self,
        newest: Epoch,
        ino: InodeId,
        object: &dyn File,
        bytes: &Range<u64>,
    ) -> io::Result<()> {
        let path = self.path(newest, ino);
        let blocks = blocks_path(&path);
        if self.is_durable(&blocks)
            && let Some(overlay) = unless_damaged(self.overlays.get(&blocks))?
            && overlay.owns(bytes)
        {
            if overlay.has_keepers() {
                self.wait_for_readers();
            }
            return Ok(());
        }
        let version = unless_damaged(self.version(newest, ino, object))?;
        let Some(overlay) = version else { return Ok(()) };
        self.save_in(&path, &overlay, |overlay| overlay.keep(&FileBase(object), bytes))
    }

    /// When it returns, everybody who has looked for a version before has read it.
    fn wait_for_readers(&self) {
        drop(self.epochs.write());
    }

    /// The overlay at an epoch, which is begun if there is none; `None` if there is a preimage of the whole object, or the preimage is lost.
    fn version(
        &self,
        newest: Epoch,
        ino: InodeId,
        object: &dyn File,
    ) -> io::Result<Option<Arc<Overlay>>> {
        let _saving = self.saving.lock();
        if self.settled_all(newest, ino)? {
            return Ok(None);
        }
        let path = self.path(newest, ino);
        if let Some(begun) = self.blocks(newest, ino)? {
            self.rely_on(&path, &begun)?;
            return Ok(Some(begun));
        }
        if self.is_lost(newest, ino, false)? {
            return Ok(None);
        }
        self.create_dirs(&path)?;
        if self.share(object, &path)? {
            return Ok(None);
        }
        let stat = object.stat()?;
        let blocks = blocks_path(&path);
        let begun = self.overlays.create(&blocks, OverlayKind::Kept, &stat)?;
        self.name(&blocks).inspect_err(|_| drop(self.overlays.remove(&blocks)))?;
        self.mark(&blocks);
        Ok(Some(begun))
    }

    /// Gives the preimages that views which are ending have of an object to the newest view, so that nothing lies between that and the
    /// object. REQUIRES: `saving`.
    fn settle(&self, newest: Epoch, ino: InodeId) -> io::Result<()> {
        let epochs: Vec<Epoch> = self.epochs.read().all.range(newest..).copied().collect();
        for pair in epochs.windows(2).rev() {
            self.pass_on(ino, pair[1], pair[0])?;
        }
        Ok(())
    }

    /// The same; says whether there is a durable preimage of the whole object there then. REQUIRES: `saving`.
    fn settled_all(&self, newest: Epoch, ino: InodeId) -> io::Result<bool> {
        self.settle(newest, ino)?;
        self.holds_all(newest, ino)
    }

    /// Saves all of an object at `path` if the storage below shares its room.
    fn share(&self, object: &dyn File, path: &Path) -> io::Result<bool> {
        if !self.shares.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let begun = begun_path(path);
        let copy = self.env.open(&begun, OpenMode::CreateOrOpen)?;
        copy.set_len(0)?;
        if !copy.share_all(object)? {
            self.shares.store(false, Ordering::Relaxed);
            self.env.remove_file(&begun)?;
            return Ok(false);
        }
        copy.set_times(None, Some(object.stat()?.modified))?;
        copy.sync_all()?;
        self.put_all(&begun, path)?;
        Ok(true)
    }

    /// Makes the copy `begun` the preimage of a whole object.
    fn put_all(&self, begun: &Path, path: &Path) -> io::Result<()> {
        self.env.rename(begun, path)?;
        // What may stay without its name is none: nothing has changed yet.
        self.name(path).inspect_err(|_| drop(self.env.remove_file(path)))?;
        self.mark(path);
        self.wait_for_readers();
        Ok(())
    }

    /// Saves ranges of the object of `ino` for the views besides that of `epoch`, which may change them when it has ended
    /// without room being taken then. The caller syncs the directories that become `unsynced`, before the object changes.
    /// REQUIRES: nobody changes the object meanwhile, as a commit holds all row locks: what those views see is read without `epochs`,
    /// for which others that save wait.
    pub(crate) fn save_besides(
        &self,
        epoch: Epoch,
        ino: InodeId,
        object: &dyn File,
        ranges: &[Range<u64>],
        unsynced: &mut BTreeSet<PathBuf>,
    ) -> io::Result<()> {
        let _writing = self.writing.read();
        let epochs = self.epochs.read().live().find(|other| *other != epoch);
        let Some(newest) = epochs.filter(|newest| newest.knows(ino)) else { return Ok(()) };
        let _saving = self.saving.lock();
        // The preimages of the view itself and of views that are ending are older than the object.
        let epochs: Vec<Epoch> = self.epochs.read().all.range(newest..).copied().collect();
        for epoch in epochs {
            if self.holds_all(epoch, ino)? {
                return Ok(());
            }
        }
        let later = self.layers(&self.epochs.read(), newest.next(), ino)?;
        let path = self.path(newest, ino);
        let blocks = blocks_path(&path);
        let seen = Stack { blocks: &later.blocks, bottom: object };
        let overlay = match self.overlays.get(&blocks) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(()),
            overlay => overlay?,
        };
        let overlay = match overlay {
            Some(overlay) => {
                self.rely_on(&path, &overlay)?;
                overlay
            }
            None if self.is_lost(newest, ino, false)? => return Ok(()),
            None => {
                self.create_dirs(&path)?;
                unsynced.extend(self.dirs_of(&path));
                self.doubt_name(&blocks);
                self.mark_later(&blocks);
                self.overlays.create(&blocks, OverlayKind::Kept, &seen.stat()?)?
            }
        };
        self.save_in(&path, &overlay, |overlay| overlay.keep_ranges(&FileBase(&seen), ranges))
    }

    /// Whether all of the object of `ino` is saved, or need not be, or can be at once as room is shared: then it may be
    /// changed by the kernel, which reports no change.
    pub(crate) fn is_free(&self, ino: InodeId, object: &dyn File) -> io::Result<bool> {
        let _writing = self.writing.read();
        let Some(newest) = self.newest_for(ino) else { return Ok(true) };
        let _saving = self.saving.lock();
        if self.settled_all(newest, ino)? || self.is_lost(newest, ino, true)? {
            return Ok(true);
        }
        let path = self.path(newest, ino);
        self.create_dirs(&path)?;
        self.share(object, &path)
    }

    /// Keeps all of the object `ino`, which lies at `object` and may be changed by who does not tell: as it is at one moment where
    /// the storage below shares its room, else copied from front to back.
    pub(crate) fn save_all(&self, ino: InodeId, object: &Path) -> io::Result<()> {
        let _writing = self.writing.read();
        let Some(newest) = self.newest_for(ino) else { return Ok(()) };
        let _saving = self.saving.lock();
        if self.settled_all(newest, ino)? || self.is_lost(newest, ino, true)? {
            return Ok(());
        }
        let original = match self.env.open(object, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            original => original?,
        };
        let path = self.path(newest, ino);
        self.create_dirs(&path)?;
        if self.share(original.as_ref(), &path)? {
            return Ok(());
        }
        let begun = begun_path(&path);
        copy_file(self.env.as_ref(), original.as_ref(), &begun)?;
        self.put_all(&begun, &path)
    }

    /// Moves the object `ino`, which lies at `object` and is to be removed, to where its preimage belongs; the caller syncs the
    /// directories that become `unsynced`. False if no view sees it.
    pub(crate) fn take(
        &self,
        ino: InodeId,
        object: &Path,
        unsynced: &mut BTreeSet<PathBuf>,
    ) -> io::Result<bool> {
        let _writing = self.writing.read();
        let Some(newest) = self.newest_for(ino) else { return Ok(false) };
        let _saving = self.saving.lock();
        let path = self.path(newest, ino);
        self.settle(newest, ino)?;
        if self.has_all(newest, ino)? {
            // Whoever has taken it may not have come to sync them.
            unsynced.extend(self.dirs_of(&path));
            return Ok(false);
        }
        self.create_dirs(&path)?;
        let _nobody_reads = self.epochs.write();
        self.doubt_name(&path);
        match self.freeing().rename(object, &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            moved => moved?,
        }
        unsynced.extend(self.dirs_of(&path));
        self.mark_later(&path);
        Ok(true)
    }

    /// The versions of an object from an epoch on.
    fn layers(&self, epochs: &Epochs, from: Epoch, ino: InodeId) -> io::Result<Layers> {
        let mut layers = Layers::default();
        for epoch in epochs.all.range(from..) {
            let Layers { blocks, all } = self.layers_at(epochs, *epoch, ino)?;
            layers.blocks.extend(blocks);
            if all.is_some() {
                layers.all = all;
                break;
            }
        }
        Ok(layers)
    }

    /// The versions of an object at one epoch.
    fn layers_at(&self, epochs: &Epochs, epoch: Epoch, ino: InodeId) -> io::Result<Layers> {
        let blocks: Vec<_> = self.blocks(epoch, ino)?.into_iter().collect();
        let all = match self.env.open(&self.path(epoch, ino), OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            all => Some(all?),
        };
        let path = self.path(epoch, ino);
        for (is_there, path) in [(!blocks.is_empty(), blocks_path(&path)), (all.is_some(), path)] {
            if !is_there && epochs.is_live(epoch) && self.is_marked(&path)? {
                let text = format!("{} is gone; run `varve fsck`", path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
        Ok(Layers { blocks, all })
    }

    /// Calls `with` with the object `ino` as a view of `epoch` sees it, which lies at `object` where it has no preimage. An error that it
    /// is stale if the view has ended, as no preimage is saved for it any more.
    pub(crate) fn read<T>(
        &self,
        epoch: Epoch,
        ino: InodeId,
        object: &Path,
        with: impl FnOnce(&dyn File) -> io::Result<T>,
    ) -> io::Result<T> {
        let epochs = self.epochs.read();
        if !epochs.is_live(epoch) {
            return Err(io::ErrorKind::StaleNetworkFileHandle.into());
        }
        let Layers { blocks, all } = self.layers(&epochs, epoch, ino)?;
        let bottom = match all {
            Some(all) => all,
            None => self.env.open(object, OpenMode::Read)?,
        };
        match blocks.is_empty() {
            true => with(bottom.as_ref()),
            false => with(&Stack { blocks: &blocks, bottom: bottom.as_ref() }),
        }
    }
}

/// Leaves out a version that is damaged: views cannot read it whatever happens, and the main tree has to go on.
fn unless_damaged(found: io::Result<Option<Arc<Overlay>>>) -> io::Result<Option<Arc<Overlay>>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            log::error!("a snapshot or transaction lost what was kept for it: {error}");
            Ok(None)
        }
        found => found,
    }
}

/// Versions of an object that lie over one another.
#[derive(Default)]
struct Layers {
    /// Blocks, the uppermost first.
    blocks: Vec<Arc<Overlay>>,
    /// What lies below them, if it is not the object.
    all: Option<Arc<dyn File>>,
}

#[cfg(test)]
mod tests;
