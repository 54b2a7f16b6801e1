//! Doing a worker's operations by the clock.
//!
//! 1. Take a batch of operations from the workload, with the clock stopped: what it takes to make up names is
//!    not the file system's.
//! 2. Do them one after the other (closed loop), or each when it is due at a fixed rate (open loop). In the
//!    open loop an operation's latency counts from when it was due, so that one that waits for a slow one
//!    before it is not overlooked.
//! 3. Note the latency of each, how many were done in each tenth of a second, and the worker's CPU time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::op::Op;
use crate::place::{Hands, Place};

/// Operations whose names are made up at once.
const BATCH: usize = 1024;

/// The time over which operations are counted together, for rates over time.
pub(crate) const BUCKET: Duration = Duration::from_millis(100);

/// An empty histogram of latencies in nanoseconds, from 1 ns to an hour, to three digits.
pub(crate) fn latencies() -> Result<Histogram<u64>, Failure> {
    Ok(Histogram::new_with_bounds(1, 3_600_000_000_000, 3)?)
}

/// Set by a signal: workers stop at the next operation.
pub(crate) static IS_INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// What one worker did in one phase.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Operations.
    pub(crate) ops: u64,
    /// Names that listings met, and 1 for each other operation.
    pub(crate) names: u64,
    /// Time spent in operations, and in the open loop between them.
    pub(crate) active: Duration,
    /// CPU time of the worker and of the programs it ran.
    pub(crate) cpu: Duration,
    /// CPU time of a worker's thread from its start, making up names included.
    pub(crate) thread_cpu: Duration,
    /// For each kind of operation, how many there were and what they took together.
    pub(crate) kinds: BTreeMap<String, (u64, Duration)>,
    /// Latencies in nanoseconds, each with how many there were.
    pub(crate) latencies: Vec<(u64, u64)>,
    /// Operations done in each [`BUCKET`] of the active time.
    pub(crate) buckets: Vec<u64>,
}

/// Does `ops` on `place`, the next one due `interval` after the one before if one is given.
pub(crate) fn measure(
    place: &dyn Place,
    mut ops: Box<dyn Iterator<Item = Op> + '_>,
    interval: Option<Duration>,
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let mut latencies = latencies()?;
    let mut hands = Hands::new();
    let mut kinds = Vec::new();
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        batch.clear();
        batch.extend(ops.by_ref().take(BATCH));
        if batch.is_empty() {
            break;
        }
        let cpu = cpu_of_this_thread() + cpu_of_children()?;
        let begin = Instant::now();
        let mut last = begin;
        for (at, op) in batch.iter().enumerate() {
            if IS_INTERRUPTED.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            if let Some(interval) = interval {
                last = wait_until(begin + interval * u32::try_from(at)?);
            }
            tally.names += hands.apply(place, op)?;
            let now = Instant::now();
            latencies.saturating_record((now - last).as_nanos() as u64);
            note(&mut kinds, op.kind(), now - last);
            last = now;
            tally.ops += 1;
            count(&mut tally.buckets, tally.active + (now - begin));
        }
        tally.active += last - begin;
        tally.cpu += (cpu_of_this_thread() + cpu_of_children()?).saturating_sub(cpu);
    }
    tally.thread_cpu = cpu_of_this_thread();
    tally.kinds =
        kinds.into_iter().map(|(kind, count, time)| (kind.to_owned(), (count, time))).collect();
    tally.latencies = latencies
        .iter_recorded()
        .map(|step| (step.value_iterated_to(), step.count_at_value()))
        .collect();
    Ok(tally)
}

/// Adds one operation to those of its kind. Phases have few kinds, mostly one.
fn note(kinds: &mut Vec<(&'static str, u64, Duration)>, kind: &'static str, time: Duration) {
    match kinds.iter_mut().find(|known| known.0 == kind) {
        Some((_, count, sum)) => {
            *count += 1;
            *sum += time;
        }
        None => kinds.push((kind, 1, time)),
    }
}

/// Counts one operation that ended at `time`.
fn count(buckets: &mut Vec<u64>, time: Duration) {
    let at = (time.as_nanos() / BUCKET.as_nanos()) as usize;
    if buckets.len() <= at {
        buckets.resize(at + 1, 0);
    }
    buckets[at] += 1;
}

/// Sleeps until `due` and returns it.
fn wait_until(due: Instant) -> Instant {
    let now = Instant::now();
    if due > now {
        std::thread::sleep(due - now);
    }
    due
}

/// CPU time of the calling thread.
fn cpu_of_this_thread() -> Duration {
    duration(ClockId::ThreadCPUTime)
}

/// CPU time of this process, all its threads.
pub(crate) fn cpu_of_this_process() -> Duration {
    duration(ClockId::ProcessCPUTime)
}

fn duration(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// CPU time of the programs that this process ran and waited for; the kernel counts it in hundredths of a
/// second.
fn cpu_of_children() -> Result<Duration, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Fields 16 and 17 of proc(5); the second one is a name in parentheses.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(13).take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 10))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Kernel;

    #[test]
    fn an_open_loop_keeps_its_rate() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let place = Kernel::new(dir.path()).expect("directory opens");
        let ops = (0..50).map(|at| Op::MakeDir(format!("d{at}")));
        let tally = measure(&place, Box::new(ops), Some(Duration::from_millis(1))).expect("phase");
        assert_eq!((tally.ops, tally.names), (50, 50));
        assert!(tally.active >= Duration::from_millis(49));
        assert_eq!(tally.buckets.iter().sum::<u64>(), 50);
        assert_eq!(tally.latencies.iter().map(|(_, count)| count).sum::<u64>(), 50);
    }

    #[test]
    fn the_first_error_ends_the_phase() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let place = Kernel::new(dir.path()).expect("directory opens");
        let ops = ["a", "a"].map(|name| Op::MakeDir(name.to_owned())).into_iter();
        assert!(measure(&place, Box::new(ops), None).is_err());
    }
}
