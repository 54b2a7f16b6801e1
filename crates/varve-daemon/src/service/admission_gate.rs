//! Keeps an upgrade from beginning while requests about snapshots and transactions are under way.
//!
//! ```text
//! open, n admitted --AdmissionGate::close waits until n = 0--> closed --GateClosed is dropped--> open
//! ```
//!
//! 1. Each request enters ([`AdmissionGate::enter`]) and drops its admission when it is done. A commit looks up names on the mount
//!    and has the kernel forget some: while the session is paused no thread answers that, so the pause and the commit would wait
//!    for each other.
//! 2. An upgrade closes the gate, and waits for a limited time until no request is left. While it waits further requests enter, since
//!    a request may wait for locks that only another commit releases.
//! 3. While the gate is closed each request is refused. It opens again if the upgrade is given up; the successor has its own gate.
//!
//! Invariant: while the gate is closed no request is admitted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use varve::Error;

#[derive(Debug, Default)]
struct State {
    working: usize,
    closed: bool,
}

/// The gate; see the module's comment.
#[derive(Debug, Default)]
pub(super) struct AdmissionGate {
    state: Mutex<State>,
    left: Condvar,
}

/// The admission of one request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Admitted(Arc<AdmissionGate>);

/// Keeps the gate closed until it is dropped.
#[derive(Debug)]
pub(crate) struct GateClosed(Arc<AdmissionGate>);

/// Why the gate could not be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotClosed {
    /// Another upgrade has closed it.
    Already,
    /// Requests are still under way.
    Busy,
}

impl AdmissionGate {
    /// Admits a request; `None` if the gate is closed.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Admitted> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        state.working += 1;
        Some(Admitted(Arc::clone(self)))
    }

    /// Closes the gate once no request is admitted any more. Waits up to `wait_max`.
    pub(super) fn close(self: &Arc<Self>, wait_max: Duration) -> Result<GateClosed, NotClosed> {
        let until = Instant::now() + wait_max;
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(NotClosed::Already);
            }
            if state.working == 0 {
                state.closed = true;
                return Ok(GateClosed(Arc::clone(self)));
            }
            if self.left.wait_until(&mut state, until).timed_out() && state.working > 0 {
                return Err(NotClosed::Busy);
            }
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.state.lock().working -= 1;
        self.0.left.notify_all();
    }
}

impl Drop for GateClosed {
    fn drop(&mut self) {
        self.0.state.lock().closed = false;
    }
}

/// The error of a request that meets a closed gate.
pub(crate) fn being_upgraded() -> Error {
    Error::failed("the mount is being upgraded already").hint("try again in a moment")
}

#[cfg(test)]
mod tests {
    use varve_testkit::PATIENCE;

    use super::*;

    #[test]
    fn it_closes_when_the_last_one_has_left() {
        let gate = Arc::new(AdmissionGate::default());
        let (first, second) = (gate.enter().unwrap(), gate.enter().unwrap());
        assert_eq!(gate.close(Duration::from_millis(1)).unwrap_err(), NotClosed::Busy);
        drop(first);
        let closing = Arc::clone(&gate);
        let closing = std::thread::spawn(move || closing.close(PATIENCE));
        // Waiting to close keeps no request out.
        let third = gate.enter().unwrap();
        drop(second);
        assert!(!closing.is_finished());
        drop(third);
        let closed = closing.join().unwrap().unwrap();
        assert!(gate.enter().is_none());
        assert_eq!(gate.close(PATIENCE).unwrap_err(), NotClosed::Already);
        drop(closed);
        assert!(gate.enter().is_some());
        assert!(gate.close(Duration::ZERO).is_ok());
    }
}
