//! A limit on the memory that requests take, over all clients.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A request that takes no more than this does not count.
const SMALL_BYTES: usize = 16 << 10;

/// A number of bytes that requests share.
pub(super) struct MemoryBudget {
    all: usize,
    free: Mutex<usize>,
    freed: Condvar,
    /// Held by the request that is next, so that small requests do not overtake a large one.
    next: Mutex<()>,
}

/// Reserved bytes. Dropping it frees them.
pub(super) struct Reserved<'a> {
    budget: &'a MemoryBudget,
    bytes: usize,
}

impl MemoryBudget {
    /// A budget of `bytes`, all free.
    pub(super) fn new(bytes: usize) -> MemoryBudget {
        let (freed, next) = (Condvar::new(), Mutex::new(()));
        MemoryBudget { all: bytes, free: Mutex::new(bytes), freed, next }
    }

    /// Reserves `bytes`, at most the whole budget; `None` if they do not become free within `wait_max`.
    pub(super) fn take(&self, bytes: usize, wait_max: Duration) -> Option<Reserved<'_>> {
        let bytes = if bytes <= SMALL_BYTES { 0 } else { bytes.min(self.all) };
        if bytes == 0 {
            return Some(Reserved { budget: self, bytes });
        }
        let end = Instant::now() + wait_max;
        let _next = self.next.try_lock_until(end)?;
        let mut free = self.free.lock();
        while *free < bytes {
            if self.freed.wait_until(&mut free, end).timed_out() {
                return None;
            }
        }
        *free -= bytes;
        Some(Reserved { budget: self, bytes })
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        *self.budget.free.lock() += self.bytes;
        self.budget.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is() {
        let budget = MemoryBudget::new(3 * SMALL_BYTES);
        let much = budget.take(2 * SMALL_BYTES, Duration::ZERO).unwrap();
        assert!(budget.take(2 * SMALL_BYTES, Duration::from_millis(5)).is_none());
        // What is small does not wait, and what is more than all waits for all.
        assert!(budget.take(SMALL_BYTES, Duration::ZERO).is_some());
        drop(much);
        let all = budget.take(usize::MAX, Duration::ZERO).unwrap();
        assert!(budget.take(SMALL_BYTES + 1, Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let waits =
                scope.spawn(|| budget.take(SMALL_BYTES + 1, varve_testkit::PATIENCE).is_some());
            drop(all);
            assert!(waits.join().unwrap());
        });
    }
}
