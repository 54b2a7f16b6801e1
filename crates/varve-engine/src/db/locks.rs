//! What a store's owner can ask about the locks of transactions.

use std::time::Duration;

use varve_types::BranchId;

use super::Db;
use crate::txn::locks::LockStatus;
use crate::txn::terms::GaveWay;

impl Db {
    /// Waits until locks have gone since they had `released` times, `wait_max` at most; whether they have.
    pub fn wait_for_locks(&self, released: u64, wait_max: Duration) -> bool {
        self.inner.locks.wait_for_locks(released, wait_max)
    }

    /// The call of the branch `id` that was refused as [`Blocked`](crate::Blocked) and waits by the number `wait` is made anew, or no more.
    pub fn stop_waiting(&self, id: BranchId, wait: u64) {
        self.inner.locks.stop_waiting(id, wait);
    }

    /// Takes the locks of the branch `id` away, as a write to the store has waited long enough for them. It can only be
    /// aborted from then on. One whose commit is under way keeps them until that is done.
    pub fn overrule(&self, id: BranchId) {
        self.inner.locks.overrule(id, GaveWay::Overruled);
    }

    /// Notes that a call of the branch `id` is not made again, as others are in its way: what its maker comes to may be
    /// otherwise when they are not.
    pub fn note_refused(&self, id: BranchId) {
        self.inner.locks.note_refused(id);
    }

    /// How often rows of the store itself have changed. Whatever of that a serializable branch can see in rows that it has
    /// been granted locks of is counted by then, so what it has read in the store between two looks at the same number
    /// is still so, even what changes commute with.
    pub fn store_changes(&self) -> u64 {
        self.inner.locks.store_changes()
    }

    /// What serializable branches have locked, and for whom they wait.
    pub fn lock_status(&self) -> Vec<LockStatus> {
        self.inner.locks.lock_status()
    }
}
