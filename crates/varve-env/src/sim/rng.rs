//! The seeded generator behind every choice of the simulated machine: SplitMix64 (Steele, Lea and
//! Flood, OOPSLA 2014), which needs no more than one word of state and takes any seed.

/// The generator.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// Returns the sequence of `seed`.
    pub(super) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Returns the next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0. The bias of the remainder does not matter here.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True `percent` times in a hundred.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
