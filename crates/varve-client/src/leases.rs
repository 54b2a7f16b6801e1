//! What the front end may keep.
//!
//! An answer says for how long. By the time it arrives, a notice may have recalled what it says: then the front end keeps
//! nothing of it. What the front end has been given and has not handed on yet (to the kernel) is waited for: a thread
//! that returns something to keep is in a section until [`Leases::delivered`], and [`Leases::recall`] returns when no
//! thread is in a section that began before.
//!
//! Invariant: what a recall names is either not kept, or has reached the kernel when [`Leases::recall`] returns, so that
//! the kernel can be told to drop it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a recall waits for threads that hand on what they have. They do nothing else meanwhile.
const SECTION_MAX: Duration = Duration::from_secs(2);

thread_local! {
    /// Which half the thread's section is counted in.
    static SECTION: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Recalls, and the threads that hand on what may be kept.
#[derive(Default)]
pub(crate) struct Leases {
    /// The front end keeps nothing until it can be told to drop it.
    is_kept: AtomicBool,
    /// How many recalls there were.
    recalls: AtomicU64,
    /// Sections that begin are counted in the half that this number's lowest bit says.
    half: AtomicUsize,
    sections: [AtomicUsize; 2],
    /// One recall waits at a time.
    recalling: Mutex<()>,
}

/// The moment at which a request is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    at: Instant,
    recalls: u64,
}

impl Leases {
    /// From now on the front end can be told to drop what it keeps, and says when it has handed something on.
    pub(crate) fn keep(&self) {
        self.is_kept.store(true, Ordering::Release);
    }

    /// A request is about to be sent. What the thread was given before is not kept, or is handed on by now.
    pub(crate) fn sends(&self) -> Sent {
        self.delivered();
        Sent { at: Instant::now(), recalls: self.recalls.load(Ordering::SeqCst) }
    }

    /// Something is recalled. Returns when the front end has all that was given to it before.
    pub(crate) fn recall(&self) {
        let _recalling = self.recalling.lock();
        self.recalls.fetch_add(1, Ordering::SeqCst);
        let before = self.half.fetch_add(1, Ordering::SeqCst) & 1;
        let begin = Instant::now();
        while self.sections[before].load(Ordering::SeqCst) > 0 {
            if begin.elapsed() > SECTION_MAX {
                log::warn!(
                    "a thread keeps an answer for long; the kernel may show it once it is recalled"
                );
                return;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Returns for how long the front end may keep what the answer to a request says. The thread is in a section then.
    pub(crate) fn left(&self, sent: Sent, keep_ms: u32) -> Duration {
        if keep_ms == 0 || !self.is_kept.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        self.enter();
        if self.recalls.load(Ordering::SeqCst) != sent.recalls {
            return Duration::ZERO;
        }
        // The server's clock may run a little faster.
        let keep = Duration::from_millis(u64::from(keep_ms) * 15 / 16);
        keep.saturating_sub(sent.at.elapsed())
    }

    fn enter(&self) {
        while SECTION.get().is_none() {
            let half = self.half.load(Ordering::SeqCst);
            self.sections[half & 1].fetch_add(1, Ordering::SeqCst);
            if self.half.load(Ordering::SeqCst) == half {
                SECTION.set(Some(half & 1));
            } else {
                self.sections[half & 1].fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// The thread has handed on what it was given.
    pub(crate) fn delivered(&self) {
        if let Some(half) = SECTION.take() {
            self.sections[half].fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recalled_on_its_way_is_not_kept() {
        let leases = Leases::default();
        let sent = leases.sends();
        assert!(leases.left(sent, 1000).is_zero(), "nobody could be told");
        leases.keep();
        assert!(!leases.left(sent, 1000).is_zero());
        leases.delivered();
        let sent = leases.sends();
        leases.recall();
        assert!(leases.left(sent, 1000).is_zero());
        leases.delivered();
    }

    #[test]
    fn a_recall_waits_for_what_is_not_handed_on_yet() {
        let leases = Leases::default();
        leases.keep();
        assert!(!leases.left(leases.sends(), 1000).is_zero());
        std::thread::scope(|scope| {
            let recall = scope.spawn(|| leases.recall());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!recall.is_finished());
            leases.delivered();
            recall.join().expect("the recall ends");
        });
    }
}
