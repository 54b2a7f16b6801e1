//! A hash for ids that were handed out one after the other and are used so.
//!
//! Ids that lie together are wanted together: a directory is filled and listed in the order of its files' ids. Runs of
//! [`RUN_IDS`] neighbours keep their order in the table, so that what one has brought into the processor's cache serves
//! the next; the runs are scattered. The table looks for a place by the low bits of a hash and tells entries of one place
//! apart by the seven highest, of which neighbours share three.

use std::hash::{BuildHasherDefault, Hasher};

/// The number of ids, all alike but for their low bits, whose entries lie together.
pub(crate) const RUN_IDS: u64 = 1 << RUN_BITS;
const RUN_BITS: u32 = 4;
/// The bits by which the table tells entries of one place apart.
const TAG_BITS: u32 = 7;
const TAG: u64 = u64::MAX << (u64::BITS - TAG_BITS);
/// Those of them that neighbours share.
const TAG_OF_RUN: u64 = TAG << RUN_BITS;

/// See the module's comment.
#[derive(Default)]
pub struct IdHasher(u64);

/// Builds tables keyed by ids.
pub type IdHash = BuildHasherDefault<IdHasher>;

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte) ^ self.0);
        }
    }

    /// Runs of one shard agree in their low bits, and so does their product with anything: its highest byte, which tells
    /// most, is turned to where the table looks first, then the next ones.
    fn write_u64(&mut self, id: u64) {
        let (run, number) = (id / RUN_IDS, id % RUN_IDS);
        let product = run.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let scattered = product.swap_bytes() << RUN_BITS;
        let place = (scattered & !TAG) | number;
        let tag = ((product << 24) & TAG_OF_RUN) | (number << (u64::BITS - TAG_BITS));
        self.0 = place | tag;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn hash(id: u64) -> u64 {
        let mut hasher = IdHasher::default();
        hasher.write_u64(id);
        hasher.finish()
    }

    #[test]
    fn neighbours_have_places_side_by_side_and_tags_of_their_own() {
        for run in [0, 1, 65_536, u64::MAX / RUN_IDS] {
            let hashes: Vec<u64> = (0..RUN_IDS).map(|i| hash(run * RUN_IDS + i)).collect();
            let place = hashes[0] & !TAG;
            assert_eq!(place % RUN_IDS, 0);
            for (i, hash) in (0..).zip(&hashes) {
                assert_eq!(hash & !TAG, place + i);
            }
            let tags: HashSet<u64> = hashes.iter().map(|hash| hash & TAG).collect();
            assert_eq!(tags.len() as u64, RUN_IDS);
        }
    }

    /// All runs of one shard, and every second and tenth of them.
    #[test]
    fn runs_of_one_shard_spread_over_the_table() {
        for step in [64, 128, 640] {
            let runs = (0..4096).map(|i| 65_536 + i * step);
            let places = runs.map(|run| hash(run * RUN_IDS) / RUN_IDS % 4096);
            let places: HashSet<u64> = places.collect();
            assert!(places.len() > 2000, "{} of 4096 places, step {step}", places.len());
        }
    }

    #[test]
    fn runs_of_one_shard_have_tags_of_all_kinds() {
        let runs = (0..4096).map(|i| 65_536 + i * 64);
        let tags: HashSet<u64> = runs.map(|run| hash(run * RUN_IDS) & TAG).collect();
        assert_eq!(tags.len(), 1 << (TAG_BITS - RUN_BITS));
    }
}
