//! The locks of a store: which transactions there are, and what they have locked.
//!
//! Invariants:
//! - The table's lock is held for moments. Who waits for a lock of a transaction waits at a condition variable, and holds
//!   no other lock.
//! - Rows of the store are counted as changed after they are published, under the writer's lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use varve_types::{BranchId, KeyspaceId};

use super::granules::{Mode, prefix_request, target};
use super::held::Held;
use super::locks::{Holders, LockStatus, LockTable};
use super::terms::{Blocked, GaveWay, LockOptions};
use crate::{StoreError, StoreResult};

/// The locks of a store.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    pub(super) table: Mutex<LockTable>,
    /// Told when locks go.
    pub(super) released: Condvar,
    /// Serializable transactions.
    open: AtomicUsize,
    /// See [`Locks::store_changes`].
    store_changes: AtomicU64,
}

impl Locks {
    /// Whether there may be any.
    pub(crate) fn is_used(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// A transaction begins; nothing is known to be held by it yet.
    pub(crate) fn begin(
        &self,
        id: BranchId,
        options: LockOptions,
        apart: &[(KeyspaceId, Bytes)],
    ) -> Held {
        let prefixes = apart
            .iter()
            .map(|(space, prefix)| target(&prefix_request(*space, prefix, Mode::Shared)));
        let mut table = self.table.lock();
        let lost = table.begin(id, options.give_way, options.restarts);
        table.keep_apart(id, prefixes.collect());
        drop(table);
        self.open.fetch_add(1, Ordering::AcqRel);
        Held::new(lost)
    }

    /// Rows of the store itself have changed, and are published.
    ///
    /// REQUIRES: the writer's lock has been held since before that.
    pub(crate) fn store_has_changed(&self) {
        self.store_changes.fetch_add(1, Ordering::Release);
    }

    /// A transaction ends.
    pub(crate) fn end(&self, id: BranchId) {
        self.table.lock().end(id);
        self.open.fetch_sub(1, Ordering::AcqRel);
        self.released.notify_all();
    }

    /// Takes the locks of a transaction away, for this reason.
    pub(crate) fn overrule(&self, id: BranchId, why: GaveWay) {
        self.table.lock().overrule(id, why);
        self.released.notify_all();
    }

    /// What becomes of a change outside of transactions that lost the locks it had for a while, for this reason.
    pub(crate) fn refusal(&self, why: GaveWay) -> Blocked {
        let holders = match why {
            GaveWay::Deadlock(other) | GaveWay::Restart(other) | GaveWay::Committed(other) => {
                vec![other]
            }
            GaveWay::Overruled | GaveWay::Ended => Vec::new(),
        };
        Blocked { wait: 0, holders, released: self.table.lock().released() }
    }

    /// Fails if a transaction lost its locks to another. Else it keeps them from now on, whoever waits for them, until it
    /// ends or [`Locks::keep_no_more`] is called.
    pub(crate) fn keep(&self, id: BranchId) -> StoreResult<()> {
        self.table.lock().keep(id).map_or(Ok(()), |why| Err(StoreError::GaveWay { why }))
    }

    /// A transaction that kept its locks to be committed is not.
    pub(crate) fn keep_no_more(&self, id: BranchId) {
        self.table.lock().keep_no_more(id);
    }

    /// Fails if a transaction lost its locks to another.
    pub(crate) fn check(&self, id: BranchId) -> StoreResult<()> {
        self.table.lock().gave_way(id).map_or(Ok(()), |why| Err(StoreError::GaveWay { why }))
    }
}

impl Locks {
    /// Waits until locks have gone since they had `released` times, `wait_max` at most; whether they have.
    pub(crate) fn wait_for_locks(&self, released: u64, wait_max: Duration) -> bool {
        let mut table = self.table.lock();
        if table.released() == released && !wait_max.is_zero() {
            self.released.wait_for(&mut table, wait_max);
        }
        table.released() != released
    }

    /// The call of the branch `id` that was refused as [`Blocked`] and waits by the number `wait` is made anew, or no more.
    pub(crate) fn stop_waiting(&self, id: BranchId, wait: u64) {
        self.table.lock().stop_waiting(id, wait);
    }

    /// Notes that a call of the branch `id` is not made again, as others are in its way: what its maker comes to may be
    /// otherwise when they are not.
    pub(crate) fn note_refused(&self, id: BranchId) {
        self.table.lock().note_refused(id);
    }

    /// How often rows of the store itself have changed. Whatever of that a serializable branch can see in rows that it has
    /// been granted locks of is counted by then, so what it has read in the store between two looks at the same number
    /// is still so, even what changes commute with.
    pub(crate) fn store_changes(&self) -> u64 {
        self.store_changes.load(Ordering::Acquire)
    }

    /// What serializable branches have locked, and for whom they wait.
    pub(crate) fn lock_status(&self) -> Vec<LockStatus> {
        self.table.lock().status()
    }
}

pub(super) fn blocked_by(wait: u64, holders: &Holders, released: u64) -> Blocked {
    Blocked { wait, holders: holders.to_vec(), released }
}
