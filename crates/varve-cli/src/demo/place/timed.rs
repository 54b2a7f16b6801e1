//! Another place, each of whose calls is timed.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use varve::Result;

use super::{Listed, Place};

/// How long calls took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Calls `call` and adds its time.
    pub(crate) fn of<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = call();
        self.add(begin.elapsed());
        done
    }

    pub(crate) fn extend(&mut self, others: &Times) {
        self.0.extend_from_slice(&others.0);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// The times within which the shares `quantiles` of the calls were done, in microseconds; zero if there were none.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count"
    )]
    pub(crate) fn micros<const N: usize>(&self, quantiles: [f64; N]) -> [f64; N] {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        quantiles.map(|quantile| {
            let rank = (quantile * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1e6)
        })
    }
}

/// A place whose calls are timed.
pub(crate) struct Timed<'a> {
    place: &'a dyn Place,
    times: Mutex<Times>,
    /// Gets the number of calls after each.
    watch: &'a dyn Fn(u64),
}

impl<'a> Timed<'a> {
    pub(crate) fn new(place: &'a dyn Place, watch: &'a dyn Fn(u64)) -> Timed<'a> {
        Timed { place, times: Mutex::default(), watch }
    }

    /// The times of all calls.
    pub(crate) fn into_times(self) -> Times {
        self.times.into_inner()
    }

    fn on<T>(&self, call: impl FnOnce(&dyn Place) -> T) -> T {
        let mut times = self.times.lock();
        let done = times.of(|| call(self.place));
        (self.watch)(times.count());
        done
    }
}

impl Place for Timed<'_> {
    fn make_dir(&self, dir: &str) -> Result<()> {
        self.on(|place| place.make_dir(dir))
    }

    fn create(&self, dir: &str, name: &str) -> Result<()> {
        self.on(|place| place.create(dir, name))
    }

    fn write(&self, dir: &str, name: &str, data: &[u8], durable: bool) -> Result<()> {
        self.on(|place| place.write(dir, name, data, durable))
    }

    fn read(&self, dir: &str, name: &str) -> Result<Vec<u8>> {
        self.on(|place| place.read(dir, name))
    }

    fn stat(&self, dir: &str, name: &str) -> Result<u64> {
        self.on(|place| place.stat(dir, name))
    }

    fn list(&self, dir: &str) -> Result<Vec<Listed>> {
        self.on(|place| place.list(dir))
    }

    fn chmod(&self, dir: &str, name: &str, mode: u32) -> Result<()> {
        self.on(|place| place.chmod(dir, name, mode))
    }

    fn rename(&self, dir: &str, from: &str, to: &str) -> Result<()> {
        self.on(|place| place.rename(dir, from, to))
    }

    fn unlink(&self, dir: &str, name: &str) -> Result<()> {
        self.on(|place| place.unlink(dir, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_quantiles() {
        let mut times = Times::default();
        assert_eq!(times.micros([0.5]), [0.0]);
        for micros in [40, 10, 30, 20] {
            times.add(Duration::from_micros(micros));
        }
        assert_eq!(times.micros([0.5, 0.51, 1.0]), [20.0, 30.0, 40.0]);
    }
}
