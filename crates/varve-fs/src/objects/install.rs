//! Making objects what a transaction has made of them.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use varve_env::OpenMode;
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::{CLAIMED_OPEN_MAX, Objects, object_path};
use crate::error;
use crate::kept::{copy_file, exists};
use crate::overlay::{Overlay, blocks_path};

impl Objects {
    /// Does what [`Objects::install`] of a view of `epoch` may have no room for: keeps for other views what it will change,
    /// durably, and takes the room of what it will write. REQUIRES: nobody changes these objects until it is done.
    pub(crate) fn prepare(&self, inos: &[InodeId], dir: &Path, epoch: InodeId) -> FsResult<()> {
        let mut unsynced = BTreeSet::new();
        let prepared = inos.iter().try_for_each(|ino| {
            let prepare = self.prepare_one(*ino, dir, epoch, &mut unsynced);
            prepare.map_err(|error| error::object("prepare", &self.path(*ino), error))
        });
        // Whoever changes these objects later takes for durable what is kept.
        self.sync_all_dirs(unsynced).and(prepared)
    }

    fn prepare_one(
        &self,
        ino: InodeId,
        dir: &Path,
        epoch: InodeId,
        unsynced: &mut BTreeSet<PathBuf>,
    ) -> io::Result<()> {
        let blocks = blocks_path(&object_path(dir, ino));
        let Some(overlay) = self.overlays.get(&blocks)? else { return Ok(()) };
        let object = self.env.open(&self.path(ino), OpenMode::ReadWrite)?;
        if let Some(kept) = self.kept() {
            let changes = overlay.changes(object.stat()?.len)?;
            kept.keep_besides(epoch, ino, object.as_ref(), &changes, unsynced)?;
        }
        overlay.reserve(object.as_ref())
    }

    /// Whether a view, whose own are in `dir`, has anything of the object of `ino` that is not installed.
    pub(crate) fn is_staged(&self, ino: InodeId, dir: &Path) -> FsResult<bool> {
        let own = object_path(dir, ino);
        let is_there = |path: &Path| exists(self.env.as_ref(), path);
        let staged = is_there(&own).and_then(|all| Ok(all || is_there(&blocks_path(&own))?));
        staged.map_err(|error| error::object("stat", &own, error))
    }

    /// Makes the objects of `inos` what a view, whose own are in `dir`, has made of them, durably, those for which that has
    /// not happened: writes the blocks to them that the view has changed, or puts the view's files in their places. Of those
    /// that `others_read`, who has the object open goes on reading it as it was. Syncs each directory once.
    pub(crate) fn install(
        &self,
        inos: &[InodeId],
        dir: &Path,
        others_read: &dyn Fn(InodeId) -> bool,
    ) -> FsResult<()> {
        let whole = self.apply(inos, dir, others_read)?;
        let mut dirs = BTreeSet::new();
        for ino in &whole {
            self.make_way(*ino, &mut dirs)
                .map_err(|e| error::object("keep", &self.path(*ino), e))?;
        }
        // What was there is durable where it is kept before anything else takes its place.
        self.sync_all_dirs(std::mem::take(&mut dirs))?;
        let mut left = BTreeSet::new();
        for ino in &whole {
            let (from, to) = (object_path(dir, *ino), self.path(*ino));
            self.env.rename(&from, &to).map_err(|e| error::object("install", &from, e))?;
            dirs.extend(to.parent().map(Path::to_path_buf));
            left.extend(from.parent().map(Path::to_path_buf));
        }
        // And its new name before the old one goes.
        self.sync_all_dirs(dirs)?;
        for ino in inos {
            let blocks = blocks_path(&object_path(dir, *ino));
            if exists(self.env.as_ref(), &blocks).map_err(|e| error::object("stat", &blocks, e))? {
                self.overlays.remove(&blocks).map_err(|e| error::object("remove", &blocks, e))?;
                left.extend(blocks.parent().map(Path::to_path_buf));
            }
        }
        self.sync_all_dirs(left)
    }

    /// The deepest first, so that a name is never durable in a directory that is not.
    fn sync_all_dirs(&self, dirs: BTreeSet<PathBuf>) -> FsResult<()> {
        let mut dirs = dirs.iter().rev();
        dirs.try_for_each(|dir| {
            self.env.sync_dir(dir).map_err(|error| error::object("sync", dir, error))
        })
    }

    /// Writes the blocks of a view to the objects `inos`, durably, or makes files of the view's own of both. Gives those of
    /// which it has such a file.
    fn apply(
        &self,
        inos: &[InodeId],
        dir: &Path,
        others_read: &dyn Fn(InodeId) -> bool,
    ) -> FsResult<Vec<InodeId>> {
        let (mut whole, mut written, mut more) = (Vec::new(), Vec::new(), false);
        for ino in inos {
            let (from, to) = (object_path(dir, *ino), self.path(*ino));
            let apply = || {
                if exists(self.env.as_ref(), &from)? {
                    whole.push(*ino);
                    return Ok(());
                }
                let Some(overlay) = self.overlays.get(&blocks_path(&from))? else { return Ok(()) };
                if others_read(*ino) {
                    whole.push(*ino);
                    return self.make_whole(&overlay, &from, &to);
                }
                let object = self.wrap(*ino, self.env.open(&to, OpenMode::ReadWrite)?);
                overlay.apply(object.as_ref())?;
                if written.len() < CLAIMED_OPEN_MAX {
                    written.push((to, object));
                } else {
                    more = true;
                }
                Ok(())
            };
            apply().map_err(|error| error::object("install", &from, error))?;
        }
        if more {
            // Costs less than one sync for each.
            let synced = self.env.sync_below(&self.dir);
            synced.map_err(|error| error::object("sync", &self.dir, error))?;
            return Ok(whole);
        }
        for (path, object) in written {
            object.sync_all().map_err(|error| error::object("sync", &path, error))?;
        }
        Ok(whole)
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

    /// Has the object of `ino` kept elsewhere if a view sees it, and makes the directory for another.
    fn make_way(&self, ino: InodeId, unsynced: &mut BTreeSet<PathBuf>) -> io::Result<()> {
        let to = self.path(ino);
        if let Some(kept) = self.kept() {
            kept.take(ino, &to, unsynced)?;
        }
        if to.parent().is_some_and(|dir| self.env.stat(dir).is_err()) {
            self.create_dirs(&to)?;
            // Or a power cut could take the directory away with the name in it.
            self.sync_claimed()?;
        }
        Ok(())
    }
}
