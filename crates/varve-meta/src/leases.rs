//! Leases: for how long clients may keep what they have learned.
//!
//! 1. An answer tells a client something about an object. [`Leases::grant`] says for how long the client may keep it.
//! 2. A change of the object begins with [`Leases::begin_change`]. It returns who has to drop what, or until when the
//!    change has to wait. Until [`Leases::end_change`] nothing is granted for the object.
//! 3. When those holders have dropped it, or the time has come, the object changes.
//!
//! The table has a fixed size: an object has the place that its hash says, and objects may share one. A place knows
//! the latest expiry and up to [`HOLDERS_MAX`] holders by name. With more holders a change waits for the expiry. Where
//! objects share a place, holders of one are told of changes of the others too, and stay holders.
//!
//! Invariant: whoever may keep something is a holder of its place, or the place counts as having more holders than it
//! knows, until the expiry.
//!
//! Source: thesis, section 6.1.2 (stateless directory caching; the policies). Departure: holders that are known by
//! name are told, so that a change seldom waits.

use smallvec::SmallVec;

use crate::SessionId;

/// The most holders of one place that are known by name.
pub const HOLDERS_MAX: usize = 8;
/// Reads and changes are counted over about this time, in milliseconds.
const COUNTED_MS: u64 = 4000;
/// Shorter leases are not worth a recall, in milliseconds.
const SHORTEST_MS: u32 = 20;

/// How long leases are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// Always as long.
    Fixed {
        /// In milliseconds.
        ms: u32,
    },
    /// The longest, divided by the depth in the tree: what is near the root changes seldom and is read often.
    Depth {
        /// The longest, in milliseconds.
        ms_max: u32,
    },
    /// r / (r + w) of the longest, where r and w count recent reads and changes.
    Rate {
        /// The longest, in milliseconds.
        ms_max: u32,
    },
    /// By depth for what was not read or changed lately, by rate for all else.
    Hybrid {
        /// The longest, in milliseconds.
        ms_max: u32,
    },
    /// No leases.
    None,
}

impl Policy {
    /// Returns the longest lease in milliseconds.
    pub fn longest_ms(self) -> u32 {
        match self {
            Policy::Fixed { ms: ms_max }
            | Policy::Depth { ms_max }
            | Policy::Rate { ms_max }
            | Policy::Hybrid { ms_max } => ms_max,
            Policy::None => 0,
        }
    }

    fn length_ms(self, (reads, changes): (u32, u32), depth: impl FnOnce() -> u32) -> u32 {
        let ms = match self {
            Policy::None => 0,
            Policy::Fixed { ms } => return ms,
            Policy::Depth { ms_max } => ms_max / depth().max(1),
            Policy::Hybrid { ms_max } if reads <= 1 && changes == 0 => ms_max / depth().max(1),
            Policy::Rate { ms_max } | Policy::Hybrid { ms_max } => {
                let all = u64::from(reads) + u64::from(changes);
                let ms = u64::from(ms_max) * u64::from(reads) / all.max(1);
                u32::try_from(ms).unwrap_or(ms_max)
            }
        };
        if ms < SHORTEST_MS { 0 } else { ms }
    }
}

#[derive(Clone, Default)]
struct Place {
    /// The object that has the lease.
    object: u64,
    /// More than one object has leases here.
    is_shared: bool,
    /// There are more holders than `holders` names.
    has_more: bool,
    holders: SmallVec<[SessionId; HOLDERS_MAX]>,
    /// No lease lasts longer.
    expiry_ms: u64,
    /// Changes under way.
    changes: u32,
    /// The number of the last change that ended.
    changed: u64,
    recent_reads: u32,
    recent_changes: u32,
    counted_since_ms: u64,
}

impl Place {
    /// Forgets leases that are over.
    fn at(&mut self, now_ms: u64) -> &mut Place {
        if self.expiry_ms <= now_ms {
            self.holders.clear();
            (self.is_shared, self.has_more) = (false, false);
        }
        if now_ms.saturating_sub(self.counted_since_ms) > COUNTED_MS {
            self.recent_reads /= 2;
            self.recent_changes /= 2;
            self.counted_since_ms = now_ms;
        }
        self
    }
}

/// Who has to drop what before a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// These are told.
    pub told: SmallVec<[SessionId; HOLDERS_MAX]>,
    /// The change may begin at this time even if not all have answered; it must wait for this time if `is_all` is
    /// not set.
    pub expiry_ms: u64,
    /// `told` names all holders.
    pub is_all: bool,
}

impl Holders {
    /// Returns whether the change may begin at once.
    pub fn is_free(&self) -> bool {
        self.told.is_empty() && self.is_all
    }
}

/// When a session has learned something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The number of the last change that had ended before it looked. What changed later is not what it has learned.
    pub since: u64,
    /// It looks while it changes the object itself.
    pub by_own_change: bool,
}

/// All leases of a server, or a part of them.
pub struct Leases {
    places: Vec<Place>,
    policy: Policy,
    /// Leases of the server before, which this one does not know, may last until then.
    others_expire_ms: u64,
}

impl Leases {
    /// A table of `places` places, without leases.
    pub fn new(places: usize, policy: Policy) -> Leases {
        Leases { places: vec![Place::default(); places.max(1)], policy, others_expire_ms: 0 }
    }

    /// Leases that the server before has granted may last until `expiry_ms`.
    pub fn wait_for_others(&mut self, expiry_ms: u64) {
        self.others_expire_ms = expiry_ms;
    }

    fn place(&mut self, object: u64, now_ms: u64) -> &mut Place {
        let at = (object % self.places.len() as u64) as usize;
        self.places[at].at(now_ms)
    }

    /// Returns for how long `session` may keep what it has learned of `object`, in milliseconds; 0 for not at all. `depth`
    /// tells how many directories lie above the object.
    pub fn grant(
        &mut self,
        (object, depth): (u64, impl FnOnce() -> u32),
        session: SessionId,
        learned: Learned,
        now_ms: u64,
    ) -> u32 {
        let policy = self.policy;
        let place = self.place(object, now_ms);
        place.recent_reads = place.recent_reads.saturating_add(1);
        let ms = policy.length_ms((place.recent_reads, place.recent_changes), depth);
        let is_new =
            place.changes <= u32::from(learned.by_own_change) && place.changed <= learned.since;
        if !is_new || ms == 0 {
            return 0;
        }
        if place.expiry_ms <= now_ms {
            place.object = object;
        }
        place.is_shared |= place.object != object;
        if !place.holders.contains(&session) {
            match place.holders.len() {
                HOLDERS_MAX => place.has_more = true,
                _ => place.holders.push(session),
            }
        }
        place.expiry_ms = place.expiry_ms.max(now_ms + u64::from(ms));
        ms
    }

    /// Begins a change of `object` by `by`, which learns of the change by its answer.
    pub fn begin_change(&mut self, object: u64, by: SessionId, now_ms: u64) -> Holders {
        let others_expire_ms = self.others_expire_ms;
        let place = self.place(object, now_ms);
        place.changes += 1;
        place.recent_changes = place.recent_changes.saturating_add(1);
        let mut told = place.holders.clone();
        told.retain(|holder| *holder != by);
        let is_all = !place.has_more && others_expire_ms <= now_ms;
        let expiry_ms = if told.is_empty() && !place.has_more { 0 } else { place.expiry_ms };
        Holders { told, is_all, expiry_ms: expiry_ms.max(others_expire_ms) }
    }

    /// Ends the change `number` that [`Leases::begin_change`] began, after its `holders` have dropped the object or
    /// their leases have ended.
    pub fn end_change(&mut self, object: u64, holders: &Holders, number: u64, now_ms: u64) {
        let place = self.place(object, now_ms);
        place.changes = place.changes.saturating_sub(1);
        place.changed = place.changed.max(number);
        if !place.is_shared && place.object == object {
            place.holders.retain(|holder| !holders.told.contains(holder));
        }
    }

    /// Calls `note` with each session that is known as a holder of a place whose leases are not over, once for each place.
    pub fn each_holder(&self, now_ms: u64, mut note: impl FnMut(SessionId)) {
        let held = self.places.iter().filter(|place| place.expiry_ms > now_ms);
        held.flat_map(|place| &place.holders).for_each(|holder| note(*holder));
    }

    /// Ends a change that was not made: its holders may not have dropped the object.
    pub fn cancel_change(&mut self, object: u64, now_ms: u64) {
        let place = self.place(object, now_ms);
        place.changes = place.changes.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEARNED: Learned = Learned { since: 0, by_own_change: false };

    /// The lengths of leases of an object at a depth, read so often, changed, and read again.
    fn lengths(policy: Policy, depth: u32, reads: usize) -> Vec<u32> {
        let mut leases = Leases::new(8, policy);
        let read = |leases: &mut Leases, since| {
            leases.grant((1, || depth), SessionId(1), Learned { since, ..LEARNED }, 10)
        };
        let mut lengths: Vec<u32> = (0..reads).map(|_| read(&mut leases, 0)).collect();
        let holders = leases.begin_change(1, SessionId(1), 10);
        leases.end_change(1, &holders, 1, 10);
        lengths.push(read(&mut leases, 1));
        lengths
    }

    #[test]
    fn a_lease_is_as_long_as_its_policy_says() {
        assert_eq!(lengths(Policy::Fixed { ms: 600 }, 3, 2), [600, 600, 600]);
        assert_eq!(lengths(Policy::Depth { ms_max: 600 }, 3, 2), [200, 200, 200]);
        assert_eq!(lengths(Policy::Depth { ms_max: 600 }, 0, 1), [600, 600]);
        assert_eq!(lengths(Policy::Depth { ms_max: 600 }, 31, 1), [0, 0], "too short to be of use");
        assert_eq!(lengths(Policy::Rate { ms_max: 600 }, 3, 2), [600, 600, 450]);
        assert_eq!(lengths(Policy::Hybrid { ms_max: 600 }, 3, 2), [200, 600, 450]);
        assert_eq!(lengths(Policy::None, 1, 1), [0, 0]);
    }
}
