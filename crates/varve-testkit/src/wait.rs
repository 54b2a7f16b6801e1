//! Waiting for what comes soon, and never for ever: a test that hangs says nothing.

use std::time::{Duration, Instant};

/// Longer than a busy machine takes for anything that a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `happened`, which is asked every few milliseconds.
///
/// # Panics
/// With the name of what was waited for, after [`PATIENCE`].
#[allow(clippy::disallowed_methods, reason = "what is waited for happens in real time")]
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Does something when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct AtEnd<F: FnMut()>(F);

/// Does `work` when what it gives is dropped: tells the threads that go on until a test has done its part to end, also where that
/// part panics. Without it the scope of such threads would wait for them for ever.
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
