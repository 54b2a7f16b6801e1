//! Doing a worker's operations by the clock.
//!
//! 1. Take a batch of operations from the workload, with the clock stopped: what it takes to make up names is
//!    not the file system's.
//! 2. Do them one after the other (closed loop), or each when it is due at a fixed rate (open loop, [`Pace`]). In the
//!    open loop an operation's latency counts from when it was due, so that one that waits for a slow one
//!    before it is not overlooked.
//! 3. Note the latency of each, how many were done in each tenth of a second, and the worker's CPU time.
//! 4. Compare some of what was read, with the clock stopped again.

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
    fn new(interval: Duration) -> Pace {
        Pace { interval, due: Duration::ZERO, behind: Duration::ZERO }
    }

    /// Waits until the next operation is due, unless it is; active time counts from `origin`. Returns when that is.
    fn wait(&mut self, origin: Instant) -> Instant {
        let (due, now) = (origin + self.due, Instant::now());
        self.due += self.interval;
        if due <= now {
            return now;
        }
        std::thread::sleep(due - now);
        Instant::now()
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
    /// The active time after which none begins, if there is such a one.
    pub(crate) limit: Option<Duration>,
}

/// Does `ops` on `place`.
pub(crate) fn measure(
    place: &dyn Place,
    mut ops: Box<dyn Iterator<Item = Op> + '_>,
    tempo: Tempo,
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let mut latencies = latencies()?;
    let mut hands = Hands::new();
    let mut kinds = Vec::new();
    let mut batch = Vec::with_capacity(BATCH);
    let mut pace = tempo.interval.map(Pace::new);
    // Active time is what has passed since the first, which moves on while the clock stands; the second is the end of the
    // last operation.
    let mut origin = Instant::now();
    let mut last = origin;
    while !tally.is_cut {
        batch.clear();
        batch.extend(ops.by_ref().take(BATCH));
        if batch.is_empty() {
            break;
        }
        // The thread's own is read next to the work, at both ends: to read the other takes some.
        let mut cpu = cpu_of_children()? + cpu_of_this_thread();
        go_on(&mut origin, &mut last);
        for op in &batch {
            if IS_INTERRUPTED.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            if let Some(pace) = &mut pace {
                last = pace.wait(origin);
            }
            if tempo.limit.is_some_and(|limit| last - origin >= limit) {
                tally.is_cut = true;
                break;
            }
            let names = hands.apply(place, op)?;
            let now = Instant::now();
            let took = now - last;
            let latency = pace.as_mut().map_or(took, |pace| pace.latency(took));
            latencies.saturating_record(latency.as_nanos() as u64);
            note(&mut kinds, op.kind(), latency);
            last = now;
            tally.ops += 1;
            tally.names += names;
            count(&mut tally.buckets, now - origin, names);
            if let Some(checking) = hands.check_read(op)? {
                cpu += checking;
                go_on(&mut origin, &mut last);
            }
        }
        tally.active = last - origin;
        tally.cpu += (cpu_of_this_thread() + cpu_of_children()?).saturating_sub(cpu);
    }
    hands.close()?;
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

/// Lets the clock go on, which has stood since `last`.
fn go_on(origin: &mut Instant, last: &mut Instant) {
    let now = Instant::now();
    *origin += now - *last;
    *last = now;
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
    use crate::op::Detail;
    use crate::place::Kernel;

    #[test]
    fn an_open_loop_keeps_its_rate() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let place = Kernel::new(dir.path()).expect("directory opens");
        let ops = (0..50).map(|at| Op::MakeDir(format!("d{at}")));
        let tempo = Tempo { interval: Some(Duration::from_millis(1)), limit: None };
        let tally = measure(&place, Box::new(ops), tempo).expect("phase");
        assert_eq!((tally.ops, tally.names), (50, 50));
        assert!(tally.active >= Duration::from_millis(49));
        assert_eq!(tally.buckets.iter().sum::<u64>(), 50);
        assert_eq!(tally.latencies.iter().map(|(_, count)| count).sum::<u64>(), 50);
    }

    #[test]
    fn lateness_is_what_operations_before_have_left() {
        let ms = Duration::from_millis;
        let mut pace = Pace::new(ms(10));
        let latencies = [25, 1, 1, 1, 12, 3].map(|took| pace.latency(ms(took)));
        assert_eq!(latencies, [25, 16, 7, 1, 12, 5].map(ms));
    }

    /// Every 1024 operations the open loop began anew, as if nothing were late.
    #[test]
    fn a_backlog_outlasts_a_batch() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let place = Kernel::new(dir.path()).expect("directory opens");
        let slow = std::iter::once(Op::Run("sleep 0.5".to_owned()));
        let quick = (0..2 * BATCH).map(|at| Op::MakeDir(format!("d{at}")));
        let tempo = Tempo { interval: Some(Duration::from_micros(100)), limit: None };
        let tally = measure(&place, Box::new(slow.chain(quick)), tempo).expect("phase");
        // The last one is due 0.2 seconds after the first.
        let late = tally.latencies.iter().filter(|(nanos, _)| *nanos > 200_000_000);
        let late: u64 = late.map(|(_, count)| count).sum();
        assert_eq!((tally.ops, late), (2 * BATCH as u64 + 1, 2 * BATCH as u64 + 1));
    }

    #[test]
    fn names_are_counted_where_directories_are_listed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let make = |at| std::fs::write(dir.path().join(format!("f{at}")), "").expect("a file");
        (0..30).for_each(make);
        let place = Kernel::new(dir.path()).expect("directory opens");
        let ops = (0..4).map(|_| Op::List(".".to_owned(), Detail::Names));
        let tally = measure(&place, Box::new(ops), Tempo::default()).expect("phase");
        assert_eq!((tally.ops, tally.names, tally.buckets.iter().sum::<u64>()), (4, 120, 120));
    }

    #[test]
    fn no_operation_begins_after_the_limit() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let place = Kernel::new(dir.path()).expect("directory opens");
        let ops = |count| (0..count).map(|_| Op::Run("sleep 0.02".to_owned()));
        let limit = Some(Duration::from_millis(50));
        let tempo = Tempo { interval: None, limit };
        let cut = measure(&place, Box::new(ops(100)), tempo).expect("phase");
        assert!(cut.is_cut && (1..=3).contains(&cut.ops), "{cut:?}");
        let whole = measure(&place, Box::new(ops(1)), tempo).expect("phase");
        assert_eq!((whole.is_cut, whole.ops), (false, 1));
    }

    #[test]
    fn the_first_error_ends_the_phase() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let place = Kernel::new(dir.path()).expect("directory opens");
        let ops = ["a", "a"].map(|name| Op::MakeDir(name.to_owned())).into_iter();
        assert!(measure(&place, Box::new(ops), Tempo::default()).is_err());
    }
}
