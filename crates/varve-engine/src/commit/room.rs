//! Room for writes: what a writer does when the device is full, and the work that follows a rotation.
//!
//! 1. A writer that finds no room flushes what was written, which gives the room of logs back.
//! 2. If that is little, it drops from a table what nobody sees ([`crate::compaction::reclaim`]).
//! 3. Then it flushes even a little.
//! 4. At last it asks the storage to finish removals.
//!
//! Where the machine has no threads, the writer that rotates a memtable flushes and compacts before it returns.

use varve_env::is_passing;

use super::write::Commits;
use crate::compaction::done_if_room;
use crate::compaction::reclaim::{DEAD_SHARE_FAIR, DEAD_SHARE_LEAST, DEAD_SHARE_MAX};
use crate::{StoreError, StoreResult};

/// A writer that finds no room flushes what was written if it is at least this much: that gives back the room of logs.
const UNFLUSHED_BYTES_FAIR: u64 = 64 << 10;
/// As a last resort it flushes this much, some 60 removals: less takes more room in tables than it gives back.
const UNFLUSHED_BYTES_MIN: u64 = 8 << 10;
/// So many deletions are flushed so that what they delete goes, although there is room.
const DELETIONS_FAIR: usize = 64;

impl Commits {
    /// Gets some room back if it can, for what comes after a write that finds its own.
    pub(super) fn reclaim_for_later(&self) -> StoreResult<()> {
        match self.compactor.reclaim_one(DEAD_SHARE_FAIR) {
            Err(error @ (StoreError::Closed | StoreError::Poisoned { .. })) => Err(error),
            Err(error) => {
                log::warn!("no room is got back before a removal: {error}");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Bytes of the rows that no table has.
    pub(super) fn unflushed_bytes(&self) -> u64 {
        self.read_states
            .with(|read_state| read_state.memtables().map(|memtable| memtable.bytes() as u64).sum())
    }

    /// Gets room on a full device: that of the logs, of rows that nobody sees, or of removals that the storage has not finished. False
    /// if there is none to be had.
    pub(crate) fn get_room(&self) -> StoreResult<bool> {
        if self.flush_from(UNFLUSHED_BYTES_FAIR)? {
            return Ok(true);
        }
        if self.compactor.reclaim_one(DEAD_SHARE_MAX)? {
            // The flush that found no room may find some now, and until it does no memtable gives way to another.
            if self.work.is_flush_blocked() {
                done_if_room(self.flusher.flush_pending().map(|()| true))?;
            }
            return Ok(true);
        }
        Ok(self.flush_from(UNFLUSHED_BYTES_MIN)? || self.space.settle()?)
    }

    fn has_deletions(&self) -> bool {
        let deletions: usize = self
            .read_states
            .with(|read_state| read_state.memtables().map(|memtable| memtable.deletions()).sum());
        deletions >= DELETIONS_FAIR
    }

    /// Flushes what was written if much of it deletes. False if it does not, or there is no room.
    pub(crate) fn flush_deletions(&self) -> StoreResult<bool> {
        Ok(self.has_deletions() && self.flush_from(0)?)
    }

    /// Whether there may be something to do for [`Commits::flush_deletions`] or [`Commits::get_removed_room`].
    pub(crate) fn may_get_removed_room(&self) -> StoreResult<bool> {
        Ok(self.has_deletions() || self.compactor.may_reclaim(DEAD_SHARE_LEAST)?)
    }

    /// Gets back the room of what was removed where that is most of a table, which writes less than it gives back. False if there
    /// is no such table.
    pub(crate) fn get_removed_room(&self) -> StoreResult<bool> {
        self.compactor.reclaim_one(DEAD_SHARE_LEAST)
    }

    /// Flushes what was written if it is at least `bytes_min`; false if it is less, or could not be flushed.
    fn flush_from(&self, bytes_min: u64) -> StoreResult<bool> {
        if self.unflushed_bytes() < bytes_min {
            return Ok(false);
        }
        let flushes = self.metrics.flushes.get();
        match self.flusher.flush_all() {
            Err(StoreError::NoSpace { .. }) => Ok(false),
            // Rows that depend on an external sync wait until one is set.
            other => other.map(|()| self.metrics.flushes.get() > flushes),
        }
    }

    /// Has full memtables flushed and levels compacted: by the threads, or here if there are none.
    pub(crate) fn work_is_due(&self) {
        if !self.env.is_deterministic() {
            self.work.tell(|due| (due.flush, due.compaction) = (true, true));
            return;
        }
        let outcome = self.flusher.flush_pending().and_then(|()| {
            while self.compactor.compact_one(false)? {}
            Ok(())
        });
        // The write that brought this about succeeded; what failed here is tried again, or poisons.
        if let Err(error) = outcome {
            self.note_failure("work after a rotation", error);
        }
    }

    /// Judges a failure of background work: true if trying again makes sense, else the store is poisoned
    /// or closed.
    pub(crate) fn note_failure(&self, work: &str, error: StoreError) -> bool {
        match error {
            // A call may be wrong for a while, as where rows wait for the external sync to be set.
            StoreError::NoSpace { .. } | StoreError::Invalid(_) => {
                log::warn!("{work}: {error}; it is tried again");
                true
            }
            StoreError::Closed | StoreError::Poisoned { .. } => false,
            StoreError::Io { source, .. } if is_passing(&source) => {
                log::warn!("{work}: {source}; it is tried again");
                true
            }
            error => {
                self.health.poison.set(&format_args!("{work}: {error}"));
                false
            }
        }
    }
}
