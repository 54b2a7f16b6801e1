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
mod keyspace;
mod named;
pub(crate) mod open;
mod report;
mod store;
mod sync;
pub(crate) mod verify;
mod write;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use varve_env::{Env, FileLock, JoinHandle};
use varve_types::{FileNo, KeyspaceId, SeqNo};

use crate::branch::numbers::SpaceNumbers;
use crate::compaction::memory::Memory;
use crate::compaction::outputs::OutputMaker;
use crate::compaction::reclaim::Searched;
use crate::compaction::redesign::Known;
use crate::external::ExternalSyncs;
use crate::files::FileNumbers;
use crate::health::Health;
use crate::memtable::Memtable;
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::pace::Pace;
use crate::plans::Plans;
use crate::read_state::ReadStates;
use crate::reads::Reads;
use crate::reserve::Reserve;
use crate::snapshot::Snapshots;
use crate::space::SpaceGuard;
use crate::sublevel_map::saved::Maps;
use crate::table::cache::TableCache;
use crate::txn::Locks;
use crate::versions::VersionSet;
use crate::wal::LogWriter;
use background::Work;
pub use named::SnapshotInfo;
use sync::SyncState;
pub use verify::{VerifyProgress, VerifyReport};

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
    pub(crate) options: Arc<DbOptions>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) cache: Arc<TableCache>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) read_states: Arc<ReadStates>,
    pub(crate) file_numbers: Arc<FileNumbers>,
    pub(crate) external: Arc<ExternalSyncs>,
    pub(crate) reads: Reads,
    pub(crate) plans: Arc<Plans>,
    pub(crate) maps: Arc<Maps>,
    pub(crate) maker: Arc<OutputMaker>,
    pub(crate) versions: Arc<VersionSet>,
    pub(crate) writer: Mutex<Writer>,
    /// Tells writers that wait for room that a flush ended.
    pub(crate) flushed: Condvar,
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
    /// What a redesign knows of the tables; taken under the lock of compactions.
    pub(crate) redesigned: Mutex<HashMap<FileNo, Known>>,
    pub(crate) work: Work,
    pub(crate) space: Arc<SpaceGuard>,
    pub(crate) reserve: Arc<Reserve>,
    pub(crate) pace: Pace,
    /// The numbers of the next key spaces of branches; taken under gates of branches, before all other locks.
    pub(crate) space_numbers: Mutex<SpaceNumbers>,
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
