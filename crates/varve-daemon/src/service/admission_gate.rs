//! Keeps an upgrade from beginning while views begin, end, or are mounted.
//!
//! ```text
//! open, n at work --Door::close waits until n = 0--> closed --Closed is dropped--> open
//! ```
//!
//! 1. Whoever works with views goes in ([`Door::enter`]) and out when done. A commit looks up names on the mount and has the
//!    kernel forget some: while the session is paused nobody answers either, and the pause would wait for who waits for it.
//! 2. An upgrade closes the door, for a limited time, before it takes the mounts of views away. As long as it waits others
//!    still go in, since one at work may wait for what only another's commit lets go of.
//!    Views that are mounted elsewhere too, as in mount namespaces of programs, would not end by that: they keep it from beginning.
//! 3. From then on whoever comes is sent away, until the upgrade is given up. The successor has a door of its own.
//!
//! Invariant: closed implies that nobody is at work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use varve::Error;

#[derive(Debug, Default)]
struct State {
    working: usize,
    closed: bool,
}

/// See the module's comment.
#[derive(Debug, Default)]
pub(super) struct Door {
    state: Mutex<State>,
    left: Condvar,
}

/// Somebody at work, until dropped.
#[derive(Debug)]
pub(crate) struct Working(Arc<Door>);

/// Nobody is at work, until dropped.
#[derive(Debug)]
pub(crate) struct Closed(Arc<Door>);

/// Why the door is not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotClosed {
    /// Somebody else has closed it.
    Already,
    /// Somebody is still at work.
    Busy,
}

impl Door {
    /// Goes in; `None` if it is closed.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Working> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        state.working += 1;
        Some(Working(Arc::clone(self)))
    }

    /// Closes it when nobody is at work any more, which may take `wait_max`.
    pub(super) fn close(self: &Arc<Self>, wait_max: Duration) -> Result<Closed, NotClosed> {
        let until = Instant::now() + wait_max;
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(NotClosed::Already);
            }
            if state.working == 0 {
                state.closed = true;
                return Ok(Closed(Arc::clone(self)));
            }
            if self.left.wait_until(&mut state, until).timed_out() && state.working > 0 {
                return Err(NotClosed::Busy);
            }
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.state.lock().working -= 1;
        self.0.left.notify_all();
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.state.lock().closed = false;
    }
}

/// Why nothing goes for a moment.
pub(crate) fn being_upgraded() -> Error {
    Error::failed("the mount is being upgraded already").hint("wait a moment")
}

#[cfg(test)]
mod tests {
    use varve_testkit::PATIENCE;

    use super::*;

    #[test]
    fn it_closes_when_the_last_one_has_left() {
        let door = Arc::new(Door::default());
        let (first, second) = (door.enter().unwrap(), door.enter().unwrap());
        assert_eq!(door.close(Duration::from_millis(1)).unwrap_err(), NotClosed::Busy);
        drop(first);
        let closing = Arc::clone(&door);
        let closing = std::thread::spawn(move || closing.close(PATIENCE));
        // Who waits keeps nobody out.
        let third = door.enter().unwrap();
        drop(second);
        assert!(!closing.is_finished());
        drop(third);
        let closed = closing.join().unwrap().unwrap();
        assert!(door.enter().is_none());
        assert_eq!(door.close(PATIENCE).unwrap_err(), NotClosed::Already);
        drop(closed);
        assert!(door.enter().is_some());
        assert!(door.close(Duration::ZERO).is_ok());
    }
}
