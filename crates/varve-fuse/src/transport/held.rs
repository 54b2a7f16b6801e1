//! Requests that are answered only when others have been.
//!
//! A ring has so many entries ([`ENTRIES`]), and a request keeps its own until it is answered. If those of all entries waited for
//! other requests of the same CPU, these would never come. So of each ring some may wait, and what comes beyond them is
//! refused at once ([`crate::transport::Origin::hold`]):
//!
//! | wait for | entries, at most |
//! | --- | --- |
//! | locks of transactions, whoever lets go of them | [`FOR_LOCKS_MAX`] |
//! | what is done by requests to this mount: views that are mounted, transactions that end | [`FOR_THE_MOUNT_MAX`] |
//! | nobody, or syncs, which wait for nobody | the others |

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::waiters::ASKED_WAITS_MAX;

/// Requests of one CPU that may be under way at one time; further ones wait in the kernel.
pub(super) const ENTRIES: usize = 64;
const FOR_LOCKS_MAX: usize = 24;
const FOR_THE_MOUNT_MAX: usize = 32;
const _: () = assert!(FOR_LOCKS_MAX + FOR_THE_MOUNT_MAX < ENTRIES);
const _: () = assert!(ASKED_WAITS_MAX < FOR_THE_MOUNT_MAX, "who is waited for has an entry");

/// For what a request is kept without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Somebody lets go of locks.
    Unlocked,
    /// A thread has done something that takes requests to this mount.
    Asked,
}

/// Counts the entries of one ring whose requests are kept.
#[derive(Debug, Default)]
pub(crate) struct Held {
    for_locks: AtomicUsize,
    for_the_mount: AtomicUsize,
}

/// A request is kept, until this is dropped.
#[derive(Debug)]
pub(crate) struct Hold(Option<(Arc<Held>, Until)>);

impl Held {
    fn of(&self, until: Until) -> (&AtomicUsize, usize) {
        match until {
            Until::Unlocked => (&self.for_locks, FOR_LOCKS_MAX),
            Until::Asked => (&self.for_the_mount, FOR_THE_MOUNT_MAX),
        }
    }

    /// Keeps one more, unless too many are kept already.
    pub(super) fn hold(self: &Arc<Self>, until: Until) -> Option<Hold> {
        let (count, max) = self.of(until);
        let more = |count| (count < max).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Hold(Some((Arc::clone(self), until))))
    }
}

impl Hold {
    /// Of a request that takes nothing from others.
    pub(super) fn free() -> Hold {
        Hold(None)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((held, until)) = &self.0 {
            held.of(*until).0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_entries_are_never_kept() {
        let held = Arc::new(Held::default());
        let all = || [Until::Unlocked, Until::Asked].into_iter().cycle().take(4 * ENTRIES);
        let mut kept: Vec<Hold> = all().filter_map(|until| held.hold(until)).collect();
        assert_eq!(kept.len(), FOR_LOCKS_MAX + FOR_THE_MOUNT_MAX);
        kept.remove(0);
        assert!(held.hold(Until::Asked).is_none(), "the other kind has its own");
        assert!(held.hold(Until::Unlocked).is_some());
        drop(kept);
        assert_eq!(
            all().filter_map(|until| held.hold(until)).map(std::mem::forget).count(),
            FOR_LOCKS_MAX + FOR_THE_MOUNT_MAX
        );
    }
}
