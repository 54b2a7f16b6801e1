//! Controls the machine's CPUs during bursts of requests.
//!
//! ```text
//! quiet --a reader serves BURST_REQUESTS within BURST_TIME--> burst --none does for HOLD_TIME--> quiet
//! ```
//!
//! 1. Each reader counts its requests ([`Pulse`]) and reports a burst.
//! 2. One thread, the governor ([`Governor::run`]), attends to the burst: idle CPUs poll ([`idle_poll`]), and the
//!    threads of rings give way to their callers ([`giving_way`]).
//! 3. When no reader has reported a burst for [`HOLD_TIME`], the governor ends both and sleeps.
//!
//! Invariant: the governor keeps threads that give way from starving, so during a burst it waits for nothing that
//! they may hold. It takes no lock that they take while they give way, and allocates no memory.
#![allow(clippy::disallowed_methods, reason = "paces the machine's CPUs, not the store")]

mod giving_way;
mod idle_poll;

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use giving_way::{Counts, GivingWay, Watch};
pub use idle_poll::IdlePoll;

/// How many requests one reader must serve within [`BURST_TIME`] for a burst: 3,200 requests a second.
const BURST_REQUESTS: u32 = 64;
const BURST_TIME: Duration = Duration::from_millis(20);
/// How long a burst lasts after the last report of it.
const HOLD_TIME: Duration = Duration::from_millis(20);

/// Notices bursts and attends to them.
#[derive(Debug)]
pub(crate) struct Governor {
    /// Idle CPUs poll during a burst: false if the options exclude it or the machine does not allow it.
    polls: AtomicBool,
    /// `None` if no thread gives way.
    giving_way: Option<GivingWay>,
    /// The number of bursts that readers have reported.
    bursts: AtomicU64,
    /// A reader reported a burst while the governor did not attend to one.
    wanted: AtomicBool,
    /// The governor attends to a burst.
    attends: AtomicBool,
    ended: AtomicBool,
    /// The thread of the governor.
    thread: OnceLock<Thread>,
}

impl Governor {
    /// A governor. `rings_give_way` says that requests come by rings, whose threads give way if that is allowed.
    pub(crate) fn new(when: IdlePoll, rings_give_way: bool) -> Governor {
        Governor {
            polls: AtomicBool::new(when.is_wanted()),
            giving_way: if rings_give_way { GivingWay::new() } else { None },
            bursts: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            attends: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Returns whether [`Governor::run`] has anything to do.
    pub(crate) fn works(&self) -> bool {
        self.polls.load(Ordering::Relaxed) || self.giving_way.is_some()
    }

    /// Attends to bursts until [`Governor::end`]. REQUIRES: called once.
    pub(crate) fn run(&self) {
        self.thread.get_or_init(thread::current);
        let mut watch = self.giving_way.as_ref().map(GivingWay::watch);
        while self.works() && !self.ended.load(Ordering::SeqCst) {
            if self.wanted.swap(false, Ordering::SeqCst) {
                self.attend(watch.as_mut());
            } else {
                thread::park();
            }
        }
    }

    /// Attends to one burst.
    fn attend(&self, watch: Option<&mut Watch<'_>>) {
        let _awake = self.hold_awake();
        self.attends.store(true, Ordering::SeqCst);
        match watch {
            Some(watch) => {
                self.look_until_quiet(giving_way::LOOK_TIME, |now| watch.look(now));
                watch.end_burst();
            }
            None => self.look_until_quiet(HOLD_TIME, |_| {}),
        }
        self.attends.store(false, Ordering::SeqCst);
    }

    /// Looks every `interval` until no reader has reported a burst for [`HOLD_TIME`].
    fn look_until_quiet(&self, interval: Duration, mut look: impl FnMut(Instant)) {
        let (mut seen, mut seen_at) = (None, Instant::now());
        while !self.ended.load(Ordering::SeqCst) {
            let (now, bursts) = (Instant::now(), Some(self.bursts.load(Ordering::Relaxed)));
            if seen != bursts {
                (seen, seen_at) = (bursts, now);
            } else if now.duration_since(seen_at) >= HOLD_TIME {
                return;
            }
            look(now);
            thread::park_timeout(interval);
        }
    }

    /// Keeps idle CPUs awake, if the options and the machine allow it.
    fn hold_awake(&self) -> Option<File> {
        if !self.polls.load(Ordering::Relaxed) {
            return None;
        }
        let held = idle_poll::hold_awake().inspect_err(|error| {
            log::info!("idle CPUs may halt between requests: {}: {error}", idle_poll::DEVICE);
            self.polls.store(false, Ordering::Relaxed);
        });
        held.ok()
    }

    /// Ends [`Governor::run`].
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn note_burst(&self) {
        self.bursts.fetch_add(1, Ordering::Relaxed);
        if !self.attends.load(Ordering::SeqCst) {
            self.wanted.store(true, Ordering::SeqCst);
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Counts the requests of one reader.
pub(crate) struct Pulse<'a> {
    governor: &'a Governor,
    count: u32,
    since: Instant,
    /// The counts of a ring whose thread gives way.
    giving_way: Option<(&'a GivingWay, Arc<Counts>)>,
}

impl Pulse<'_> {
    pub(crate) fn new(governor: &Governor) -> Pulse<'_> {
        Pulse { governor, count: 0, since: Instant::now(), giving_way: None }
    }

    /// Lets the calling thread give way during bursts. REQUIRES: the thread serves the ring of the only CPU that it
    /// runs on.
    pub(crate) fn give_way(&mut self) {
        if let (Some(giving_way), None) = (&self.governor.giving_way, &self.giving_way) {
            self.giving_way = Some((giving_way, giving_way.join()));
        }
    }

    /// Counts one request.
    pub(crate) fn beat(&mut self) {
        if let Some((_, counts)) = &self.giving_way {
            counts.beat();
        }
        self.count += 1;
        if self.count < BURST_REQUESTS || !self.governor.works() {
            return;
        }
        self.count = 0;
        let now = Instant::now();
        if now.duration_since(self.since) <= BURST_TIME {
            if let Some((_, counts)) = &self.giving_way {
                counts.note_burst();
            }
            self.governor.note_burst();
        }
        self.since = now;
    }
}

impl Drop for Pulse<'_> {
    fn drop(&mut self) {
        if let Some((giving_way, counts)) = self.giving_way.take() {
            giving_way.leave(&counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use varve_testkit::eventually;

    use super::*;

    fn beats(governor: &Governor, count: u32) {
        let mut pulse = Pulse::new(governor);
        (0..count).for_each(|_| pulse.beat());
    }

    #[test]
    fn only_thick_requests_are_a_burst() {
        let governor = Governor::new(IdlePoll::Always, false);
        let bursts = || governor.bursts.load(Ordering::Relaxed);
        beats(&governor, BURST_REQUESTS - 1);
        assert_eq!(bursts(), 0);
        // The test may be delayed for longer than a burst takes.
        eventually("it is a burst", || {
            beats(&governor, BURST_REQUESTS);
            bursts() == 1
        });
        let mut slow = Pulse::new(&governor);
        slow.since -= 2 * BURST_TIME;
        (0..BURST_REQUESTS).for_each(|_| slow.beat());
        assert_eq!(bursts(), 1);
        let nothing_to_do = Governor::new(IdlePoll::Never, false);
        beats(&nothing_to_do, 10 * BURST_REQUESTS);
        assert_eq!(nothing_to_do.bursts.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn bursts_are_attended_while_they_last_and_the_device_may_be_held() {
        let governor = Governor::new(IdlePoll::Always, false);
        thread::scope(|scope| {
            let thread = scope.spawn(|| governor.run());
            let attends = || governor.attends.load(Ordering::Relaxed);
            // Bursts last as long as nobody has seen that they are attended: who looks may be away for longer than one.
            let attend = || {
                eventually("it is attended", || {
                    beats(&governor, BURST_REQUESTS);
                    attends() || !governor.works()
                });
            };
            attend();
            eventually("it is over", || !attends());
            if governor.works() {
                attend();
            } else {
                varve_testkit::skipped(&format!("{} is not for this user", idle_poll::DEVICE));
            }
            governor.end();
            thread.join().unwrap();
        });
        assert_eq!(governor.works(), idle_poll::hold_awake().is_ok());
    }
}
