//! Times of many events, in buckets from which quantiles are read.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of buckets, two for each power of two. The first has all times below its end, and the last all times
/// above its begin.
const BUCKETS: usize = 54;
/// The power of two at which the first bucket begins, in nanoseconds.
const FIRST_POWER: u32 = 6;

/// Times to which threads add without a lock.
#[derive(Debug)]
pub struct Timings {
    nanos: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Timings {
    fn default() -> Timings {
        Timings { nanos: AtomicU64::new(0), buckets: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

/// What [`Timings`] had at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timed {
    /// The number of times.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub nanos: u64,
    /// Each bucket's end in nanoseconds, and how many times were below it, but not below the end before. Empty ones are
    /// left out.
    pub buckets: Vec<(u64, u64)>,
}

impl Timings {
    /// Adds a time in nanoseconds.
    pub fn add(&self, nanos: u64) {
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        self.buckets[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns all times so far, of several threads together.
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Timings>) -> Timed {
        let mut counts = [0; BUCKETS];
        let mut nanos: u64 = 0;
        for timings in all {
            nanos = nanos.wrapping_add(timings.nanos.load(Ordering::Relaxed));
            let of_one = timings.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
            counts.iter_mut().zip(of_one).for_each(|(sum, count)| *sum += count);
        }
        let filled = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Timed {
            count: counts.iter().sum(),
            nanos,
            buckets: filled.map(|(at, count)| (bucket_end(at), *count)).collect(),
        }
    }
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
    fn times_of_threads_are_one_sum() {
        let threads = [Timings::default(), Timings::default()];
        threads[0].add(100);
        threads[1].add(101);
        threads[1].add(14_000_000);
        let sum = Timings::sum(&threads);
        assert_eq!(
            sum,
            Timed { count: 3, nanos: 14_000_201, buckets: vec![(128, 2), (1 << 24, 1)] }
        );
    }
}
