//! Serializable transactions: branches of the store that lock what they read and write until they end.
//!
//! 1. A read locks its key, a scan its prefix or key space, shared; a write locks its keys exclusively ([`locks`]).
//!    What a read finds is the newest state of the store, not that of the beginning: nobody changes it until the end.
//! 2. Who writes to the store itself, and the commit of any other branch, waits while a lock is in the way. While there
//!    is no serializable transaction that costs one look at a number.
//! 3. A wait ends with the lock, with the choice of a victim among those that wait in a circle, or after the time
//!    that the transaction gave. Locks go when the branch has ended, its commit included.
//!
//! Invariant: a writer asks for locks and publishes its rows under the writer's lock, and a transaction that was granted
//! a lock takes the writer's lock once before it reads, so that no write is on its way past a lock.
//!
//! Source: KVFS (thesis 3.3), strong strict two-phase locking.

mod locks;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use varve_types::{BranchId, KeyspaceId};

use crate::db::Inner;
use crate::db::read::common_prefix;
use crate::{Batch, KeyRange, Op, StoreError, StoreResult};
use locks::{Answer, GRANULES_MAX, LockTable, Mode, Request, key_request, prefix_request};

/// The longest that a writer outside of transactions waits for locks.
const WRITER_WAIT: Duration = Duration::from_secs(30);
/// The longest wait before the locks are looked at again.
const MOMENT: Duration = Duration::from_millis(20);

/// What is left of a wait.
#[derive(Debug)]
pub(crate) struct Patience {
    /// By the monotonic clock.
    end: Duration,
    /// Moments in which nothing happened, which count where the clock stands still.
    moments: u32,
}

/// How a serializable transaction treats others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockOptions {
    /// The longest wait for one lock; zero to be refused instead of waiting.
    pub wait: Duration,
    /// Of transactions that wait for each other the one with the largest number gives way; of equal ones the youngest.
    pub give_way: u64,
}

impl Default for LockOptions {
    fn default() -> LockOptions {
        LockOptions { wait: Duration::from_secs(10), give_way: 0 }
    }
}

/// The locks of a store.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    table: Mutex<LockTable>,
    /// Told when locks go.
    released: Condvar,
    /// Serializable transactions.
    open: AtomicUsize,
}

impl Locks {
    fn is_used(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// A transaction begins.
    pub(crate) fn begin(&self, id: BranchId, options: LockOptions) {
        self.table.lock().begin(id, options.give_way);
        self.open.fetch_add(1, Ordering::AcqRel);
    }

    /// A transaction ends.
    pub(crate) fn end(&self, id: BranchId) {
        self.table.lock().end(id);
        self.open.fetch_sub(1, Ordering::AcqRel);
        self.released.notify_all();
    }

    /// Fails if a transaction lost its locks to another.
    pub(crate) fn check(&self, id: BranchId) -> StoreResult<()> {
        if self.table.lock().is_doomed(id) { Err(StoreError::Deadlock) } else { Ok(()) }
    }
}

impl Inner {
    /// Locks `key` for reading by the transaction `id`.
    pub(crate) fn lock_key(
        &self,
        id: BranchId,
        wait: Duration,
        space: KeyspaceId,
        key: &[u8],
    ) -> StoreResult<()> {
        self.lock(id, wait, space, key_request(space, key, Mode::Shared), Mode::Shared)
    }

    /// Locks what a scan of `range` may find.
    pub(crate) fn lock_range(
        &self,
        id: BranchId,
        wait: Duration,
        space: KeyspaceId,
        range: &KeyRange,
    ) -> StoreResult<()> {
        let start = range.start.as_ref().map(|key| key.as_slice());
        let prefix = common_prefix((start, range.end.as_ref().map(|key| key.as_slice())));
        let prefix = prefix.as_ref().map_or(&[][..], |prefix| prefix);
        self.lock(id, wait, space, prefix_request(space, prefix, Mode::Shared), Mode::Shared)
    }

    /// Locks what `batch`, of the store's key spaces, writes.
    pub(crate) fn lock_batch(
        &self,
        id: BranchId,
        wait: Duration,
        batch: &Batch,
    ) -> StoreResult<()> {
        batch.ops().iter().try_for_each(|op| {
            let (Op::Put { keyspace, key, .. } | Op::Delete { keyspace, key }) = op;
            let request = key_request(*keyspace, key, Mode::Exclusive);
            self.lock(id, wait, *keyspace, request, Mode::Exclusive)
        })
    }

    fn lock(
        &self,
        id: BranchId,
        wait: Duration,
        space: KeyspaceId,
        mut request: Request,
        mode: Mode,
    ) -> StoreResult<()> {
        let mut table = self.locks.table.lock();
        if table.held(id) >= GRANULES_MAX {
            request = prefix_request(space, &[], mode);
        }
        let mut patience = self.patience(wait);
        loop {
            self.check_open()?;
            let answer = table.request(id, &request);
            if table.take_released() {
                self.locks.released.notify_all();
            }
            match answer {
                Answer::Granted => break,
                Answer::Doomed => return Err(StoreError::Deadlock),
                Answer::Wait => self.wait(&mut table, &mut patience)?,
            }
        }
        drop(table);
        // Whoever asked before this lock was granted has published what he writes.
        drop(self.writer.lock());
        Ok(())
    }

    /// Whether locks of others than `id` are in the way of a batch that goes to the store itself.
    ///
    /// REQUIRES: the writer's lock is held until the batch is published.
    pub(crate) fn is_locked(&self, id: Option<BranchId>, batch: &Batch) -> bool {
        if !self.locks.is_used() {
            return false;
        }
        let table = self.locks.table.lock();
        batch.ops().iter().any(|op| {
            let (Op::Put { keyspace, key, .. } | Op::Delete { keyspace, key }) = op;
            let request = key_request(*keyspace, key, Mode::Exclusive);
            !keyspace.is_of_branch() && !table.in_the_way(id, &request).is_empty()
        })
    }

    /// Waits until some lock goes, or for a moment, as one may have gone before.
    pub(crate) fn wait_for_locks(&self, patience: &mut Patience) -> StoreResult<()> {
        self.wait(&mut self.locks.table.lock(), patience)
    }

    fn wait(
        &self,
        table: &mut MutexGuard<'_, LockTable>,
        patience: &mut Patience,
    ) -> StoreResult<()> {
        if patience.moments == 0 || self.env.monotonic() >= patience.end {
            return Err(StoreError::LockTimeout);
        }
        let is_moment_over = self.locks.released.wait_for(table, MOMENT).timed_out();
        patience.moments -= u32::from(is_moment_over);
        Ok(())
    }

    fn patience(&self, wait: Duration) -> Patience {
        // One thread alone would wait for itself.
        let wait = if self.env.is_deterministic() { Duration::ZERO } else { wait };
        let moments = wait.as_millis().div_ceil(MOMENT.as_millis());
        let moments = u32::try_from(moments).unwrap_or(u32::MAX);
        Patience { end: self.env.monotonic() + wait, moments }
    }

    /// How long a writer outside of transactions waits.
    pub(crate) fn writer_patience(&self) -> Patience {
        self.patience(WRITER_WAIT)
    }

    /// Waits until no lock is held.
    pub(crate) fn wait_until_unlocked(&self) -> StoreResult<()> {
        let mut patience = self.writer_patience();
        while self.refuse_locked().is_err() {
            self.wait_for_locks(&mut patience)?;
        }
        Ok(())
    }

    /// Fails while any lock is held: for writers that do not know their keys.
    ///
    /// REQUIRES: the writer's lock is held until the rows are published.
    pub(crate) fn refuse_locked(&self) -> StoreResult<()> {
        let is_free = !self.locks.is_used() || self.locks.table.lock().is_idle();
        if is_free { Ok(()) } else { Err(StoreError::LockTimeout) }
    }
}
