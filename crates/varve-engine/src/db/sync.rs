//! Makes the log durable.
//!
//! 1. Note the position to reach; if another sync already reached it, that is all.
//! 2. If batches depend on data outside the store: run the hook, then append a barrier record that says
//!    up to which batch those data are durable.
//! 3. fsync every log that is not durable to its end, oldest first, then the directory if it holds a
//!    new log.
//! 4. Append a marker record that says how much is durable.
//!
//! Calls that come while a sync runs wait for it and then share the next one: each is served by the first
//! sync that begins after its call.

use varve_types::SeqNo;

use super::Inner;
use crate::wal::SyncTargets;
use crate::{StoreError, StoreResult};

/// What is known durable.
#[derive(Debug, Default)]
pub(crate) struct SyncState {
    /// Position in the log's history.
    position: u64,
    /// The newest batch whose outside data is covered by a barrier.
    covered: SeqNo,
}

impl Inner {
    /// See [`crate::Store::sync`].
    pub(crate) fn sync(&self) -> StoreResult<()> {
        self.metrics.syncs.add(1);
        let target = self.writer.lock().log.position();
        let mut state = self.sync_state.lock();
        self.poison.check()?;
        if state.position >= target {
            return Ok(());
        }
        let reached = self.cover_external(&mut state)?;
        let targets = self.writer.lock().log.sync_targets();
        self.fsync(&targets)?;
        // Batches that depend on data written after the hook ran are not covered yet.
        let all_covered = targets.external_seq <= state.covered;
        let durable = if all_covered { targets.position } else { reached };
        state.position = state.position.max(durable);
        match self.writer.lock().log.mark_synced(&targets) {
            // The log is durable all the same; only the proof of it is missing.
            Ok(()) | Err(StoreError::NoSpace { .. }) => Ok(()),
            Err(error) => Err(self.poison.set(&error)),
        }
    }

    /// Makes outside data durable and says so in the log. Returns the position whose batches are then
    /// covered.
    fn cover_external(&self, state: &mut SyncState) -> StoreResult<u64> {
        let (position, external_seq) = {
            let writer = self.writer.lock();
            (writer.log.position(), writer.log.external_seq())
        };
        if external_seq > state.covered {
            self.run_external_sync()?;
            match self.writer.lock().log.append_barrier(external_seq) {
                Ok(()) => state.covered = external_seq,
                Err(error @ StoreError::NoSpace { .. }) => return Err(error),
                Err(error) => return Err(self.poison.set(&error)),
            }
        }
        Ok(position)
    }

    fn fsync(&self, targets: &SyncTargets) -> StoreResult<()> {
        for target in &targets.logs {
            self.metrics.log_syncs.add(1);
            target.file.sync_data().map_err(|error| {
                self.poison.set(&format_args!("cannot sync {}: {error}", target.path.display()))
            })?;
        }
        if targets.directory {
            self.env.sync_dir(&self.dir).map_err(|error| {
                self.poison.set(&format_args!("cannot sync {}: {error}", self.dir.display()))
            })?;
        }
        Ok(())
    }
}
