//! Removing names, and what happens to an inode whose last name goes.
//!
//! ```text
//! several names --unlink--> fewer names
//! last name     --unlink--> open, or known and with data rows?
//!                             yes: orphan (own row, link count 0, pending row) --last release or forget--> gone
//!                             no:  gone; detached in memory while the front end knows it
//! detached      --open--> orphan
//! ```
//!
//! Gone means: no row of the inode is left, and its object, if it has one, is queued for the reaper. A
//! crash leaves orphans and queued objects with their pending rows, which the next mount finds.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use varve_schema::{Body, Content, FileKind, Home, Inode, Pending, Place, RowKey, UsageChange};
use varve_types::{FileName, InodeId, Timestamp};
use varve_vfs::{FsError, FsResult};

use super::create::adjust_dir;
use super::lookup::dangling;
use crate::error;
use crate::flags::check_takes_name;
use crate::fs::VarveFs;
use crate::rows::{Changes, Standing, rows_from};

/// Orphans that closing removes: each costs one batch.
const ORPHANS_AT_CLOSE_MAX: usize = 4096;

/// What is to follow in memory once the batch that took a name from an inode is written.
pub(crate) enum Departure {
    /// Names are left.
    Stays,
    /// Open, or known with data rows, without a name.
    Orphan(InodeId),
    /// Gone; the attributes are for front ends that still know it.
    Gone { inode: Box<Inode>, object: bool },
}

/// A name that an inode is about to lose.
#[derive(Clone, Copy)]
pub(crate) struct Lost<'a> {
    /// The directory that holds it.
    pub(crate) dir: InodeId,
    /// The name.
    pub(crate) name: FileName<'a>,
    /// The inode is in a row of its own.
    pub(crate) own: bool,
}

/// What is to be removed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remove {
    /// Anything but a directory.
    File,
    /// An empty directory.
    Directory,
}

impl VarveFs {
    pub(crate) fn remove_name(
        &self,
        parent: InodeId,
        name: FileName<'_>,
        what: Remove,
    ) -> FsResult<()> {
        self.writable()?;
        self.check_name(parent, name)?;
        let key = RowKey::entry(parent, self.hasher.entry(name.as_bytes()));
        let mut keys: SmallVec<[RowKey; 4]> = SmallVec::from_slice(&[RowKey::inode(parent), key]);
        loop {
            let (guards, mut dir) = self.lock_unfolded(parent, &keys)?;
            let mut row = self.entry_row(key)?;
            let named = row.find(name.as_bytes()).ok_or(FsError::NotFound)?;
            let is_dir = named.body.kind() == FileKind::Directory;
            match (what, is_dir) {
                (Remove::File, true) => return Err(FsError::IsDirectory),
                (Remove::Directory, false) => return Err(FsError::NotDirectory),
                _ => {}
            }
            self.check_none_written_elsewhere(&row)?;
            let named = row.remove(name.as_bytes()).ok_or(FsError::NotFound)?;
            let (inode, own) = match named.body {
                Body::Inline(inode) => (inode, false),
                Body::Reference { ino, .. } => {
                    let own = RowKey::inode(ino);
                    if !guards.holds(own) {
                        keys.truncate(2);
                        keys.push(own);
                        continue;
                    }
                    if is_dir {
                        self.claim_directory(ino)?;
                    }
                    (self.inode_row(ino)?.ok_or_else(|| dangling(key, &named))?, true)
                }
            };
            self.check_written_elsewhere(&inode)?;
            check_takes_name(&dir, &inode)?;
            let lost = Lost { dir: parent, name, own };
            let home = self.home_without(&inode, lost)?.map(|home| RowKey::inode(home.dir));
            if let Some(home) = home.filter(|home| !guards.holds(*home)) {
                keys.truncate(2);
                keys.extend([RowKey::inode(inode.ino), home]);
                continue;
            }
            let now = self.now();
            let mut changes = self.changes();
            // A file that counts elsewhere from now on is no reason to keep its name here.
            changes.standing = Standing::Happened;
            changes.put_entry_row(key, &row);
            adjust_dir(&mut dir, -1, -i32::from(is_dir), now)?;
            changes.put_dir(dir);
            changes.batch.reclaims_space();
            let departure = self.take_name(&mut changes, inode, lost, now)?;
            return self.commit_departure(&mut changes, departure);
        }
    }

    /// The home that `inode` has without the name `lost`, if it has one. REQUIRES: the lock of the row it is in.
    pub(crate) fn home_without(&self, inode: &Inode, lost: Lost<'_>) -> FsResult<Option<Home>> {
        let Some(home) = inode.home.filter(|_| inode.nlink > 1) else { return Ok(None) };
        let mut parents = self.parents(inode.ino);
        parents.remove(lost.dir, lost.name.as_bytes())?;
        parents.home_after(home)
    }

    /// Adds to `changes` what the loss of one name means for `inode`. A directory must be empty.
    /// REQUIRES: the locks of the row it is in, of its directory's and of its next home's
    /// ([`VarveFs::home_without`]); `commit_departure` follows.
    pub(crate) fn take_name(
        &self,
        changes: &mut Changes,
        mut inode: Inode,
        lost: Lost<'_>,
        now: Timestamp,
    ) -> FsResult<Departure> {
        inode.times.ctime = now;
        if let Content::Directory(info) = &mut inode.content {
            if info.entries != 0 {
                return Err(FsError::NotEmpty);
            }
            let told = info.told();
            changes.charge(lost.dir, told.negated());
            // Limits count it as empty, whatever its parent was told last.
            changes.brought.push((lost.dir, told.plus(UsageChange::DIR.negated())));
            changes.told.push(inode.ino);
            info.suffix = None;
            inode.nlink = 0;
            changes.delete_inode(inode.ino);
            self.delete_xattrs(changes, &inode)?;
            return Ok(Departure::Gone { inode: Box::new(inode), object: false });
        }
        self.uncount(changes, &mut inode, lost)?;
        inode.nlink = inode.nlink.saturating_sub(1);
        if inode.nlink > 0 {
            changes.put_inode(&inode);
            return Ok(Departure::Stays);
        }
        let has_more_rows = inode.has_xattrs
            || matches!(
                inode.content,
                Content::Chunks | Content::Object { .. } | Content::Borrowed(_)
            );
        if self.locator.mark_orphan(inode.ino, has_more_rows)? {
            changes.put_inode(&inode);
            changes.put_pending(inode.ino, Pending::Orphan);
            return Ok(Departure::Orphan(inode.ino));
        }
        if let Err(error) = self.take_from_object(&mut inode) {
            log::warn!("the object of a removed inode cannot be asked for its size: {error}");
        }
        let object = self.delete_content(changes, &inode)?;
        if lost.own {
            changes.delete_inode(inode.ino);
        }
        Ok(Departure::Gone { inode: Box::new(inode), object })
    }

    /// Takes a file that loses a name from the account where it counts, and counts it at its next home.
    fn uncount(&self, changes: &mut Changes, inode: &mut Inode, lost: Lost<'_>) -> FsResult<()> {
        let file = UsageChange::file(inode.size);
        if !lost.own {
            changes.charge(lost.dir, file.negated());
            return Ok(());
        }
        let mut parents = self.parents(inode.ino);
        parents.remove(lost.dir, lost.name.as_bytes())?;
        if let Some(home) = inode.home {
            inode.home = if inode.nlink > 1 { parents.home_after(home)? } else { None };
            match inode.home {
                Some(next) => changes.move_charge(home.dir, next.dir, file),
                None => changes.charge(home.dir, file.negated()),
            }
        }
        parents.stage(changes);
        Ok(())
    }

    /// Writes `changes`, which may move inodes, and lets the memory follow.
    pub(crate) fn commit_departure(
        &self,
        changes: &mut Changes,
        departure: Departure,
    ) -> FsResult<()> {
        if let Err(error) = self.commit(changes) {
            if let Departure::Orphan(ino) = departure {
                self.locator.unmark_orphan(ino);
            }
            return Err(error);
        }
        self.moves.fetch_add(1, Ordering::AcqRel);
        self.after_departure(departure)
    }

    /// Lets the memory follow a departure that was written.
    pub(crate) fn after_departure(&self, departure: Departure) -> FsResult<()> {
        match departure {
            Departure::Stays => Ok(()),
            Departure::Orphan(ino) => self.locator.moved(ino, Place::Own),
            Departure::Gone { inode, object } => {
                let ino = inode.ino;
                self.locator.detach(inode)?;
                if object {
                    self.reaper.enqueue(ino);
                }
                Ok(())
            }
        }
    }

    /// Adds to `changes` the removal of the data and attributes of `inode`; true if its object file must be
    /// queued for removal afterwards.
    pub(crate) fn delete_content(&self, changes: &mut Changes, inode: &Inode) -> FsResult<bool> {
        self.delete_xattrs(changes, inode)?;
        match inode.content {
            Content::Chunks => {
                changes.delete_chunks(inode.ino, 0, inode.size);
                Ok(false)
            }
            Content::Object { .. } => {
                changes.put_pending(inode.ino, Pending::ObjectDelete);
                Ok(true)
            }
            Content::Borrowed(_) => {
                changes.return_loan(inode);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    fn delete_xattrs(&self, changes: &mut Changes, inode: &Inode) -> FsResult<()> {
        if !inode.has_xattrs {
            return Ok(());
        }
        let range = rows_from(RowKey::xattr(inode.ino, 0));
        for key in self.store.keys(self.data, range).map_err(error::store)? {
            changes.batch.delete(self.data, key.map_err(error::store)?);
        }
        Ok(())
    }

    /// Removes what is left of an orphan, unless it was opened or named again. Waits for the operation that
    /// took its last name.
    pub(crate) fn reap_orphan(&self, ino: InodeId) -> FsResult<()> {
        let held = match self.hold(ino) {
            Err(FsError::Stale) => return Ok(()),
            held => held?,
        };
        if held.is_detached() || held.inode.nlink > 0 || self.locator.is_reachable(ino) {
            return Ok(());
        }
        let mut inode = held.inode.clone();
        let mut changes = self.changes();
        changes.batch.reclaims_space();
        changes.delete_pending(ino);
        if let Err(error) = self.take_from_object(&mut inode) {
            log::warn!("an orphan's object cannot be asked for its size: {error}");
        }
        let object = self.delete_content(&mut changes, &inode)?;
        changes.delete_inode(ino);
        self.commit_departure(&mut changes, Departure::Gone { inode: Box::new(inode), object })
    }

    /// Removes what is left of orphans that only open handles or lookups kept, up to [`ORPHANS_AT_CLOSE_MAX`]; the next
    /// mount finds the others. REQUIRES: no call is under way, and none follows.
    pub(crate) fn drop_known_orphans(&self) {
        for ino in self.locator.abandon_orphans(ORPHANS_AT_CLOSE_MAX) {
            if let Err(error) = self.reap_orphan(ino) {
                log::warn!("inode {ino}, which has no name, stays until the next mount: {error}");
            }
        }
    }

    /// Takes back lookups; with the last one an orphan that is not open goes.
    pub(crate) fn do_forget(&self, ino: InodeId, lookups: u64) -> FsResult<()> {
        if !self.locator.forget(ino, lookups)? {
            return Ok(());
        }
        let reaped = self.reap_orphan(ino);
        self.locator.close(ino);
        reaped
    }
}
