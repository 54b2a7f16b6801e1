//! Inodes without a name that somebody holds: removed once the last lookup and the last handle are gone.
//!
//! Their rows, and a pending row for each, outlive the process. Opening the store removes them, unless they are kept
//! ([`MountOptions::keep_orphans`](crate::MountOptions::keep_orphans)):
//!
//! 1. Opening and closing the store leave them alone.
//! 2. [`VarveFs::do_reopen`] makes one that its holder asks for known again, as an orphan that is open.
//! 3. [`VarveFs::do_end_grace`] removes those that nobody has open.

use varve_namespace::{Decision, reap};
use varve_schema::Pending;
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, OpenFlags, Opened, Place};

use crate::fs::VarveFs;

/// Orphans that closing removes: each costs one batch.
const ORPHANS_AT_CLOSE_MAX: usize = 4096;

impl VarveFs {
    /// Removes what is left of an orphan, unless it was opened or named again. Waits for the operation that
    /// took its last name.
    pub(crate) fn reap_orphan(&self, ino: InodeId) -> FsResult<()> {
        let held = match self.hold(ino) {
            Err(FsError::Stale) => return Ok(()),
            held => held?,
        };
        if held.is_detached() || held.inode.nlink > 0 || self.session.inodes.is_reachable(ino) {
            return Ok(());
        }
        let mut inode = held.inode.clone();
        if let Err(error) = self.take_from_object(&mut inode) {
            log::warn!("an orphan's object cannot be asked for its size: {error}");
        }
        let mut decision = Decision::default();
        reap(self, &mut decision, inode)?;
        self.commit(&mut decision.changes)?;
        self.follow(decision.effects)
    }

    /// Removes what is left of orphans that only open handles or lookups kept, up to [`ORPHANS_AT_CLOSE_MAX`]; the next
    /// mount finds the others. REQUIRES: no call is under way, and none follows.
    pub(crate) fn drop_known_orphans(&self) {
        for ino in self.session.inodes.abandon_orphans(ORPHANS_AT_CLOSE_MAX) {
            if let Err(error) = self.reap_orphan(ino) {
                log::warn!("inode {ino}, which has no name, stays until the next mount: {error}");
            }
        }
    }

    /// Opens a file that somebody had open when another process had the store, whether it still has a name or not.
    pub(crate) fn do_reopen(
        &self,
        ino: InodeId,
        place: Option<Place>,
        flags: OpenFlags,
    ) -> FsResult<Opened> {
        let flags = OpenFlags { truncate: false, ..flags };
        match self.do_lookup_at(ino, place, false) {
            Ok(_) => {
                let opened = self.do_open(ino, flags);
                self.do_forget(ino, 1)?;
                opened
            }
            // An orphan has a row of its own; whatever else is not found there is gone.
            Err(FsError::Stale) => self.do_open(ino, flags),
            Err(error) => Err(error),
        }
    }

    /// Removes the orphans that neither a lookup nor a handle reaches.
    pub(crate) fn do_end_grace(&self) -> FsResult<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.each_pending(&mut |ino, kind| match kind {
            Pending::Orphan => self.reap_orphan(ino),
            _ => Ok(()),
        })
    }

    /// Takes back lookups; with the last one an orphan that is not open goes.
    pub(crate) fn do_forget(&self, ino: InodeId, lookups: u64) -> FsResult<()> {
        if !self.session.inodes.forget(ino, lookups)? {
            return Ok(());
        }
        let reaped = self.reap_orphan(ino);
        self.session.inodes.close(ino);
        reaped
    }
}
