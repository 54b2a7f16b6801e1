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
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;
use varve_meta::{Holders, Learned, Leases, Policy, SessionId};
use varve_types::InodeId;
use varve_wire::{Cached, Notice};

use crate::clock::Clock;
use crate::journal::{Journal, Subject, time};
use crate::meters::Meters;
use crate::session::{Session, Sessions};

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
    /// Its keys are random: a client cannot choose names whose numbers are alike.
    hash: RandomState,
    pub(crate) clock: Clock,
    epoch: u32,
    meters: Arc<Meters>,
    pub(crate) journal: Arc<Journal>,
}

impl Changes {
    pub(crate) fn new(
        policy: Policy,
        clock: Clock,
        epoch: u32,
        (meters, journal): (&Arc<Meters>, &Arc<Journal>),
    ) -> Changes {
        let mut leases = Vec::with_capacity(SHARDS);
        for _ in 0..SHARDS {
            let mut shard = Leases::new(PLACES_PER_SHARD, policy);
            // Nobody knows what the server before has granted.
            shard.wait_for_others(clock.now_ms() + u64::from(policy.longest_ms()));
            leases.push(Mutex::new(shard));
        }
        let names = (0..NAME_LOCKS).map(|_| Mutex::default()).collect();
        let (awaited, ended, hash) = (Mutex::default(), AtomicU64::new(0), RandomState::new());
        let (meters, journal) = (Arc::clone(meters), Arc::clone(journal));
        Changes { leases, names, awaited, ended, hash, clock, epoch, meters, journal }
    }

    /// Returns the number of something that changes.
    fn number(&self, object: &Cached) -> u64 {
        self.hash.hash_one(object)
    }

    fn shard(&self, number: u64) -> (&Mutex<Leases>, u64) {
        (&self.leases[(number % SHARDS as u64) as usize], number / SHARDS as u64)
    }

    /// Returns the number of changes that have ended. A call that looks at something takes it before.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns for how long `session` may keep what it has learned about something at a depth of the tree, in milliseconds.
    pub(crate) fn grant(
        &self,
        (object, depth): (&Cached, impl FnOnce() -> u32),
        session: &Session,
        learned: Learned,
    ) -> u32 {
        if !session.obeys() {
            return 0;
        }
        let (leases, number) = self.shard(self.number(object));
        let ms = leases.lock().grant((number, depth), session.id, learned, self.clock.now_ms());
        if ms > 0 {
            self.meters.leases.give(number);
        }
        ms
    }

    /// Calls `note` with each session that is known as a holder of leases, once for each place that it holds.
    pub(crate) fn each_holder(&self, mut note: impl FnMut(SessionId)) {
        let now_ms = self.clock.now_ms();
        self.leases.iter().for_each(|shard| shard.lock().each_holder(now_ms, &mut note));
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
                (self.number(&object) % NAME_LOCKS as u64) as usize
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
            let (leases, number) = self.shard(self.number(&object));
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
        let begin = Instant::now();
        change.wait(sessions);
        let waited = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.meters.leases.waits.add(waited);
        change.is_ready = true;
        Ok(change)
    }

    /// A client has not dropped what a notice named before its lease ended.
    fn recall_timed_out(&self, session: &Session, waited_ms: u64) {
        self.meters.leases.timed_out.add(1);
        self.journal.write(Subject::Recalls, || {
            let (who, waited) = (session.described(), time(waited_ms));
            format!("{who}: does not drop what is recalled; a change of another client has waited {waited} for that")
        });
    }

    /// A client has dropped what a notice named.
    pub(crate) fn acknowledged(&self, session: &Session, number: u64) {
        if let Some(awaited) = self.awaited.lock().remove(&(session.id, number)) {
            session.set_obeys(true);
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
        let began_ms = changes.clock.now_ms();
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
            let notice = Notice::Recall(objects);
            let session = sessions.get(holder);
            let told = session.and_then(|it| Some((it.notify(&notice, changes.epoch)?, it)));
            // A client that is away may still show what it has cached, until its lease ends.
            let Some((number, session)) = told else {
                must_expire_ms = must_expire_ms.max(expiry_ms);
                continue;
            };
            changes.meters.leases.recalls.add(1);
            *awaited.left.lock() += 1;
            registered.insert((holder, number), Arc::clone(&awaited));
            keys.push((session, number));
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
        keys.retain(|(session, number)| registered.remove(&(session.id, *number)).is_some());
        drop(registered);
        for (session, _) in keys {
            // Nobody waits for it a second time.
            session.set_obeys(false);
            changes.recall_timed_out(&session, changes.clock.now_ms() - began_ms);
        }
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
            let (leases, number) = self.changes.shard(self.changes.number(object));
            match self.is_ready {
                true => leases.lock().end_change(number, holders, ended, now_ms),
                false => leases.lock().cancel_change(number, now_ms),
            }
        }
    }
}
