//! Counts the requests of each kind, and measures how long their answers take.
//!
//! 1. Each thread that serves has a [`Meter`] and counts in memory of its own, so that no thread takes a cache line
//!    from another.
//! 2. One request of [`TIMED_OF`] is timed, from when a thread takes it until its answer is ready. To read the clock
//!    for each would slow down the cheapest requests. The time that the request waited in the kernel is not included.
//! 3. A request that another thread answers (a sync, or one that waits for locks or for other requests) is always
//!    timed, by the thread that answers.
//! 4. The attribute `user.varve.requests` of a mount's root shows everything ([`Meters::to_json`]).
//!
//! Invariant: the thread that takes a request counts it once; its time and its failure count when the answer is
//! ready.
#![allow(clippy::disallowed_methods, reason = "times requests, not the store")]

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::answer::Answer;
use crate::protocol::constants::{OPCODE_MAX, opcode_name};

/// The number of kinds of requests. A kind is an opcode; 0 stands for all unknown opcodes.
const OPERATIONS: usize = OPCODE_MAX as usize + 1;
/// A prime, so that every request of a program that repeats a few requests is timed sometimes.
const TIMED_OF: u32 = 17;

/// The number of buckets, two for each power of two. The first has all times below its end, and the last all times
/// above its begin.
const BUCKETS: usize = 54;
/// The power of two at which the first bucket begins, in nanoseconds.
const FIRST_POWER: u32 = 6;

/// The counts of one session.
#[derive(Debug)]
pub(crate) struct Meters {
    since: Instant,
    threads: Mutex<Vec<Arc<Counts>>>,
    times: Box<[Times]>,
}

/// The counts of one thread.
#[derive(Debug)]
#[repr(align(128))]
struct Counts([AtomicU64; OPERATIONS]);

/// Times and failures of requests of one kind, of all threads together. Few requests are timed, and few fail.
#[derive(Debug)]
struct Times {
    failed: AtomicU64,
    nanos: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Meters {
    fn default() -> Meters {
        let none =
            || Times { failed: AtomicU64::new(0), nanos: AtomicU64::new(0), buckets: zeros() };
        let times = (0..OPERATIONS).map(|_| none()).collect();
        Meters { since: Instant::now(), threads: Mutex::default(), times }
    }
}

impl Meters {
    /// Makes a meter for the calling thread.
    pub(crate) fn meter(&self) -> Meter<'_> {
        let counts = Arc::new(Counts(zeros()));
        self.threads.lock().push(Arc::clone(&counts));
        Meter { meters: self, counts, until_timed: 0 }
    }

    /// Returns the time at which a thread takes a request that another thread will answer.
    pub(crate) fn now() -> Instant {
        Instant::now()
    }

    /// Notes the time and the failure of a request whose answer was ready after `took`.
    pub(crate) fn answered(&self, opcode: u32, took: Duration, answer: &Answer) {
        self.note_failure(opcode, answer);
        let times = &self.times[place(opcode)];
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        times.nanos.fetch_add(nanos, Ordering::Relaxed);
        times.buckets[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    fn note_failure(&self, opcode: u32, answer: &Answer) {
        if matches!(answer, Answer::Errno(errno) if *errno != 0) {
            self.times[place(opcode)].failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the seconds since counting began, and for each kind of request that came: how many came, failed and
    /// were timed, the sum of the times, and the number of requests in each bucket, by the end of the bucket.
    ///
    /// ```text
    /// {"seconds":1.5,"operations":{"LOOKUP":{"count":17,"failed":0,"timed":1,"nanos":700,"buckets":[[768,1]]}}}
    /// ```
    pub(crate) fn to_json(&self) -> String {
        let mut counts = [0; OPERATIONS];
        for thread in self.threads.lock().iter() {
            let of_thread = thread.0.iter().map(|count| count.load(Ordering::Relaxed));
            counts.iter_mut().zip(of_thread).for_each(|(sum, count)| *sum += count);
        }
        let each = counts.iter().zip(&*self.times).enumerate();
        let told = each.filter(|(_, (count, _))| **count > 0).map(|(opcode, (count, times))| {
            let name = opcode_name(u32::try_from(opcode).unwrap_or(0)).trim_start_matches("FUSE_");
            format!(r#""{name}":{{"count":{count},{}}}"#, times.to_json())
        });
        let told: Vec<String> = told.collect();
        let seconds = self.since.elapsed().as_secs_f64();
        format!(r#"{{"seconds":{seconds:.3},"operations":{{{}}}}}"#, told.join(","))
    }
}

impl Times {
    fn to_json(&self) -> String {
        let (mut timed, mut buckets) = (0, String::new());
        for (at, bucket) in self.buckets.iter().enumerate() {
            let count = bucket.load(Ordering::Relaxed);
            if count > 0 {
                let comma = if buckets.is_empty() { "" } else { "," };
                // Writing to a string does not fail.
                let _ = write!(buckets, "{comma}[{},{count}]", bucket_end(at));
            }
            timed += count;
        }
        let [failed, nanos] = [&self.failed, &self.nanos].map(|n| n.load(Ordering::Relaxed));
        format!(r#""failed":{failed},"timed":{timed},"nanos":{nanos},"buckets":[{buckets}]"#)
    }
}

/// Counts the requests of one thread.
pub(crate) struct Meter<'a> {
    meters: &'a Meters,
    counts: Arc<Counts>,
    until_timed: u32,
}

impl Meter<'_> {
    /// Begins a request. Returns the time if the request is timed.
    pub(crate) fn begin(&mut self) -> Option<Instant> {
        let is_timed = self.until_timed == 0;
        self.until_timed = if is_timed { TIMED_OF - 1 } else { self.until_timed - 1 };
        is_timed.then(Instant::now)
    }

    /// Counts a request with its answer.
    pub(crate) fn end(&self, opcode: u32, began: Option<Instant>, answer: &Answer) {
        let count = &self.counts.0[place(opcode)];
        // Only this thread writes it.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        match (began, answer) {
            // The thread that answers notes its time and its failure.
            (_, Answer::Later) => {}
            (Some(began), _) => self.meters.answered(opcode, began.elapsed(), answer),
            (None, _) => self.meters.note_failure(opcode, answer),
        }
    }
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

fn place(opcode: u32) -> usize {
    usize::try_from(opcode).ok().filter(|&place| place < OPERATIONS).unwrap_or(0)
}

/// Returns the bucket of a time.
fn bucket(nanos: u64) -> usize {
    let nanos = nanos.max(1 << FIRST_POWER);
    let power = nanos.ilog2();
    let is_upper_half = nanos >> (power - 1) & 1 == 1;
    let at = 2 * (power - FIRST_POWER) + u32::from(is_upper_half);
    (at as usize).min(BUCKETS - 1)
}

/// Returns the end of a bucket in nanoseconds: all its times are below.
fn bucket_end(at: usize) -> u64 {
    let power = FIRST_POWER as usize + at / 2;
    if at.is_multiple_of(2) { 3 << (power - 1) } else { 2 << power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::constants::{FUSE_FSYNC, FUSE_LOOKUP};

    #[test]
    fn times_lie_in_their_buckets() {
        for at in 1..BUCKETS - 1 {
            let (begin, end) = (bucket_end(at - 1), bucket_end(at));
            assert!(begin < end);
            assert_eq!([bucket(begin), bucket(end - 1), bucket(end)], [at, at, at + 1], "{at}");
        }
        for (nanos, at) in [(0, 0), (95, 0), (1 << 62, BUCKETS - 1), (u64::MAX, BUCKETS - 1)] {
            assert_eq!(bucket(nanos), at, "{nanos}");
        }
    }

    #[test]
    fn all_are_counted_and_some_are_timed() {
        let meters = Meters::default();
        let mut meter = meters.meter();
        let timed = (0..5 * TIMED_OF).filter(|_| {
            let began = meter.begin();
            meter.end(FUSE_LOOKUP, began, &Answer::Body);
            began.is_some()
        });
        assert_eq!(timed.count(), 5);
        let other = meters.meter();
        other.end(FUSE_LOOKUP, None, &Answer::Errno(libc::ENOENT));
        other.end(FUSE_FSYNC, None, &Answer::Later);
        meters.answered(FUSE_FSYNC, Duration::from_millis(14), &Answer::Errno(0));
        other.end(4_000_000, None, &Answer::Errno(libc::ENOSYS));
        let json = meters.to_json();
        for part in [
            r#""a request not served":{"count":1,"failed":1,"timed":0,"nanos":0,"buckets":[]}"#,
            r#""LOOKUP":{"count":86,"failed":1,"timed":5,"#,
            r#""FSYNC":{"count":1,"failed":0,"timed":1,"nanos":14000000,"buckets":[[16777216,1]]}"#,
        ] {
            assert!(json.contains(part), "{json}");
        }
    }
}
