//! Changes: before an object changes, those who have cached it drop it.
//!
//! 1. [`Changes::begin`] asks the leases ([`varve_meta::Leases`]) who has to drop what.
//! 2. If somebody has, and the thread may wait, they get a notice. The change waits until each has acknowledged it, or
//!    its lease has ended.
//! 3. The call is made while [`Change`] lives, so that nobody gets a lease on what is changing.
//!
//! Calls that change names lock them here (`names`), so that what a name stands for, which is looked up before the
//! call, is what the call finds.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;
use varve_meta::{Holders, Learned, Leases, Policy, SessionId};
use varve_types::InodeId;
use varve_wire::{Cached, Notice};

use crate::server::Clock;
use crate::session::Sessions;

const SHARDS: usize = 64;
const PLACES_PER_SHARD: usize = 1024;
const NAME_LOCKS: usize = 1024;

/// A call has to wait, and its thread must not.
#[derive(Debug)]
pub(crate) struct MustWait;

/// Who waits for acknowledgements of one notice each.
#[derive(Default)]
struct Awaited {
    left: Mutex<usize>,
    acknowledged: Condvar,
}

/// Leases, notices and names of a server.
pub(crate) struct Changes {
    leases: Vec<Mutex<Leases>>,
    names: Vec<Mutex<()>>,
    awaited: Mutex<HashMap<(SessionId, u64), Arc<Awaited>>>,
    /// How many changes have ended.
    ended: AtomicU64,
    pub(crate) clock: Clock,
    epoch: u32,
}

/// Something that changes, by its hash.
fn number(object: &Cached) -> u64 {
    let (dir, name) = match object {
        Cached::Inode(ino) => return mix(*ino),
        Cached::Name(dir, name) => (*dir, name),
    };
    let folded = name.iter().fold(dir ^ 0x9e37_79b9_7f4a_7c15, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(folded)
}

/// Spreads the bits of a number (the finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl Changes {
    pub(crate) fn new(policy: Policy, clock: Clock, epoch: u32) -> Changes {
        let mut leases = Vec::with_capacity(SHARDS);
        for _ in 0..SHARDS {
            let mut shard = Leases::new(PLACES_PER_SHARD, policy);
            // Nobody knows what the server before has granted.
            shard.wait_for_others(clock.now_ms() + u64::from(policy.longest_ms()));
            leases.push(Mutex::new(shard));
        }
        let names = (0..NAME_LOCKS).map(|_| Mutex::default()).collect();
        Changes { leases, names, awaited: Mutex::default(), ended: AtomicU64::new(0), clock, epoch }
    }

    fn shard(&self, number: u64) -> (&Mutex<Leases>, u64) {
        (&self.leases[(number % SHARDS as u64) as usize], number / SHARDS as u64)
    }

    /// Returns the number of changes that have ended. A call that looks at something takes it before.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns for how long `session` may keep what it has learned, in milliseconds.
    pub(crate) fn grant(&self, object: &Cached, session: SessionId, learned: Learned) -> u32 {
        let (leases, number) = self.shard(number(object));
        leases.lock().grant(number, session, learned, self.clock.now_ms())
    }

    /// Locks names that a call changes. With `may_wait` unset, fails if one is locked.
    pub(crate) fn lock_names(
        &self,
        names: &[(InodeId, &[u8])],
        may_wait: bool,
    ) -> Result<SmallVec<[MutexGuard<'_, ()>; 2]>, MustWait> {
        let mut at: SmallVec<[usize; 2]> = names
            .iter()
            .map(|(dir, name)| {
                let object = Cached::Name(dir.get(), name.to_vec());
                (number(&object) % NAME_LOCKS as u64) as usize
            })
            .collect();
        at.sort_unstable();
        at.dedup();
        at.into_iter()
            .map(|at| match may_wait {
                true => Ok(self.names[at].lock()),
                false => self.names[at].try_lock().ok_or(MustWait),
            })
            .collect()
    }

    /// Begins a change of `objects` by `session`. With `may_wait` unset, fails if somebody has to drop something first.
    pub(crate) fn begin<'a>(
        &'a self,
        sessions: &Sessions,
        session: SessionId,
        objects: SmallVec<[Cached; 4]>,
        may_wait: bool,
    ) -> Result<Change<'a>, MustWait> {
        let now_ms = self.clock.now_ms();
        let mut change = Change { changes: self, parts: SmallVec::new(), is_ready: false };
        for object in objects {
            let (leases, number) = self.shard(number(&object));
            let holders = leases.lock().begin_change(number, session, now_ms);
            change.parts.push((object, holders));
        }
        if change.parts.iter().all(|(_, holders)| holders.is_free()) {
            change.is_ready = true;
            return Ok(change);
        }
        if !may_wait {
            return Err(MustWait);
        }
        change.wait(sessions);
        change.is_ready = true;
        Ok(change)
    }

    /// A client has dropped what a notice named.
    pub(crate) fn acknowledged(&self, session: SessionId, number: u64) {
        if let Some(awaited) = self.awaited.lock().remove(&(session, number)) {
            let mut left = awaited.left.lock();
            *left = left.saturating_sub(1);
            if *left == 0 {
                awaited.acknowledged.notify_all();
            }
        }
    }
}

/// A change under way.
pub(crate) struct Change<'a> {
    changes: &'a Changes,
    parts: SmallVec<[(Cached, Holders); 4]>,
    is_ready: bool,
}

impl Change<'_> {
    /// Tells all holders, and waits until they have dropped the objects or their leases have ended.
    fn wait(&self, sessions: &Sessions) {
        let changes = self.changes;
        let mut told: HashMap<SessionId, Vec<Cached>> = HashMap::new();
        let mut expiry_ms = 0;
        let mut must_expire_ms = 0;
        for (object, holders) in &self.parts {
            expiry_ms = expiry_ms.max(holders.expiry_ms);
            if !holders.is_all {
                must_expire_ms = must_expire_ms.max(holders.expiry_ms);
            }
            for holder in &holders.told {
                told.entry(*holder).or_default().push(object.clone());
            }
        }
        let awaited = Arc::new(Awaited::default());
        let mut keys = Vec::with_capacity(told.len());
        // Nobody acknowledges what is not registered yet.
        let mut registered = changes.awaited.lock();
        for (holder, objects) in told {
            let Some(session) = sessions.get(holder) else { continue };
            *awaited.left.lock() += 1;
            match session.notify(&Notice::Recall(objects), changes.epoch) {
                Some(number) => {
                    registered.insert((holder, number), Arc::clone(&awaited));
                    keys.push((holder, number));
                }
                // The client is away. It may still show what it has cached, until its lease ends.
                None => {
                    *awaited.left.lock() -= 1;
                    must_expire_ms = must_expire_ms.max(expiry_ms);
                }
            }
        }
        drop(registered);
        let mut left = awaited.left.lock();
        while *left > 0 {
            let now_ms = changes.clock.now_ms();
            if now_ms >= expiry_ms {
                break;
            }
            awaited.acknowledged.wait_for(&mut left, Duration::from_millis(expiry_ms - now_ms));
        }
        drop(left);
        let mut registered = changes.awaited.lock();
        for key in keys {
            registered.remove(&key);
        }
        drop(registered);
        let now_ms = changes.clock.now_ms();
        if now_ms < must_expire_ms {
            std::thread::sleep(Duration::from_millis(must_expire_ms - now_ms));
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let now_ms = self.changes.clock.now_ms();
        let ended = self.changes.ended.fetch_add(1, Ordering::AcqRel) + 1;
        for (object, holders) in &self.parts {
            let (leases, number) = self.changes.shard(number(object));
            match self.is_ready {
                true => leases.lock().end_change(number, holders, ended, now_ms),
                false => leases.lock().cancel_change(number, now_ms),
            }
        }
    }
}
