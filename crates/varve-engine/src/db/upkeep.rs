//! What the owner of a store can have done beyond reads and writes: flushes, merges, checks, and whole tables taken in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_env::Env;
use varve_types::KeyspaceId;

use super::Db;
use crate::commit::ingest::NewTable;
use crate::compaction::defragment::Defragmented;
use crate::compaction::policy::defragment::Fit;
use crate::compaction::reclaim::DEAD_SHARE_MAX;
use crate::compaction::redesign::Redesign;
use crate::metrics::Fragmentation;
use crate::verify::{VerifyProgress, VerifyReport, verify};
use crate::{StoreError, StoreResult};

impl Db {
    /// The machine for what frees room outside of the store: its operations take some that the store holds where there is no other.
    pub fn freeing_env(&self) -> Arc<dyn Env> {
        Arc::clone(&self.inner.env)
    }

    /// Turns everything written so far into tables.
    pub fn flush(&self) -> StoreResult<()> {
        self.inner.flusher.flush_all()
    }

    /// Compacts until every level is within its target.
    pub fn compact(&self) -> StoreResult<()> {
        self.inner.health.check_open()?;
        while self.inner.compactor.compact_one(false)? {}
        Ok(())
    }

    /// Empties files of which less than three quarters are needed, as far as there is room. Readers and writers
    /// go on meanwhile.
    pub fn defragment(&self, fit: Fit) -> StoreResult<Defragmented> {
        self.inner.compactor.defragment(fit)
    }

    /// How the files of tables are used.
    pub fn fragmentation(&self) -> Fragmentation {
        self.inner.compactor.fragmentation()
    }

    /// Takes the next step to make all tables what the design says that the store was opened with.
    pub fn redesign(&self) -> StoreResult<Redesign> {
        self.inner.compactor.redesign()
    }

    /// Turns everything written so far into tables, as far as there is room, and drops from tables, segments and zones
    /// what nobody sees any more: one part in 32 of each or more, of those whose rest fits into half of the room. Says how
    /// many were written again. Readers and writers go on meanwhile.
    pub fn reclaim(&self) -> StoreResult<u64> {
        match self.inner.flusher.flush_all() {
            Ok(()) | Err(StoreError::NoSpace { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut written = 0;
        while self.inner.compactor.reclaim_one(DEAD_SHARE_MAX)? {
            written += 1;
        }
        Ok(written)
    }

    /// Reads every table of the store as it is now; calls `progress` after each.
    pub fn verify(&self, progress: &mut dyn FnMut(VerifyProgress)) -> StoreResult<VerifyReport> {
        verify(&self.inner.reads, progress)
    }

    /// Begins a table of `keyspace` in a new file at `path`, which may be anywhere.
    pub fn table_file(&self, keyspace: KeyspaceId, path: &Path) -> StoreResult<NewTable> {
        self.inner.commits.table_file(keyspace, path)
    }

    /// Takes in the tables at `paths`, all of them or none, durably; they are visible when it returns. `Damaged`
    /// and `Invalid` say what is wrong with a table. Costs the reading of the tables.
    pub fn ingest(&self, paths: &[PathBuf]) -> StoreResult<()> {
        self.inner.commits.ingest(paths)
    }

    /// Takes no writes any more until the store is opened again: because of `cause` its rows and the data outside of it do
    /// not agree, and an open makes them agree. Returns the error of later writes.
    pub fn refuse_writes(&self, cause: &dyn std::fmt::Display) -> StoreError {
        self.inner.health.poison.set(cause)
    }
}
