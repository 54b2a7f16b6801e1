//! The store as its owner has it: opened, closed, and served by background threads.
//!
//! The way of a write: [`crate::commit`]. The way of a read: [`crate::reads`]. What is on disk and what readers see
//! changes in [`crate::versions`]; [`crate::compaction`] merges tables; [`crate::branch`] has writable trees and named
//! snapshots. [`assemble`] shows which part knows which; `Inner` only ties them together.
//!
//! Locks, in the order in which they may be taken together:
//!
//! 1. gates of branches, names of snapshots, numbers of branches' key spaces
//! 2. flush and compaction jobs (held through a whole job; nothing but jobs waits for them)
//! 3. sync (held through an fsync; nothing but syncs waits for it)
//! 4. writer (held for one append to the log; creating the next log at rotation)
//! 5. manifest (held while an edit is made durable)
//! 6. the table of transactions' locks (held for moments; a wait for a lock of a transaction holds nothing else)
//! 7. snapshots, memtable, read state (held for moments, never during I/O)

mod assemble;
pub(crate) mod background;
mod branches;
mod locks;
pub(crate) mod open;
mod store;
mod upkeep;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_env::{Env, FileLock, JoinHandle};

use crate::branch::handle::Branches;
use crate::commit::flush::Flusher;
use crate::commit::log::Log;
use crate::commit::work::Work;
use crate::commit::write::Commits;
use crate::compaction::compactor::Compactor;
use crate::external::ExternalSyncs;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::reads::Reads;
use crate::reserve::Reserve;
use crate::space::SpaceGuard;
use crate::sublevel_map::saved::Maps;
use crate::txn::manager::Locks;
use crate::versions::VersionSet;

/// A store in a directory. See [`crate::Store`] for what it does.
///
/// Dropping it closes it.
pub struct Db {
    pub(crate) inner: Arc<Inner>,
    threads: Mutex<Vec<Box<dyn JoinHandle>>>,
    /// Keeps other processes out; `close` gives it back.
    lock: Mutex<Option<Box<dyn FileLock>>>,
}

/// The parts of a store, which its owner and its threads share.
pub(crate) struct Inner {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) dir: PathBuf,
    pub(crate) options: Arc<DbOptions>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) reserve: Arc<Reserve>,
    pub(crate) space: Arc<SpaceGuard>,
    pub(crate) work: Arc<Work>,
    pub(crate) external: Arc<ExternalSyncs>,
    pub(crate) locks: Arc<Locks>,
    pub(crate) maps: Arc<Maps>,
    pub(crate) versions: Arc<VersionSet>,
    pub(crate) reads: Arc<Reads>,
    pub(crate) compactor: Arc<Compactor>,
    pub(crate) log: Arc<Log>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) commits: Arc<Commits>,
    pub(crate) branches: Arc<Branches>,
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
