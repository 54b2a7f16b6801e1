//! Turns the oldest full memtable into tables of level 0, one per key space with rows in it, and segments with the large values.
//!
//! 1. If rows of the memtable depend on data outside the store, the flush makes these data durable, and the log. A later
//!    batch may have removed such data; then the rows must not become durable without that batch.
//! 2. It writes and syncs tables and segments, and syncs the directory, which also makes the name of the next log durable.
//! 3. One change of the version set adds the tables and says which log is now the oldest that is needed.
//! 4. It removes the logs before that one, while writers go on.
//!
//! Invariants:
//! - One flush runs at a time: the job's lock is held through it.
//! - Memtables are flushed from the oldest on, so that the logs that are needed are always the newest ones.
//! - Files of a flush that failed are removed, unless the edit that names them may have reached the disk.

use std::sync::Arc;

use parking_lot::Mutex;
use varve_types::{SeqNo, SublevelId};

use super::log::{Log, Writer};
use super::work::Work;
use crate::base::Base;
use crate::compaction::compactor::Compactor;
use crate::compaction::outputs::{OutputMaker, Outputs, Written};
use crate::compaction::retain::Retention;
use crate::external::ExternalSyncs;
use crate::health::Health;
use crate::keyspace::Keyspace;
use crate::memtable::{Found, Memtable};
use crate::metrics::Metrics;
use crate::place::Place;
use crate::read_state::{ReadState, ReadStates};
use crate::snapshot::Snapshots;
use crate::space::SpaceGuard;
use crate::versions::VersionSet;
use crate::versions::changes::Changes;
use crate::{StoreError, StoreResult};

/// As many bytes may stay in the logs of a store that is closed: tables of fewer cost more than they save.
const CLOSED_LOG_BYTES_MAX: u64 = 64 << 10;

/// What turns full memtables into tables.
pub(crate) struct Flusher {
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) read_states: Arc<ReadStates>,
    pub(crate) external: Arc<ExternalSyncs>,
    pub(crate) space: Arc<SpaceGuard>,
    pub(crate) work: Arc<Work>,
    pub(crate) maker: Arc<OutputMaker>,
    pub(crate) versions: Arc<VersionSet>,
    pub(crate) compactor: Arc<Compactor>,
    pub(crate) log: Arc<Log>,
    /// Held through a whole flush; nothing but flushes and changes of key spaces waits for it.
    pub(super) job: Mutex<()>,
}

impl Flusher {
    /// Flushes what `log` fills.
    pub(crate) fn new(base: &Base, compactor: Arc<Compactor>, log: Arc<Log>) -> Flusher {
        let Base { health, metrics, snapshots, read_states, .. } = base.clone();
        Flusher {
            health,
            metrics,
            snapshots,
            read_states,
            external: Arc::clone(&log.external),
            space: Arc::clone(&compactor.space),
            work: Arc::clone(&log.work),
            maker: Arc::clone(&compactor.maker),
            versions: Arc::clone(&log.versions),
            compactor,
            log,
            job: Mutex::new(()),
        }
    }

    /// Waits for the flush that runs, if one does.
    pub(crate) fn wait_until_idle(&self) {
        drop(self.job.lock());
    }

    /// Flushes the oldest full memtable. False if there is none, or it has to wait for the external
    /// sync to be set.
    pub(crate) fn flush_one(&self) -> StoreResult<bool> {
        let _job = self.job.lock();
        let outcome = self.flush_oldest(None);
        // Takes the lock, so that a writer which is about to wait cannot miss the news.
        let writer = self.log.writer.lock();
        self.log.flushed.notify_all();
        self.log.remove_logs(writer);
        outcome
    }

    /// Flushes all that was written, while writers wait, without the removal of logs ([`Log::remove_logs`]).
    ///
    /// REQUIRES: the flush job is held.
    pub(crate) fn flush_under(&self, writer: &mut Writer) -> StoreResult<()> {
        debug_assert!(self.job.is_locked());
        let outcome = self.flush_full_under(writer).and_then(|()| {
            if writer.active.is_empty() {
                return Ok(());
            }
            self.log.rotate(writer)?;
            self.flush_full_under(writer)
        });
        self.log.flushed.notify_all();
        outcome
    }

    /// Flushes all full memtables, while writers wait.
    fn flush_full_under(&self, writer: &mut Writer) -> StoreResult<()> {
        while self.flush_oldest(Some(&mut *writer))? {}
        Ok(())
    }

    /// [`Flusher::flush_one`] without the logs' removal, for a caller that holds the `writer`, if it does.
    ///
    /// REQUIRES: the flush job is held.
    fn flush_oldest(&self, writer: Option<&mut Writer>) -> StoreResult<bool> {
        let outcome = self.try_flush_oldest(writer);
        self.work.set_flush_blocked(matches!(outcome, Err(StoreError::NoSpace { .. })));
        outcome
    }

    fn try_flush_oldest(&self, writer: Option<&mut Writer>) -> StoreResult<bool> {
        self.health.check_changeable()?;
        let read_state = self.read_states.get();
        let Some(memtable) = read_state.immutables.last() else { return Ok(false) };
        if memtable.has_external() {
            if !self.external.is_set() {
                return Ok(false);
            }
            match writer {
                Some(writer) => self.log.sync_under(writer)?,
                None => self.log.sync()?,
            }
        }
        self.flush_memtable(memtable, &read_state).map(|()| true)
    }

    fn flush_memtable(&self, memtable: &Arc<Memtable>, read_state: &ReadState) -> StoreResult<()> {
        let ended = memtable.ended();
        let (mut added, mut all) = (Vec::new(), Written::default());
        let discard = |all: &Written| {
            // After a failure that poisons, the edit may have reached the disk: keep the files.
            if self.health.poison.cause().is_none() {
                all.discard();
            }
        };
        // Rows of branches that are gone, or whose end becomes durable with this flush, are no longer needed.
        let lasts = |space: &&Keyspace| space.branch.is_none_or(|branch| !ended.contains(&branch));
        let ids = memtable.keyspaces();
        // What is pinned from now on sees the newest of all rows here.
        let pinned = self.snapshots.live();
        for space in ids.into_iter().filter_map(|id| read_state.keyspace(id).ok()).filter(lasts) {
            let written = self.write_level_0(memtable, space, &pinned);
            let written = written.inspect_err(|_| discard(&all))?;
            added.extend(written.tables.iter().map(|table| {
                // File numbers only grow, so each flush makes a newer sub-level.
                let sublevel = SublevelId::new(table.file_no().get());
                (space.id, Place { level: 0, sublevel }, Arc::clone(table))
            }));
            all.tables.extend(written.tables);
            all.segments.extend(written.segments);
        }
        self.versions.sync_names().inspect_err(|_| discard(&all))?;
        let seqs = all.tables.iter().map(|table| table.meta().largest_seq);
        let last_seq = seqs.max().unwrap_or(SeqNo::ZERO);
        let (flushed, segments) = (Some((Arc::clone(memtable), last_seq)), all.segments.clone());
        let changes = Changes { added, segments, flushed, ended, ..Changes::default() };
        self.versions.install(&changes).inspect_err(|_| discard(&all))?;
        self.metrics.flushes.add(1);
        self.metrics.flush_bytes.add(all.table_bytes());
        self.metrics.segment_flush_bytes.add(all.segment_bytes());
        self.compactor.update_pace();
        Ok(())
    }

    /// The table of one key space's rows that `pinned` states see or the newest, and the segments with its large values.
    fn write_level_0(
        &self,
        memtable: &Memtable,
        space: &Keyspace,
        pinned: &[SeqNo],
    ) -> StoreResult<Written> {
        let mut retention = Retention::new(pinned);
        let mut outputs = Outputs::new(&self.maker, space, 0);
        memtable.each_version(space.id, |key, seq, found| {
            // Tables below may hold the key, so a deletion stays.
            match retention.keeps(key, seq, *found == Found::Tombstone, || true) {
                true => outputs.add(key, seq, found),
                false => Ok(()),
            }
        })?;
        outputs.finish()
    }

    /// Flushes all full memtables on this thread.
    pub(crate) fn flush_pending(&self) -> StoreResult<()> {
        while self.flush_one()? {}
        Ok(())
    }

    /// Turns everything written so far into tables.
    pub(crate) fn flush_all(&self) -> StoreResult<()> {
        self.health.check_open()?;
        // While these find no room there must not come more and more.
        self.flush_pending()?;
        self.log.rotate_written()?;
        self.flush_pending()
    }

    /// See [`crate::Store::empty_logs`].
    pub(crate) fn empty_logs(&self) -> StoreResult<()> {
        let rows: usize = self.read_states.get().memtables().map(|memtable| memtable.bytes()).sum();
        // Rows that were written over in the memtable are still in the log.
        let bytes = self.log.writer.lock().log.len().max(rows as u64);
        if bytes <= CLOSED_LOG_BYTES_MAX || self.space.is_scarce()? {
            return Ok(());
        }
        match self.flush_all() {
            Err(StoreError::NoSpace { .. }) => Ok(()),
            flushed => flushed,
        }
    }

    /// Runs `act` while no writer can add anything and all that was written is in tables, durably; again until it
    /// is done. What comes while the memtables are flushed is flushed once more with writers waiting, so that steady
    /// writing does not put it off for ever.
    pub(crate) fn when_flushed(
        &self,
        mut act: impl FnMut(&mut Writer, &ReadState) -> StoreResult<bool>,
    ) -> StoreResult<()> {
        loop {
            self.flush_all()?;
            let _job = self.job.lock();
            let mut writer = self.log.writer.lock();
            self.health.check_open()?;
            let done = self.flush_under(&mut writer).and_then(|()| {
                if !self.external.is_set() {
                    self.refuse_waiting_rows()?;
                }
                act(&mut writer, &self.read_states.get())
            });
            self.log.remove_logs(writer);
            if done? {
                return Ok(());
            }
        }
    }

    /// Fails if memtables wait for the external sync to be set.
    fn refuse_waiting_rows(&self) -> StoreResult<()> {
        if self.read_states.get().immutables.iter().any(|memtable| memtable.has_external()) {
            let message = "recovered rows depend on an external sync, but none is set";
            return Err(StoreError::Invalid(message.to_owned()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::atomic::Ordering;

    use parking_lot::Mutex;
    use varve_env::Env;
    use varve_env::sim::{FaultRule, SimEnv, SimOp};
    use varve_testkit::hooked::{HookedEnv, Hooks};

    use super::*;
    use crate::db::Inner;
    use crate::{Batch, BranchOptions, Db, DbOptions, KeyspaceOptions, Store};

    /// A store with a full memtable that depends on data outside of it.
    fn with_full_memtable(env: Arc<dyn Env>) -> Db {
        let db = Db::open(env, Path::new("/store"), DbOptions::default()).unwrap();
        db.set_external_sync(Box::new(|| Ok(())));
        let options = KeyspaceOptions { prefixed: false, compressed: false };
        let space = db.keyspace("rows", options).unwrap();
        let mut batch = Batch::new();
        batch.put(space, b"key", vec![1]);
        batch.depends_on_external();
        db.write(batch).unwrap();
        db.inner.log.rotate(&mut db.inner.log.writer.lock()).unwrap();
        db
    }

    /// Writers waited for a flush that found no room for the barrier in the log, and were not told.
    #[test]
    fn a_flush_is_blocked_if_there_is_no_room_for_what_comes_before_it() {
        let env = SimEnv::new(1);
        let db = with_full_memtable(Arc::clone(&env) as Arc<dyn Env>);
        let (path_suffix, op) = (".wal".to_owned(), SimOp::Write);
        env.fail(FaultRule { path_suffix, op, nth: 1, errno: 28, sticky: true });
        assert!(matches!(db.inner.flusher.flush_one(), Err(StoreError::NoSpace { .. })));
        assert!(db.inner.flusher.work.is_flush_blocked());
        env.clear_faults();
        assert!(db.inner.flusher.flush_one().unwrap());
        assert!(!db.inner.flusher.work.is_flush_blocked());
    }

    /// All moments that snapshots and branches keep were copied for each key space of each branch, in the way of all writers.
    #[test]
    fn a_flush_lists_what_is_pinned_once() {
        let db = Db::open(SimEnv::new(5), Path::new("/store"), DbOptions::default()).unwrap();
        let options = KeyspaceOptions { prefixed: false, compressed: false };
        let space = db.keyspace("rows", options).unwrap();
        let put = |store: &dyn Store, value| {
            let mut batch = Batch::new();
            batch.put(space, b"key", vec![value]);
            store.write(batch).unwrap();
        };
        put(&db, 0);
        let branches: Vec<_> =
            (0..50).map(|_| db.branch(&BranchOptions::default()).unwrap()).collect();
        (1..).zip(&branches[..10]).for_each(|(value, branch)| put(branch, value));
        db.inner.log.rotate(&mut db.inner.log.writer.lock()).unwrap();
        let lists = || db.inner.reads.snapshots.lists.load(Ordering::Relaxed);
        let before = lists();
        assert!(db.inner.flusher.flush_one().unwrap());
        assert_eq!(lists() - before, 1);
        let values = branches.iter().map(|branch| branch.get(space, b"key").unwrap().unwrap()[0]);
        assert!(values.eq((1..=10).chain([0; 40])));
    }

    fn put(db: &Db, bytes: usize) {
        let options = KeyspaceOptions { prefixed: false, compressed: false };
        let mut batch = Batch::new();
        batch.put(db.keyspace("rows", options).unwrap(), b"key", vec![7; bytes]);
        db.write(batch).unwrap();
    }

    /// Bytes of logs, and whether there are tables.
    fn logs_and_tables(env: &SimEnv) -> (u64, bool) {
        let files = env.files_raw();
        let of = |kind: &'static str| {
            let is_of = move |path: &&PathBuf| path.extension().is_some_and(|own| own == kind);
            files.iter().filter(is_of)
        };
        (of("wal").map(|path| env.stat(path).unwrap().len).sum(), of("table").count() > 0)
    }

    /// One flipped bit in the log of a closed store cost all rows behind it.
    #[test]
    fn a_close_in_order_leaves_a_short_log() {
        for (bytes, puts, flushes) in [(500, 1, false), (500, 200, true), (100_000, 1, true)] {
            let env = SimEnv::new(6);
            let db = Db::open(env.clone(), Path::new("/store"), DbOptions::default()).unwrap();
            (0..puts).for_each(|_| put(&db, bytes));
            db.empty_logs().unwrap();
            db.close().unwrap();
            let (log_bytes, has_tables) = logs_and_tables(&env);
            assert_eq!(has_tables, flushes, "{puts} times {bytes} bytes");
            assert!(log_bytes < 1000, "{log_bytes} bytes of logs");
            let db = Db::open(env, Path::new("/store"), DbOptions::default()).unwrap();
            let space = db.inner.reads.read_states.get().keyspaces[0].id;
            assert_eq!(db.get(space, b"key").unwrap().unwrap(), vec![7; bytes]);
        }
    }

    #[test]
    fn a_close_in_order_needs_no_room() {
        let env = SimEnv::new(6);
        let db = Db::open(env.clone(), Path::new("/store"), DbOptions::default()).unwrap();
        put(&db, 100_000);
        for (path_suffix, op) in [(".wal", SimOp::Create), (".table", SimOp::Write)] {
            let path_suffix = path_suffix.to_owned();
            env.fail(FaultRule { path_suffix, op, nth: 1, errno: 28, sticky: true });
            db.empty_logs().unwrap();
            env.clear_faults();
        }
        db.close().unwrap();
        let (log_bytes, has_tables) = logs_and_tables(&env);
        assert!(log_bytes > 100_000 && !has_tables);
    }

    /// Who wanted all flushed while the store was closed began a log in a directory that another process may have open.
    #[test]
    fn no_log_is_begun_once_the_store_is_closed() {
        let env = SimEnv::new(3);
        let db = Db::open(env.clone(), Path::new("/store"), DbOptions::default()).unwrap();
        let options = KeyspaceOptions { prefixed: false, compressed: false };
        let space = db.keyspace("rows", options).unwrap();
        let mut batch = Batch::new();
        batch.put(space, b"key", vec![1]);
        db.write(batch).unwrap();
        db.close().unwrap();
        let files = env.files_raw();
        assert!(matches!(db.inner.log.rotate_written(), Err(StoreError::Closed)));
        assert_eq!(env.files_raw(), files);
    }

    /// Asks at the removal of logs whether writers could go on; if so, one does.
    #[derive(Clone, Debug, Default)]
    struct AtRemoval {
        inner: Arc<Mutex<Option<Arc<Inner>>>>,
        writers_go_on: Arc<Mutex<Vec<bool>>>,
    }

    impl Hooks for AtRemoval {
        fn before_removal(&self, path: &Path) {
            if path.extension().is_some_and(|extension| extension == "wal")
                && let Some(inner) = &*self.inner.lock()
            {
                let go_on = inner.log.writer.try_lock().is_some();
                self.writers_go_on.lock().push(go_on);
                if go_on {
                    let mut batch = Batch::new();
                    batch.put(inner.reads.read_states.get().keyspaces[0].id, b"more", vec![2]);
                    inner.commits.write(batch).unwrap();
                }
            }
        }
    }

    /// All writers waited while the file system below freed the blocks of a log.
    #[test]
    fn logs_are_removed_while_writers_go_on() {
        let at_removal = AtRemoval::default();
        let env = HookedEnv::new(&SimEnv::new(2), at_removal.clone());
        let db = with_full_memtable(Arc::new(env));
        *at_removal.inner.lock() = Some(Arc::clone(&db.inner));
        assert!(db.inner.flusher.flush_one().unwrap());
        assert_eq!(*at_removal.writers_go_on.lock(), [true]);
        // What comes during the first flush is flushed once more while writers wait.
        db.clear_keyspace(db.inner.reads.read_states.get().keyspaces[0].id).unwrap();
        at_removal.inner.lock().take();
        assert_eq!(*at_removal.writers_go_on.lock(), [true; 3]);
    }

    /// Says which files were removed, or were to be.
    #[derive(Clone, Debug, Default)]
    struct Removals(Arc<Mutex<Vec<PathBuf>>>);

    impl Hooks for Removals {
        fn before_removal(&self, path: &Path) {
            self.0.lock().push(path.to_owned());
        }
    }

    /// A log without rows goes when a store is opened. It was to be removed once more right after that, and the failure was told.
    #[test]
    fn a_log_without_rows_is_removed_once() {
        let removals = Removals::default();
        let env: Arc<dyn Env> = Arc::new(HookedEnv::new(&SimEnv::new(4), removals.clone()));
        for _ in 0..2 {
            let db = Db::open(Arc::clone(&env), Path::new("/store"), DbOptions::default()).unwrap();
            db.close().unwrap();
        }
        let removals = removals.0.lock();
        let is_log = |path: &&PathBuf| path.extension().is_some_and(|kind| kind == "wal");
        assert_eq!(removals.iter().filter(is_log).count(), 1, "{removals:?}");
    }
}
