//! Data outside of the store that rows depend on, and the hooks that make them durable.
//!
//! 1. The owner of the store sets one hook, and the owner of a branch may set one more for the branch.
//! 2. A sync that covers such rows runs all hooks first ([`crate::db`]), and so does a flush of such rows.
//!
//! Invariant: the store's hook is set once and stays. A branch's hook goes with the branch.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use varve_types::BranchId;

use crate::health::Health;
use crate::{StoreError, StoreResult};

/// Makes durable what batches refer to outside the store.
pub(crate) type ExternalSync = Box<dyn Fn() -> std::io::Result<()> + Send + Sync>;

/// The hooks of a store and its branches.
pub(crate) struct ExternalSyncs {
    health: Arc<Health>,
    dir: PathBuf,
    store: OnceLock<ExternalSync>,
    branches: Mutex<BTreeMap<BranchId, Arc<ExternalSync>>>,
}

impl ExternalSyncs {
    /// No hooks yet, for the store at `dir`.
    pub(crate) fn new(health: Arc<Health>, dir: PathBuf) -> ExternalSyncs {
        ExternalSyncs { health, dir, store: OnceLock::new(), branches: Mutex::default() }
    }

    /// Whether the store has its hook.
    pub(crate) fn is_set(&self) -> bool {
        self.store.get().is_some()
    }

    /// Sets the store's hook, unless it has one.
    pub(crate) fn set(&self, hook: ExternalSync) {
        if self.store.set(hook).is_err() {
            log::warn!("the external sync was set before; the first one stays");
        }
    }

    /// Sets the hook of a branch.
    pub(crate) fn set_for_branch(&self, id: BranchId, hook: ExternalSync) {
        self.branches.lock().insert(id, Arc::new(hook));
    }

    /// Drops the hook of a branch that ended.
    pub(crate) fn remove_branch(&self, id: BranchId) {
        self.branches.lock().remove(&id);
    }

    /// Runs the hooks. A failure poisons the store, as what is durable is unknown, unless nothing was tried.
    pub(crate) fn run(&self) -> StoreResult<()> {
        let hook = self.store.get().ok_or_else(|| {
            StoreError::Invalid("no external sync is set, but rows depend on one".to_owned())
        })?;
        let poison = &self.health.poison;
        let failed = |error| poison.sync_failed("sync the data outside of", &self.dir, error);
        hook().map_err(failed)?;
        let of_branches: Vec<_> = self.branches.lock().values().map(Arc::clone).collect();
        of_branches.iter().try_for_each(|hook| hook().map_err(failed))
    }
}
