//! Locks for read-modify-write of rows.
//!
//! An operation names every row that it reads and then writes, and takes all their locks at once. A row
//! hashes to one of [`STRIPES`] mutexes; the mutexes are taken in the order of their numbers, so that
//! two operations never wait for each other. What an operation learned before it held the locks it
//! checks again under them. Nothing else that blocks on another operation is taken while holding them; one
//! row more may be tried without waiting ([`RowLocks::try_extend`]).
//!
//! Whoever makes a name asks for it first, and the kernel does so once more for its caller: a lookup that finds no row
//! notes that at the row's mutex ([`RowGuards::note_absent`]), and whoever locks it next need not look again. Each locking
//! takes the note away, so nothing can have been written since.
//!
//! Source: TableFS 4.2.6 (per-inode locking above a store with atomic batches). Departure: the unit is
//! the row, because attributes live in the row of the name.

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use varve_schema::RowKey;

/// The number of mutexes.
const STRIPES: usize = 1024;

/// What is known of the rows of one mutex: one that does not exist.
type Absent = Option<RowKey>;

/// A mutex, in one cache line together with what it guards.
#[repr(align(32))]
struct Stripe(Mutex<Absent>);

const _: () = assert!(size_of::<Stripe>() == 32);

/// All row locks of a file system, or of all that are open of one view.
pub(crate) struct RowLocks {
    stripes: Box<[Stripe]>,
}

/// The rows locked by one operation, until dropped.
pub(crate) struct RowGuards<'a> {
    stripes: SmallVec<[Guard<'a>; 4]>,
}

/// One mutex.
struct Guard<'a> {
    number: u16,
    /// What was known to be absent when it was locked.
    absent: Absent,
    stripe: MutexGuard<'a, Absent>,
}

impl RowLocks {
    pub(crate) fn new() -> RowLocks {
        RowLocks { stripes: (0..STRIPES).map(|_| Stripe(Mutex::new(None))).collect() }
    }

    /// Locks all of `keys`, which may repeat. REQUIRES: the caller holds no row lock.
    pub(crate) fn lock(&self, keys: &[RowKey]) -> RowGuards<'_> {
        let mut stripes = SmallVec::new();
        if let [key] = keys {
            stripes.push(self.guard(stripe(*key)));
            return RowGuards { stripes };
        }
        let mut numbers: SmallVec<[u16; 8]> = keys.iter().map(|key| stripe(*key)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.iter().for_each(|number| stripes.push(self.guard(*number)));
        RowGuards { stripes }
    }

    /// Locks every row. REQUIRES: the caller holds no row lock.
    pub(crate) fn lock_all(&self) -> RowGuards<'_> {
        RowGuards { stripes: (0..STRIPES as u16).map(|number| self.guard(number)).collect() }
    }

    /// Whether somebody holds the lock of `key`: what must be so before it is written.
    pub(crate) fn is_held(&self, key: RowKey) -> bool {
        self.stripes[usize::from(stripe(key))].0.is_locked()
    }

    fn guard(&self, number: u16) -> Guard<'_> {
        let mut stripe = self.stripes[usize::from(number)].0.lock();
        Guard { number, absent: stripe.take(), stripe }
    }

    /// Locks one row more, unless it would have to wait for it; false if so.
    pub(crate) fn try_extend<'a>(&'a self, guards: &mut RowGuards<'a>, key: RowKey) -> bool {
        if guards.holds(key) {
            return true;
        }
        let number = stripe(key);
        let Some(mut stripe) = self.stripes[usize::from(number)].0.try_lock() else { return false };
        *stripe = None;
        guards.stripes.push(Guard { number, absent: None, stripe });
        true
    }
}

impl RowGuards<'_> {
    /// Whether the lock of `key` is among those held.
    pub(crate) fn holds(&self, key: RowKey) -> bool {
        let number = stripe(key);
        self.stripes.iter().any(|guard| guard.number == number)
    }

    /// Whether `key` is known not to exist. REQUIRES: its lock, and that nothing was written to it under these locks.
    pub(crate) fn know_absent(&self, key: RowKey) -> bool {
        self.stripes.iter().any(|guard| guard.absent == Some(key))
    }

    /// Notes for whoever locks `key` next that it does not exist. REQUIRES: its lock.
    pub(crate) fn note_absent(&mut self, key: RowKey) {
        let number = stripe(key);
        if let Some(guard) = self.stripes.iter_mut().find(|guard| guard.number == number) {
            *guard.stripe = Some(key);
        }
    }
}

fn stripe(key: RowKey) -> u16 {
    let mixed = (key.prefix().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (key.suffix() >> 8))
        .wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed >> 54) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_types::InodeId;

    #[test]
    fn the_same_row_twice_is_locked_once() {
        let locks = RowLocks::new();
        let key = RowKey::inode(InodeId::ROOT);
        let guards = locks.lock(&[key, key]);
        assert!(guards.holds(key));
        assert!(
            !locks.stripes.iter().enumerate().any(|(i, stripe)| {
                stripe.0.is_locked() != (i == usize::from(super::stripe(key)))
            })
        );
        drop(guards);
        let (mut guards, other) = (locks.lock(&[key]), RowKey::inode(InodeId::new(99)));
        assert!(locks.try_extend(&mut guards, other) && guards.holds(other));
        drop(guards);
        let guards = locks.lock_all();
        assert!(guards.holds(key) && guards.holds(RowKey::pending(InodeId::new(7))));
        assert!(locks.stripes.iter().all(|stripe| stripe.0.is_locked()));
        drop(guards);
        let guards = locks.lock(&[RowKey::inode(InodeId::new(99))]);
        let mut others = locks.lock(&[RowKey::inode(InodeId::new(50))]);
        assert!(!locks.try_extend(&mut others, other), "it would wait");
        drop((guards, others));
        assert!(locks.stripes.iter().all(|stripe| !stripe.0.is_locked()));
    }

    #[test]
    fn a_note_of_absence_lasts_until_the_next_lock() {
        let locks = RowLocks::new();
        let (key, other) = (RowKey::inode(InodeId::new(99)), RowKey::inode(InodeId::new(50)));
        let mut guards = locks.lock(&[key, other]);
        assert!(!guards.know_absent(key));
        guards.note_absent(key);
        drop(guards);
        let guards = locks.lock(&[key, other]);
        assert!(guards.know_absent(key) && !guards.know_absent(other));
        drop(guards);
        assert!(!locks.lock(&[key]).know_absent(key), "the lock before may have written it");
        locks.lock(&[key]).note_absent(key);
        drop(locks.lock_all());
        assert!(!locks.lock(&[key]).know_absent(key));
        locks.lock(&[key]).note_absent(key);
        let mut guards = locks.lock(&[other]);
        assert!(locks.try_extend(&mut guards, key) && !guards.know_absent(key));
        drop(guards);
        assert!(!locks.lock(&[key]).know_absent(key));
    }

    #[test]
    fn neighbours_spread_over_the_stripes() {
        let mut used: Vec<u16> =
            (16..16 + 512).map(|ino| stripe(RowKey::inode(InodeId::new(ino)))).collect();
        used.sort_unstable();
        used.dedup();
        assert!(used.len() > 256, "{} of 512", used.len());
    }
}
