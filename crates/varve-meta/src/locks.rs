//! Locks of files that programs of many clients set: by fcntl(2) for processes and for open files, and by flock(2).
//!
//! 1. [`LockTable::test`] finds a lock that is in the way. [`LockTable::set`] sets one or refuses.
//! 2. [`LockTable::wait`] sets one, or queues the request under a [`Ticket`].
//! 3. [`LockTable::unlock`], [`LockTable::close`] (a process closes a file), [`LockTable::release`] (an open file ends),
//!    [`LockTable::end_session`] and [`LockTable::cancel`] take locks and requests back.
//! 4. After each of these, [`LockTable::resolved`] says how waits have ended meanwhile.
//!
//! ```text
//!            no conflict                       conflict goes, or cycle appears
//! request ---------------> held      queued ------------------------------------> resolved
//!    \--- conflict, wait ----------------^ \--- cancel, end_session -----> gone, not resolved
//! ```
//!
//! Rules, which are those of a local file system on Linux:
//!
//! - A range of an owner has one mode; a new lock replaces what the owner has there, and neighbours of one mode are one
//!   lock. A process that closes a file loses all its locks on it.
//! - flock(2) that changes the mode gives the old lock up first. So a refused change has lost it.
//! - Requests are granted in the order in which they came, as far as they do not exclude each other. A new request that
//!   nothing held excludes is granted at once, even if others wait: so shared locks that keep coming can keep a writer
//!   waiting for ever.
//! - A wait of a process that would close a circle of processes that wait for each other is a deadlock. If a lock that
//!   another thread of a waiting process gets closes one, a wait that it blocks ends. Locks of open files have no such
//!   check.
//!
//! Invariants (`LockTable::check` in tests): locks of different owners that overlap are shared; locks of one owner and
//! mode neither overlap nor touch; every request in a queue is excluded by a lock that is held; the waits of processes
//! make no circle; counts are those of the lists.
//!
//! Cost: an operation looks at the locks and requests of one inode, and a wait of a process also at those of the inodes
//! that its chain of waits passes through. The end of a session looks at the inodes on which the session has locks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use varve_types::InodeId;
use varve_vfs::{FileLock, Handle, LockKind, LockMode, LockOwner, LockRange};

use crate::SessionId;

/// The most locks and requests that wait, of each session and of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLimits {
    /// Locks that one session holds.
    pub session_locks_max: usize,
    /// Locks that all sessions hold.
    pub locks_max: usize,
    /// Requests of one session that wait.
    pub session_waits_max: usize,
    /// Requests of all sessions that wait.
    pub waits_max: usize,
}

impl Default for LockLimits {
    fn default() -> LockLimits {
        LockLimits {
            session_locks_max: 1 << 17,
            locks_max: 1 << 20,
            session_waits_max: 1 << 12,
            waits_max: 1 << 16,
        }
    }
}

/// A request that waits. Tickets are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A lock, and the session that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The session.
    pub session: SessionId,
    /// The open file by which it was set, or last extended.
    pub handle: Handle,
    /// The lock.
    pub lock: FileLock,
}

/// Why a lock was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockRefusal {
    /// This lock excludes it (EAGAIN).
    Held(Holder),
    /// The wait would never end: processes wait for each other (EDEADLK).
    Deadlock,
    /// There are too many locks or requests that wait (ENOLCK).
    TooMany,
}

/// What a request that may wait has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requested {
    /// The lock is held.
    Granted,
    /// The request waits.
    Queued(Ticket),
}

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The request.
    pub ticket: Ticket,
    /// The session that made it.
    pub session: SessionId,
    /// Whether the lock is held now. Never [`LockRefusal::Held`].
    pub result: Result<(), LockRefusal>,
}

/// Whose locks replace each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Owner {
    session: SessionId,
    number: LockOwner,
    /// Locks of flock(2) have nothing to do with others.
    is_flock: bool,
}

impl Holder {
    fn owner(&self) -> Owner {
        let is_flock = self.lock.kind == LockKind::Flock;
        Owner { session: self.session, number: self.lock.owner, is_flock }
    }

    fn excludes(&self, other: &Holder) -> bool {
        let (a, b) = (&self.lock, &other.lock);
        let owners = (self.owner(), other.owner());
        owners.0 != owners.1
            && owners.0.is_flock == owners.1.is_flock
            && (a.mode == LockMode::Exclusive || b.mode == LockMode::Exclusive)
            && a.range.overlaps(b.range)
    }
}

#[derive(Debug, Default)]
struct Inode {
    held: Vec<Holder>,
    /// In the order in which they came.
    queue: VecDeque<Ticket>,
}

impl Inode {
    /// Returns the locks that exclude `wanted`.
    fn in_the_way<'a>(&'a self, wanted: &'a Holder) -> impl Iterator<Item = &'a Holder> {
        self.held.iter().filter(move |held| held.excludes(wanted))
    }
}

#[derive(Debug)]
struct Wait {
    ino: InodeId,
    wanted: Holder,
}

#[derive(Debug, Default)]
struct Session {
    locks: usize,
    /// How many locks it holds on each inode.
    inodes: BTreeMap<InodeId, usize>,
    waits: BTreeSet<Ticket>,
}

/// A fault for a test to find.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    /// An unlock in the middle of a lock drops the end.
    DropsTheEnd,
    /// The last request is served first.
    LastFirst,
    /// Only the process that is waited for directly is looked at.
    ShortCircles,
    /// What another thread of a waiting process gets closes no circle.
    TrustsGrants,
}

/// The locks of all sessions.
#[derive(Debug)]
pub struct LockTable {
    limits: LockLimits,
    inodes: HashMap<InodeId, Inode>,
    sessions: HashMap<SessionId, Session>,
    waits: HashMap<Ticket, Wait>,
    /// The requests of each process that wait.
    waits_of: HashMap<Owner, Vec<Ticket>>,
    locks: usize,
    last_ticket: u64,
    resolved: Vec<Resolved>,
    #[cfg(test)]
    planted: Option<Planted>,
}

impl LockTable {
    /// An empty table.
    pub fn new(limits: LockLimits) -> LockTable {
        LockTable {
            limits,
            inodes: HashMap::new(),
            sessions: HashMap::new(),
            waits: HashMap::new(),
            waits_of: HashMap::new(),
            locks: 0,
            last_ticket: 0,
            resolved: Vec::new(),
            #[cfg(test)]
            planted: None,
        }
    }

    /// Returns the first lock that excludes `lock`, which `session` would set.
    pub fn test(&self, ino: InodeId, session: SessionId, lock: FileLock) -> Option<Holder> {
        let wanted = Holder { session, handle: Handle(0), lock };
        let in_the_way = self.inodes.get(&ino)?.in_the_way(&wanted);
        in_the_way.min_by_key(|held| held.lock.range.first()).copied()
    }

    /// Sets a lock if no other excludes it.
    pub fn set(
        &mut self,
        ino: InodeId,
        session: SessionId,
        handle: Handle,
        lock: FileLock,
    ) -> Result<(), LockRefusal> {
        self.try_set(ino, Holder { session, handle, lock })
    }

    /// Sets a lock if no other excludes it, and else queues the request.
    pub fn wait(
        &mut self,
        ino: InodeId,
        session: SessionId,
        handle: Handle,
        lock: FileLock,
    ) -> Result<Requested, LockRefusal> {
        let wanted = Holder { session, handle, lock };
        match self.try_set(ino, wanted) {
            Ok(()) => return Ok(Requested::Granted),
            Err(LockRefusal::Held(_)) => {}
            Err(refusal) => return Err(refusal),
        }
        if lock.kind == LockKind::Posix && self.closes_circle(ino, &wanted) {
            return Err(LockRefusal::Deadlock);
        }
        let of_session = &mut self.sessions.entry(session).or_default().waits;
        let is_full = of_session.len() >= self.limits.session_waits_max
            || self.waits.len() >= self.limits.waits_max;
        if is_full {
            self.drop_if_empty(session);
            return Err(LockRefusal::TooMany);
        }
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        of_session.insert(ticket);
        if lock.kind == LockKind::Posix {
            self.waits_of.entry(wanted.owner()).or_default().push(ticket);
        }
        self.waits.insert(ticket, Wait { ino, wanted });
        self.inodes.entry(ino).or_default().queue.push_back(ticket);
        Ok(Requested::Queued(ticket))
    }

    /// Takes back what the owner has locked in a range. `TooMany` if a lock would become two.
    pub fn unlock(
        &mut self,
        ino: InodeId,
        session: SessionId,
        (owner, kind): (LockOwner, LockKind),
        range: LockRange,
    ) -> Result<(), LockRefusal> {
        let owner = Owner { session, number: owner, is_flock: kind == LockKind::Flock };
        self.replace(ino, owner, range, None)?;
        self.serve_queue(ino);
        Ok(())
    }

    /// Takes back all locks of a process on a file of which it closes a descriptor.
    pub fn close(&mut self, ino: InodeId, session: SessionId, owner: LockOwner) {
        let owner = Owner { session, number: owner, is_flock: false };
        self.drop_held(ino, |held| held.owner() == owner);
    }

    /// Takes back all locks that were set by an open file, which ends.
    pub fn release(&mut self, ino: InodeId, session: SessionId, handle: Handle) {
        self.drop_held(ino, |held| held.session == session && held.handle == handle);
    }

    /// Takes back a request that waits. False if it does not wait any more.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.take_wait(ticket).is_some()
    }

    /// Takes back all locks and requests of a session.
    pub fn end_session(&mut self, session: SessionId) {
        let Some(ended) = self.sessions.get(&session) else { return };
        let (waits, inodes) = (ended.waits.clone(), ended.inodes.clone());
        for ticket in waits {
            self.take_wait(ticket);
        }
        for ino in inodes.into_keys() {
            self.drop_held(ino, |held| held.session == session);
        }
        self.resolved.retain(|resolved| resolved.session != session);
    }

    /// Returns how waits have ended since the last call, in this order.
    pub fn resolved(&mut self) -> Vec<Resolved> {
        std::mem::take(&mut self.resolved)
    }

    /// Returns the locks of a session, by inode.
    pub fn locks_of(&self, session: SessionId) -> impl Iterator<Item = (InodeId, Holder)> {
        let inodes = self.sessions.get(&session).into_iter().flat_map(|found| found.inodes.keys());
        inodes.flat_map(move |ino| {
            let held = self.inodes.get(ino).into_iter().flat_map(|inode| &inode.held);
            held.filter(move |held| held.session == session).map(|held| (*ino, *held))
        })
    }

    /// Returns how many locks are held and how many requests wait.
    pub fn counts(&self) -> (usize, usize) {
        (self.locks, self.waits.len())
    }

    fn try_set(&mut self, ino: InodeId, wanted: Holder) -> Result<(), LockRefusal> {
        let lock = wanted.lock;
        if lock.kind == LockKind::Flock && self.has_other_mode(ino, &wanted) {
            self.replace(ino, wanted.owner(), LockRange::ALL, None)?;
        }
        let refused = match self.test(ino, wanted.session, lock) {
            Some(held) => Err(LockRefusal::Held(held)),
            None => self.grant(ino, wanted),
        };
        // It may be weaker than what the owner had, or the old lock is lost.
        self.serve_queue(ino);
        refused
    }

    fn has_other_mode(&self, ino: InodeId, wanted: &Holder) -> bool {
        let held = self.inodes.get(&ino).into_iter().flat_map(|inode| &inode.held);
        let mut own = held.filter(|held| held.owner() == wanted.owner());
        own.any(|held| held.lock.mode != wanted.lock.mode)
    }

    /// Sets a lock. REQUIRES: no other excludes it.
    fn grant(&mut self, ino: InodeId, wanted: Holder) -> Result<(), LockRefusal> {
        self.replace(ino, wanted.owner(), wanted.lock.range, Some(wanted))?;
        self.break_circles(ino, wanted.owner());
        Ok(())
    }

    /// Makes `new` all that `owner` has in `range`.
    fn replace(
        &mut self,
        ino: InodeId,
        owner: Owner,
        range: LockRange,
        mut new: Option<Holder>,
    ) -> Result<(), LockRefusal> {
        let held = self.inodes.get(&ino).map_or(&[][..], |inode| &inode.held);
        let (mut before, mut after) = (0, Vec::new());
        for held in held.iter().filter(|held| held.owner() == owner) {
            before += 1;
            match &mut new {
                Some(new) if new.lock.mode == held.lock.mode && held.lock.range.touches(range) => {
                    new.lock.range = new.lock.range.union(held.lock.range);
                }
                _ if held.lock.range.overlaps(range) => {
                    let rest = held.lock.range.without(range);
                    #[cfg(test)]
                    let rest = rest.take(match self.planted {
                        Some(Planted::DropsTheEnd) => 1,
                        _ => 2,
                    });
                    after.extend(
                        rest.map(|range| Holder { lock: FileLock { range, ..held.lock }, ..*held }),
                    );
                }
                _ => after.push(*held),
            }
        }
        after.extend(new);
        let of_session = self.sessions.get(&owner.session).map_or(0, |session| session.locks);
        let added = after.len().saturating_sub(before);
        if added > 0
            && (of_session + added > self.limits.session_locks_max
                || self.locks + added > self.limits.locks_max)
        {
            return Err(LockRefusal::TooMany);
        }
        if before > 0 {
            self.inodes.entry(ino).or_default().held.retain(|held| held.owner() != owner);
        }
        self.count(ino, owner.session, (before, after.len()));
        if !after.is_empty() {
            self.inodes.entry(ino).or_default().held.extend(after);
        }
        Ok(())
    }

    /// Counts that a session has other locks on an inode than before.
    fn count(&mut self, ino: InodeId, session: SessionId, (before, after): (usize, usize)) {
        if before == after {
            return;
        }
        self.locks = self.locks - before + after;
        let counts = self.sessions.entry(session).or_default();
        counts.locks = counts.locks - before + after;
        let on_inode = counts.inodes.entry(ino).or_default();
        *on_inode = *on_inode - before + after;
        if *on_inode == 0 {
            counts.inodes.remove(&ino);
            self.drop_if_empty(session);
        }
    }

    fn drop_if_empty(&mut self, session: SessionId) {
        if self.sessions.get(&session).is_some_and(|it| it.locks == 0 && it.waits.is_empty()) {
            self.sessions.remove(&session);
        }
    }

    /// Takes locks of one session back and serves the requests that they have kept waiting.
    fn drop_held(&mut self, ino: InodeId, goes: impl Fn(&Holder) -> bool) {
        let Some(inode) = self.inodes.get_mut(&ino) else { return };
        let (mut gone, mut session) = (0, None);
        inode.held.retain(|held| {
            let stays = !goes(held);
            if !stays {
                gone += 1;
                session = Some(held.session);
            }
            stays
        });
        if let Some(session) = session {
            self.count(ino, session, (gone, 0));
        }
        self.serve_queue(ino);
    }

    /// Grants the requests on an inode that nothing excludes any more.
    fn serve_queue(&mut self, ino: InodeId) {
        // What is granted may be weaker than what its owner had, so that an earlier one may be granted next.
        while let Some(ticket) = self.next_in_queue(ino) {
            let Some(Wait { wanted, .. }) = self.take_wait(ticket) else { break };
            let result = self.grant(ino, wanted);
            self.resolved.push(Resolved { ticket, session: wanted.session, result });
        }
        if self.inodes.get(&ino).is_some_and(|it| it.held.is_empty() && it.queue.is_empty()) {
            self.inodes.remove(&ino);
        }
    }

    fn next_in_queue(&self, ino: InodeId) -> Option<Ticket> {
        let inode = self.inodes.get(&ino)?;
        let is_free = |ticket: &&Ticket| {
            let wait = self.waits.get(ticket);
            wait.is_some_and(|wait| inode.in_the_way(&wait.wanted).next().is_none())
        };
        #[cfg(test)]
        if self.planted == Some(Planted::LastFirst) {
            return inode.queue.iter().rev().find(is_free).copied();
        }
        inode.queue.iter().find(is_free).copied()
    }

    /// Takes a request out of its queue.
    fn take_wait(&mut self, ticket: Ticket) -> Option<Wait> {
        let wait = self.waits.remove(&ticket)?;
        let (owner, session) = (wait.wanted.owner(), wait.wanted.session);
        if let Some(waits) = self.waits_of.get_mut(&owner) {
            waits.retain(|other| *other != ticket);
            if waits.is_empty() {
                self.waits_of.remove(&owner);
            }
        }
        if let Some(counts) = self.sessions.get_mut(&session) {
            counts.waits.remove(&ticket);
        }
        self.drop_if_empty(session);
        if let Some(inode) = self.inodes.get_mut(&wait.ino) {
            inode.queue.retain(|other| *other != ticket);
            if inode.held.is_empty() && inode.queue.is_empty() {
                self.inodes.remove(&wait.ino);
            }
        }
        Some(wait)
    }

    /// Returns whether a process that waits for `wanted` would wait for itself.
    fn closes_circle(&self, ino: InodeId, wanted: &Holder) -> bool {
        let holders = |ino: InodeId, wanted: &Holder| -> Vec<Owner> {
            let inode = self.inodes.get(&ino).into_iter();
            inode.flat_map(|inode| inode.in_the_way(wanted)).map(Holder::owner).collect()
        };
        let (mut next, mut seen) = (holders(ino, wanted), HashSet::new());
        #[cfg(test)]
        let mut direct = next.len();
        while let Some(owner) = next.pop() {
            if owner == wanted.owner() {
                return true;
            }
            #[cfg(test)]
            if self.planted == Some(Planted::ShortCircles) {
                if direct == 0 {
                    continue;
                }
                direct -= 1;
            }
            if seen.insert(owner) {
                let waits = self.waits_of.get(&owner).into_iter().flatten();
                let waits = waits.filter_map(|ticket| self.waits.get(ticket));
                next.extend(waits.flat_map(|wait| holders(wait.ino, &wait.wanted)));
            }
        }
        false
    }

    /// Ends waits on an inode that the locks of `owner` have made part of a circle.
    fn break_circles(&mut self, ino: InodeId, owner: Owner) {
        if !self.waits_of.contains_key(&owner) {
            return;
        }
        #[cfg(test)]
        if self.planted == Some(Planted::TrustsGrants) {
            return;
        }
        let queue = self.inodes.get(&ino).map(|inode| inode.queue.clone()).unwrap_or_default();
        for ticket in queue {
            let Some(Wait { wanted, .. }) = self.waits.get(&ticket) else { continue };
            let wanted = *wanted;
            if wanted.lock.kind == LockKind::Posix && self.closes_circle(ino, &wanted) {
                self.take_wait(ticket);
                let result = Err(LockRefusal::Deadlock);
                self.resolved.push(Resolved { ticket, session: wanted.session, result });
            }
        }
    }
}

#[cfg(test)]
mod tests;
