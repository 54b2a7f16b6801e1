//! Until when a call waits for the server: for ever on a hard mount, for some time on a soft one.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Until when something waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Deadline = Deadline(None);

    /// Returns the deadline of what may wait for `wait_max` from now on; for ever if that is `None`.
    pub(crate) fn after(wait_max: Option<Duration>) -> Deadline {
        Deadline(wait_max.and_then(|wait_max| Instant::now().checked_add(wait_max)))
    }

    /// Returns the earlier one of this deadline and `wait_max` from now.
    pub(crate) fn within(self, wait_max: Duration) -> Deadline {
        Deadline(Some(Instant::now() + self.left(wait_max)))
    }

    pub(crate) fn is_never(self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// Returns how long it is until then, at most `max`.
    pub(crate) fn left(self, max: Duration) -> Duration {
        self.0.map_or(max, |at| at.saturating_duration_since(Instant::now()).min(max))
    }

    /// Locks `mutex`; `None` if that takes longer.
    pub(crate) fn lock<T>(self, mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        match self.0 {
            None => Some(mutex.lock()),
            Some(at) => mutex.try_lock_until(at),
        }
    }

    /// Waits until `changed` is notified, but not longer.
    pub(crate) fn wait<T>(self, changed: &Condvar, guard: &mut MutexGuard<'_, T>) {
        match self.0 {
            None => changed.wait(guard),
            Some(at) => drop(changed.wait_until(guard, at)),
        }
    }
}
