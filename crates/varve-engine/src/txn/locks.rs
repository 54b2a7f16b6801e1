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
//! lowest priority on it loses all its locks at once and is told so at its next request.
//!
//! Source: strong strict two-phase locking as KVFS has it (thesis 3.3); granular locks after Gray (1976).

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;
use varve_types::{BranchId, KeyspaceId};

/// Bytes of a key that name its prefix granule.
const PREFIX_BYTES: usize = 8;
/// Granules that one transaction may lock; beyond them it locks whole key spaces.
pub(super) const GRANULES_MAX: usize = 100_000;

/// What can be locked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Granule {
    /// All keys.
    Space(KeyspaceId),
    /// All keys that begin so.
    Prefix(KeyspaceId, SmallVec<[u8; PREFIX_BYTES]>),
    /// One key.
    Key(KeyspaceId, SmallVec<[u8; 16]>),
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

/// The request for one key.
pub(super) fn key_request(space: KeyspaceId, key: &[u8], mode: Mode) -> Request {
    let mut request = prefix_request(space, key, mode.around());
    request.push((Granule::Key(space, SmallVec::from_slice(key)), mode));
    request
}

/// The request for all keys that begin with the first 8 bytes of `prefix`, or for all keys if it is shorter.
pub(super) fn prefix_request(space: KeyspaceId, prefix: &[u8], mode: Mode) -> Request {
    match prefix.first_chunk::<PREFIX_BYTES>() {
        Some(prefix) => {
            let prefix = Granule::Prefix(space, SmallVec::from_slice(prefix));
            Request::from_iter([(Granule::Space(space), mode.around()), (prefix, mode)])
        }
        None => Request::from_iter([(Granule::Space(space), mode)]),
    }
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The locks are held.
    Granted,
    /// Others hold locks in the way.
    Wait,
    /// The transaction lost its locks, so that others can go on.
    Doomed,
}

#[derive(Debug)]
struct Owner {
    /// The larger, the rather it gives way.
    rank: (u64, BranchId),
    held: HashSet<Granule>,
    doomed: bool,
    /// In whose way it waits.
    waits_for: Vec<BranchId>,
}

/// See the module's comment.
#[derive(Debug, Default)]
pub(super) struct LockTable {
    /// Of each granule, who locks it in which modes.
    granted: HashMap<Granule, SmallVec<[(BranchId, u8); 2]>>,
    owners: HashMap<BranchId, Owner>,
    /// Locks went since this was last asked.
    released: bool,
}

impl LockTable {
    /// A transaction begins. Of two that wait for each other the one with the larger `give_way` loses, of equal ones
    /// the younger.
    pub(super) fn begin(&mut self, id: BranchId, give_way: u64) {
        let (held, waits_for) = Default::default();
        let owner = Owner { rank: (give_way, id), held, doomed: false, waits_for };
        self.owners.insert(id, owner);
    }

    /// A transaction ends; its locks go.
    pub(super) fn end(&mut self, id: BranchId) {
        self.release(id);
        self.owners.remove(&id);
    }

    /// Whether locks went since this was last asked, so that others may go on.
    pub(super) fn take_released(&mut self) -> bool {
        std::mem::take(&mut self.released)
    }

    /// Whether no transaction holds a lock.
    pub(super) fn is_idle(&self) -> bool {
        self.granted.is_empty()
    }

    /// Whether a transaction has lost its locks, or is none.
    pub(super) fn is_doomed(&self, id: BranchId) -> bool {
        self.owners.get(&id).is_none_or(|owner| owner.doomed)
    }

    /// The locks that a transaction holds.
    pub(super) fn held(&self, id: BranchId) -> usize {
        self.owners.get(&id).map_or(0, |owner| owner.held.len())
    }

    /// Grants all of `request`, or nothing.
    pub(super) fn request(&mut self, id: BranchId, request: &Request) -> Answer {
        if self.is_doomed(id) {
            return Answer::Doomed;
        }
        let waits_for = self.in_the_way(Some(id), request);
        let granted = waits_for.is_empty();
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.waits_for = waits_for;
        }
        if granted {
            self.grant(id, request);
            return Answer::Granted;
        }
        if let Some(victim) = self.victim(id) {
            self.release(victim);
            let doomed = self.owners.get_mut(&victim);
            doomed.into_iter().for_each(|owner| owner.doomed = true);
            return if victim == id { Answer::Doomed } else { self.request(id, request) };
        }
        Answer::Wait
    }

    /// Who, beside `id`, holds locks that exclude `request`.
    pub(super) fn in_the_way(&self, id: Option<BranchId>, request: &Request) -> Vec<BranchId> {
        let mut others = Vec::new();
        for (granule, mode) in request {
            let holders = self.granted.get(granule).into_iter().flatten();
            let excluded = mode.excluded();
            let in_way =
                holders.filter(|(holder, modes)| Some(*holder) != id && modes & excluded != 0);
            others.extend(in_way.map(|(holder, _)| *holder));
        }
        others.sort_unstable();
        others.dedup();
        others
    }

    fn grant(&mut self, id: BranchId, request: &Request) {
        let Some(owner) = self.owners.get_mut(&id) else { return };
        for (granule, mode) in request {
            let holders = self.granted.entry(granule.clone()).or_default();
            match holders.iter_mut().find(|(holder, _)| *holder == id) {
                Some((_, modes)) => *modes |= *mode as u8,
                None => {
                    holders.push((id, *mode as u8));
                    owner.held.insert(granule.clone());
                }
            }
        }
    }

    fn release(&mut self, id: BranchId) {
        let Some(owner) = self.owners.get_mut(&id) else { return };
        owner.waits_for.clear();
        self.released = true;
        for granule in std::mem::take(&mut owner.held) {
            if let Some(holders) = self.granted.get_mut(&granule) {
                holders.retain(|(holder, _)| *holder != id);
                if holders.is_empty() {
                    self.granted.remove(&granule);
                }
            }
        }
    }

    /// The one of lowest priority on a circle of waiting that goes through `id`, if there is one.
    fn victim(&self, id: BranchId) -> Option<BranchId> {
        let mut seen = HashSet::new();
        let mut path = Vec::new();
        self.circle(id, id, &mut seen, &mut path).then_some(())?;
        path.into_iter().max_by_key(|on_path| self.owners.get(on_path).map(|owner| owner.rank))
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
        let next = self.owners.get(&at).map_or(&[][..], |owner| &owner.waits_for);
        for next in next {
            if *next == target || (seen.insert(*next) && self.circle(*next, target, seen, path)) {
                return true;
            }
        }
        path.pop();
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: KeyspaceId = KeyspaceId::new(1);
    const ONE: BranchId = BranchId::new(1);
    const TWO: BranchId = BranchId::new(2);

    fn table() -> LockTable {
        let mut table = LockTable::default();
        table.begin(ONE, 0);
        table.begin(TWO, 0);
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
        assert_eq!(table.request(ONE, &key(b"a", Mode::Exclusive)), Answer::Wait);
        assert_eq!(table.request(ONE, &key(b"b", Mode::Exclusive)), Answer::Granted);
        assert_eq!(table.request(TWO, &key(b"b", Mode::Shared)), Answer::Wait);
        table.end(ONE);
        assert_eq!(table.request(TWO, &key(b"b", Mode::Shared)), Answer::Granted);
        table.end(TWO);
        assert!(table.is_idle());
    }

    #[test]
    fn granules_of_all_sizes_meet() {
        let prefix = |prefix: &[u8]| prefix_request(SPACE, prefix, Mode::Shared);
        let mut table = table();
        assert_eq!(table.request(ONE, &prefix(b"12345678")), Answer::Granted);
        assert_eq!(table.request(TWO, &key(b"12345678x", Mode::Exclusive)), Answer::Wait);
        assert_eq!(table.request(TWO, &key(b"12345678x", Mode::Shared)), Answer::Granted);
        assert_eq!(table.request(TWO, &key(b"12345679x", Mode::Exclusive)), Answer::Granted);
        assert_eq!(table.request(ONE, &prefix(b"123")), Answer::Wait);
        table.end(TWO);
        assert_eq!(table.request(ONE, &prefix(b"123")), Answer::Granted);
        assert_eq!(table.in_the_way(None, &key(b"zzzzzzzzz", Mode::Exclusive)), [ONE]);
    }

    #[test]
    fn of_two_that_wait_for_each_other_the_lower_priority_gives_way() {
        for (give_way, victim) in [([0, 0], TWO), ([1, 0], ONE)] {
            let mut table = LockTable::default();
            table.begin(ONE, give_way[0]);
            table.begin(TWO, give_way[1]);
            assert_eq!(table.request(ONE, &key(b"a", Mode::Exclusive)), Answer::Granted);
            assert_eq!(table.request(TWO, &key(b"b", Mode::Exclusive)), Answer::Granted);
            assert_eq!(table.request(ONE, &key(b"b", Mode::Shared)), Answer::Wait);
            let answer = table.request(TWO, &key(b"a", Mode::Shared));
            assert_eq!(answer, if victim == TWO { Answer::Doomed } else { Answer::Granted });
            assert!(table.is_doomed(victim));
            assert_eq!(table.held(victim), 0);
        }
    }

    #[test]
    fn a_circle_of_three_is_found() {
        let three = BranchId::new(3);
        let mut table = table();
        table.begin(three, 0);
        for (id, name) in [(ONE, b"a"), (TWO, b"b"), (three, b"c")] {
            assert_eq!(table.request(id, &key(name, Mode::Exclusive)), Answer::Granted);
        }
        assert_eq!(table.request(ONE, &key(b"b", Mode::Shared)), Answer::Wait);
        assert_eq!(table.request(three, &key(b"a", Mode::Shared)), Answer::Wait);
        assert_eq!(table.request(TWO, &key(b"c", Mode::Shared)), Answer::Granted);
        assert!(table.is_doomed(three));
    }
}
