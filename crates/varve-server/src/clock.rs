//! The time of a server.

use std::time::Instant;

/// A clock that never goes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// A clock that begins now.
    pub(crate) fn new() -> Clock {
        Clock(Instant::now())
    }

    /// Milliseconds since the server began.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
