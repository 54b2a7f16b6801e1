//! Seeded choices: the same in every run, and without tables that grow with the number of files.

use varve_env::rng::Rng;

/// Mixes the bits of a number.
pub(crate) fn mix(number: u64) -> u64 {
    Rng::new(number).next_u64()
}

/// A stream of numbers, and the distributions of the workloads.
pub(crate) struct Random(Rng);

impl Random {
    /// The stream of a seed.
    pub(crate) fn new(seed: u64) -> Random {
        Random(Rng::new(seed))
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is at least 1.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound.max(1))) >> 64) as u64
    }

    /// A number of `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number of the standard normal distribution (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A number of the exponential distribution of this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.unit()).ln() * mean
    }
}

/// The numbers below a count, each once, in an order that looks random: a Feistel network on the next power
/// of four, walked again while it leaves the range.
#[derive(Clone, Copy)]
pub(crate) struct Shuffle {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Shuffle {
    /// An order of the numbers below `count`.
    pub(crate) fn new(count: u64, seed: u64) -> Shuffle {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        Shuffle { count, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// The number at `index`, which is below the count.
    pub(crate) fn at(&self, index: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let mut number = index;
        loop {
            let (mut left, mut right) = (number >> self.half_bits, number & mask);
            for round in 0..4_u64 {
                let next = left ^ (mix(right ^ self.seed.wrapping_add(round << 56)) & mask);
                (left, right) = (right, next);
            }
            number = (left << self.half_bits) | right;
            if number < self.count {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once() {
        for count in [1, 2, 3, 1000, 1024, 1025] {
            let shuffle = Shuffle::new(count, 9);
            let mut seen: Vec<u64> = (0..count).map(|index| shuffle.at(index)).collect();
            assert!(count < 1000 || seen.iter().enumerate().any(|(at, n)| at as u64 != *n));
            seen.sort_unstable();
            assert_eq!(seen, (0..count).collect::<Vec<_>>(), "{count}");
        }
    }

    #[test]
    fn distributions_have_their_means() {
        let mut random = Random::new(1);
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
        assert!(mean((0..20_000).map(|_| random.normal()).collect()).abs() < 0.03);
        assert!((mean((0..20_000).map(|_| random.exponential(5.0)).collect()) - 5.0).abs() < 0.2);
        assert!((mean((0..20_000).map(|_| random.below(11) as f64).collect()) - 5.0).abs() < 0.1);
    }
}
