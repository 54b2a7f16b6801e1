//! Who may read and write what: locks of serializable transactions, without threads or clock.
//!
//! Locks stand on granules of three sizes: a key, all keys with its first 8 bytes (a directory of a file system), a
//! whole key space. Who locks a granule locks those around it with an intention first, so that two requests meet on a
//! common granule whatever their sizes, and each costs the same however many locks there are.
//!
//! ```text
//!                    intends to   intends to
//!              read     write      shared     exclusive
//! reads in     yes      yes        yes        no
//! writes in    yes      yes        no         no
//! shared       yes      no         yes        no
//! exclusive    no       no         no         no
//! ```
//!
//! A request that is not granted is remembered as waiting for those in its way. If that closes a circle, the one of
//! lowest priority on it loses all its locks at once and is told so at its next request. A transaction may have many
//! requests that wait, as many programs may be at work in it.
//!
//! Memory: granules are kept as hashes, some 100 bytes for each lock. Beyond [`LOCKS_MAX`] locks in all, whoever has more
//! than [`OWN_LOCKS_MIN`] of them gets prefixes instead of the keys of which it has locked many, where nobody is in the way
//! ([`LockTable::gather`]). If that is not enough its keys are locked by their prefixes, and beyond half as many more by their key
//! spaces. Who has few locks keeps to keys, whatever others have; so does everybody where a prefix is nothing that belongs
//! together ([`LockTable::keep_apart`]).
//!
//! Source: strong strict two-phase locking as KVFS has it (thesis 3.3); granular locks after Gray (1976).

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use varve_types::BranchId;

use super::granules::{Granule, Hashed, Mode, Request};
use super::terms::GaveWay;

/// Locks in all beyond which those who have many lock in larger pieces. Each takes some 100 bytes.
pub(super) const LOCKS_MAX: usize = 100_000;
/// Locks that each may have, whatever others have.
pub(super) const OWN_LOCKS_MIN: usize = 4096;
/// Keys of one prefix from which on a lock of the prefix may take their place.
const GATHERED_MIN: usize = 16;
/// Requests of one transaction that are remembered as waiting.
const WAITS_MAX: usize = 1024;

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The locks are held.
    Granted,
    /// These hold locks in the way. It is remembered as waiting by this number.
    Wait(u64, Holders),
    /// The transaction lost its locks, so that others can go on.
    GaveWay(GaveWay),
}

/// Transactions, in order.
pub(super) type Holders = SmallVec<[BranchId; 2]>;

/// A request that is not granted yet: its number, what it asks for, and who is in its way.
#[derive(Clone, Debug)]
struct Wait {
    no: u64,
    granule: Granule,
    mode: Mode,
    holders: Holders,
}

#[derive(Debug)]
struct Owner {
    /// The larger, the rather it gives way.
    rank: (u64, BranchId),
    /// It gives way to whoever is in its way.
    restarts: bool,
    /// Key spaces and prefixes that it has locked, or something within.
    held: Vec<Granule>,
    /// Prefixes that it does not lock for their keys.
    apart: Vec<Granule>,
    /// Keys that it has locked, by the granule of their prefix.
    keys: HashMap<Granule, Keys, BuildHasherDefault<Hashed>>,
    /// How many of both.
    locks: usize,
    /// The number of its locks from which on it is worth while to gather them.
    gather_at: usize,
    gave_way: Option<GaveWay>,
    /// A call was refused for good.
    was_refused: bool,
    /// It is being committed, or is committed: nobody takes its locks away.
    keeps: bool,
    /// Set once it gave way.
    lost: Arc<AtomicBool>,
    waits: Vec<Wait>,
    /// Grants after which writes from before may still be on their way.
    settling: u32,
}

/// Of each granule, who locks it in which modes.
type Granted = HashMap<Granule, Modes, BuildHasherDefault<Hashed>>;

/// What is told of a transaction's locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockStatus {
    /// The branch.
    pub id: BranchId,
    /// Keys, prefixes and key spaces that it has locked.
    pub locks: usize,
    /// For whom requests of it wait.
    pub waits_for: Vec<BranchId>,
    /// Why it has none any more.
    pub gave_way: Option<GaveWay>,
    /// A call of it was refused for good, as others were in its way.
    pub was_refused: bool,
}

/// Granules of keys.
type Keys = SmallVec<[Granule; 2]>;

/// Who locks a granule, in which modes.
type Modes = SmallVec<[(BranchId, u8); 1]>;

/// See the module's comment.
#[derive(Debug, Default)]
pub(super) struct LockTable {
    granted: Granted,
    owners: HashMap<BranchId, Owner>,
    /// Granules that are locked, counted for each that locks them.
    locks: usize,
    /// How often locks went.
    released: u64,
    /// The number of the last request that was not granted at once; the first is 1.
    last_wait: u64,
}

impl LockTable {
    /// A transaction begins. Of two that wait for each other the one with the larger `give_way` loses, of equal ones
    /// the younger; one that `restarts` gives way to anybody. What is returned is set once it has lost its locks.
    pub(super) fn begin(&mut self, id: BranchId, give_way: u64, restarts: bool) -> Arc<AtomicBool> {
        let lost = Arc::default();
        let owner = Owner {
            rank: (give_way, id),
            restarts,
            held: Vec::new(),
            apart: Vec::new(),
            keys: HashMap::default(),
            locks: 0,
            gather_at: OWN_LOCKS_MIN,
            gave_way: None,
            was_refused: false,
            keeps: false,
            lost: Arc::clone(&lost),
            waits: Vec::new(),
            settling: 0,
        };
        self.owners.insert(id, owner);
        lost
    }

    /// Keys with these prefixes are never locked by `id` by their prefix: others have to do with them, too.
    pub(super) fn keep_apart(&mut self, id: BranchId, prefixes: Vec<Granule>) {
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.apart = prefixes;
        }
    }

    /// Whether `prefix` is one of those.
    pub(super) fn is_apart(&self, id: BranchId, prefix: Granule) -> bool {
        self.owners.get(&id).is_some_and(|owner| owner.apart.contains(&prefix))
    }

    /// A transaction ends; its locks go.
    pub(super) fn end(&mut self, id: BranchId) {
        self.release(id);
        self.owners.remove(&id);
    }

    /// How often locks went until now, after which others may go on.
    pub(super) fn released(&self) -> u64 {
        self.released
    }

    /// Locks in all.
    pub(super) fn locks(&self) -> usize {
        self.locks
    }

    /// Whether `id` has to do with fewer and larger locks.
    pub(super) fn has_too_many(&self, id: BranchId) -> bool {
        let own = self.owners.get(&id).map_or(0, |owner| owner.locks);
        self.locks >= LOCKS_MAX && own >= OWN_LOCKS_MIN
    }

    /// Why a transaction has no locks, if it lost them.
    pub(super) fn gave_way(&self, id: BranchId) -> Option<GaveWay> {
        self.owners.get(&id).map_or(Some(GaveWay::Ended), |owner| owner.gave_way)
    }

    /// A transaction is about to be committed: from now on it has its locks until it [`end`](LockTable::end)s, and what calls of
    /// it wait for is in nobody's way. Says why it has lost them, if it has.
    pub(super) fn keep(&mut self, id: BranchId) -> Option<GaveWay> {
        let gave_way = self.gave_way(id);
        if let Some(owner) = self.owners.get_mut(&id).filter(|_| gave_way.is_none()) {
            owner.keeps = true;
        }
        gave_way
    }

    /// It is not committed, and may lose its locks again.
    pub(super) fn keep_no_more(&mut self, id: BranchId) {
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.keeps = false;
        }
    }

    /// Takes the locks of a transaction away, which it is told at its next request, unless it [`keep`](LockTable::keep)s them.
    pub(super) fn overrule(&mut self, id: BranchId, why: GaveWay) {
        match self.owners.get(&id) {
            Some(owner) if owner.keeps => return,
            Some(owner) => owner.lost.store(true, Ordering::Release),
            None => {}
        }
        self.release(id);
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.gave_way.get_or_insert(why);
        }
    }

    /// What is to be told of each transaction, oldest first.
    pub(super) fn status(&self) -> Vec<LockStatus> {
        let status = |(id, owner): (&BranchId, &Owner)| {
            let holders = owner.waits.iter().flat_map(|wait| &wait.holders);
            let mut waits_for: Vec<BranchId> = holders.copied().collect();
            waits_for.sort_unstable();
            waits_for.dedup();
            let Owner { locks, gave_way, was_refused, .. } = *owner;
            LockStatus { id: *id, locks, waits_for, gave_way, was_refused }
        };
        let mut all: Vec<LockStatus> = self.owners.iter().map(status).collect();
        all.sort_unstable_by_key(|status| status.id);
        all
    }

    /// Whether `id` holds all that `request` asks for, be it by a larger granule, and no write is on its way past what
    /// it holds.
    pub(super) fn holds(&self, id: BranchId, request: &Request) -> bool {
        if self.owners.get(&id).is_none_or(|owner| owner.settling > 0) {
            return false;
        }
        let enough = request.last().map_or(0, |(_, mode)| mode.enough());
        request.iter().any(|(granule, _)| {
            let mut holders = self.granted.get(granule).into_iter().flatten();
            holders.any(|(holder, modes)| *holder == id && modes & enough != 0)
        })
    }

    /// A call of `id` is refused for good.
    pub(super) fn note_refused(&mut self, id: BranchId) {
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.was_refused = true;
        }
    }

    /// Writes that `id` was granted a lock beside are published.
    pub(super) fn settled(&mut self, id: BranchId) {
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.settling -= 1;
        }
    }

    /// Grants all of `request`, or nothing; what is granted is to be [`settled`](LockTable::settled). What is not granted is
    /// remembered as waiting until [`LockTable::stop_waiting`], or until as much is granted to another call of `id`.
    pub(super) fn request(&mut self, id: BranchId, request: &Request) -> Answer {
        if let Some(why) = self.gave_way(id) {
            return Answer::GaveWay(why);
        }
        let holders = self.in_the_way(Some(id), request);
        let (Some(first), Some(&(granule, mode))) = (holders.first().copied(), request.last())
        else {
            self.grant(id, request);
            return Answer::Granted;
        };
        let Some(owner) = self.owners.get_mut(&id) else {
            return Answer::GaveWay(GaveWay::Ended);
        };
        if owner.restarts {
            self.overrule(id, GaveWay::Restart(first));
            return Answer::GaveWay(GaveWay::Restart(first));
        }
        if owner.waits.len() >= WAITS_MAX {
            owner.waits.remove(0);
        }
        self.last_wait += 1;
        let no = self.last_wait;
        owner.waits.push(Wait { no, granule, mode, holders: holders.clone() });
        if let Some((victim, other)) = self.victim(id) {
            let why = GaveWay::Deadlock(other);
            self.overrule(victim, why);
            if victim == id {
                return Answer::GaveWay(why);
            }
            self.stop_waiting(id, no);
            return self.request(id, request);
        }
        Answer::Wait(no, holders)
    }

    /// The request that waits by the number `wait` is made anew, or no more.
    pub(super) fn stop_waiting(&mut self, id: BranchId, wait: u64) {
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.waits.retain(|waiting| waiting.no != wait);
        }
    }

    /// Who, beside `id`, holds locks that exclude `request`.
    pub(super) fn in_the_way(&self, id: Option<BranchId>, request: &Request) -> Holders {
        let mut others = Holders::new();
        for (granule, mode) in request {
            // What lies within a granule is locked by nobody if nobody has locked it with an intention.
            let Some(holders) = self.granted.get(granule) else { break };
            let excluded = mode.excluded();
            let in_way = holders
                .iter()
                .filter(|(holder, modes)| Some(*holder) != id && modes & excluded != 0);
            others.extend(in_way.map(|(holder, _)| *holder));
        }
        others.sort_unstable();
        others.dedup();
        others
    }

    fn grant(&mut self, id: BranchId, request: &Request) {
        let Some(owner) = self.owners.get_mut(&id) else { return };
        owner.settling += 1;
        if let Some((granted, mode)) = request.last() {
            let is_left =
                |wait: &Wait| wait.granule != *granted || wait.mode.enough() & *mode as u8 == 0;
            owner.waits.retain(is_left);
        }
        for (at, (granule, mode)) in request.iter().enumerate() {
            let holders = self.granted.entry(*granule).or_default();
            match holders.iter_mut().find(|(holder, _)| *holder == id) {
                Some((_, modes)) => *modes |= *mode as u8,
                None => {
                    holders.push((id, *mode as u8));
                    match &request[..] {
                        [_, (prefix, _), _] if at == 2 => {
                            owner.keys.entry(*prefix).or_default().push(*granule);
                        }
                        _ => owner.held.push(*granule),
                    }
                    owner.locks += 1;
                    self.locks += 1;
                }
            }
        }
    }

    /// Gives `id` locks of the prefixes of which it has locked most keys in place of those keys, up to half of its locks,
    /// where nobody is in the way. True if there were any; then that is to be [`settled`](LockTable::settled) as
    /// what is granted is.
    pub(super) fn gather(&mut self, id: BranchId) -> bool {
        let Some(owner) = self.owners.get_mut(&id).filter(|owner| owner.locks >= owner.gather_at)
        else {
            return false;
        };
        let (before, enough) = (owner.locks, owner.locks / 2);
        let many = owner
            .keys
            .iter()
            .filter(|(prefix, keys)| keys.len() >= GATHERED_MIN && !owner.apart.contains(prefix));
        let mut fullest: Vec<(usize, Granule)> =
            many.map(|(prefix, keys)| (keys.len(), *prefix)).collect();
        fullest.sort_unstable_by(|one, other| other.cmp(one));
        for (_, prefix) in fullest {
            if owner.locks <= enough {
                break;
            }
            let own = |granule: &Granule| {
                let mut holders = self.granted.get(granule).into_iter().flatten();
                holders.find(|(holder, _)| *holder == id).map_or(0, |(_, modes)| *modes)
            };
            let keys = owner.keys.get(&prefix).into_iter().flatten();
            let is_written = keys.map(own).any(|modes| modes & Mode::Exclusive as u8 != 0);
            let mode = if is_written { Mode::Exclusive } else { Mode::Shared };
            let Some(holders) = self.granted.get_mut(&prefix) else { continue };
            if holders.iter().any(|(holder, modes)| *holder != id && modes & mode.excluded() != 0) {
                continue;
            }
            holders.iter_mut().filter(|(holder, _)| *holder == id).for_each(|(_, modes)| {
                *modes |= mode as u8;
            });
            for key in owner.keys.remove(&prefix).into_iter().flatten() {
                give_back(&mut self.granted, key, id);
                owner.locks -= 1;
                self.locks -= 1;
            }
        }
        let is_less = owner.locks < before;
        owner.gather_at = OWN_LOCKS_MIN.max(owner.locks + owner.locks / 4);
        owner.settling += u32::from(is_less);
        is_less
    }

    fn release(&mut self, id: BranchId) {
        let Some(owner) = self.owners.get_mut(&id) else { return };
        owner.waits = Vec::new();
        let held = std::mem::take(&mut owner.held);
        let keys = std::mem::take(&mut owner.keys);
        // Calls of its own that wait are told so, too.
        self.released += 1;
        self.locks -= std::mem::take(&mut owner.locks);
        for granule in held.into_iter().chain(keys.into_values().flatten()) {
            give_back(&mut self.granted, granule, id);
        }
        if self.granted.capacity() > 4 * self.granted.len().max(1024) {
            self.granted.shrink_to_fit();
        }
    }

    /// The one of lowest priority on a circle of waiting that goes through `id`, if there is one.
    /// With it comes the one of highest priority.
    fn victim(&self, id: BranchId) -> Option<(BranchId, BranchId)> {
        let mut seen = HashSet::new();
        let mut path = Vec::new();
        self.circle(id, id, &mut seen, &mut path).then_some(())?;
        path.sort_unstable_by_key(|on_path| self.owners.get(on_path).map(|owner| owner.rank));
        Some((*path.last()?, *path.first()?))
    }

    /// Whether waiting leads from `at` to `target`; the way is then in `path`.
    fn circle(
        &self,
        at: BranchId,
        target: BranchId,
        seen: &mut HashSet<BranchId>,
        path: &mut Vec<BranchId>,
    ) -> bool {
        path.push(at);
        let waiting = self.owners.get(&at).filter(|owner| !owner.keeps);
        let waits = waiting.map_or(&[][..], |owner| &owner.waits);
        for next in waits.iter().flat_map(|wait| &wait.holders) {
            if *next == target || (seen.insert(*next) && self.circle(*next, target, seen, path)) {
                return true;
            }
        }
        path.pop();
        false
    }
}

fn give_back(granted: &mut Granted, granule: Granule, id: BranchId) {
    if let Some(holders) = granted.get_mut(&granule) {
        holders.retain(|(holder, _)| *holder != id);
        if holders.is_empty() {
            granted.remove(&granule);
        }
    }
}

#[cfg(test)]
mod tests;
