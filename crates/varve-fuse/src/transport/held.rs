//! Limits how many requests of a ring wait for other requests.
//!
//! A ring has a fixed number of entries ([`ENTRIES`]), and a request keeps its entry until it is answered. If the
//! requests of all entries waited for other requests of the same CPU, these would never arrive. So only some requests
//! of each ring may wait, and one more is refused at once ([`crate::transport::Origin::hold`]):
//!
//! | wait for | most entries |
//! | --- | --- |
//! | the release of locks of transactions or of files | [`FOR_LOCKS_MAX`] |
//! | work that needs requests to this mount: the mount of a view, the end of a transaction | [`FOR_THE_MOUNT_MAX`] |
//! | nothing, or a sync, which needs no other request | all others |

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::waiters::ASKED_WAITS_MAX;

/// The most requests of one CPU under way at one time; further ones wait in the kernel.
pub(super) const ENTRIES: usize = 64;
const FOR_LOCKS_MAX: usize = 24;
const FOR_THE_MOUNT_MAX: usize = 32;
const _: () = assert!(FOR_LOCKS_MAX + FOR_THE_MOUNT_MAX < ENTRIES);
const _: () =
    assert!(ASKED_WAITS_MAX < FOR_THE_MOUNT_MAX, "the requests that others wait for have entries");

/// What a held request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// A transaction, or another program, releases locks.
    Unlocked,
    /// A thread has finished work that needs requests to this mount.
    Asked,
}

/// Counts the entries of one ring whose requests are held.
#[derive(Debug, Default)]
pub(crate) struct Held {
    for_locks: AtomicUsize,
    for_the_mount: AtomicUsize,
}

/// Holds a request until this is dropped.
#[derive(Debug)]
pub(crate) struct Hold(Option<(Arc<Held>, Until)>);

impl Held {
    fn of(&self, until: Until) -> (&AtomicUsize, usize) {
        match until {
            Until::Unlocked => (&self.for_locks, FOR_LOCKS_MAX),
            Until::Asked => (&self.for_the_mount, FOR_THE_MOUNT_MAX),
        }
    }

    /// Holds one more request, unless too many are held already.
    pub(super) fn hold(self: &Arc<Self>, until: Until) -> Option<Hold> {
        let (count, max) = self.of(until);
        let more = |count| (count < max).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Hold(Some((Arc::clone(self), until))))
    }
}

impl Hold {
    /// A hold on a request that takes no entry from others.
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
