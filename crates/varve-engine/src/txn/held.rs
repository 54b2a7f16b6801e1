//! What a transaction is known to hold, so that it need not ask for it again under the lock of all locks.
//!
//! A table of fixed size, which forgets: what stands in it was granted and is settled, so that no write is on its way past
//! it ([`super`]), and stays true until the transaction ends or loses all its locks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::granules::{Granule, Mode};

/// Granules that are remembered, 8 bytes each; a power of two.
const SLOTS: usize = 2048;
/// The bits of a granule that say its slot; in the slot their place has the modes.
const SLOT_MASK: u64 = SLOTS as u64 - 1;

/// See the module's comment.
pub(crate) struct Held {
    /// The transaction has lost its locks.
    lost: Arc<AtomicBool>,
    slots: Box<[AtomicU64]>,
}

impl Held {
    /// Nothing, by a transaction that loses its locks with `lost`.
    pub(super) fn new(lost: Arc<AtomicBool>) -> Held {
        Held { lost, slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }

    fn slot(&self, granule: Granule) -> Option<&AtomicU64> {
        self.slots.get((granule & SLOT_MASK) as usize)
    }

    /// Whether `granule` is known to be held so that a request for `mode` is granted.
    pub(super) fn covers(&self, granule: Granule, mode: Mode) -> bool {
        let known = self.slot(granule).map_or(0, |slot| slot.load(Ordering::Acquire));
        let is_it = (known ^ granule) & !SLOT_MASK == 0;
        is_it && known & u64::from(mode.enough()) != 0 && !self.lost.load(Ordering::Acquire)
    }

    /// Whether the transaction has lost its locks.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Notes that `granule` is held in `mode`, and that no write is on its way past that.
    pub(super) fn note(&self, granule: Granule, mode: Mode) {
        let Some(slot) = self.slot(granule) else { return };
        let known = slot.load(Ordering::Relaxed);
        let modes = if (known ^ granule) & !SLOT_MASK == 0 { known & SLOT_MASK } else { 0 };
        slot.store((granule & !SLOT_MASK) | modes | mode as u64, Ordering::Release);
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("lost", &self.lost).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_known_until_it_is_lost_or_forgotten() {
        let lost = Arc::new(AtomicBool::new(false));
        let held = Held::new(Arc::clone(&lost));
        let (one, same_slot) = (0x1234_5678_9abc_d123, 0x9234_5678_9abc_d123);
        assert!(!held.covers(one, Mode::Shared) && !held.covers(0, Mode::Shared));
        held.note(one, Mode::Shared);
        assert!(held.covers(one, Mode::Shared) && !held.covers(one, Mode::Exclusive));
        assert!(!held.covers(one ^ 1, Mode::Shared), "another slot");
        assert!(!held.covers(same_slot, Mode::Shared));
        held.note(one, Mode::Exclusive);
        assert!(held.covers(one, Mode::Shared) && held.covers(one, Mode::Exclusive));
        held.note(one, Mode::Shared);
        assert!(held.covers(one, Mode::Exclusive), "a weaker one takes nothing away");
        held.note(same_slot, Mode::Shared);
        assert!(!held.covers(one, Mode::Shared) && !held.covers(same_slot, Mode::Exclusive));
        lost.store(true, Ordering::Release);
        assert!(!held.covers(same_slot, Mode::Shared));
    }
}
