//! Large files whose rows could not follow them when they were closed: a transaction had locked what that changes, or something
//! was short, such as descriptors. And large files that programs write to which opened them before an earlier daemon died.
//!
//! 1. Such a file waits here, and stays known as if it was looked up, so that its row is found ([`VarveFs::settle_unwritten`]).
//! 2. Once locks have gone, or after [`RETRY_AFTER`](queue::RETRY_AFTER), the next change of anything brings the row up to date, and of
//!    many rows the first [`SETTLED_MAX`] ([`VarveFs::settle_waiting`]). The others have their turn with the next change, or if some
//!    have failed again after the same time. A view that begins, and a rollback, settle all at once ([`VarveFs::settle_all_waiting`]).
//!
//! Until then it counts with the size that it had before. What still waits when the store is closed, and what there is no room
//! for here, is left to the next writer's release or the next mount, which finds the pending row.

mod queue;

use std::collections::BTreeMap;
use std::time::Duration;

use varve_schema::InodeLocation;
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use crate::fs::VarveFs;
use queue::NEVER_MS;
pub(crate) use queue::Unsettled;

/// Files that may wait.
const UNSETTLED_MAX: usize = 1024;

/// The most that one change brings up to date, or tries to.
const SETTLED_MAX: usize = 64;

impl VarveFs {
    /// Brings the row of a file up to date that perhaps nobody writes any more. If that fails the row stays dirty, which is right
    /// as well, and it is tried again later.
    pub(crate) fn settle_unwritten(&self, ino: InodeId) {
        let why = match self.settle_object(ino) {
            // Without a row there is nothing to bring up to date.
            Ok(()) | Err(FsError::Stale) => return,
            Err(why) => why,
        };
        self.objects.note_unclaimed();
        // The commit of a serializable view brings up to date what it must.
        if self.serial.is_some() {
            self.not_again(&why);
            match why {
                // It is never committed.
                FsError::DeadlockVictim => log::debug!("the row of inode {ino} stays dirty: {why}"),
                _ => log::warn!("the row of inode {ino} stays dirty: {why}"),
            }
        } else if let Err(error) = self.settle_later(ino, &why) {
            log::warn!("the row of inode {ino} stays dirty: {why}; it is not tried again: {error}");
        }
    }

    /// Queues a file to be settled later.
    pub(super) fn settle_later(&self, ino: InodeId, why: &FsError) -> FsResult<()> {
        let held = self.hold(ino)?;
        if self.unsettled.len() >= UNSETTLED_MAX {
            return Err(FsError::TryAgain);
        }
        // Each file that waits has one lookup.
        self.session.inodes.note_lookup(ino, held.place())?;
        if !self.unsettled.add(ino, why, self.monotonic_ms()) {
            self.session.inodes.forget(ino, 1)?;
        }
        Ok(())
    }

    /// Brings up to date some of what waits for that, if locks have gone or it is time. REQUIRES: the caller holds no row lock.
    pub(crate) fn settle_waiting(&self) {
        let retry_at_ms = self.unsettled.retry_at_ms();
        if (retry_at_ms != NEVER_MS && retry_at_ms <= self.monotonic_ms()) || self.have_locks_gone()
        {
            self.settle_some(SETTLED_MAX);
        }
    }

    /// Whether locks have gone for which some wait.
    fn have_locks_gone(&self) -> bool {
        let blocked = self.unsettled.blocked();
        blocked.is_some_and(|blocked| self.do_wait_for_locks(&blocked, Duration::ZERO))
    }

    /// Brings up to date what waits for that, as far as it can be. REQUIRES: the caller holds no row lock.
    pub(crate) fn settle_all_waiting(&self) {
        self.settle_some(usize::MAX);
    }

    fn settle_some(&self, most: usize) {
        let mut is_done = true;
        for ino in self.unsettled.take(most, self.monotonic_ms()) {
            match self.settle_object(ino) {
                Ok(()) | Err(FsError::Stale) => self.waits_no_more(ino),
                Err(why) => {
                    is_done = false;
                    if !self.unsettled.add(ino, &why, self.monotonic_ms()) {
                        self.waits_no_more(ino);
                    }
                }
            }
        }
        if is_done {
            self.unsettled.hurry();
        }
    }

    /// Keeps files known until [`VarveFs::settle_known`]; gives them. REQUIRES: the locks of their rows, which are there.
    pub(crate) fn keep_known(
        &self,
        files: &BTreeMap<InodeId, InodeLocation>,
    ) -> FsResult<Vec<InodeId>> {
        for (ino, place) in files {
            self.session.inodes.note_lookup(*ino, place.clone())?;
        }
        Ok(files.keys().copied().collect())
    }

    /// Brings the rows of these files up to date, those that are still there.
    pub(crate) fn settle_known(&self, inos: Vec<InodeId>) -> FsResult<()> {
        let settled = inos.into_iter().map(|ino| {
            let settled = match self.settle_object(ino) {
                Err(FsError::Stale) => Ok(()),
                settled => settled,
            };
            settled.and(self.do_forget(ino, 1))
        });
        settled.fold(Ok(()), FsResult::and)
    }

    /// Lets nothing wait any more.
    pub(crate) fn abandon_unsettled(&self) {
        self.unsettled.take(usize::MAX, 0).into_iter().for_each(|ino| self.waits_no_more(ino));
    }

    fn waits_no_more(&self, ino: InodeId) {
        if let Err(error) = self.do_forget(ino, 1) {
            log::warn!("inode {ino} stays until the next mount: {error}");
        }
    }
}
