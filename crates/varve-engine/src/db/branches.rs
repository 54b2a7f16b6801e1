//! What the owner of a store can do with branches and named snapshots.

use std::sync::Arc;

use varve_types::BranchId;

use super::Db;
use crate::StoreResult;
use crate::branch::handle::{Branch, BranchOptions, begin};
use crate::branch::named::SnapshotInfo;
use crate::branch::record::BranchInfo;
use crate::branch::store::SnapshotStore;

impl Db {
    /// Begins a branch of the store. Costs one manifest edit, durable when the call returns, however large the store
    /// is; it exists after a restart, as of the newest write that survived if that is older than its beginning.
    ///
    /// `Invalid` if the named snapshot is not there, or the info is too long.
    pub fn branch(&self, options: &BranchOptions) -> StoreResult<Branch> {
        begin(&self.inner.branches, None, options)
    }

    /// The branches that were neither committed nor aborted, oldest first.
    pub fn branches(&self) -> Vec<BranchInfo> {
        self.inner.branches.open()
    }

    /// A branch that was begun before; `Ended` if there is none of this number.
    pub fn open_branch(&self, id: BranchId) -> StoreResult<Branch> {
        Branch::find(&self.inner.branches, id)
    }

    /// The present state, for reading; it stays what it is as long as it is held, not over a restart. Costs nothing.
    pub fn present(&self) -> StoreResult<SnapshotStore> {
        self.inner.health.check_open()?;
        let (pin, ()) = self.inner.reads.snapshots.pin(|| ());
        Ok(SnapshotStore::new(Arc::clone(&self.inner.branches), pin))
    }

    /// Opens a named snapshot for reading; `Invalid` if there is none of this name. Costs nothing.
    pub fn open_snapshot(&self, name: &str) -> StoreResult<SnapshotStore> {
        self.inner.health.check_open()?;
        let pin = self.inner.reads.read_states.get().snapshot(name)?.as_ref().clone();
        Ok(SnapshotStore::new(Arc::clone(&self.inner.branches), pin))
    }

    /// Keeps the present state under `name` (1 to 255 bytes), durably. Costs a sync and a manifest edit, however large
    /// the store is. `Invalid` if there is one of this name.
    pub fn create_snapshot(&self, name: &str) -> StoreResult<SnapshotInfo> {
        self.inner.branches.create_snapshot(name)
    }

    /// The named snapshots, by name.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.inner.branches.named_snapshots()
    }

    /// Gives the snapshot `name` the name `new` (1 to 255 bytes) instead, durably. `Invalid` if there is none of that name,
    /// or one that has the new one.
    pub fn rename_snapshot(&self, name: &str, new: &str) -> StoreResult<()> {
        self.inner.branches.rename_snapshot(name, new)
    }

    /// Forgets the name, durably. What only the snapshot saw goes with the next merges; branches that stand over it
    /// and readers keep what they see. `Invalid` if there is none of this name.
    pub fn delete_snapshot(&self, name: &str) -> StoreResult<()> {
        self.inner.branches.delete_snapshot(name)
    }
}
