//! What makes kept versions durable: bytes, the count of records, names.
//!
//! What a process makes itself is durable when it has made it. What another one has left, or a sync that failed, is doubted: it is
//! made durable before an object changes upon it, once.

use std::io;
use std::path::{Path, PathBuf};

use varve_types::InodeId;

use super::{Kept, create_dirs_between};
use crate::overlay::{Overlay, blocks_path};

/// What is known to be durable, at most.
const DURABLE_MAX: usize = 8192;

impl Kept {
    /// Makes the overlay of the version at `path` durable unless it is known to be. REQUIRES: `keeping`.
    pub(super) fn rely_on(&self, path: &Path, overlay: &Overlay) -> io::Result<()> {
        let blocks = blocks_path(path);
        if self.is_durable(&blocks) {
            return Ok(());
        }
        overlay.settle()?;
        self.rely_on_name(&blocks)
    }

    /// Makes the name `path` durable unless it is known to be. REQUIRES: `keeping`.
    fn rely_on_name(&self, path: &Path) -> io::Result<()> {
        match path.ancestors().take(2).any(|path| self.is_durable(path)) {
            true => self.note_durable(path.to_path_buf()),
            false => self.name(path)?,
        }
        Ok(())
    }

    /// Makes the new name `path` durable, of what is so but for its name. REQUIRES: `keeping`.
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

    /// Whether what is kept at `path` is known to be durable, or the names in the directory there.
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

    /// Has `keep` keep blocks in the overlay of the version at `path`.
    pub(super) fn keep_in(
        &self,
        path: &Path,
        overlay: &Overlay,
        keep: impl FnOnce(&Overlay) -> io::Result<()>,
    ) -> io::Result<()> {
        let kept = overlay.keep_by(keep, || self.wait_for_readers());
        kept.inspect_err(|_| self.doubt(&blocks_path(path)))
    }

    /// Whether all of the object is kept at an epoch, durably. REQUIRES: `keeping`.
    pub(super) fn keeps_all(&self, epoch: InodeId, ino: InodeId) -> io::Result<bool> {
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
