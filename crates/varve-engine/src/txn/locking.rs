//! Asks for locks of transactions, and waits for them.
//!
//! Invariant: a writer asks what is in its way and publishes its rows under the writer's lock, and a transaction that was
//! granted a lock takes the writer's lock once before it reads, so that no write is on its way past a lock.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;
use varve_env::Env;
use varve_types::{BranchId, KeyspaceId};

use super::granules::{
    Mode, Request, key_granule, key_request, prefix_request, space_request, target,
};
use super::held::Held;
use super::locks::{Answer, LOCKS_MAX, LockTable};
use super::manager::{Locks, blocked_by};
use super::terms::{Blocked, LockOptions};
use crate::base::Base;
use crate::branch::record::Shared;
use crate::commit::log::Log;
use crate::health::Health;
use crate::iter::common_prefix;
use crate::options::DbOptions;
use crate::{Batch, KeyRange, Op, StoreError, StoreResult};

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

/// Locks one row to write it: its key space and key, and whether that commutes.
type LockRow<'a> = dyn FnMut(KeyspaceId, &[u8], bool) -> StoreResult<()> + 'a;

/// How a write in a batch locks its key.
fn mode_of(batch: &Batch, at: usize) -> Mode {
    if batch.commutes(at) { Mode::Shared } else { Mode::Exclusive }
}

/// A branch that asks for locks.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    id: BranchId,
    options: LockOptions,
    /// What it is known to hold.
    held: Option<&'a Held>,
}

impl<'a> Asker<'a> {
    /// The branch `id`, of which `shared` tells more; `None` if it takes no locks.
    pub(crate) fn new(id: BranchId, shared: &'a Shared) -> Option<Asker<'a>> {
        shared.locks.map(|options| Asker { id, options, held: shared.held.get() })
    }
}

/// What asks for locks, and waits for them.
pub(crate) struct Locking {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) options: Arc<DbOptions>,
    pub(crate) health: Arc<Health>,
    pub(crate) locks: Arc<Locks>,
    pub(crate) log: Arc<Log>,
}

impl Locking {
    /// Asks for the locks that `log` respects.
    pub(crate) fn new(base: &Base, log: Arc<Log>) -> Locking {
        let Base { env, options, health, .. } = base.clone();
        Locking { env, options, health, locks: Arc::clone(&log.locks), log }
    }

    /// Locks `key` for reading.
    pub(crate) fn lock_key(
        &self,
        asker: Asker<'_>,
        space: KeyspaceId,
        key: &[u8],
    ) -> StoreResult<()> {
        self.lock_one(asker, space, (key, Mode::Shared))
    }

    /// Locks what a scan of `range` may find.
    pub(crate) fn lock_range(
        &self,
        asker: Asker<'_>,
        space: KeyspaceId,
        range: &KeyRange,
    ) -> StoreResult<()> {
        let start = range.start.as_ref().map(|key| key.as_slice());
        let prefix = common_prefix((start, range.end.as_ref().map(|key| key.as_slice())));
        let prefix = prefix.as_ref().map_or(&[][..], |prefix| prefix);
        let request = prefix_request(space, prefix, Mode::Shared);
        self.lock(asker, space, (prefix, Mode::Shared), request)
    }

    /// Locks what `batch`, of the store's key spaces, writes but `shared` does not say to be unlocked.
    pub(crate) fn lock_batch(
        &self,
        asker: Asker<'_>,
        shared: &Shared,
        batch: &Batch,
    ) -> StoreResult<()> {
        for (at, op) in batch.ops().iter().enumerate() {
            let (Op::Put { keyspace, key, .. } | Op::Delete { keyspace, key }) = op;
            if !shared.is_unlocked(*keyspace, key) {
                self.lock_one(asker, *keyspace, (key, mode_of(batch, at)))?;
            }
        }
        Ok(())
    }

    /// Locks one key, unless that is known to be held.
    fn lock_one(
        &self,
        asker: Asker<'_>,
        space: KeyspaceId,
        (key, mode): (&[u8], Mode),
    ) -> StoreResult<()> {
        let Some(held) = asker.held else {
            return self.lock(asker, space, (key, mode), key_request(space, key, mode));
        };
        let granule = key_granule(space, key);
        if !held.covers(granule, mode) {
            self.lock(asker, space, (key, mode), key_request(space, key, mode))?;
            held.note(granule, mode);
        }
        Ok(())
    }

    /// Grants `request`, which is for `name` in `mode`, or for what holds it if there are many locks. What is granted is
    /// settled when this returns.
    fn lock(
        &self,
        asker: Asker<'_>,
        space: KeyspaceId,
        (name, mode): (&[u8], Mode),
        mut request: Request,
    ) -> StoreResult<()> {
        let Asker { id, options, .. } = asker;
        let mut table = self.locks.table.lock();
        if let Some(why) = table.gave_way(id) {
            return Err(StoreError::GaveWay { why });
        }
        if table.holds(id, &request) {
            return Ok(());
        }
        if table.has_too_many(id) && table.gather(id) {
            drop(table);
            self.settle(id);
            table = self.locks.table.lock();
            if table.holds(id, &request) {
                return Ok(());
            }
        }
        if table.has_too_many(id) {
            let around = prefix_request(space, name, mode);
            if table.locks() >= LOCKS_MAX + LOCKS_MAX / 2 {
                request = space_request(space, mode);
            } else if !table.is_apart(id, target(&around)) {
                request = around;
            }
        }
        let mut patience = self.patience(options.wait.unwrap_or_default());
        loop {
            self.health.check_open()?;
            let before = table.released();
            let answer = table.request(id, &request);
            if table.released() != before {
                self.locks.released.notify_all();
            }
            match answer {
                Answer::Granted => break,
                Answer::GaveWay(why) => return Err(StoreError::GaveWay { why }),
                Answer::Wait(wait, holders) => {
                    let released = table.released();
                    let waited = self.wait_for_moment(&mut table, &mut patience, || {
                        blocked_by(wait, &holders, released)
                    });
                    // A call that is refused, and waits elsewhere, counts as waiting.
                    if waited.is_ok() || options.wait.is_some() {
                        table.stop_waiting(id, wait);
                    }
                    waited?;
                }
            }
        }
        drop(table);
        self.settle(id);
        Ok(())
    }

    /// A write that was not held up by a lock, as `id` had not got it yet, is published when this returns.
    fn settle(&self, id: BranchId) {
        self.log.wait_for_writer();
        self.locks.table.lock().settled(id);
    }

    /// Locks all that a branch that takes no locks of its own has changed, as long as its commit by reference takes, so
    /// that it waits for others as they do for it. Give the locks back by [`Locks::end`], also after a failure.
    pub(crate) fn lock_changes(
        &self,
        id: BranchId,
        walk: impl FnOnce(&mut LockRow<'_>) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let options = LockOptions { wait: Some(Duration::ZERO), ..LockOptions::default() };
        let held = self.locks.begin(id, options, &[]);
        let asker = Asker { id, options, held: Some(&held) };
        walk(&mut |space, key, commutes| {
            let mode = if commutes { Mode::Shared } else { Mode::Exclusive };
            self.lock_one(asker, space, (key, mode))
        })
    }

    /// What keeps a batch that goes to the store itself from being written: locks of others than `id`.
    ///
    /// REQUIRES: the writer's lock is held until the batch is published.
    pub(crate) fn blocked(&self, id: Option<BranchId>, batch: &Batch) -> Option<Blocked> {
        debug_assert!(self.log.is_writer_held());
        if !self.locks.is_used() {
            return None;
        }
        let table = self.locks.table.lock();
        batch.ops().iter().enumerate().find_map(|(at, op)| {
            let (Op::Put { keyspace, key, .. } | Op::Delete { keyspace, key }) = op;
            if keyspace.is_of_branch() {
                return None;
            }
            let request = key_request(*keyspace, key, mode_of(batch, at));
            let holders = table.in_the_way(id, &request);
            (!holders.is_empty()).then(|| blocked_by(0, &holders, table.released()))
        })
    }

    /// Waits until some lock goes, or for a moment, as one may have gone before.
    pub(crate) fn wait_for_locks(
        &self,
        patience: &mut Patience,
        blocked: Blocked,
    ) -> StoreResult<()> {
        let mut table = self.locks.table.lock();
        if table.released() != blocked.released {
            return Ok(());
        }
        self.wait_for_moment(&mut table, patience, || blocked)
    }

    fn wait_for_moment(
        &self,
        table: &mut MutexGuard<'_, LockTable>,
        patience: &mut Patience,
        blocked: impl FnOnce() -> Blocked,
    ) -> StoreResult<()> {
        if patience.moments == 0 || self.env.monotonic() >= patience.end {
            return Err(StoreError::Blocked(blocked()));
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
        self.patience(self.options.lock_wait)
    }

    /// Fails while anything in a key space is locked: for writers that do not know their keys.
    ///
    /// REQUIRES: the writer's lock is held until the rows are published.
    pub(crate) fn refuse_locked(&self, space: KeyspaceId) -> StoreResult<()> {
        if !self.locks.is_used() {
            return Ok(());
        }
        let table = self.locks.table.lock();
        let request = space_request(space, Mode::Exclusive);
        let holders = table.in_the_way(None, &request);
        if holders.is_empty() {
            return Ok(());
        }
        Err(StoreError::Blocked(blocked_by(0, &holders, table.released())))
    }

    /// Waits until nothing in a key space is locked.
    pub(crate) fn wait_until_unlocked(&self, space: KeyspaceId) -> StoreResult<()> {
        let mut patience = self.writer_patience();
        loop {
            match self.refuse_locked(space) {
                Err(StoreError::Blocked(blocked)) => self.wait_for_locks(&mut patience, blocked)?,
                other => return other,
            }
        }
    }
}
