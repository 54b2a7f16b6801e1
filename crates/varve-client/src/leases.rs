//! What the front end may keep.
//!
//! An answer says for how long. By the time it arrives, a notice may have recalled what it says: then the front end keeps
//! nothing of it. [`Leases::recall`] is called before the front end drops what it has, so that an answer which is
//! on its way is either dropped or not kept.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Recalls counted.
#[derive(Default)]
pub(crate) struct Leases {
    recalls: AtomicU64,
}

/// The moment at which a request is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    at: Instant,
    recalls: u64,
}

impl Leases {
    /// A request is about to be sent.
    pub(crate) fn sends(&self) -> Sent {
        Sent { at: Instant::now(), recalls: self.recalls.load(Ordering::Acquire) }
    }

    /// Something is recalled.
    pub(crate) fn recall(&self) {
        self.recalls.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns for how long the front end may keep what the answer to a request says.
    pub(crate) fn left(&self, sent: Sent, keep_ms: u32) -> Duration {
        if self.recalls.load(Ordering::Acquire) != sent.recalls {
            return Duration::ZERO;
        }
        // The server's clock may run a little faster.
        let keep = Duration::from_millis(u64::from(keep_ms) * 15 / 16);
        keep.saturating_sub(sent.at.elapsed())
    }
}
