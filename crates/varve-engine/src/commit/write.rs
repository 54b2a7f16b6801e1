//! The write path: what a batch passes before it is in the log and the memtable.
//!
//! 1. The batch is checked: its rows fit their key spaces, and it is not too large.
//! 2. There must be room on the device beside the reserve ([`crate::space`]), else some is got back ([`super::room`]).
//!    While compactions are behind, the writer sleeps for a moment ([`crate::pace`]).
//! 3. Under the writer's lock a full memtable is rotated, which waits while too many others wait for their flush.
//! 4. If a transaction has locked a row of the batch, the writer gives the lock back and waits.
//! 5. The batch is logged and applied ([`Log`]).
//!
//! Invariants:
//! - From the question for locks to the publication of the rows, the writer's lock is held: no lock is granted between.
//! - Nothing is waited for under the writer's lock but a flush, which gives the lock back meanwhile.
//! - Each rotation is followed by a flush, whatever becomes of the write that brought it about.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::MutexGuard;
use varve_env::Env;
use varve_format::filter::PREFIX_BYTES;
use varve_types::BranchId;
use varve_types::limits::{BATCH_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};

use super::flush::Flusher;
use super::log::{Log, Writer};
use super::work::Work;
use crate::base::Base;
use crate::compaction::compactor::Compactor;
use crate::compaction::outputs::OutputMaker;
use crate::external::ExternalSyncs;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::options::{DbOptions, IMMUTABLES_MAX};
use crate::pace::Pace;
use crate::read_state::{ReadState, ReadStates};
use crate::space::{Admitted, SpaceGuard};
use crate::txn::locking::Locking;
use crate::versions::VersionSet;
use crate::{Batch, Op, StoreError, StoreResult};

/// Bytes of an operation in the log besides key and value, nearly.
const OP_OVERHEAD_BYTES: usize = 8;

/// Whether the next batch can be taken.
enum Room {
    /// It can; true if the memtable was just rotated.
    Ready(bool),
    /// A flush must run first, on this thread.
    AfterFlush,
}

/// Checks that the rows of a batch fit their key spaces; returns their bytes, nearly.
fn check_rows(read_state: &ReadState, batch: &Batch) -> StoreResult<usize> {
    let mut bytes = 0;
    for op in batch.ops() {
        let (keyspace, key, value_len) = match op {
            Op::Put { keyspace, key, value } => (*keyspace, key, value.len()),
            Op::Delete { keyspace, key } => (*keyspace, key, 0),
        };
        let keyspace = read_state.keyspace(keyspace)?;
        let fits = key.len() <= KEY_BYTES_MAX && value_len <= VALUE_BYTES_MAX;
        if !fits || (keyspace.options.prefixed && key.len() != 2 * PREFIX_BYTES) {
            return Err(StoreError::Invalid(format!(
                "a row of {} + {value_len} bytes does not fit key space {}",
                key.len(),
                keyspace.name
            )));
        }
        bytes += OP_OVERHEAD_BYTES + key.len() + value_len;
    }
    Ok(bytes)
}

/// What takes batches.
pub(crate) struct Commits {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) dir: PathBuf,
    pub(crate) options: Arc<DbOptions>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) read_states: Arc<ReadStates>,
    pub(crate) external: Arc<ExternalSyncs>,
    pub(crate) space: Arc<SpaceGuard>,
    pub(crate) pace: Arc<Pace>,
    pub(crate) work: Arc<Work>,
    pub(crate) maker: Arc<OutputMaker>,
    pub(crate) versions: Arc<VersionSet>,
    pub(crate) compactor: Arc<Compactor>,
    pub(crate) log: Arc<Log>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) locking: Arc<Locking>,
}

impl Commits {
    /// Writes to the log that `flusher` flushes.
    pub(crate) fn new(base: &Base, flusher: Arc<Flusher>, locking: Arc<Locking>) -> Commits {
        let Base { env, dir, options, health, metrics, read_states, .. } = base.clone();
        let (compactor, log) = (Arc::clone(&flusher.compactor), Arc::clone(&flusher.log));
        Commits {
            env,
            dir,
            options,
            health,
            metrics,
            read_states,
            external: Arc::clone(&log.external),
            space: Arc::clone(&compactor.space),
            pace: Arc::clone(&compactor.pace),
            work: Arc::clone(&log.work),
            maker: Arc::clone(&compactor.maker),
            versions: Arc::clone(&compactor.versions),
            compactor,
            log,
            flusher,
            locking,
        }
    }

    /// See [`crate::Store::write`].
    pub(crate) fn write(&self, batch: Batch) -> StoreResult<()> {
        self.write_beside(batch, None)
    }

    /// The same past the locks of `owner`.
    pub(crate) fn write_beside(&self, batch: Batch, owner: Option<BranchId>) -> StoreResult<()> {
        self.health.check_open()?;
        if batch.is_empty() {
            return Ok(());
        }
        let bytes = self.check_batch(&batch)?;
        let (reclaims, mut first) = (batch.is_reclaiming(), Some(batch));
        self.write_made(bytes, reclaims, owner, |refused| {
            Ok(refused.or_else(|| first.take()).unwrap_or_default())
        })
    }

    /// Writes the batch that `make` returns, of about `bytes` bytes, when its turn comes: no other write happens
    /// between the making and the writing. `make` is called again, with what it made, if a lock of a transaction other
    /// than `owner` was in the way.
    ///
    /// REQUIRES: the batch is not empty and keeps to the limits ([`Commits::check_batch`]).
    pub(crate) fn write_made(
        &self,
        bytes: u64,
        reclaims: bool,
        owner: Option<BranchId>,
        make: impl FnMut(Option<Batch>) -> StoreResult<Batch>,
    ) -> StoreResult<()> {
        let mut rotated = false;
        let written = self.write_in_turn(bytes, reclaims, owner, make, &mut rotated);
        // Also where what came after the rotation failed.
        if rotated {
            self.work_is_due();
        }
        written
    }

    /// [`Commits::write_made`] without the work that is due once the memtable was rotated, which sets `rotated`.
    fn write_in_turn(
        &self,
        bytes: u64,
        reclaims: bool,
        owner: Option<BranchId>,
        mut make: impl FnMut(Option<Batch>) -> StoreResult<Batch>,
        rotated: &mut bool,
    ) -> StoreResult<()> {
        self.admit(bytes, reclaims)?;
        if let Some(delay) = self.pace.charge(bytes) {
            self.metrics.paced_ns.add(delay.as_nanos() as u64);
            self.env.sleep(delay);
        }
        let (mut refused, mut patience) = (None, None);
        loop {
            let mut writer = self.log.writer.lock();
            // Asked again under the lock: nothing may follow the record that closes the log.
            self.health.check_changeable()?;
            match self.make_room(&mut writer, reclaims)? {
                Room::Ready(was_rotated) => {
                    *rotated |= was_rotated;
                    let batch = make(refused.take())?;
                    let Some(blocked) = self.locking.blocked(owner, &batch) else {
                        match self.log.log_batch(&mut writer, &batch) {
                            // What the device tells of cannot always be had, and what is held is not for growth.
                            Err(StoreError::NoSpace { .. }) => {}
                            logged => {
                                self.log.apply(&mut writer, batch, logged?);
                                return Ok(());
                            }
                        }
                        drop(writer);
                        if reclaims || !self.get_room()? {
                            return Err(self.refused());
                        }
                        refused = Some(batch);
                        continue;
                    };
                    drop(writer);
                    refused = Some(batch);
                    let patience = patience.get_or_insert_with(|| self.locking.writer_patience());
                    self.locking.wait_for_locks(patience, blocked)?;
                    continue;
                }
                Room::AfterFlush => drop(writer),
            }
            self.flusher.flush_pending()?;
        }
    }

    /// Fails with `NoSpace` if there is no room for a write of `bytes`, and none can be got, unless it frees some.
    pub(super) fn admit(&self, bytes: u64, reclaims: bool) -> StoreResult<()> {
        loop {
            match self.space.admit(bytes, || self.unflushed_bytes())? {
                Admitted::Room => return Ok(()),
                // What follows would find none any more.
                Admitted::Scarcely if reclaims => return self.reclaim_for_later(),
                Admitted::Reserve if reclaims => return Ok(()),
                Admitted::Reserve | Admitted::Scarcely => {}
            }
            if !self.get_room()? {
                return Err(self.refused());
            }
        }
    }

    /// The error of a write that finds no room.
    pub(super) fn refused(&self) -> StoreError {
        self.metrics.refused_no_space.add(1);
        StoreError::NoSpace { path: self.dir.clone() }
    }

    /// Checks a batch against the limits; returns its bytes, nearly.
    pub(crate) fn check_batch(&self, batch: &Batch) -> StoreResult<u64> {
        let bytes = self.read_states.with(|read_state| check_rows(read_state, batch))?;
        if bytes > BATCH_BYTES_MAX {
            let message = format!("a batch of {bytes} bytes, above the limit of {BATCH_BYTES_MAX}");
            return Err(StoreError::Invalid(message));
        }
        if batch.is_external() && !self.external.is_set() {
            let message = "a batch that depends on an external sync, but none is set";
            return Err(StoreError::Invalid(message.to_owned()));
        }
        Ok(bytes as u64)
    }

    /// Rotates a full memtable, unless there is no room for the next log and the write frees some. Waits while too many others
    /// wait for their flush.
    fn make_room(&self, writer: &mut MutexGuard<'_, Writer>, reclaims: bool) -> StoreResult<Room> {
        loop {
            let bytes = writer.active.bytes();
            let scarce_bytes_max = self.space.memtable_bytes_max();
            let full = bytes >= self.options.memtable_bytes
                || writer.log.len() >= self.options.log_bytes_max().min(2 * scarce_bytes_max)
                || bytes as u64 >= scarce_bytes_max;
            if !full {
                return Ok(Room::Ready(false));
            }
            // Writes that free room may use as much memory again, so that what gives the room back can go on.
            let may_grow = reclaims
                && bytes < 2 * self.options.memtable_bytes
                && writer.log.len() < 2 * self.options.log_bytes_max();
            let read_state = self.read_states.get();
            if read_state.immutables.len() < IMMUTABLES_MAX {
                drop(read_state);
                return match self.log.rotate(writer) {
                    Err(StoreError::NoSpace { .. }) if may_grow => Ok(Room::Ready(false)),
                    other => other.map(|()| Room::Ready(true)),
                };
            }
            let waits_for_hook =
                read_state.immutables.iter().any(|memtable| memtable.has_external());
            if waits_for_hook && !self.external.is_set() {
                let message = "recovered rows depend on an external sync, but none is set";
                return Err(StoreError::Invalid(message.to_owned()));
            }
            drop(read_state);
            if self.work.is_flush_blocked() {
                if may_grow {
                    return Ok(Room::Ready(false));
                }
                if !self.env.is_deterministic() {
                    return Err(self.refused());
                }
            }
            if self.env.is_deterministic() {
                return Ok(Room::AfterFlush);
            }
            self.metrics.flush_waits.add(1);
            let start = self.env.monotonic();
            self.log.flushed.wait(writer);
            let waited = self.env.monotonic().saturating_sub(start);
            self.metrics.flush_wait_ns.add(waited.as_nanos() as u64);
            self.health.check_changeable()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use varve_env::Env;
    use varve_env::os::OsEnv;
    use varve_env::sim::{FaultRule, SimEnv, SimOp};
    use varve_testkit::hooked::{HookedEnv, Hooks};

    use super::*;
    use crate::{Db, DbOptions, KeyspaceOptions, Store};

    /// The thread that flushes was told by the write that had rotated the memtable, and not if that failed. After two such
    /// writes all others waited for ever.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "waits for a thread of the real machine")]
    fn a_rotation_is_followed_by_a_flush_whatever_becomes_of_the_write() {
        let dir = tempfile::tempdir().unwrap();
        let options = DbOptions { memtable_bytes: 64 << 10, ..DbOptions::default() };
        let env: Arc<dyn Env> = OsEnv::new();
        let db = Db::open(env, dir.path(), options).unwrap();
        let options = KeyspaceOptions { prefixed: false, compressed: false };
        let space = db.keyspace("rows", options).unwrap();
        let inner = &db.inner.commits;
        for round in 0..3_u32 {
            let is_full = || inner.log.writer.lock().active.bytes() >= inner.options.memtable_bytes;
            for row in 0_u32.. {
                if is_full() {
                    break;
                }
                let mut batch = Batch::new();
                batch.put(space, [round.to_be_bytes(), row.to_be_bytes()].concat(), vec![7; 1000]);
                db.write(batch).unwrap();
            }
            let refused = inner.write_made(1, false, None, |_| Err(StoreError::Ended));
            assert!(matches!(refused, Err(StoreError::Ended)), "{refused:?}");
            assert!(!is_full(), "not rotated");
            let end = Instant::now() + Duration::from_secs(60);
            while !inner.read_states.get().immutables.is_empty() {
                assert!(Instant::now() < end, "no flush came");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        db.close().unwrap();
    }

    /// What a removal does for those that come after it may fail: it frees room all the same.
    #[test]
    fn a_removal_goes_on_whatever_fails_where_room_is_looked_for() {
        let env = SimEnv::new(2);
        let db = Db::open(env.clone(), Path::new("/store"), DbOptions::default()).unwrap();
        let options = KeyspaceOptions { prefixed: false, compressed: false };
        let space = db.keyspace("rows", options).unwrap();
        let write = |change: fn(&mut Batch, varve_types::KeyspaceId, u8)| {
            for key in 0..100 {
                let mut batch = Batch::new();
                change(&mut batch, space, key);
                db.write(batch).unwrap();
            }
            db.flush().unwrap();
        };
        write(|batch, space, key| batch.put(space, vec![key], vec![key; 1000]));
        write(|batch, space, key| batch.delete(space, vec![key]));
        env.set_capacity(env.used_bytes());
        db.inner.commits.space.wrote(1 << 40);
        let (path_suffix, op) = (".table".to_owned(), SimOp::Read);
        env.fail(FaultRule { path_suffix, op, nth: 1, errno: 5, sticky: true });
        db.inner.commits.admit(1, true).unwrap();
        assert!(env.fault_count() > 0, "nobody looked for room");
    }

    /// Is deterministic until it is told not to be: the store has no threads, and its writers expect some.
    #[derive(Clone, Debug, Default)]
    struct NoThreads(Arc<AtomicBool>);

    impl Hooks for NoThreads {
        fn is_deterministic(&self) -> bool {
            !self.0.load(Ordering::Relaxed)
        }
    }

    /// The flush that had found no room was not tried again when there was some, and writes went on being refused.
    #[test]
    fn a_flush_that_found_no_room_is_tried_again_once_there_is_some() {
        const VALUE_BYTES: usize = 64 << 10;
        let (sim, no_threads) = (SimEnv::new(1), NoThreads::default());
        let options = DbOptions {
            memtable_bytes: 160 << 10,
            space_reserve_bytes: 1 << 20,
            ..DbOptions::default()
        };
        let env = Arc::new(HookedEnv::new(&sim, no_threads.clone()));
        let db = Db::open(env, Path::new("/store"), options).unwrap();
        let options = KeyspaceOptions { prefixed: false, compressed: false };
        let space = db.keyspace("rows", options).unwrap();
        let inner = &db.inner.commits;
        let keys = (0..17_u8).map(|at| vec![at]);
        let mut rows = keys.clone().map(|key| (key.into(), vec![1; VALUE_BYTES].into()));
        db.insert_sorted(space, &mut rows, false).unwrap();
        keys.for_each(|key| {
            let mut batch = Batch::new();
            batch.delete(space, key);
            db.write(batch).unwrap();
        });
        db.flush().unwrap();
        // Two memtables wait, and a third is full.
        for round in 0..3_u8 {
            for row in 0_u8.. {
                if inner.log.writer.lock().active.bytes() >= inner.options.memtable_bytes {
                    break;
                }
                let mut batch = Batch::new();
                batch.put(space, vec![round, row], vec![2; VALUE_BYTES / 4]);
                db.write(batch).unwrap();
            }
            if round < 2 {
                inner.log.rotate(&mut inner.log.writer.lock()).unwrap();
            }
        }
        assert_eq!(inner.read_states.get().immutables.len(), IMMUTABLES_MAX);
        sim.set_capacity(sim.used_bytes() + (140 << 10));
        no_threads.0.store(true, Ordering::Relaxed);
        assert!(matches!(inner.flusher.flush_one(), Err(StoreError::NoSpace { .. })));
        assert!(inner.work.is_flush_blocked());
        inner.space.wrote(1 << 40);
        let mut batch = Batch::new();
        batch.put(space, b"more", vec![3; 100]);
        db.write(batch).unwrap();
        assert!(inner.metrics.reclaims.get() > 0);
    }
}
