//! Indexes drawn from the seeded generator.

use varve_testkit::rng::MachineRng as Rng;

/// Returns an index below `n`; 0 if `n` is 0.
pub(crate) fn below(rng: &mut Rng, n: usize) -> usize {
    rng.below(n.max(1) as u64) as usize
}
