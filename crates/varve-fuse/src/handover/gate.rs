//! The gate at which readers stop between two requests.
//!
//! ```text
//! open --pause--> closing: each reader stops when it comes by --all have--> closed: they leave
//!   ^                |
//!   +---- too late --+  those that stopped go on
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The gate of one session.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Read by each reader before each request.
    closing: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The number of readers that serve.
    serving: usize,
    closing: bool,
    closed: bool,
}

impl Gate {
    /// A gate for `readers` readers.
    pub(crate) fn new(readers: usize) -> Gate {
        let state = State { serving: readers, closing: false, closed: false };
        Gate { closing: AtomicBool::new(false), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Returns the number of readers that still serve.
    pub(crate) fn serving(&self) -> usize {
        self.state.lock().serving
    }

    /// Passes the gate. A reader calls this between two requests. Returns whether the reader must leave; waits while
    /// that is undecided.
    pub(crate) fn pass(&self) -> bool {
        if !self.closing.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.state.lock();
        state.serving -= 1;
        self.close_if_empty(&mut state);
        while state.closing && !state.closed {
            self.changed.wait(&mut state);
        }
        if !state.closed {
            state.serving += 1;
        }
        state.closed
    }

    /// Counts a reader that never started or has ended for another reason.
    pub(crate) fn without_one(&self) {
        let mut state = self.state.lock();
        state.serving -= 1;
        self.close_if_empty(&mut state);
    }

    fn close_if_empty(&self, state: &mut State) {
        if state.closing && state.serving == 0 {
            state.closed = true;
            self.changed.notify_all();
        }
    }

    /// Closes the gate: readers stop from now on.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        self.closing.store(true, Ordering::Release);
        self.close_if_empty(&mut state);
    }

    /// Waits until all readers have stopped. If that takes longer than `patience`, lets them go on and returns false.
    pub(crate) fn wait_closed(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        while !state.closed {
            if self.changed.wait_for(&mut state, patience).timed_out() && !state.closed {
                state.closing = false;
                self.closing.store(false, Ordering::Release);
                self.changed.notify_all();
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn all_leave_when_the_last_has_stopped() {
        let gate = Gate::new(3);
        assert!(!gate.pass());
        std::thread::scope(|scope| {
            let reader = || while !gate.pass() {};
            scope.spawn(reader);
            scope.spawn(reader);
            gate.close();
            assert!(!gate.wait_closed(Duration::from_millis(20)), "one is missing");
            scope.spawn(reader);
            gate.close();
            assert!(gate.wait_closed(LONG));
        });
        assert_eq!(gate.serving(), 0);
    }

    #[test]
    fn readers_that_end_by_themselves_are_not_waited_for() {
        let gate = Gate::new(2);
        gate.without_one();
        gate.close();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(gate.pass()));
            assert!(gate.wait_closed(LONG));
        });
    }
}
