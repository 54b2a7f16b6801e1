//! Repeats a test for a given time.

use std::time::{Duration, Instant};

/// Calls `each` with one seed after the other for `VARVE_SOAK_SECONDS`, from `VARVE_SOAK_SEED` on; with 0 seconds,
/// only with that seed. Returns the seeds and the time as a message.
#[allow(clippy::disallowed_methods, reason = "it goes on in real time")]
pub fn soak(mut each: impl FnMut(u64)) -> String {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let limit = Duration::from_secs(number("VARVE_SOAK_SECONDS").unwrap_or(60));
    let first = number("VARVE_SOAK_SEED").unwrap_or(1_000_000);
    let (begin, mut seed) = (Instant::now(), first);
    loop {
        each(seed);
        let elapsed = begin.elapsed();
        if elapsed >= limit {
            return format!("seeds {first} to {seed} in {elapsed:?}");
        }
        seed += 1;
    }
}
