//! How preimages become durable: their bytes, the count of records, their names.
//!
//! A preimage that this process makes is durable when it is made. A preimage that another process or a failed sync has left may not be: it is
//! made durable once, before an object changes that relies on it.

use std::io;
use std::path::{Path, PathBuf};

use varve_types::InodeId;

use super::Preimages;
use crate::epoch::Epoch;
use crate::files::create_dirs_between;
use crate::overlay::{Overlay, blocks_path};

/// What is known to be durable, at most.
const DURABLE_MAX: usize = 8192;

impl Preimages {
    /// Makes the overlay of the version at `path` durable unless it is known to be. REQUIRES: `saving`.
    pub(super) fn rely_on(&self, path: &Path, overlay: &Overlay) -> io::Result<()> {
        let blocks = blocks_path(path);
        if self.is_durable(&blocks) {
            return Ok(());
        }
        overlay.settle()?;
        self.rely_on_name(&blocks)
    }

    /// Makes the name `path` durable unless it is known to be. REQUIRES: `saving`.
    fn rely_on_name(&self, path: &Path) -> io::Result<()> {
        match path.ancestors().take(2).any(|path| self.is_durable(path)) {
            true => self.note_durable(path.to_path_buf()),
            false => self.name(path)?,
        }
        Ok(())
    }

    /// Makes the new name `path` durable, of what is so but for its name. REQUIRES: `saving`.
    pub(super) fn name(&self, path: &Path) -> io::Result<()> {
        self.doubt_name(path);
        self.sync_dirs(path)?;
        path.ancestors().take(2).for_each(|path| self.note_durable(path.to_path_buf()));
        Ok(())
    }

    /// The name `path` may be new.
    pub(super) fn doubt_name(&self, path: &Path) {
        path.ancestors().take(2).for_each(|path| self.doubt(path));
    }

    fn doubt(&self, path: &Path) {
        self.durable.lock().remove(path);
    }

    /// Whether the preimage at `path` is known to be durable, or the names in the directory there.
    pub(super) fn is_durable(&self, path: &Path) -> bool {
        self.durable.lock().contains(path)
    }

    fn note_durable(&self, path: PathBuf) {
        let mut durable = self.durable.lock();
        if durable.len() >= DURABLE_MAX {
            durable.clear();
        }
        durable.insert(path);
    }

    /// Calls `save`, which saves blocks in the overlay of the version at `path`.
    pub(super) fn save_in(
        &self,
        path: &Path,
        overlay: &Overlay,
        save: impl FnOnce(&Overlay) -> io::Result<()>,
    ) -> io::Result<()> {
        let saved = overlay.keep_by(save, || self.wait_for_readers());
        saved.inspect_err(|_| self.doubt(&blocks_path(path)))
    }

    /// Whether there is a durable preimage of the whole object at an epoch. REQUIRES: `saving`.
    pub(super) fn holds_all(&self, epoch: Epoch, ino: InodeId) -> io::Result<bool> {
        let has_all = self.has_all(epoch, ino)?;
        if has_all {
            self.rely_on_name(&self.path(epoch, ino))?;
        }
        Ok(has_all)
    }

    /// Makes the directories above `path`, durably: a name that moves must not arrive in one that a power cut takes away.
    pub(super) fn create_dirs(&self, path: &Path) -> io::Result<()> {
        if path.parent().is_some_and(|dir| self.env.stat(dir).is_ok()) {
            return Ok(());
        }
        create_dirs_between(self.freeing().as_ref(), self.dir.parent(), path)?;
        self.sync_dirs(path)
    }

    /// Makes the name `path` durable, and those of the directories above it.
    fn sync_dirs(&self, path: &Path) -> io::Result<()> {
        self.dirs_of(path).iter().try_for_each(|dir| self.env.sync_dir(dir))
    }

    /// The directories from that of `path` up to that of the store.
    pub(super) fn dirs_of(&self, path: &Path) -> Vec<PathBuf> {
        let dirs = path.ancestors().skip(1).take_while(|dir| dir.starts_with(&self.dir));
        dirs.chain(self.dir.parent()).map(Path::to_path_buf).collect()
    }
}
