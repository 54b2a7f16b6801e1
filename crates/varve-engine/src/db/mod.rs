//! The store itself.
//!
//! The way of a write: [`write`] checks it, holds it back if compaction is behind, logs it, applies it
//! to the memtable. The way of a read: [`read`] takes the present read state and searches memtables, then
//! tables. [`sync`] makes the log durable, [`flush`] turns full memtables into tables,
//! [`install`] puts new tables in force, [`ingest`] takes in whole ones, [`background`] runs flush, compaction and periodic sync.
//!
//! Locks, in the order in which they may be taken together:
//!
//! 1. flush and compaction jobs (held through a whole job; nothing but jobs waits for them)
//! 2. sync (held through an fsync; nothing but syncs waits for it)
//! 3. writer (held for one append to the log; creating the next log at rotation)
//! 4. manifest (held while an edit is made durable)
//! 5. locks of transactions (held for moments; whoever waits for one holds nothing else)
//! 6. snapshots, memtable, read state (held for moments, never during I/O)

pub(crate) mod background;
pub(crate) mod flush;
pub mod ingest;
pub(crate) mod install;
mod keyspace;
mod named;
pub(crate) mod open;
pub(crate) mod read;
mod report;
mod retune;
mod store;
mod sync;
pub(crate) mod verify;
mod write;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};
use varve_env::{Env, FileLock, JoinHandle};
use varve_types::{BranchId, FileNo, KeyspaceId, SeqNo};

use crate::branch::numbers::SpaceNumbers;
use crate::compaction::memory::Memory;
use crate::compaction::reclaim::Searched;
use crate::compaction::redesign::Known;
use crate::manifest::Manifest;
use crate::memtable::Memtable;
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::pace::Pace;
use crate::poison::Poison;
use crate::read_state::ReadStates;
use crate::reserve::Reserve;
use crate::snapshot::Snapshots;
use crate::space::SpaceGuard;
use crate::sublevel_map::findings::Findings;
use crate::sublevel_map::number::MapId;
use crate::sublevel_map::saved::SavedMaps;
use crate::table::cache::TableCache;
use crate::txn::Locks;
use crate::wal::LogWriter;
use crate::{StoreError, StoreResult};
use background::Work;
pub use named::SnapshotInfo;
use retune::Plan;
use sync::SyncState;
pub use verify::{VerifyProgress, VerifyReport};

/// Makes durable what batches refer to outside the store.
pub(crate) type ExternalSync = Box<dyn Fn() -> std::io::Result<()> + Send + Sync>;

/// A store in a directory. See [`crate::Store`] for what it does.
///
/// Dropping it closes it.
pub struct Db {
    pub(crate) inner: Arc<Inner>,
    threads: Mutex<Vec<Box<dyn JoinHandle>>>,
    /// Keeps other processes out; let go by `close`.
    lock: Mutex<Option<Box<dyn FileLock>>>,
}

/// Where the next batch goes.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) log: LogWriter,
    pub(crate) next_seq: SeqNo,
    /// The active memtable, as in the present read state.
    pub(crate) active: Arc<Memtable>,
}

/// What the store's threads share.
pub(crate) struct Inner {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) dir: PathBuf,
    pub(crate) options: DbOptions,
    pub(crate) poison: Poison,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) cache: Arc<TableCache>,
    pub(crate) findings: Findings,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) read_states: ReadStates,
    pub(crate) writer: Mutex<Writer>,
    /// Tells writers that wait for room that a flush ended.
    pub(crate) flushed: Condvar,
    pub(crate) manifest: Mutex<Manifest>,
    pub(crate) sync_state: Mutex<SyncState>,
    pub(crate) flush_job: Mutex<()>,
    /// Held to give a name to a state or to take it away.
    pub(crate) naming: Mutex<()>,
    pub(crate) locks: Locks,
    /// What compactions remember of each key space.
    pub(crate) compaction_job: Mutex<BTreeMap<KeyspaceId, Memory>>,
    /// The last search in vain for rows that nobody sees; taken under all other locks.
    pub(crate) searched: Mutex<Searched>,
    /// Segments that compactions cannot empty; taken under all other locks.
    pub(crate) left_alone: Mutex<HashSet<FileNo>>,
    plan: Mutex<Plan>,
    /// What a redesign knows of the tables; taken under the lock of compactions.
    pub(crate) redesigned: Mutex<HashMap<FileNo, Known>>,
    pub(crate) work: Work,
    pub(crate) space: SpaceGuard,
    pub(crate) reserve: Arc<Reserve>,
    pub(crate) pace: Pace,
    pub(crate) external_sync: OnceLock<ExternalSync>,
    next_file: AtomicU64,
    /// At first the number of key spaces, whose maps were taken up by their places.
    next_map: AtomicU64,
    /// How often a map changed.
    pub(crate) map_changes: AtomicU64,
    /// What the file of maps has.
    pub(crate) saved_maps: Mutex<SavedMaps>,
    /// The numbers of the next key spaces of branches; taken under gates of branches, before all other locks.
    pub(crate) space_numbers: Mutex<SpaceNumbers>,
    /// Makes durable what rows of branches refer to outside the store.
    pub(crate) branch_syncs: Mutex<BTreeMap<BranchId, Arc<ExternalSync>>>,
    closed: AtomicBool,
}

impl Inner {
    /// A number for a new file.
    pub(crate) fn new_file_no(&self) -> FileNo {
        FileNo::new(self.next_file.fetch_add(1, Ordering::Relaxed))
    }

    /// The name of a new map of sub-levels.
    pub(crate) fn new_map_id(&self) -> MapId {
        MapId(self.next_map.fetch_add(1, Ordering::Relaxed))
    }

    /// The number that the next new file will have.
    pub(crate) fn next_file_no(&self) -> FileNo {
        FileNo::new(self.next_file.load(Ordering::Relaxed))
    }

    /// Fails if the store was closed.
    pub(crate) fn check_open(&self) -> StoreResult<()> {
        if self.closed.load(Ordering::Acquire) { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Fails if the store takes no changes any more.
    pub(crate) fn check_changeable(&self) -> StoreResult<()> {
        self.check_open()?;
        self.poison.check()
    }

    /// Runs the hook that makes outside data durable. A failure poisons, as what is durable is unknown, unless nothing was tried.
    pub(crate) fn run_external_sync(&self) -> StoreResult<()> {
        let hook = self.external_sync.get().ok_or_else(|| {
            StoreError::Invalid("no external sync is set, but rows depend on one".to_owned())
        })?;
        let failed = |error| self.poison.sync_failed("sync the data outside of", &self.dir, error);
        hook().map_err(failed)?;
        let of_branches: Vec<_> = self.branch_syncs.lock().values().map(Arc::clone).collect();
        of_branches.iter().try_for_each(|hook| hook().map_err(failed))
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").field("dir", &self.inner.dir).finish_non_exhaustive()
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            log::error!("closing {}: {error}", self.inner.dir.display());
        }
    }
}
