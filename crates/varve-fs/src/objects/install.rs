//! Making objects what a transaction has made of them.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use varve_env::OpenMode;
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::Objects;
use super::paths::{begun_path, object_path};
use crate::epoch::Epoch;
use crate::error;
use crate::files::{copy_file, exists};
use crate::overlay::blocks_path;

/// What a view has of an object that is to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Staged {
    /// Nothing that could be: it is installed, or lost.
    Nothing,
    /// Blocks of which is not known which they are, and what is wrong with them.
    Damaged(String),
    /// All of it, or blocks of one that is there; this is the length that the object has then.
    Ready(u64),
}

impl Objects {
    /// Does what [`Objects::install`] of a view of `epoch` may have no room for: keeps for other views what it will change,
    /// durably, and takes the room of what it will write, or copies whole what `others_read`. Gives what it has copied.
    /// REQUIRES: nobody changes these objects, or begins to read one past this program, until it is done.
    pub(crate) fn prepare(
        &self,
        inos: &[InodeId],
        dir: &Path,
        epoch: Epoch,
        others_read: &dyn Fn(InodeId) -> bool,
    ) -> FsResult<BTreeSet<InodeId>> {
        let (mut unsynced, mut copied) = (BTreeSet::new(), BTreeSet::new());
        let prepared = inos.iter().try_for_each(|ino| {
            let is_read = others_read(*ino);
            if is_read {
                copied.insert(*ino);
            }
            let prepare = self.prepare_one(*ino, dir, epoch, is_read, &mut unsynced);
            prepare.map_err(|error| error::object("prepare", &self.path(*ino), error))
        });
        // Whoever changes these objects later takes for durable what is kept.
        let prepared = self.sync_all_dirs(unsynced).and(prepared);
        if prepared.is_err() {
            self.drop_copies(&copied, dir);
        }
        prepared.map(|()| copied)
    }

    /// Gives back the room of what [`Objects::prepare`] has copied for an installation that does not come.
    pub(crate) fn drop_copies(&self, copied: &BTreeSet<InodeId>, dir: &Path) {
        for ino in copied {
            let copy = begun_path(&object_path(dir, *ino));
            match self.env.remove_file(&copy) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    log::warn!("{} stays until its transaction ends: {error}", copy.display());
                }
                _ => {}
            }
        }
    }

    fn prepare_one(
        &self,
        ino: InodeId,
        dir: &Path,
        epoch: Epoch,
        is_read: bool,
        unsynced: &mut BTreeSet<PathBuf>,
    ) -> io::Result<()> {
        let own = object_path(dir, ino);
        let Some(overlay) = self.overlays.get(&blocks_path(&own))? else { return Ok(()) };
        if is_read {
            // The object goes to where it is kept as a whole.
            let object = self.env.open(&self.path(ino), OpenMode::Read)?;
            let copy = begun_path(&own);
            copy_file(self.env.as_ref(), object.as_ref(), &copy)?;
            let copy = self.env.open(&copy, OpenMode::ReadWrite)?;
            overlay.apply(copy.as_ref())?;
            return copy.sync_all();
        }
        let object = self.env.open(&self.path(ino), OpenMode::ReadWrite)?;
        if let Some(preimages) = self.preimages() {
            let changes = overlay.changes(object.stat()?.len)?;
            preimages.save_besides(epoch, ino, object.as_ref(), &changes, unsynced)?;
        }
        overlay.reserve(object.as_ref())
    }

    /// What a view, whose own are in `dir`, has of the object of `ino` that is not installed.
    pub(crate) fn staged(&self, ino: InodeId, dir: &Path) -> FsResult<Staged> {
        let own = object_path(dir, ino);
        let fail = |error| error::object("look at", &own, error);
        match self.env.stat(&own) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            stat => return stat.map(|stat| Staged::Ready(stat.len)).map_err(fail),
        }
        match self.overlays.get(&blocks_path(&own)) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Ok(Staged::Damaged(error.to_string()))
            }
            Ok(Some(overlay)) if self.find(ino)?.is_some() => {
                overlay.len().map(Staged::Ready).map_err(fail)
            }
            // Nor can blocks over nothing.
            Ok(_) => Ok(Staged::Nothing),
            Err(error) => Err(fail(error)),
        }
    }

    /// Makes the objects of `inos` what a view, whose own are in `dir`, has made of them, durably, those for which that has
    /// not happened: writes the blocks to them that the view has changed, or puts the view's files in their places, and copies
    /// that were `copied` for that: who has such an object open goes on reading it as it was. Syncs each directory once.
    pub(crate) fn install(
        &self,
        inos: &[InodeId],
        dir: &Path,
        copied: &BTreeSet<InodeId>,
    ) -> FsResult<()> {
        let mut whole = self.apply(inos, dir, copied)?;
        let mut dirs = BTreeSet::new();
        // A copy becomes the view's own, by which the next mount finds it: from an object that has moved it cannot be made again.
        for (ino, from) in &mut whole {
            let own = object_path(dir, *ino);
            if *from != own {
                let renamed = self.freeing().rename(from, &own);
                renamed.map_err(|e| error::object("install", from, e))?;
                dirs.extend(own.parent().map(Path::to_path_buf));
                *from = own;
            }
        }
        self.sync_all_dirs(std::mem::take(&mut dirs))?;
        for (ino, _) in &whole {
            self.make_way(*ino, &mut dirs)
                .map_err(|e| error::object("keep", &self.path(*ino), e))?;
        }
        // What was there is durable where it is kept before anything else takes its place.
        self.sync_all_dirs(std::mem::take(&mut dirs))?;
        let mut left = BTreeSet::new();
        for (ino, from) in &whole {
            let to = self.path(*ino);
            let renamed = self.freeing().rename(from, &to);
            renamed.map_err(|e| error::object("install", from, e))?;
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
        let sync = || {
            dirs.iter().rev().try_for_each(|dir| {
                self.env.sync_dir(dir).map_err(|error| error::object("sync", dir, error))
            })
        };
        self.preimages().map_or_else(sync, |preimages| preimages.marking(&dirs, sync))
    }

    /// Writes the blocks of a view to the objects `inos`, durably. Gives those of which there are whole files to take their
    /// places instead, the view's own or copied, with these.
    fn apply(
        &self,
        inos: &[InodeId],
        dir: &Path,
        copied: &BTreeSet<InodeId>,
    ) -> FsResult<Vec<(InodeId, PathBuf)>> {
        let (mut whole, mut written, mut more) = (Vec::new(), Vec::new(), false);
        for ino in inos {
            let (from, to) = (object_path(dir, *ino), self.path(*ino));
            let apply = || {
                if exists(self.env.as_ref(), &from)? {
                    whole.push((*ino, from.clone()));
                    return Ok(());
                }
                let Some(overlay) = self.overlays.get(&blocks_path(&from))? else { return Ok(()) };
                if copied.contains(ino) {
                    whole.push((*ino, begun_path(&from)));
                    return Ok(());
                }
                let object = self.wrap(*ino, self.freeing().open(&to, OpenMode::ReadWrite)?);
                overlay.apply(object.as_ref())?;
                if let Some(claim) = self.storage.descriptors.claim() {
                    written.push((to, object, claim));
                } else if self.syncs_all_at_once() {
                    more = true;
                } else {
                    object.sync_all()?;
                }
                Ok(())
            };
            apply().map_err(|error| error::object("install", &from, error))?;
        }
        if more {
            // Costs less than one sync for each.
            self.sync_below().map_err(error::sync)?;
            return Ok(whole);
        }
        for (path, object, _) in written {
            object.sync_all().map_err(|error| error::object("sync", &path, error))?;
        }
        Ok(whole)
    }

    /// Has the object of `ino` kept elsewhere if a view sees it, and makes the directory for another.
    fn make_way(&self, ino: InodeId, unsynced: &mut BTreeSet<PathBuf>) -> io::Result<()> {
        let to = self.path(ino);
        if let Some(preimages) = self.preimages() {
            preimages.take(ino, &to, unsynced)?;
        }
        if to.parent().is_some_and(|dir| self.env.stat(dir).is_err()) {
            self.create_dirs_by(self.freeing(), &to)?;
            // Or a power cut could take the directory away with the name in it.
            self.sync_claimed()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
