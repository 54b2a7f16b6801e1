//! Serializable transactions: branches of the store that lock what they read and write until they end.
//!
//! 1. A read locks its key, a scan its prefix or key space, shared; a write locks its keys exclusively ([`locks`]).
//!    What a read finds is the newest state of the store, not that of the beginning: nobody changes it until the end.
//! 2. Who writes to the store itself, and the commit of any other branch, waits while a lock is in the way. While there
//!    is no serializable transaction that costs one look at a number.
//!    A change that commutes asks for no more than a read ([`Batch::put_commuting`]). A commit by reference, too large to be
//!    looked through while writers wait, takes locks for as long as it takes, if there are others, and takes them anew if it
//!    loses them; where it does so again and again, it is refused as one that meets locks.
//! 3. A wait ends with the lock, with the choice of a victim among those that wait in a circle, or after the time
//!    that the transaction gave; or calls are refused and wait elsewhere ([`LockOptions::wait`]). Locks go when the branch
//!    has ended, its commit included, or when it gives way. Who has more to do for a commit than to write rows lets go of them
//!    when that is done ([`crate::KeptLocks`]).
//!
//! Invariant: a writer asks for locks and publishes its rows under the writer's lock, and a transaction that was granted
//! a lock takes the writer's lock once before it reads, so that no write is on its way past a lock.
//!
//! Source: KVFS (thesis 3.3), strong strict two-phase locking.

mod granules;
pub(crate) mod held;
pub(crate) mod locks;
pub(crate) mod terms;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use varve_types::{BranchId, KeyspaceId};

use crate::branch::record::Shared;
use crate::db::Inner;
use crate::iter::common_prefix;
use crate::{Batch, Db, KeyRange, Op, StoreError, StoreResult};
use granules::{Mode, Request, key_granule, key_request, prefix_request, space_request, target};
use held::Held;
use locks::{Answer, Holders, LOCKS_MAX, LockStatus, LockTable};
use terms::{Blocked, GaveWay, LockOptions};

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

/// The locks of a store.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    table: Mutex<LockTable>,
    /// Told when locks go.
    released: Condvar,
    /// Serializable transactions.
    open: AtomicUsize,
    /// See [`Db::store_changes`].
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

impl Db {
    /// Waits until locks have gone since they had `released` times, `wait_max` at most; whether they have.
    pub fn wait_for_locks(&self, released: u64, wait_max: Duration) -> bool {
        let locks = &self.inner.locks;
        let mut table = locks.table.lock();
        if table.released() == released && !wait_max.is_zero() {
            locks.released.wait_for(&mut table, wait_max);
        }
        table.released() != released
    }

    /// The call of the branch `id` that was refused as [`Blocked`] and waits by the number `wait` is made anew, or no more.
    pub fn stop_waiting(&self, id: BranchId, wait: u64) {
        self.inner.locks.table.lock().stop_waiting(id, wait);
    }

    /// Takes the locks of the branch `id` away, as a write to the store has waited long enough for them. It can only be
    /// aborted from then on. One whose commit is under way keeps them until that is done.
    pub fn overrule(&self, id: BranchId) {
        self.inner.locks.overrule(id, GaveWay::Overruled);
    }

    /// Notes that a call of the branch `id` is not made again, as others are in its way: what its maker comes to may be
    /// otherwise when they are not.
    pub fn note_refused(&self, id: BranchId) {
        self.inner.locks.table.lock().note_refused(id);
    }

    /// How often rows of the store itself have changed. Whatever of that a serializable branch can see in rows that it has
    /// been granted locks of is counted by then, so what it has read in the store between two looks at the same number
    /// is still so, even what changes commute with.
    pub fn store_changes(&self) -> u64 {
        self.inner.locks.store_changes.load(Ordering::Acquire)
    }

    /// What serializable branches have locked, and for whom they wait.
    pub fn lock_status(&self) -> Vec<LockStatus> {
        self.inner.locks.table.lock().status()
    }
}

/// Locks one row to write it: its key space and key, and whether that commutes.
type LockRow<'a> = dyn FnMut(KeyspaceId, &[u8], bool) -> StoreResult<()> + 'a;

/// How a write in a batch locks its key.
fn mode_of(batch: &Batch, at: usize) -> Mode {
    if batch.commutes(at) { Mode::Shared } else { Mode::Exclusive }
}

/// Who asks for locks.
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

impl Inner {
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

    /// Whoever asked before a lock was granted to `id` has published what he writes when this returns.
    fn settle(&self, id: BranchId) {
        drop(self.writer.lock());
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

fn blocked_by(wait: u64, holders: &Holders, released: u64) -> Blocked {
    Blocked { wait, holders: holders.to_vec(), released }
}
