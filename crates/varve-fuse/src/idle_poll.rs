//! Keeps idle CPUs from halting while requests come thick.
//!
//! Each answer wakes its caller, most often on a CPU that went idle a few microseconds ago. In a virtual
//! machine an idle CPU halts into the hypervisor, and waking it costs several times what the request did
//! (measured with two CPUs: 13 microseconds for a chmod against 9, 45 for a rename against 25). A process that
//! holds /dev/cpu_dma_latency open with the value 0 makes idle CPUs poll instead (the kernel's
//! Documentation/power/pm_qos_interface). That is worth it only in a burst:
//!
//! ```text
//! quiet --a reader served BURST_REQUESTS within BURST_TIME--> polling --no burst for HOLD_TIME--> quiet
//! ```
//!
//! One thread holds the device; the kernel lets go of it if the process dies.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

const DEVICE: &str = "/dev/cpu_dma_latency";
const CPU_IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// The kernel's driver for machines where going idle leaves the virtual machine.
const VIRTUAL_DRIVER: &str = "haltpoll";
/// What one reader must serve within [`BURST_TIME`] to call it a burst: 3,200 requests a second.
const BURST_REQUESTS: u32 = 64;
const BURST_TIME: Duration = Duration::from_millis(20);
/// How long idle CPUs go on polling after the last burst.
const HOLD_TIME: Duration = Duration::from_millis(20);

/// Whether idle CPUs poll while requests come thick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePoll {
    /// Where halting is dear: in a virtual machine with the `haltpoll` driver.
    Auto,
    /// On every machine.
    Always,
    /// Never.
    Never,
}

impl IdlePoll {
    #[allow(clippy::disallowed_methods, reason = "the idle driver belongs to the machine")]
    fn is_wanted(self) -> bool {
        match self {
            IdlePoll::Always => true,
            IdlePoll::Never => false,
            IdlePoll::Auto => std::fs::read_to_string(CPU_IDLE_DRIVER)
                .is_ok_and(|driver| driver.trim() == VIRTUAL_DRIVER),
        }
    }
}

/// Decides when idle CPUs poll.
#[derive(Debug, Default)]
pub(crate) struct Governor {
    /// False if it is not wanted or not allowed; then nothing else happens here.
    works: AtomicBool,
    /// Bursts that readers saw.
    bursts: AtomicU64,
    polling: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    ended: bool,
}

impl Governor {
    pub(crate) fn new(when: IdlePoll) -> Governor {
        Governor { works: AtomicBool::new(when.is_wanted()), ..Governor::default() }
    }

    /// Whether [`Governor::run`] has anything to do.
    pub(crate) fn works(&self) -> bool {
        self.works.load(Ordering::Relaxed)
    }

    /// Holds the device during bursts until [`Governor::end`]. REQUIRES: called by one thread.
    pub(crate) fn run(&self) {
        while self.works() {
            let mut state = self.state.lock();
            while !state.wanted && !state.ended {
                self.changed.wait(&mut state);
            }
            if state.ended {
                return;
            }
            state.wanted = false;
            drop(state);
            match hold_awake() {
                Ok(held) => {
                    self.polling.store(true, Ordering::Relaxed);
                    self.wait_for_quiet();
                    self.polling.store(false, Ordering::Relaxed);
                    drop(held);
                }
                Err(error) => {
                    log::info!("idle CPUs may halt between requests: {DEVICE}: {error}");
                    self.works.store(false, Ordering::Relaxed);
                }
            }
        }
    }

    fn wait_for_quiet(&self) {
        let mut seen = None;
        let mut state = self.state.lock();
        while !state.ended && seen != Some(self.bursts.load(Ordering::Relaxed)) {
            seen = Some(self.bursts.load(Ordering::Relaxed));
            self.changed.wait_for(&mut state, HOLD_TIME);
        }
        state.wanted = false;
    }

    /// Ends [`Governor::run`].
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    fn note_burst(&self) {
        self.bursts.fetch_add(1, Ordering::Relaxed);
        if !self.polling.load(Ordering::Relaxed) {
            self.state.lock().wanted = true;
            self.changed.notify_all();
        }
    }
}

/// Idle CPUs poll while the file is open.
#[allow(clippy::disallowed_methods, reason = "the device belongs to the machine")]
fn hold_awake() -> std::io::Result<File> {
    let mut device = OpenOptions::new().write(true).open(DEVICE)?;
    device.write_all(&0_i32.to_ne_bytes())?;
    Ok(device)
}

/// Counts the requests of one reader.
pub(crate) struct Pulse<'a> {
    governor: &'a Governor,
    count: u32,
    since: Instant,
}

impl Pulse<'_> {
    #[allow(clippy::disallowed_methods, reason = "paces the machine's CPUs, not the store")]
    pub(crate) fn new(governor: &Governor) -> Pulse<'_> {
        Pulse { governor, count: 0, since: Instant::now() }
    }

    /// Counts one request.
    #[allow(clippy::disallowed_methods, reason = "paces the machine's CPUs, not the store")]
    pub(crate) fn beat(&mut self) {
        self.count += 1;
        if self.count < BURST_REQUESTS || !self.governor.works() {
            return;
        }
        self.count = 0;
        let now = Instant::now();
        if now.duration_since(self.since) <= BURST_TIME {
            self.governor.note_burst();
        }
        self.since = now;
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
        let governor = Governor::new(IdlePoll::Always);
        beats(&governor, BURST_REQUESTS - 1);
        assert_eq!(governor.bursts.load(Ordering::Relaxed), 0);
        beats(&governor, BURST_REQUESTS);
        assert_eq!(governor.bursts.load(Ordering::Relaxed), 1);
        let mut slow = Pulse::new(&governor);
        slow.since -= 2 * BURST_TIME;
        (0..BURST_REQUESTS).for_each(|_| slow.beat());
        assert_eq!(governor.bursts.load(Ordering::Relaxed), 1);
        beats(&Governor::new(IdlePoll::Never), 10 * BURST_REQUESTS);
    }

    #[test]
    fn the_device_is_held_in_a_burst_and_let_go_after() {
        let governor = Governor::new(IdlePoll::Always);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| governor.run());
            let is_polling = || governor.polling.load(Ordering::Relaxed);
            // Bursts last as long as nobody has seen that the device is held: who looks may be away for longer than one.
            let hold = || {
                eventually("it is held", || {
                    beats(&governor, BURST_REQUESTS);
                    is_polling() || !governor.works()
                });
            };
            hold();
            eventually("it is let go", || !is_polling());
            if governor.works() {
                hold();
            } else {
                varve_testkit::skipped(&format!("{DEVICE} is not for this user"));
            }
            governor.end();
            thread.join().unwrap();
        });
    }
}
