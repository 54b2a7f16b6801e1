//! The files that wait until their rows can follow them, and when they are tried again ([`super`]).

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use varve_types::InodeId;
use varve_vfs::{Blocked, FsError};

/// The time after which a file is tried again that failed for another reason than locks.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Nothing is to be tried again.
pub(super) const NEVER_MS: u64 = u64::MAX;

/// Files that wait. Each change looks at two numbers, and while locks are in the way of some whether any have gone.
#[derive(Debug)]
pub(crate) struct Unsettled {
    /// When the files that failed for another reason than locks are to be tried again, in milliseconds of the monotonic clock.
    retry_at_ms: AtomicU64,
    /// Some were refused for locks.
    any_blocked: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    inos: BTreeSet<InodeId>,
    /// The last one that had its turn.
    last: Option<InodeId>,
    /// The locks that refused the first of them.
    blocked: Option<Blocked>,
}

impl Default for Unsettled {
    fn default() -> Unsettled {
        let retry_at_ms = AtomicU64::new(NEVER_MS);
        Unsettled { retry_at_ms, any_blocked: AtomicBool::default(), waiting: Mutex::default() }
    }
}

impl Unsettled {
    /// Adds a file, with the reason why it could not be settled at `now_ms`. False if it waits already.
    pub(super) fn add(&self, ino: InodeId, why: &FsError, now_ms: u64) -> bool {
        let mut waiting = self.waiting.lock();
        let is_new = waiting.inos.insert(ino);
        if let FsError::Blocked(blocked) = why {
            waiting.blocked.get_or_insert_with(|| blocked.clone());
            self.any_blocked.store(true, Ordering::Relaxed);
        } else {
            self.retry_at_ms.fetch_min(later(now_ms), Ordering::Relaxed);
        }
        is_new
    }

    /// Takes the next ones, `most` at most; the others are due later.
    pub(super) fn take(&self, most: usize, now_ms: u64) -> Vec<InodeId> {
        let mut waiting = self.waiting.lock();
        let Waiting { inos, last, .. } = &*waiting;
        let after = inos.range((last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        let up_to = last.iter().flat_map(|last| inos.range(..=*last));
        let taken: Vec<InodeId> = after.chain(up_to).take(most).copied().collect();
        for ino in &taken {
            waiting.inos.remove(ino);
        }
        (waiting.last, waiting.blocked) = (taken.last().copied(), None);
        self.any_blocked.store(false, Ordering::Relaxed);
        let retry_at_ms = if waiting.inos.is_empty() { NEVER_MS } else { later(now_ms) };
        self.retry_at_ms.store(retry_at_ms, Ordering::Relaxed);
        taken
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.lock().inos.len()
    }

    /// When the files that failed for another reason than locks are due.
    pub(super) fn retry_at_ms(&self) -> u64 {
        self.retry_at_ms.load(Ordering::Relaxed)
    }

    /// The locks that refused the first of the files that wait for locks.
    pub(super) fn blocked(&self) -> Option<Blocked> {
        let any_blocked = self.any_blocked.load(Ordering::Relaxed);
        if any_blocked { self.waiting.lock().blocked.clone() } else { None }
    }

    /// Makes all that wait due at once.
    pub(super) fn hurry(&self) {
        if !self.waiting.lock().inos.is_empty() {
            self.retry_at_ms.store(0, Ordering::Relaxed);
        }
    }
}

fn later(now_ms: u64) -> u64 {
    now_ms + RETRY_AFTER.as_millis() as u64
}
