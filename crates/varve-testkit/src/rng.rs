//! The generator behind random tests of the file system: xoshiro256** (Blackman and Vigna, 2018), seeded by SplitMix64. What some of
//! these tests must find at least depends on its sequences. Other tests draw from the machine's generator.

pub use varve_env::rng::{Rng as MachineRng, mix};

/// A seeded sequence of numbers.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// Returns the sequence of `seed`.
    pub fn new(seed: u64) -> Rng {
        let mut z = seed;
        Rng(std::array::from_fn(|_| {
            z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(z)
        }))
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "nothing is below 0");
        self.next_u64() % end
    }

    /// A number in `start..end`.
    pub fn between(&mut self, start: u64, end: u64) -> u64 {
        start + self.below(end - start)
    }

    /// True `percent` times in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`, which is not empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_one_sequence() {
        let take = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next_u64(), rng.below(10), rng.between(5, 6), rng.bytes(3).len() as u64]
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
        assert_eq!(take(7)[2..], [5, 3]);
    }

    #[test]
    fn every_choice_is_picked() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 8];
        (0..8000).for_each(|_| seen[*rng.pick(&[0usize, 1, 2, 3, 4, 5, 6, 7])] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }
}
