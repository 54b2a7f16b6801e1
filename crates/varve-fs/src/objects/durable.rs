//! Making objects durable: those that a row is about to claim, one that is open, and what earlier processes left.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_engine::{Db, StoreResult};
use varve_env::{File, is_passing, told};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::{Claimed, Objects};
use crate::error;
use crate::files::exists;
use crate::overlay::blocks_path;
use crate::superblock::view_dir;
use crate::transactions::cover_left;

impl Objects {
    /// Notes that a row is about to claim the bytes now in `file`. Comes before that row's batch.
    pub(crate) fn claim(&self, ino: InodeId, file: Arc<dyn File>) {
        {
            let mut claimed = self.claimed.lock();
            if claimed.ended {
                return;
            }
            if let Some((known, _)) = claimed.files.get_mut(&ino) {
                *known = file;
                return;
            }
            if let Some(claim) = self.storage.descriptors.claim() {
                claimed.files.insert(ino, (file, claim));
                return;
            }
            if self.syncs_all_at_once() {
                claimed.more = true;
                return;
            }
        }
        let synced = self.sync_one(ino, file.as_ref(), true).and_then(|()| self.dir_of(ino));
        let mut claimed = self.claimed.lock();
        match synced {
            Ok(dir) => claimed.dirs.extend(dir),
            // One that was tried is remembered besides, and fails the sync that comes before the row.
            Err(_) => claimed.more = true,
        }
    }

    /// Of a view that has ended, before its files go: no row becomes durable any more that claims its objects. They hold it, so it
    /// would stay for ever.
    pub(crate) fn end_claims(&self) {
        let ended = Claimed { ended: true, ..Claimed::default() };
        let claims = std::mem::replace(&mut *self.claimed.lock(), ended);
        // The last of them may be all that held this.
        drop(claims);
    }

    /// The directory with the name of an object, if there is one.
    fn dir_of(&self, ino: InodeId) -> io::Result<Option<PathBuf>> {
        let path = self.path(ino);
        let Some(dir) = path.parent() else { return Ok(None) };
        // A view need not have anything of its own there.
        let is_there = self.preimages().is_some() || exists(self.env.as_ref(), dir)?;
        Ok(is_there.then(|| dir.to_path_buf()))
    }

    /// Whether one sync of all costs no more for each large file that there is.
    pub(super) fn syncs_all_at_once(&self) -> bool {
        self.storage.watch.is_of_all()
    }

    /// Holds an object, if a row claims it, by `file` from now on, which need not be open for writing.
    pub(crate) fn claim_by(&self, ino: InodeId, file: &Arc<dyn File>) {
        if let Some((claimed, _)) = self.claimed.lock().files.get_mut(&ino) {
            *claimed = Arc::clone(file);
        }
    }

    /// Makes the bytes of an object durable, and with `data_only` unset its times. After a failure
    /// every later sync fails.
    pub(crate) fn sync(&self, ino: InodeId, object: &dyn File, data_only: bool) -> FsResult<()> {
        let synced = self.sync_one(ino, object, data_only).and_then(|()| self.sync_own_names());
        synced.map_err(error::sync)
    }

    /// Of a view: makes the names of its own files durable, which no row waits for.
    fn sync_own_names(&self) -> io::Result<()> {
        if self.preimages().is_some() {
            return Ok(());
        }
        let _others_wait = self.syncing.lock();
        let dirs = std::mem::take(&mut self.claimed.lock().dirs);
        // What was not tried is left to the next call.
        self.sync_dirs(&dirs).inspect_err(|_| self.claimed.lock().dirs.extend(dirs))
    }

    /// The deepest first, so that a name is never durable in a directory that is not.
    fn sync_dirs(&self, dirs: &BTreeSet<PathBuf>) -> io::Result<()> {
        let mut dirs = dirs.iter().rev();
        dirs.try_for_each(|dir| self.env.sync_dir(dir).map_err(|error| self.fail(dir, error)))
    }

    /// Makes the bytes of an object durable with its name, before a row claims them.
    pub(crate) fn sync_with_name(&self, ino: InodeId, object: &dyn File) -> FsResult<()> {
        let path = self.path(ino);
        // Of a view two more may have been made for it.
        let made = if self.preimages().is_some() { 3 } else { 5 };
        let dirs: BTreeSet<PathBuf> =
            path.ancestors().skip(1).take(made).map(Path::to_path_buf).collect();
        let synced = self.sync_one(ino, object, true).and_then(|()| self.sync_dirs(&dirs));
        synced.map_err(error::sync)
    }

    fn sync_one(&self, ino: InodeId, object: &dyn File, data_only: bool) -> io::Result<()> {
        self.check_failed()?;
        let synced = if data_only { object.sync_data() } else { object.sync_all() };
        synced.map_err(|error| self.fail(&self.path(ino), error))
    }

    fn check_failed(&self) -> io::Result<()> {
        match self.failed.get().or_else(|| self.storage.failed.get()) {
            Some(failure) => Err(io::Error::other(format!("an earlier sync failed: {failure}"))),
            None => Ok(()),
        }
    }

    /// Remembers a failed sync of `path`, if it was tried; returns the error with the path in its text.
    fn fail(&self, path: &Path, error: io::Error) -> io::Error {
        let text = format!("cannot sync {}: {error}", path.display());
        if !is_passing(&error) {
            self.failed.get_or_init(|| text.clone());
        }
        told(&error, text)
    }

    /// Makes durable all that was claimed before the call.
    pub(crate) fn sync_claimed(&self) -> io::Result<()> {
        let _others_wait = self.syncing.lock();
        if self.claimed.lock().ended {
            return Ok(());
        }
        self.check_failed()?;
        let claimed = self.claimed.lock().take();
        match self.sync_all_of(claimed) {
            // What was to be synced has gone meanwhile, with all that claims it.
            Err(error) if self.went_with_its_end(&error) => Ok(()),
            // What was not tried, or could not be looked for, is no sync that failed: the next call does all of it again.
            synced => synced.inspect_err(|_| self.unclaimed.note()),
        }
    }

    /// Whether a sync failed because the view has ended meanwhile, and its files with it.
    fn went_with_its_end(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::NotFound && self.claimed.lock().ended
    }

    fn sync_all_of(&self, claimed: Claimed) -> io::Result<()> {
        let Claimed { files, mut dirs, more, made: _, ended: _ } = claimed;
        if more || self.unclaimed.any() {
            self.sync_tree()?;
        }
        for (ino, (file, _)) in files {
            self.sync_one(ino, file.as_ref(), true)?;
            dirs.extend(self.dir_of(ino)?);
        }
        self.sync_dirs(&dirs)
    }

    /// Notes that an object was written to which nobody has open any more and no row claims: the next sync covers it.
    pub(crate) fn note_unclaimed(&self) {
        self.unclaimed.note();
    }

    /// Whether there is what no row claims and nobody has open, and no sync has covered it.
    pub(crate) fn has_unclaimed(&self) -> bool {
        self.unclaimed.any()
    }

    /// Makes that durable, if there is any.
    pub(crate) fn sync_unclaimed(&self) -> FsResult<()> {
        self.sync_all_if(&|| self.unclaimed.any())
    }

    /// The same, and what is being let go of. REQUIRES: the caller asked before which objects are open for writing.
    pub(crate) fn sync_let_go(&self) -> FsResult<()> {
        self.sync_all_if(&|| self.unclaimed.any() || self.unclaimed.is_releasing())
    }

    fn sync_all_if(&self, is_due: &dyn Fn() -> bool) -> FsResult<()> {
        if !is_due() {
            return Ok(());
        }
        let _others_wait = self.syncing.lock();
        if !is_due() {
            return Ok(());
        }
        self.check_failed().and_then(|()| self.sync_tree()).map_err(error::sync)
    }

    /// Notes that somebody lets go of an object to which he may have written, until [`Objects::end_release`]: by then a row
    /// claims it, or it is noted as unclaimed. Comes before it counts as open no more.
    pub(crate) fn begin_release(&self) {
        self.unclaimed.begin_release();
    }

    pub(crate) fn end_release(&self) {
        self.unclaimed.end_release();
    }

    /// Of the store in `store`: [`cover_left`], for who opens no views of it.
    pub(crate) fn cover_left(self: &Arc<Self>, db: &Db, store: &Path) -> StoreResult<()> {
        let of_view = |epoch, sees| Arc::new(self.of_view(view_dir(store, epoch), sees));
        cover_left(db, &of_view)
    }

    /// REQUIRES: the lock of who syncs.
    fn sync_tree(&self) -> io::Result<()> {
        let seen = self.unclaimed.seen();
        // A view that has written to no large file has none of its own.
        if self.preimages().is_none() && !exists(self.env.as_ref(), &self.dir)? {
            self.unclaimed.cover(seen);
            return Ok(());
        }
        self.sync_below()?;
        if self.preimages().is_none() {
            self.sync_blocks()?;
            // An earlier process may have made the directory.
            let above = self.dir.ancestors().skip(1).take(2).map(Path::to_path_buf);
            self.sync_dirs(&above.collect())?;
        }
        self.unclaimed.cover(seen);
        Ok(())
    }

    /// One sync of all files and names below the directory. After a failure every later sync fails, also of the store's views.
    pub(super) fn sync_below(&self) -> io::Result<()> {
        let _others_wait = self.storage.asking.lock();
        self.check_failed()?;
        self.env.sync_below(&self.storage.watch, &self.dir).map_err(|error| {
            let error = self.fail(&self.dir, error);
            if !is_passing(&error) && !self.went_with_its_end(&error) {
                self.storage.failed.get_or_init(|| error.to_string());
            }
            error
        })
    }

    /// Of a view: makes durable which blocks are its own, after their bytes. Costs the large files that it has changed. What is damaged
    /// is found so by who reads it, and must not keep the store from being synced.
    fn sync_blocks(&self) -> io::Result<()> {
        for ino in self.own_inodes().map_err(io::Error::other)? {
            let path = blocks_path(&self.path(ino));
            let synced = match self.overlays.get(&path) {
                Ok(Some(overlay)) if overlay.is_unsynced() => overlay.sync(false),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    log::error!("{error}");
                    Ok(())
                }
                found => found.map(drop),
            };
            synced.map_err(|error| self.fail(&path, error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
