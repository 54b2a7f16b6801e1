//! Making objects what a transaction has made of them.

use std::io;
use std::path::Path;

use varve_env::OpenMode;
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::{Objects, object_path};
use crate::error;
use crate::kept::{copy_file, exists};
use crate::overlay::{Overlay, blocks_path};

impl Objects {
    /// Does what [`Objects::install`] of a view of `epoch` may have no room for: keeps for other views what it will change,
    /// and takes the room of what it will write.
    pub(crate) fn prepare(&self, ino: InodeId, dir: &Path, epoch: InodeId) -> FsResult<()> {
        let (from, to) = (object_path(dir, ino), self.path(ino));
        let prepare = || {
            let Some(overlay) = self.overlays.get(&blocks_path(&from))? else { return Ok(()) };
            let object = self.env.open(&to, OpenMode::ReadWrite)?;
            if let Some(kept) = self.kept() {
                let changes = overlay.changes(object.stat()?.len)?;
                kept.keep_besides(epoch, ino, object.as_ref(), &changes)?;
            }
            overlay.reserve(object.as_ref())
        };
        prepare().map_err(|error| error::object("prepare", &to, error))
    }

    /// Makes the object of `ino` what a view, whose own are in `dir`, has made of it, durably, unless that has happened:
    /// writes the blocks to it that the view has changed, or puts the view's file in its place. With `others_read`, who
    /// has the object open goes on reading it as it was.
    pub(crate) fn install(&self, ino: InodeId, dir: &Path, others_read: bool) -> FsResult<()> {
        let (from, to) = (object_path(dir, ino), self.path(ino));
        let blocks = blocks_path(&from);
        let install = || {
            if let Some(overlay) = self.overlays.get(&blocks)? {
                let is_whole = exists(self.env.as_ref(), &from)?;
                if !is_whole && !others_read {
                    let object = self.wrap(ino, self.env.open(&to, OpenMode::ReadWrite)?);
                    overlay.apply(object.as_ref())?;
                    object.sync_all()?;
                    return self.remove_blocks(&blocks);
                }
                if !is_whole {
                    self.make_whole(&overlay, &from, &to)?;
                }
            }
            if exists(self.env.as_ref(), &from)? {
                self.install_whole(ino, &from, &to)?;
            }
            self.remove_blocks(&blocks)
        };
        install().map_err(|error| error::object("install", &from, error))
    }

    fn remove_blocks(&self, blocks: &Path) -> io::Result<()> {
        if !exists(self.env.as_ref(), blocks)? {
            return Ok(());
        }
        self.overlays.remove(blocks)?;
        blocks.parent().map_or(Ok(()), |dir| self.env.sync_dir(dir))
    }

    /// Makes a view's file `from` of the object `to` and the view's blocks over it.
    fn make_whole(&self, overlay: &Overlay, from: &Path, to: &Path) -> io::Result<()> {
        let begun = from.with_extension("begun");
        let object = self.env.open(to, OpenMode::Read)?;
        copy_file(self.env.as_ref(), object.as_ref(), &begun)?;
        let copy = self.env.open(&begun, OpenMode::ReadWrite)?;
        overlay.apply(copy.as_ref())?;
        copy.sync_all()?;
        self.env.rename(&begun, from)?;
        from.parent().map_or(Ok(()), |dir| self.env.sync_dir(dir))
    }

    fn install_whole(&self, ino: InodeId, from: &Path, to: &Path) -> io::Result<()> {
        if let Some(kept) = self.kept() {
            kept.take(ino, to)?;
        }
        if to.parent().is_some_and(|dir| self.env.stat(dir).is_err()) {
            self.create_dirs(to)?;
            // Or a power cut could take the directory away with the name in it.
            self.sync_claimed()?;
        }
        self.env.rename(from, to)?;
        for path in [to, from] {
            path.parent().map_or(Ok(()), |dir| self.env.sync_dir(dir))?;
        }
        Ok(())
    }
}
