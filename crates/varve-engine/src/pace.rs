//! How much writes are slowed down while compaction is behind.
//!
//! [`delay_ns_per_byte`] is a pure function of the debt: nothing up to the soft limit, then growing
//! smoothly, so that writers feel compaction long before it would have to stop them. [`Pace`] collects
//! the small delays of many writes and spends them in sleeps the timer can keep.
//!
//! Source: the write controllers of LSM stores in the field; TableFS 4.3 shows the stalls that
//! LevelDB's two fixed steps cause instead.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The delay at the hard limit: 1 microsecond per byte is 1 MB/s.
const DELAY_NS_PER_BYTE_MAX: u64 = 1000;
/// The shortest sleep worth taking.
const SLEEP_NS_MIN: u64 = 1_000_000;
/// The longest sleep of one write, so that no caller waits long for the debt of others.
const SLEEP_NS_MAX: u64 = 50_000_000;

/// Nanoseconds by which each byte written is delayed at a debt of `debt_bytes`: 0 up to `soft_bytes`,
/// rising with the square of the excess to the most at `hard_bytes` and beyond.
pub(crate) fn delay_ns_per_byte(debt_bytes: u64, soft_bytes: u64, hard_bytes: u64) -> u64 {
    let excess = debt_bytes.saturating_sub(soft_bytes);
    let span = hard_bytes.saturating_sub(soft_bytes).max(1);
    let share = (excess as f64 / span as f64).min(1.0);
    (share * share * DELAY_NS_PER_BYTE_MAX as f64) as u64
}

/// The delay in force and what is owed of it.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    ns_per_byte: AtomicU64,
    owed_ns: AtomicU64,
}

impl Pace {
    /// Sets the delay, after the debt changed.
    pub(crate) fn set_delay(&self, ns_per_byte: u64) {
        self.ns_per_byte.store(ns_per_byte, Ordering::Relaxed);
    }

    /// The delay in force.
    pub(crate) fn delay(&self) -> u64 {
        self.ns_per_byte.load(Ordering::Relaxed)
    }

    /// Charges a write of `bytes`; returns how long its caller should sleep, if at all.
    pub(crate) fn charge(&self, bytes: u64) -> Option<Duration> {
        let delay = self.delay();
        if delay == 0 {
            return None;
        }
        let owed = bytes.saturating_mul(delay);
        let owed = self.owed_ns.fetch_add(owed, Ordering::Relaxed).saturating_add(owed);
        if owed < SLEEP_NS_MIN {
            return None;
        }
        let sleep = owed.min(SLEEP_NS_MAX);
        let taken = self.owed_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            (left >= sleep).then(|| left - sleep)
        });
        taken.ok().map(|_| Duration::from_nanos(sleep))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_smoothly_from_the_soft_to_the_hard_limit() {
        let delay = |debt| delay_ns_per_byte(debt, 1000, 11_000);
        assert_eq!(delay(0), 0);
        assert_eq!(delay(1000), 0);
        assert_eq!(delay(11_000), DELAY_NS_PER_BYTE_MAX);
        assert_eq!(delay(u64::MAX), DELAY_NS_PER_BYTE_MAX);
        let mut last = 0;
        for debt in (1000..=11_000).step_by(100) {
            let now = delay(debt);
            assert!(now >= last && now - last <= DELAY_NS_PER_BYTE_MAX / 40, "a step at {debt}");
            last = now;
        }
    }

    #[test]
    fn delays_add_up_until_a_sleep_is_worth_it() {
        let pace = Pace::default();
        assert_eq!(pace.charge(1 << 30), None);
        pace.set_delay(100);
        let mut slept = Duration::ZERO;
        for _ in 0..1000 {
            if let Some(sleep) = pace.charge(200) {
                assert!(sleep >= Duration::from_millis(1));
                slept += sleep;
            }
        }
        assert!(slept >= Duration::from_millis(18) && slept <= Duration::from_millis(20));
    }
}
