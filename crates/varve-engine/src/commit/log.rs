//! The log and the active memtable: numbers batches, logs and applies them, and makes them durable.
//!
//! A write. The caller holds the writer ([`Log::writer`]):
//!
//! 1. [`Log::log_batch`] appends the batch to the log under the next sequence number.
//! 2. [`Log::apply`] puts its rows into the active memtable and publishes them as the newest state, at once.
//! 3. When the memtable is full, [`Log::rotate`] begins the next log and memtable; the full one waits for its flush.
//!
//! A sync ([`Log::sync`]):
//!
//! 1. Note the position to reach; if another sync already reached it, that is all.
//! 2. If batches depend on data outside the store: run the hook, then append a barrier record that says
//!    up to which batch those data are durable.
//! 3. fsync every log that is not durable to its end, oldest first, then the directory if it holds a
//!    new log.
//! 4. Append a marker record that says how much is durable, and name in the manifest a log that is new.
//!
//! Calls that come while a sync runs wait for it and then share the next one: each is served by the first
//! sync that begins after its call, and returns when that one is done, whatever runs by then.
//!
//! Invariants:
//! - One sync runs at a time. It holds no lock through an fsync, and the writer's lock only for an append. A caller that
//!   holds the writer and has to sync ([`Log::sync_under`]) leaves what syncs know as it is.
//! - A sequence number is given once: the next one is above all that were published.
//! - The writer's memtable is the active one of the present read state.
//! - What a sync knows to be durable is not beyond what was written.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};
use varve_env::Env;
use varve_types::{FileNo, SeqNo};

use super::work::Work;
use crate::base::Base;
use crate::external::ExternalSyncs;
use crate::files::{FileNumbers, StoreFile};
use crate::health::Health;
use crate::memtable::Memtable;
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::read_state::ReadStates;
use crate::snapshot::Snapshots;
use crate::txn::manager::Locks;
use crate::versions::VersionSet;
use crate::wal::{Appended, LogWriter, SyncTargets};
use crate::{Batch, Op, StoreError, StoreResult};

/// Where the next batch goes.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) log: LogWriter,
    pub(crate) next_seq: SeqNo,
    /// The active memtable, as in the present read state.
    pub(crate) active: Arc<Memtable>,
}

/// The syncs.
#[derive(Debug, Default)]
struct Syncs {
    state: SyncState,
    /// One is under way.
    is_running: bool,
}

/// What is known durable.
#[derive(Clone, Copy, Debug, Default)]
struct SyncState {
    /// Position in the log's history.
    position: u64,
    /// The newest batch whose outside data is covered by a barrier.
    covered: SeqNo,
    /// The newest log that is, as are those before it.
    log: Option<FileNo>,
}

/// The sync that is under way. A drop lets the next one begin, and those return that this one has served.
struct RunningSync<'a> {
    log: &'a Log,
    state: SyncState,
}

impl Drop for RunningSync<'_> {
    fn drop(&mut self) {
        *self.log.syncs.lock() = Syncs { state: self.state, is_running: false };
        self.log.sync_done.notify_all();
    }
}

/// See the module's comment.
pub(crate) struct Log {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) dir: PathBuf,
    pub(crate) options: Arc<DbOptions>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) read_states: Arc<ReadStates>,
    pub(crate) file_numbers: Arc<FileNumbers>,
    pub(crate) external: Arc<ExternalSyncs>,
    pub(crate) locks: Arc<Locks>,
    pub(crate) work: Arc<Work>,
    pub(crate) versions: Arc<VersionSet>,
    pub(super) writer: Mutex<Writer>,
    /// Tells writers that wait for room that a flush ended.
    pub(super) flushed: Condvar,
    syncs: Mutex<Syncs>,
    sync_done: Condvar,
}

impl Log {
    /// Goes on with `writer`.
    pub(crate) fn new(
        base: &Base,
        external: Arc<ExternalSyncs>,
        locks: Arc<Locks>,
        work: Arc<Work>,
        versions: Arc<VersionSet>,
        writer: Writer,
    ) -> Log {
        let Base { env, dir, options, health, metrics, snapshots, .. } = base.clone();
        let Base { read_states, file_numbers, .. } = base.clone();
        Log {
            env,
            dir,
            options,
            health,
            metrics,
            snapshots,
            read_states,
            file_numbers,
            external,
            locks,
            work,
            versions,
            writer: Mutex::new(writer),
            flushed: Condvar::new(),
            syncs: Mutex::default(),
            sync_done: Condvar::new(),
        }
    }

    /// Whether somebody holds the writer.
    pub(crate) fn is_writer_held(&self) -> bool {
        self.writer.is_locked()
    }

    /// The newest batch that depends on data outside the store.
    pub(crate) fn external_seq(&self) -> SeqNo {
        self.writer.lock().log.external_seq()
    }

    /// Ends the log, as the store closes. Without room it has no record of that, which only helps an inspection of the log.
    pub(crate) fn close(&self) -> StoreResult<()> {
        match self.writer.lock().log.append_close() {
            Err(StoreError::NoSpace { .. }) => Ok(()),
            other => other,
        }
    }

    /// See [`crate::Store::sync`].
    pub(crate) fn sync(&self) -> StoreResult<()> {
        self.metrics.syncs.add(1);
        let target = self.writer.lock().log.position();
        let mut syncs = self.syncs.lock();
        loop {
            self.health.poison.check()?;
            if syncs.state.position >= target {
                return Ok(());
            }
            if !syncs.is_running {
                break;
            }
            self.sync_done.wait(&mut syncs);
        }
        syncs.is_running = true;
        let state = syncs.state;
        drop(syncs);
        let mut running = RunningSync { log: self, state };
        self.sync_now(&mut running.state)
    }

    /// Makes everything durable, for the one sync that is under way.
    fn sync_now(&self, state: &mut SyncState) -> StoreResult<()> {
        let reached = self.cover_external(state)?;
        let targets = self.writer.lock().log.sync_targets();
        self.fsync(&targets)?;
        state.log = targets.newest();
        // Batches that depend on data written after the hook ran are not covered yet.
        let all_covered = targets.external_seq <= state.covered;
        let durable = if all_covered { targets.position } else { reached };
        state.position = state.position.max(durable);
        let mut writer = self.writer.lock();
        debug_assert!(state.position <= writer.log.position());
        debug_assert!(state.covered <= writer.log.external_seq());
        // The kernel tells of a failure once. If another sync of the same log was told, this one was not.
        self.health.poison.check()?;
        // The log is durable all the same where only the proof of it is missing.
        match writer.log.mark_synced(&targets) {
            Ok(()) | Err(StoreError::NoSpace { .. }) => {}
            Err(error) => return Err(self.health.poison.set(&error)),
        }
        drop(writer);
        // A change of the manifest may take its time; then the next sync names the log.
        self.versions.try_name_log(state.log)
    }

    /// Makes everything durable for a caller that holds the writer. Syncs that are under way may wait for the writer. So what
    /// they know stays as it is, and the next one does some of this again.
    pub(crate) fn sync_under(&self, writer: &mut Writer) -> StoreResult<()> {
        self.external.run()?;
        let covered = writer.log.external_seq();
        self.append_barrier(writer, covered)?;
        self.fsync(&writer.log.sync_targets())
    }

    /// Names in the manifest the newest log that was synced, unless it is. REQUIRES: no sync comes after this one.
    pub(crate) fn name_last_log(&self) -> StoreResult<()> {
        let log = self.syncs.lock().state.log;
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

    /// Begins a new log and memtable; the present memtable waits for its flush.
    pub(crate) fn rotate(&self, writer: &mut Writer) -> StoreResult<()> {
        let no = self.file_numbers.take();
        writer.log.rotate(no, writer.next_seq)?;
        let next = Arc::new(Memtable::new(no, self.options.memtable_bytes));
        let full = std::mem::replace(&mut writer.active, Arc::clone(&next));
        self.read_states.update(|read_state| {
            debug_assert!(Arc::ptr_eq(&full, &read_state.active), "writers fill what readers see");
            read_state.immutables.insert(0, full);
            read_state.active = next;
        });
        // Here and not by callers, whose own work may fail after it.
        self.work.flush_is_due();
        Ok(())
    }

    /// Begins a new log and memtable if the present ones have rows.
    pub(super) fn rotate_written(&self) -> StoreResult<()> {
        let mut writer = self.writer.lock();
        // Asked again under the lock: nothing may follow the record that closes the log.
        self.health.check_changeable()?;
        if writer.active.is_empty() { Ok(()) } else { self.rotate(&mut writer) }
    }

    /// Logs a batch.
    pub(super) fn log_batch(&self, writer: &mut Writer, batch: &Batch) -> StoreResult<Appended> {
        match writer.log.append_batch(writer.next_seq, batch) {
            Err(error @ StoreError::NoSpace { .. }) => Err(error),
            appended => appended.map_err(|error| self.health.poison.set(&error)),
        }
    }

    /// Applies a batch that was logged.
    pub(super) fn apply(&self, writer: &mut Writer, batch: Batch, logged: Appended) {
        let first_seq = writer.next_seq;
        let Appended { bytes, in_window, warmed } = logged;
        if batch.is_external() {
            writer.active.mark_external();
        }
        batch.ended().iter().for_each(|branch| writer.active.note_ended(*branch));
        let ops = batch.into_ops();
        let changes_store = ops.iter().any(|op| !op.keyspace().is_of_branch());
        // Under the writer's lock, here and nowhere else.
        self.metrics.batches.add_alone(1);
        self.metrics.writes.add_alone(ops.len() as u64);
        self.metrics.row_bytes.add_alone(ops.iter().map(Op::bytes).sum());
        self.metrics.log_bytes.add_alone(bytes);
        self.metrics.log_window_bytes.add_alone(if in_window { bytes } else { 0 });
        self.metrics.log_warmed_bytes.add_alone(warmed);
        writer.next_seq = first_seq.advanced(ops.len() as u64);
        let last_seq = first_seq.advanced(ops.len() as u64 - 1);
        debug_assert!(self.snapshots.last_seq() < first_seq, "a number is given once");
        self.snapshots.publish(last_seq, |is_seen| {
            let versions = Some(&self.read_states.writes);
            writer.active.apply(first_seq, ops.into_iter(), is_seen, versions);
        });
        if changes_store {
            self.locks.store_has_changed();
        }
    }

    /// Lets writers go on, and removes the logs that tables have made needless: the removal of a large file takes its time.
    pub(crate) fn remove_logs(&self, mut writer: MutexGuard<'_, Writer>) {
        let unneeded = writer.log.forget_before(self.read_states.get().oldest_log());
        drop(writer);
        for no in unneeded {
            let path = StoreFile::Wal(no).path(&self.dir);
            // What stays behind is removed at the next open.
            if let Err(error) = self.env.remove_file(&path) {
                log::warn!("cannot remove the old log {}: {error}", path.display());
            }
        }
    }

    /// Wakes the writers that wait for a flush, as none will come.
    pub(crate) fn no_flush_comes(&self) {
        drop(self.writer.lock());
        self.flushed.notify_all();
    }

    /// Waits for the write that goes on, if one does: it is published when this returns.
    pub(crate) fn wait_for_writer(&self) {
        drop(self.writer.lock());
    }
}
