//! The seeded generator behind the simulated machine, tests of the engine and formats, workloads and filler bytes: SplitMix64 (Steele, Lea and Flood,
//! OOPSLA 2014), which needs one word of state and takes any seed.
//!
//! The sequence of a seed is part of what tests and benchmarks compare, so it never changes.

/// The step from one state to the next: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A seeded sequence of numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Returns the sequence of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number below `end`, which is not 0. The bias of the remainder does not matter to its users.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "nothing is below 0");
        self.next_u64() % end
    }

    /// Returns a number in `start..end`.
    pub fn between(&mut self, start: u64, end: u64) -> u64 {
        start + self.below(end - start)
    }

    /// Returns true `percent` times in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns true one time in `n`, which is not 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of `choices`, which is not empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// Spreads the bits of a number over the whole word (the finalizer of SplitMix64).
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of the authors' own program.
    #[test]
    fn the_sequence_of_a_seed_is_that_of_the_paper() {
        let mut rng = Rng::new(1_234_567);
        let first = std::array::from_fn(|_| rng.next_u64());
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431
            ]
        );
    }

    #[test]
    fn numbers_are_within_their_bounds() {
        let mut rng = Rng::new(7);
        assert!((0..100).all(|_| rng.below(10) < 10 && (5..8).contains(&rng.between(5, 8))));
        assert_eq!(rng.bytes(3).len(), 3);
    }

    #[test]
    fn every_choice_is_picked() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 8];
        (0..8000).for_each(|_| seen[*rng.pick(&[0usize, 1, 2, 3, 4, 5, 6, 7])] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }
}
