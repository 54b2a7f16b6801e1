//! The signals to the background threads: there is something to flush, something to compact, or the store closes.
//!
//! Invariant: a signal stays set until a thread takes it, so that one which comes before a thread waits is not lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
pub(crate) struct Due {
    pub(crate) stop: bool,
    pub(crate) flush: bool,
    pub(crate) compaction: bool,
    /// Room is to be looked for.
    pub(crate) room: bool,
}

/// What is still to be done for the room of what was removed, where no write asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoomWork {
    /// Flush what deletes, once, and then the rest.
    Flush,
    /// Write tables again, one after the other.
    Tables,
    Nothing,
}

/// See the module's comment.
#[derive(Debug, Default)]
pub(crate) struct Work {
    due: Mutex<Due>,
    changed: Condvar,
    /// Told of the end only, so that other news does not make a pause longer.
    stopped: Condvar,
    /// The last flush failed for want of room.
    flush_blocked: AtomicBool,
}

impl Work {
    /// Whether the last flush failed for want of room.
    pub(crate) fn is_flush_blocked(&self) -> bool {
        self.flush_blocked.load(Ordering::Relaxed)
    }

    /// Says whether the last flush failed for want of room.
    pub(crate) fn set_flush_blocked(&self, blocked: bool) {
        self.flush_blocked.store(blocked, Ordering::Relaxed);
    }

    pub(crate) fn tell(&self, change: impl FnOnce(&mut Due)) {
        change(&mut self.due.lock());
        self.changed.notify_all();
    }

    /// Tells that room is to be looked for.
    pub(crate) fn room_is_due(&self) {
        self.tell(|due| (due.compaction, due.room) = (true, true));
    }

    /// Takes what is to be done for room.
    pub(crate) fn take_room(&self) -> RoomWork {
        match std::mem::take(&mut self.due.lock().room) {
            true => RoomWork::Flush,
            false => RoomWork::Nothing,
        }
    }

    /// Tells of a memtable that waits for its flush.
    pub(crate) fn flush_is_due(&self) {
        self.tell(|due| due.flush = true);
    }

    /// Tells the threads to end.
    pub(crate) fn stop(&self) {
        self.tell(|due| due.stop = true);
        self.stopped.notify_all();
    }

    /// Waits until `take` finds something due; false if the store closes.
    pub(crate) fn wait(&self, take: impl Fn(&mut Due) -> bool) -> bool {
        let mut due = self.due.lock();
        while !due.stop && !take(&mut due) {
            self.changed.wait(&mut due);
        }
        !due.stop
    }

    /// Waits until `take` finds something due (`Some(true)`) or `patience` is over (`Some(false)`); `None` if the
    /// store closes.
    pub(crate) fn wait_for(
        &self,
        patience: Duration,
        take: impl Fn(&mut Due) -> bool,
    ) -> Option<bool> {
        let mut due = self.due.lock();
        let mut expired = false;
        while !due.stop && !expired {
            if take(&mut due) {
                return Some(true);
            }
            expired = self.changed.wait_for(&mut due, patience).timed_out();
        }
        if due.stop { None } else { Some(take(&mut due)) }
    }

    /// Waits for `duration`; false if the store closes.
    pub(crate) fn pause(&self, duration: Duration) -> bool {
        let mut due = self.due.lock();
        while !due.stop {
            if self.stopped.wait_for(&mut due, duration).timed_out() {
                break;
            }
        }
        !due.stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each rotation of the memtable made the pause before the next periodic sync begin anew, so that
    /// under a steady load it never came.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "what is tested is real time")]
    fn news_does_not_make_a_pause_longer() {
        let work = Work::default();
        let paused = AtomicBool::new(true);
        let told_to_the_end = std::thread::scope(|scope| {
            let teller = scope.spawn(|| {
                for _ in 0..1000 {
                    work.tell(|due| due.flush = true);
                    std::thread::sleep(Duration::from_millis(2));
                    if !paused.load(Ordering::Relaxed) {
                        return false;
                    }
                }
                true
            });
            assert!(work.pause(Duration::from_millis(100)));
            paused.store(false, Ordering::Relaxed);
            teller.join().unwrap()
        });
        assert!(!told_to_the_end, "the pause lasted as long as the news");
    }

    #[test]
    fn the_end_cuts_a_pause_short() {
        let work = Work::default();
        std::thread::scope(|scope| {
            let paused = scope.spawn(|| work.pause(Duration::from_secs(3600)));
            work.stop();
            assert!(!paused.join().unwrap());
        });
    }
}
