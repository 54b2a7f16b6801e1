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
//! Memory: granules are kept as hashes, some 100 bytes for each lock. Beyond [`LOCKS_MAX`] locks in all, keys are locked by
//! their prefixes, and beyond half as many more by their key spaces.
//!
//! Source: strong strict two-phase locking as KVFS has it (thesis 3.3); granular locks after Gray (1976).

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use varve_format::filter::filter_hash;
use varve_types::{BranchId, KeyspaceId};

use super::Granule;

/// Bytes of a key that name its prefix granule.
const PREFIX_BYTES: usize = 8;
/// Locks in all; beyond them a key is locked with its prefix, and beyond half as many more with its key space. Each takes
/// some 100 bytes.
pub(super) const LOCKS_MAX: usize = 100_000;
/// Requests of one transaction that are remembered as waiting.
const WAITS_MAX: usize = 1024;

/// What can be locked.
#[derive(Clone, Copy, Debug)]
enum Size {
    Space = 1,
    Prefix = 2,
    Key = 3,
}

/// A granule is known by the hash of its name: two that share one exclude each other without need, which is right.
fn granule(size: Size, space: KeyspaceId, name: &[u8]) -> Granule {
    let place = (u64::from(space.get()) << 2 | size as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    filter_hash(name) ^ place
}

/// Granules are hashes already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// How a granule is locked, as a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mode {
    /// Something within is read.
    ReadsWithin = 1,
    /// Something within is written.
    WritesWithin = 2,
    /// All of it is read.
    Shared = 4,
    /// All of it is written.
    Exclusive = 8,
}

impl Mode {
    /// The modes of others that exclude it.
    fn excluded(self) -> u8 {
        let (writes, shared, exclusive) =
            (Mode::WritesWithin as u8, Mode::Shared as u8, Mode::Exclusive as u8);
        match self {
            Mode::ReadsWithin => exclusive,
            Mode::WritesWithin => shared | exclusive,
            Mode::Shared => writes | exclusive,
            Mode::Exclusive => u8::MAX,
        }
    }

    /// The modes of which each grants what this one asks for.
    pub(super) fn enough(self) -> u8 {
        Mode::Exclusive as u8 | if self == Mode::Shared { Mode::Shared as u8 } else { 0 }
    }

    /// How the granules around one that is locked so are locked.
    fn around(self) -> Mode {
        match self {
            Mode::Shared | Mode::ReadsWithin => Mode::ReadsWithin,
            Mode::Exclusive | Mode::WritesWithin => Mode::WritesWithin,
        }
    }
}

/// A granule and those around it, with modes; the largest first.
pub(super) type Request = SmallVec<[(Granule, Mode); 3]>;

/// The granule of one key.
pub(super) fn key_granule(space: KeyspaceId, key: &[u8]) -> Granule {
    granule(Size::Key, space, key)
}

/// The request for one key.
pub(super) fn key_request(space: KeyspaceId, key: &[u8], mode: Mode) -> Request {
    let mut request = prefix_request(space, key, mode.around());
    request.push((key_granule(space, key), mode));
    request
}

/// The request for all keys that begin with the first 8 bytes of `prefix`, or for all keys if it is shorter.
pub(super) fn prefix_request(space: KeyspaceId, prefix: &[u8], mode: Mode) -> Request {
    match prefix.first_chunk::<PREFIX_BYTES>() {
        Some(prefix) => {
            let prefix = granule(Size::Prefix, space, prefix);
            Request::from_iter([(granule(Size::Space, space, &[]), mode.around()), (prefix, mode)])
        }
        None => space_request(space, mode),
    }
}

/// The request for all keys.
pub(super) fn space_request(space: KeyspaceId, mode: Mode) -> Request {
    Request::from_iter([(granule(Size::Space, space, &[]), mode)])
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The locks are held.
    Granted,
    /// These hold locks in the way.
    Wait(Holders),
    /// The transaction lost its locks, so that others can go on.
    GaveWay(GaveWay),
}

/// Transactions, in order.
pub(super) type Holders = SmallVec<[BranchId; 2]>;

/// Why a transaction lost its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveWay {
    /// It waited for others that waited for it, this one among them.
    Deadlock(BranchId),
    /// It begins again rather than wait, and this one was in its way.
    Restart(BranchId),
    /// A change outside of transactions waited for it long enough.
    Overruled,
    /// There is no such transaction.
    Ended,
}

/// A request that is not granted yet: what it asks for, and who is in its way.
#[derive(Clone, Debug)]
struct Wait {
    granule: Granule,
    holders: Holders,
}

#[derive(Debug)]
struct Owner {
    /// The larger, the rather it gives way.
    rank: (u64, BranchId),
    /// It gives way to whoever is in its way.
    restarts: bool,
    held: Vec<Granule>,
    gave_way: Option<GaveWay>,
    /// Set once it gave way.
    lost: Arc<AtomicBool>,
    waits: Vec<Wait>,
    /// Grants after which writes from before may still be on their way.
    settling: u32,
}

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
}

/// Who locks a granule, in which modes.
type Modes = SmallVec<[(BranchId, u8); 1]>;

/// See the module's comment.
#[derive(Debug, Default)]
pub(super) struct LockTable {
    /// Of each granule, who locks it in which modes.
    granted: HashMap<Granule, Modes, BuildHasherDefault<Hashed>>,
    owners: HashMap<BranchId, Owner>,
    /// Granules that are locked, counted for each that locks them.
    locks: usize,
    /// How often locks went.
    released: u64,
}

impl LockTable {
    /// A transaction begins. Of two that wait for each other the one with the larger `give_way` loses, of equal ones
    /// the younger; one that `restarts` gives way to anybody. What is returned is set once it has lost its locks.
    pub(super) fn begin(&mut self, id: BranchId, give_way: u64, restarts: bool) -> Arc<AtomicBool> {
        let (held, waits, lost) = (Vec::new(), Vec::new(), Arc::default());
        let rank = (give_way, id);
        let told = Arc::clone(&lost);
        let owner = Owner { rank, restarts, held, gave_way: None, lost, waits, settling: 0 };
        self.owners.insert(id, owner);
        told
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

    /// Why a transaction has no locks, if it lost them.
    pub(super) fn gave_way(&self, id: BranchId) -> Option<GaveWay> {
        self.owners.get(&id).map_or(Some(GaveWay::Ended), |owner| owner.gave_way)
    }

    /// Takes the locks of a transaction away, which it is told at its next request.
    pub(super) fn overrule(&mut self, id: BranchId, why: GaveWay) {
        if let Some(owner) = self.owners.get(&id) {
            owner.lost.store(true, Ordering::Release);
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
            LockStatus { id: *id, locks: owner.held.len(), waits_for, gave_way: owner.gave_way }
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

    /// Writes that `id` was granted a lock beside are published.
    pub(super) fn settled(&mut self, id: BranchId) {
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.settling -= 1;
        }
    }

    /// Grants all of `request`, or nothing; what is granted is to be [`settled`](LockTable::settled). What is not granted is
    /// remembered as waiting until it is asked for again, or [`LockTable::stop_waiting`].
    pub(super) fn request(&mut self, id: BranchId, request: &Request) -> Answer {
        if let Some(why) = self.gave_way(id) {
            return Answer::GaveWay(why);
        }
        let granule = waited_for(request);
        let holders = self.in_the_way(Some(id), request);
        self.stop_waiting(id, granule);
        let Some(first) = holders.first().copied() else {
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
        owner.waits.push(Wait { granule, holders: holders.clone() });
        if let Some((victim, other)) = self.victim(id) {
            let why = GaveWay::Deadlock(other);
            self.overrule(victim, why);
            return if victim == id { Answer::GaveWay(why) } else { self.request(id, request) };
        }
        Answer::Wait(holders)
    }

    /// Who asked for `granule` asks for it no more.
    pub(super) fn stop_waiting(&mut self, id: BranchId, granule: Granule) {
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.waits.retain(|wait| wait.granule != granule);
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
        for (granule, mode) in request {
            let holders = self.granted.entry(*granule).or_default();
            match holders.iter_mut().find(|(holder, _)| *holder == id) {
                Some((_, modes)) => *modes |= *mode as u8,
                None => {
                    holders.push((id, *mode as u8));
                    owner.held.push(*granule);
                    self.locks += 1;
                }
            }
        }
    }

    fn release(&mut self, id: BranchId) {
        let Some(owner) = self.owners.get_mut(&id) else { return };
        owner.waits = Vec::new();
        let held = std::mem::take(&mut owner.held);
        // Calls of its own that wait are told so, too.
        self.released += 1;
        self.locks -= held.len();
        for granule in held {
            if let Some(holders) = self.granted.get_mut(&granule) {
                holders.retain(|(holder, _)| *holder != id);
                if holders.is_empty() {
                    self.granted.remove(&granule);
                }
            }
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
        let waits = self.owners.get(&at).map_or(&[][..], |owner| &owner.waits);
        for next in waits.iter().flat_map(|wait| &wait.holders) {
            if *next == target || (seen.insert(*next) && self.circle(*next, target, seen, path)) {
                return true;
            }
        }
        path.pop();
        false
    }
}

/// The granule by which a request that waits is known.
pub(super) fn waited_for(request: &Request) -> Granule {
    request.last().map_or(0, |(granule, _)| *granule)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: KeyspaceId = KeyspaceId::new(1);
    const ONE: BranchId = BranchId::new(1);
    const TWO: BranchId = BranchId::new(2);

    fn table() -> LockTable {
        let mut table = LockTable::default();
        table.begin(ONE, 0, false);
        table.begin(TWO, 0, false);
        table
    }

    fn key(key: &[u8], mode: Mode) -> Request {
        key_request(SPACE, key, mode)
    }

    #[test]
    fn readers_share_and_writers_exclude() {
        let mut table = table();
        assert_eq!(table.request(ONE, &key(b"a", Mode::Shared)), Answer::Granted);
        assert_eq!(table.request(TWO, &key(b"a", Mode::Shared)), Answer::Granted);
        assert!(waits(table.request(TWO, &key(b"a", Mode::Exclusive))));
        assert_eq!(table.request(ONE, &key(b"b", Mode::Exclusive)), Answer::Granted);
        assert!(waits(table.request(TWO, &key(b"b", Mode::Shared))));
        table.end(ONE);
        assert_eq!(table.request(TWO, &key(b"b", Mode::Shared)), Answer::Granted);
        table.end(TWO);
        assert_eq!(table.locks(), 0);
    }

    #[test]
    fn granules_of_all_sizes_meet() {
        let prefix = |prefix: &[u8]| prefix_request(SPACE, prefix, Mode::Shared);
        let mut table = table();
        assert_eq!(table.request(ONE, &prefix(b"12345678")), Answer::Granted);
        assert!(waits(table.request(TWO, &key(b"12345678x", Mode::Exclusive))));
        assert_eq!(table.request(TWO, &key(b"12345678x", Mode::Shared)), Answer::Granted);
        assert_eq!(table.request(TWO, &key(b"12345679x", Mode::Exclusive)), Answer::Granted);
        assert!(waits(table.request(ONE, &prefix(b"123"))));
        table.end(TWO);
        assert_eq!(table.request(ONE, &prefix(b"123")), Answer::Granted);
        assert_eq!(table.in_the_way(None, &key(b"zzzzzzzzz", Mode::Exclusive))[..], [ONE]);
    }

    #[test]
    fn of_two_that_wait_for_each_other_the_lower_priority_gives_way() {
        for (give_way, victim) in [([0, 0], TWO), ([1, 0], ONE)] {
            let mut table = LockTable::default();
            table.begin(ONE, give_way[0], false);
            table.begin(TWO, give_way[1], false);
            assert_eq!(table.request(ONE, &key(b"a", Mode::Exclusive)), Answer::Granted);
            assert_eq!(table.request(TWO, &key(b"b", Mode::Exclusive)), Answer::Granted);
            assert!(waits(table.request(ONE, &key(b"b", Mode::Shared))));
            let answer = table.request(TWO, &key(b"a", Mode::Shared));
            let other = if victim == TWO { ONE } else { TWO };
            let why = GaveWay::Deadlock(other);
            assert_eq!(answer, if victim == TWO { Answer::GaveWay(why) } else { Answer::Granted });
            assert_eq!(table.gave_way(victim), Some(why));
            let status = table.status().into_iter().find(|status| status.id == victim).unwrap();
            assert_eq!((status.locks, status.waits_for), (0, vec![]));
        }
    }

    #[test]
    fn a_circle_of_three_is_found() {
        let three = BranchId::new(3);
        let mut table = table();
        table.begin(three, 0, false);
        for (id, name) in [(ONE, b"a"), (TWO, b"b"), (three, b"c")] {
            assert_eq!(table.request(id, &key(name, Mode::Exclusive)), Answer::Granted);
        }
        assert!(waits(table.request(ONE, &key(b"b", Mode::Shared))));
        assert!(waits(table.request(three, &key(b"a", Mode::Shared))));
        assert_eq!(table.request(TWO, &key(b"c", Mode::Shared)), Answer::Granted);
        assert_eq!(table.gave_way(three), Some(GaveWay::Deadlock(ONE)));
    }

    /// Requests of several threads of one transaction wait beside each other.
    #[test]
    fn a_request_that_is_granted_leaves_others_waiting() {
        let mut table = table();
        assert_eq!(table.request(ONE, &key(b"a", Mode::Exclusive)), Answer::Granted);
        assert_eq!(table.request(TWO, &key(b"b", Mode::Exclusive)), Answer::Granted);
        assert!(waits(table.request(ONE, &key(b"b", Mode::Shared))));
        assert_eq!(table.request(ONE, &key(b"c", Mode::Shared)), Answer::Granted);
        assert_eq!(table.status()[0].waits_for, [TWO]);
        assert_eq!(
            table.request(TWO, &key(b"a", Mode::Shared)),
            Answer::GaveWay(GaveWay::Deadlock(ONE))
        );
        table.settled(ONE);
        assert!(!table.holds(ONE, &key(b"a", Mode::Shared)), "a write may be on its way past c");
        table.settled(ONE);
        assert!(table.holds(ONE, &key(b"a", Mode::Shared)));
        assert!(!table.holds(ONE, &key(b"c", Mode::Exclusive)));
    }

    #[test]
    fn who_gives_up_a_request_waits_no_more() {
        let mut table = table();
        assert_eq!(table.request(ONE, &key(b"a", Mode::Exclusive)), Answer::Granted);
        assert_eq!(table.request(TWO, &key(b"b", Mode::Exclusive)), Answer::Granted);
        let wanted = key(b"b", Mode::Shared);
        assert!(waits(table.request(ONE, &wanted)));
        table.stop_waiting(ONE, waited_for(&wanted));
        assert!(waits(table.request(TWO, &key(b"a", Mode::Shared))));
    }

    #[test]
    fn who_restarts_waits_for_nobody() {
        let three = BranchId::new(3);
        let mut table = table();
        table.begin(three, 0, true);
        assert_eq!(table.request(ONE, &key(b"a", Mode::Exclusive)), Answer::Granted);
        assert_eq!(table.request(three, &key(b"b", Mode::Exclusive)), Answer::Granted);
        let why = GaveWay::Restart(ONE);
        assert_eq!(table.request(three, &key(b"a", Mode::Shared)), Answer::GaveWay(why));
        assert_eq!(table.request(TWO, &key(b"b", Mode::Exclusive)), Answer::Granted);
    }

    fn waits(answer: Answer) -> bool {
        matches!(answer, Answer::Wait(_))
    }
}
