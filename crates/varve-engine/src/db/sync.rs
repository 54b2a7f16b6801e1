//! Makes the log durable.
//!
//! 1. Note the position to reach; if another sync already reached it, that is all.
//! 2. If batches depend on data outside the store: run the hook, then append a barrier record that says
//!    up to which batch those data are durable.
//! 3. fsync every log that is not durable to its end, oldest first, then the directory if it holds a
//!    new log.
//! 4. Append a marker record that says how much is durable, and name in the manifest a log that is new.
//!
//! Calls that come while a sync runs wait for it and then share the next one: each is served by the first
//! sync that begins after its call.

use varve_types::{FileNo, SeqNo};

use super::{Db, Inner, Writer};
use crate::wal::SyncTargets;
use crate::{StoreError, StoreResult};

/// What is known durable.
#[derive(Debug, Default)]
pub(crate) struct SyncState {
    /// Position in the log's history.
    position: u64,
    /// The newest batch whose outside data is covered by a barrier.
    covered: SeqNo,
    /// The newest log that is, as are those before it.
    log: Option<FileNo>,
}

impl Db {
    /// Takes no writes any more until it is opened again, since what stands outside of the store and its rows do not agree
    /// because of `cause`, and opening it makes them. Gives what writers are told.
    pub fn refuse_writes(&self, cause: &dyn std::fmt::Display) -> StoreError {
        self.inner.health.poison.set(cause)
    }
}

impl Inner {
    /// See [`crate::Store::sync`].
    pub(crate) fn sync(&self) -> StoreResult<()> {
        self.metrics.syncs.add(1);
        let target = self.writer.lock().log.position();
        let mut state = self.sync_state.lock();
        self.health.poison.check()?;
        if state.position >= target {
            return Ok(());
        }
        let reached = self.cover_external(&mut state)?;
        let targets = self.writer.lock().log.sync_targets();
        self.fsync(&targets)?;
        state.log = targets.newest();
        // Batches that depend on data written after the hook ran are not covered yet.
        let all_covered = targets.external_seq <= state.covered;
        let durable = if all_covered { targets.position } else { reached };
        state.position = state.position.max(durable);
        let mut writer = self.writer.lock();
        // The kernel tells of a failure once. If another sync of the same log was told, this one was not.
        self.health.poison.check()?;
        // The log is durable all the same where only the proof of it is missing.
        match writer.log.mark_synced(&targets) {
            Ok(()) | Err(StoreError::NoSpace { .. }) => {}
            Err(error) => return Err(self.health.poison.set(&error)),
        }
        drop(writer);
        // Whoever changes the manifest may take his time; the next sync names the log then.
        self.versions.try_name_log(state.log)
    }

    /// Makes everything durable for who holds the writer. Syncs that are under way may wait for the writer, so what they know
    /// stays as it is, and the next one does some of this again.
    pub(crate) fn sync_under(&self, writer: &mut Writer) -> StoreResult<()> {
        self.external.run()?;
        let covered = writer.log.external_seq();
        self.append_barrier(writer, covered)?;
        self.fsync(&writer.log.sync_targets())
    }

    /// Names in the manifest the newest log that was synced, unless it is. REQUIRES: no sync comes after this one.
    pub(crate) fn name_last_log(&self) -> StoreResult<()> {
        let log = self.sync_state.lock().log;
        self.versions.name_log(log)
    }

    /// Makes outside data durable and says so in the log. Returns the position whose batches are then
    /// covered.
    fn cover_external(&self, state: &mut SyncState) -> StoreResult<u64> {
        let (position, external_seq) = {
            let writer = self.writer.lock();
            (writer.log.position(), writer.log.external_seq())
        };
        if external_seq > state.covered {
            self.external.run()?;
            self.append_barrier(&mut self.writer.lock(), external_seq)?;
            state.covered = external_seq;
        }
        Ok(position)
    }

    fn append_barrier(&self, writer: &mut Writer, covered: SeqNo) -> StoreResult<()> {
        match writer.log.append_barrier(covered) {
            Err(error @ StoreError::NoSpace { .. }) => Err(error),
            other => other.map_err(|error| self.health.poison.set(&error)),
        }
    }

    fn fsync(&self, targets: &SyncTargets) -> StoreResult<()> {
        for target in &targets.logs {
            self.metrics.log_syncs.add(1);
            target.file.sync_data().map_err(|error| {
                self.health
                    .poison
                    .set(&format_args!("cannot sync {}: {error}", target.path.display()))
            })?;
        }
        if targets.directory {
            self.versions.sync_names()?;
        }
        Ok(())
    }
}
