//! Doing a worker's operations by the clock.
//!
//! 1. Take a batch of operations from the workload: the first before all workers are let go, each later one while the clock
//!    stands for as long as it takes of a CPU, as making up names is not the file system's. The time that somebody else
//!    has the CPU meanwhile counts: others operate then.
//! 2. Do them one after the other (closed loop), or each when it is due at a fixed rate (open loop, [`Pace`]). In the
//!    open loop an operation's latency counts from when it was due, so that one that waits for a slow one
//!    before it is not overlooked.
//! 3. Note the latency of each, by its kind, how many were done in each tenth of a second since all were let go, and the worker's
//!    CPU time.
//! 4. Compare some of what was read, while the clock stands again.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::machine::cpu_in_stat;
use crate::op::Op;
use crate::place::{Hands, Place};

/// Operations whose names are made up at once.
const BATCH: usize = 1024;

/// The time over which operations are counted together, for rates over time.
pub(crate) const BUCKET: Duration = Duration::from_millis(100);

/// The longest sleep that does not look whether the run is to end.
const SLEEP_MAX: Duration = Duration::from_millis(200);

/// An empty histogram of latencies in nanoseconds, from 1 ns to an hour, to three digits.
pub(crate) fn latencies() -> Result<Histogram<u64>, Failure> {
    Ok(Histogram::new_with_bounds(1, 3_600_000_000_000, 3)?)
}

/// Set by a signal: workers stop at the next operation, and what waits for others with the next answer.
pub(crate) static IS_INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// An error once a signal has asked for the end.
pub(crate) fn check_interrupt() -> Result<(), Failure> {
    match IS_INTERRUPTED.load(Ordering::Relaxed) {
        true => Err("interrupted".into()),
        false => Ok(()),
    }
}

/// Waits until there is something to read from `source`, or nothing ever will be; an error once a signal has asked for the end.
pub(crate) fn wait_for(source: &impl AsFd) -> Result<(), Failure> {
    let longest = SLEEP_MAX.try_into()?;
    loop {
        check_interrupt()?;
        match poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&longest)) {
            Ok(0) | Err(Errno::INTR) => {}
            done => return Ok(done.map(drop)?),
        }
    }
}

/// What one worker did in one phase.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Operations.
    pub(crate) ops: u64,
    /// Names that listings met, and 1 for each other operation.
    pub(crate) names: u64,
    /// From when all workers were let go to the end of its last operation, but for the CPU time that it took for anything else.
    pub(crate) active: Duration,
    /// CPU time of the worker and of the programs it ran.
    pub(crate) cpu: Duration,
    /// CPU time of a worker's thread from its start, making up names included.
    pub(crate) thread_cpu: Duration,
    /// Latencies of each kind of operation in nanoseconds, each with how many there were.
    pub(crate) latencies: BTreeMap<String, Vec<(u64, u64)>>,
    /// Whether the time was over before the operations were.
    pub(crate) is_cut: bool,
    /// Names met, as in `names`, in each [`BUCKET`] of the active time.
    pub(crate) buckets: Vec<u64>,
}

/// Operations at a fixed rate: when each is due, and how late the file system is with it.
///
/// Who sleeps until an operation is due wakes some microseconds late, which is not the file system's. So lateness is not
/// read from the clock but is what a client that is never late would find: each operation begins when it is due or when the
/// one before has ended, and takes as long as it took.
struct Pace {
    interval: Duration,
    /// When the next operation is due, in active time.
    due: Duration,
    /// How late the next operation begins.
    behind: Duration,
}

impl Pace {
    fn of(tempo: &Tempo) -> Option<Pace> {
        let interval = tempo.interval?;
        Some(Pace { interval, due: tempo.first, behind: Duration::ZERO })
    }

    /// Waits until the next operation is due, unless it is; active time counts from `origin`. Returns when that is.
    fn wait(&mut self, origin: Instant) -> Result<Instant, Failure> {
        let due = origin + self.due;
        self.due += self.interval;
        loop {
            let now = Instant::now();
            if due <= now {
                return Ok(now);
            }
            check_interrupt()?;
            std::thread::sleep((due - now).min(SLEEP_MAX));
        }
    }

    /// The latency of the next operation, which took so long once it had begun.
    fn latency(&mut self, took: Duration) -> Duration {
        let latency = self.behind + took;
        self.behind = latency.saturating_sub(self.interval);
        latency
    }
}

/// By which clock operations are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tempo {
    /// The time from one to the next; `None`: as fast as possible.
    pub(crate) interval: Option<Duration>,
    /// When the first is due, in active time.
    pub(crate) first: Duration,
    /// The active time after which none begins, if there is such a one.
    pub(crate) limit: Option<Duration>,
}

/// Does `ops` on `place`, from the moment on that `release` gives: it waits until all workers are ready.
pub(crate) fn measure(
    place: &dyn Place,
    mut ops: Box<dyn Iterator<Item = Op> + '_>,
    tempo: Tempo,
    release: impl FnOnce() -> Result<Instant, Failure>,
) -> Result<Tally, Failure> {
    let mut work = Work::new(tempo);
    let mut batch: Vec<Op> = ops.by_ref().take(BATCH).collect();
    let mut origin = release()?;
    let mut idle_since = cpu_of_this_thread();
    while !batch.is_empty() && !work.tally.is_cut {
        // The thread's own is read next to the work, at both ends: to read the other takes some.
        let (children, begin) = (cpu_of_children()?, cpu_of_this_thread());
        origin += begin.saturating_sub(idle_since);
        let checking = work.on(&batch, place, &mut origin)?;
        idle_since = cpu_of_this_thread();
        let children = cpu_of_children()?.saturating_sub(children);
        work.tally.cpu += children + idle_since.saturating_sub(begin + checking);
        batch.clear();
        batch.extend(ops.by_ref().take(BATCH));
    }
    work.end()
}

/// What a worker has at hand and has done.
struct Work {
    tempo: Tempo,
    pace: Option<Pace>,
    hands: Hands,
    tally: Tally,
    /// Of each kind of operation.
    latencies: Vec<(&'static str, Histogram<u64>)>,
}

impl Work {
    fn new(tempo: Tempo) -> Work {
        let (hands, tally, latencies) = (Hands::new(), Tally::default(), Vec::new());
        Work { tempo, pace: Pace::of(&tempo), hands, tally, latencies }
    }

    /// Does a batch. Active time is what has passed since `origin`, which is moved on by the CPU time of checking what was read;
    /// returns that.
    fn on(
        &mut self,
        batch: &[Op],
        place: &dyn Place,
        origin: &mut Instant,
    ) -> Result<Duration, Failure> {
        let mut checked = Duration::ZERO;
        // The end of the operation before.
        let mut last = Instant::now();
        for op in batch {
            check_interrupt()?;
            if let Some(pace) = &mut self.pace {
                last = pace.wait(*origin)?;
            }
            if self.tempo.limit.is_some_and(|limit| last - *origin >= limit) {
                self.tally.is_cut = true;
                break;
            }
            let names = self.hands.apply(place, op)?;
            let now = Instant::now();
            self.note(op, now - last, names, now - *origin)?;
            last = now;
            if let Some(checking) = self.hands.check_read(op)? {
                checked += checking;
                *origin += checking;
                last = Instant::now();
            }
        }
        Ok(checked)
    }

    /// Adds an operation that took so long and ended at `active`.
    fn note(
        &mut self,
        op: &Op,
        took: Duration,
        names: u64,
        active: Duration,
    ) -> Result<(), Failure> {
        let latency = self.pace.as_mut().map_or(took, |pace| pace.latency(took));
        self.latencies_of(op.kind())?.saturating_record(latency.as_nanos() as u64);
        self.tally.ops += 1;
        self.tally.names += names;
        self.tally.active = active;
        count(&mut self.tally.buckets, active, names);
        Ok(())
    }

    /// Phases have few kinds, mostly one.
    fn latencies_of(&mut self, kind: &'static str) -> Result<&mut Histogram<u64>, Failure> {
        let at = match self.latencies.iter().position(|(known, _)| *known == kind) {
            Some(at) => at,
            None => {
                self.latencies.push((kind, latencies()?));
                self.latencies.len() - 1
            }
        };
        Ok(&mut self.latencies[at].1)
    }

    fn end(mut self) -> Result<Tally, Failure> {
        self.hands.close()?;
        let mut tally = self.tally;
        tally.thread_cpu = cpu_of_this_thread();
        let counts = |latencies: &Histogram<u64>| {
            let steps = latencies.iter_recorded();
            steps.map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
        };
        let latencies = self.latencies.iter();
        tally.latencies = latencies.map(|(kind, it)| ((*kind).to_owned(), counts(it))).collect();
        Ok(tally)
    }
}

/// Counts the names of an operation that ended at `time`.
fn count(buckets: &mut Vec<u64>, time: Duration, names: u64) {
    let at = (time.as_nanos() / BUCKET.as_nanos()) as usize;
    if buckets.len() <= at {
        buckets.resize(at + 1, 0);
    }
    buckets[at] += names;
}

/// CPU time of the calling thread.
pub(crate) fn cpu_of_this_thread() -> Duration {
    duration(ClockId::ThreadCPUTime)
}

/// CPU time of this process, all its threads.
pub(crate) fn cpu_of_this_process() -> Duration {
    duration(ClockId::ProcessCPUTime)
}

/// The time by the clock that all processes share.
pub(crate) fn since_boot() -> Duration {
    duration(ClockId::Monotonic)
}

fn duration(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// CPU time of the programs that this process ran and waited for; the kernel counts it in hundredths of a
/// second.
fn cpu_of_children() -> Result<Duration, Failure> {
    // Fields 16 and 17 of proc_pid_stat(5).
    cpu_in_stat("self", 16)
}

#[cfg(test)]
mod tests;
