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

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use varve_types::{Timed, Timings};

use crate::answer::Answer;
use crate::protocol::constants::{OPCODE_MAX, opcode_name};

/// The number of kinds of requests. A kind is an opcode; 0 stands for all unknown opcodes.
const OPERATIONS: usize = OPCODE_MAX as usize + 1;
/// A prime, so that every request of a program that repeats a few requests is timed sometimes.
const TIMED_OF: u32 = 17;

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
#[derive(Debug, Default)]
struct Times {
    failed: AtomicU64,
    timings: Timings,
}

impl Default for Meters {
    fn default() -> Meters {
        let times = (0..OPERATIONS).map(|_| Times::default()).collect();
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
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.times[place(opcode)].timings.add(nanos);
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
        let Timed { count, nanos, buckets } = Timings::sum([&self.timings]);
        let buckets: Vec<String> =
            buckets.iter().map(|(end, count)| format!("[{end},{count}]")).collect();
        let (failed, buckets) = (self.failed.load(Ordering::Relaxed), buckets.join(","));
        format!(r#""failed":{failed},"timed":{count},"nanos":{nanos},"buckets":[{buckets}]"#)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::constants::{FUSE_FSYNC, FUSE_LOOKUP};

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
