//! Bytes that no row claims and nobody has open: nothing but a sync of all objects makes them durable.
//!
//! An earlier process may have left some, as its log may hold rows of files that it had not synced. So does a release after which
//! the row could not be brought up to date.

use std::sync::atomic::{AtomicU64, Ordering};

/// Whether there are any.
#[derive(Debug)]
pub(super) struct Unclaimed {
    /// How often some were left.
    left: AtomicU64,
    /// How many of these times a sync has covered.
    covered: AtomicU64,
    /// Releases under way: what they let go of is either claimed at their end or left.
    releases: AtomicU64,
}

impl Unclaimed {
    /// Those of a process that begins, where an earlier one may have left some.
    pub(super) fn new(may_be_left: bool) -> Unclaimed {
        Unclaimed {
            left: AtomicU64::new(may_be_left.into()),
            covered: AtomicU64::new(0),
            releases: AtomicU64::new(0),
        }
    }

    pub(super) fn note(&self) {
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether some are not durable.
    pub(super) fn any(&self) -> bool {
        self.covered.load(Ordering::Acquire) != self.left.load(Ordering::Acquire)
    }

    /// What a sync that begins now is going to cover.
    pub(super) fn seen(&self) -> u64 {
        self.left.load(Ordering::Acquire)
    }

    /// REQUIRES: nobody else syncs.
    pub(super) fn cover(&self, seen: u64) {
        self.covered.store(seen, Ordering::Release);
    }

    pub(super) fn begin_release(&self) {
        self.releases.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn end_release(&self) {
        self.releases.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn is_releasing(&self) -> bool {
        self.releases.load(Ordering::Acquire) > 0
    }
}
