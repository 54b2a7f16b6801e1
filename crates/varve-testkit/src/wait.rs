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
