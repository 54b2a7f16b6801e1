//! Lets the threads of rings give way to their callers, so that the callers stay on their CPU.
//!
//! An answer wakes its caller while the ring's thread still runs. The scheduler sees a busy CPU, looks for an idle
//! one and puts the caller there. The ring of that CPU serves the next request, and so on: the caller moves with
//! nearly every request, and the caches of one CPU are filled again on another. A CPU that runs only threads under
//! SCHED_IDLE counts as idle for this search (`sched_idle_cpu` in `select_idle_sibling`, kernel/sched/fair.c). So the
//! callers of a ring whose thread runs under SCHED_IDLE stay where they are.
//!
//! Such a thread gets almost no time on a CPU on which other threads of its scheduling group compute. If no CPU is
//! idle, the scheduler does not move the caller anyway. So a thread gives way only in bursts while the machine has
//! time to spare ([`Slack`]), and the governor watches it meanwhile:
//!
//! ```text
//!                 a burst, slack, no pause                       was ready for half of the time without running
//!         +--------------------------------> giving way --------------------------------------+
//!         |                                      |                                            v
//!       fair <-----------------------------------+                                         waited
//!         ^          no slack, no burst for HOLD_TIME, end                                    |
//!         +-----------------------------------------------------------------------------------+
//!              at the next look; with a pause if it has served a request since then
//! ```
//!
//! [`Share::look`] decides and [`Ring::look`] carries it out. A thread that was ready may only have wanted to go to
//! sleep after its last answer. If it serves a request as soon as it has its share again, it was starved. Then it
//! pauses before it gives way again: twice as long as before if it starved soon after it had begun to give way, else
//! half as long.
//!
//! A thread needs no right to give way, but CAP_SYS_NICE (or RLIMIT_NICE) to get its share back. Without this right
//! no thread gives way.
//!
//! Invariant: a thread that gives way is registered with the governor, which gives it its share back.

mod slack;
mod times;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use slack::Slack;
use times::Times;

use super::HOLD_TIME;
use crate::readers::policy::{self, Policy};

/// How often the governor looks at threads that give way. A starved thread gets its share back after at most twice
/// this time, and then waits for its turn as others do.
pub(super) const LOOK_TIME: Duration = Duration::from_millis(5);
/// The pause of a starved thread grows if the thread had given way for less than this.
const SOON: Duration = Duration::from_millis(50);
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_millis(6400);

/// The threads that give way.
#[derive(Debug, Default)]
pub(super) struct GivingWay {
    rings: Mutex<Vec<Ring>>,
}

/// What a ring's thread counts. Each thread has counts of its own, because the threads run on different CPUs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counts {
    served: AtomicU64,
    bursts: AtomicU64,
    leaves: AtomicBool,
}

impl Counts {
    /// Counts one request. REQUIRES: called by one thread.
    pub(super) fn beat(&self) {
        self.served.store(self.served.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts one burst.
    pub(super) fn note_burst(&self) {
        self.bursts.fetch_add(1, Ordering::Relaxed);
    }
}

impl GivingWay {
    /// `None` if this process could not give a thread its share back.
    pub(super) fn new() -> Option<GivingWay> {
        static IS_ALLOWED: OnceLock<bool> = OnceLock::new();
        let is_allowed = *IS_ALLOWED.get_or_init(|| {
            let tried = try_on_another();
            if let Err(err) = &tried {
                log::debug!("callers move between CPUs: {err}");
            }
            tried.is_ok()
        });
        is_allowed.then(GivingWay::default)
    }

    /// Lets the calling thread give way from its next burst on, until [`GivingWay::leave`].
    pub(super) fn join(&self) -> Arc<Counts> {
        let counts = Arc::<Counts>::default();
        let share = Share::new(Instant::now());
        let ring =
            Ring { tid: gettid(), counts: Arc::clone(&counts), bursts: 0, share, times: None };
        self.rings.lock().push(ring);
        counts
    }

    /// Gives the calling thread its fair share from here on.
    pub(super) fn leave(&self, counts: &Arc<Counts>) {
        counts.leaves.store(true, Ordering::SeqCst);
        // Before it takes the lock that the governor takes too.
        call_back(0);
        self.rings.lock().retain(|ring| !Arc::ptr_eq(&ring.counts, counts));
        // The governor may have made it give way once more just before.
        call_back(0);
    }

    /// Returns the watch over all threads that give way.
    pub(super) fn watch(&self) -> Watch<'_> {
        Watch { giving_way: self, slack: Slack::new() }
    }
}

/// Watches the threads that give way. When it is dropped, no thread gives way any more.
pub(super) struct Watch<'a> {
    giving_way: &'a GivingWay,
    slack: Slack,
}

impl Watch<'_> {
    pub(super) fn look(&mut self, now: Instant) {
        let has_slack = self.slack.look(now);
        self.giving_way.rings.lock().iter_mut().for_each(|ring| ring.look(has_slack, now));
    }

    /// Ends a burst: no thread gives way until the next one.
    pub(super) fn end_burst(&mut self) {
        self.giving_way.rings.lock().iter_mut().for_each(Ring::end_burst);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.end_burst();
    }
}

/// A thread of a ring.
#[derive(Debug)]
struct Ring {
    tid: libc::pid_t,
    counts: Arc<Counts>,
    /// The number of bursts before the last look.
    bursts: u64,
    share: Share,
    /// The times of the thread while it gives way.
    times: Option<Times>,
}

impl Ring {
    fn look(&mut self, has_slack: bool, now: Instant) {
        if self.counts.leaves.load(Ordering::SeqCst) {
            return;
        }
        let bursts = self.counts.bursts.load(Ordering::Relaxed);
        let seen = Seen {
            now,
            in_burst: bursts != std::mem::replace(&mut self.bursts, bursts),
            has_slack,
            served: self.counts.served.load(Ordering::Relaxed),
            was_kept: self.times.as_mut().is_some_and(|times| times.was_kept(now)),
        };
        match (self.share.look(&seen), &self.times) {
            (true, None) => self.give_way(now),
            // Again, because a thread takes its share while it starts another (`readers::take_share`).
            (true, Some(_)) => self.try_to_give_way(),
            (false, Some(_)) => self.call_back(),
            (false, None) => {}
        }
    }

    fn give_way(&mut self, now: Instant) {
        match Times::of(self.tid, now) {
            Ok(times) => {
                self.times = Some(times);
                self.try_to_give_way();
            }
            Err(err) => log::debug!("a ring's thread does not give way: {err}"),
        }
    }

    fn try_to_give_way(&self) {
        if let Err(err) = policy::set(self.tid, Policy::Idle) {
            log::debug!("a ring's thread does not give way: {err}");
        }
    }

    /// If this fails, the next look tries again.
    fn call_back(&mut self) {
        if call_back(self.tid) {
            self.times = None;
        }
    }

    fn end_burst(&mut self) {
        self.share.end_burst();
        if self.times.is_some() && !self.counts.leaves.load(Ordering::SeqCst) {
            self.call_back();
        }
    }
}

/// How a ring's thread shares its CPU with its callers.
#[derive(Debug)]
struct Share {
    turn: Turn,
    /// When its last burst was reported.
    burst_at: Instant,
    pause: Duration,
}

#[derive(Debug)]
enum Turn {
    /// It has its fair share.
    Fair { until: Instant },
    /// It has its fair share again, after it was ready and did not run. It had served this many requests and given
    /// way for this long.
    Waited { served: u64, gave: Duration },
    /// It gives way.
    Giving { since: Instant },
}

/// What a look finds about a thread.
struct Seen {
    now: Instant,
    /// It reported bursts since the last look.
    in_burst: bool,
    has_slack: bool,
    /// The requests that it has served so far.
    served: u64,
    /// It gives way and was ready for too long without running.
    was_kept: bool,
}

impl Share {
    fn new(now: Instant) -> Share {
        Share { turn: Turn::Fair { until: now }, burst_at: now, pause: PAUSE_MIN }
    }

    /// Decides whether the thread gives way from now on.
    fn look(&mut self, seen: &Seen) -> bool {
        let now = seen.now;
        if seen.in_burst {
            self.burst_at = now;
        }
        match self.turn {
            Turn::Fair { until } if seen.in_burst && seen.has_slack && now >= until => {
                self.turn = Turn::Giving { since: now };
            }
            Turn::Fair { .. } => {}
            Turn::Waited { served, .. } if served == seen.served => {
                self.turn = Turn::Fair { until: now };
            }
            Turn::Waited { gave, .. } => {
                let pause = if gave < SOON { 2 * self.pause } else { self.pause / 2 };
                self.pause = pause.clamp(PAUSE_MIN, PAUSE_MAX);
                self.turn = Turn::Fair { until: now + self.pause };
            }
            Turn::Giving { since } if seen.was_kept => {
                self.turn = Turn::Waited { served: seen.served, gave: now.duration_since(since) };
            }
            Turn::Giving { .. }
                if !seen.has_slack || now.duration_since(self.burst_at) > HOLD_TIME =>
            {
                self.turn = Turn::Fair { until: now };
            }
            Turn::Giving { .. } => {}
        }
        matches!(self.turn, Turn::Giving { .. })
    }

    fn end_burst(&mut self) {
        if let Turn::Giving { since } = self.turn {
            self.turn = Turn::Fair { until: since };
        }
    }
}

/// Gives the thread `tid`, or the calling one if that is 0, its fair share back. Returns whether that succeeded.
fn call_back(tid: libc::pid_t) -> bool {
    let done = policy::set(tid, Policy::Batch);
    if let Err(err) = &done {
        log::warn!("a thread of a ring keeps the lowest priority on its CPU: {err}");
    }
    done.is_ok()
}

/// Tries whether this process can give a thread its share back: makes an idle thread give way, and undoes it.
fn try_on_another() -> std::io::Result<()> {
    let (tell, told) = mpsc::channel();
    let (_stay, until_gone) = mpsc::channel::<()>();
    std::thread::Builder::new().spawn(move || {
        let _ = tell.send(gettid());
        let _ = until_gone.recv();
    })?;
    let tid = told.recv().map_err(std::io::Error::other)?;
    Times::of(tid, Instant::now())?;
    policy::set(tid, Policy::Idle)?;
    policy::set(tid, Policy::Batch)
}

fn gettid() -> libc::pid_t {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests;
