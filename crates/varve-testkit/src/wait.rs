//! Waits for an event, but never for ever, because a hanging test reports nothing.

use std::time::{Duration, Instant};

/// A time longer than any event for which a test waits takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `happened` returns true. Calls it every few milliseconds.
///
/// # Panics
/// After [`PATIENCE`], with the name of the event.
#[allow(clippy::disallowed_methods, reason = "what is waited for happens in real time")]
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a function when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct AtEnd<F: FnMut()>(F);

/// Runs `work` when the returned value is dropped, even by a panic. A test uses it to end threads that run until the
/// test has done its part; otherwise their scope would wait for them for ever.
pub fn at_end<F: FnMut()>(work: F) -> AtEnd<F> {
    AtEnd(work)
}

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_panic_ends_the_threads_that_go_on_until_then() {
        let over = AtomicBool::new(false);
        let tried = std::panic::catch_unwind(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| eventually("the end", || over.load(Ordering::SeqCst)));
                let _end = at_end(|| over.store(true, Ordering::SeqCst));
                panic!("on purpose");
            })
        });
        assert!(tried.is_err());
    }
}
