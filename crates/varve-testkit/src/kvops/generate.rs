//! Random batches, reads and scans over few keys, so that they meet often.

use std::ops::Bound;

use super::{KvRange, KvWrite, Space};
use crate::rng::{Rng, mix};

/// What the keys of a key space look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyShape {
    /// 8 bytes of prefix and 8 bytes of suffix, both big-endian; few prefixes, scattered suffixes.
    Prefixed,
    /// 1 to 300 bytes of any value, many of them prefixes of each other.
    Arbitrary,
}

/// The world of a generator.
#[derive(Clone, Debug)]
pub struct KvUniverse {
    /// The key spaces.
    pub spaces: Vec<KeyShape>,
    /// How many different keys each has.
    pub keys: u64,
    /// The largest value, in bytes. Most are much smaller.
    pub value_bytes_max: u64,
    /// How many operations in a thousand ask for a reopen.
    pub reopen_per_mille: u64,
    /// How many operations in a thousand ask for maintenance.
    pub maintain_per_mille: u64,
}

impl Default for KvUniverse {
    fn default() -> KvUniverse {
        KvUniverse {
            spaces: vec![KeyShape::Prefixed, KeyShape::Arbitrary],
            keys: 400,
            value_bytes_max: 20_000,
            reopen_per_mille: 2,
            maintain_per_mille: 5,
        }
    }
}

/// One operation on a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvOp {
    /// One atomic batch.
    Write(Vec<KvWrite>),
    /// A sync.
    Sync,
    /// A point read.
    Get(Space, Vec<u8>),
    /// A scan.
    Scan(Space, KvRange),
    /// A snapshot is taken, the batches are written, and the snapshot must not see them.
    Snapshot(Vec<Vec<KvWrite>>, Vec<(Space, KvRange)>),
    /// The test closes and opens the store.
    Reopen,
    /// The test lets the store flush, compact or whatever else should not change answers.
    Maintain,
}

/// A seeded, endless sequence of operations.
#[derive(Clone, Debug)]
pub struct KvGenerator {
    rng: Rng,
    universe: KvUniverse,
}

impl KvGenerator {
    /// Returns the sequence of `seed` in `universe`.
    pub fn new(seed: u64, universe: KvUniverse) -> KvGenerator {
        KvGenerator { rng: Rng::new(seed), universe }
    }

    /// Returns how many key spaces there are.
    pub fn spaces(&self) -> usize {
        self.universe.spaces.len()
    }

    /// Returns the next operation.
    pub fn next_op(&mut self) -> KvOp {
        let (reopen, maintain) = (self.universe.reopen_per_mille, self.universe.maintain_per_mille);
        let dice = self.rng.below(1000);
        if dice < reopen {
            return KvOp::Reopen;
        }
        if dice < reopen + maintain {
            return KvOp::Maintain;
        }
        match self.rng.below(100) {
            0..55 => KvOp::Write(self.batch()),
            55..60 => KvOp::Sync,
            60..85 => {
                let space = self.space();
                KvOp::Get(space, self.key(space))
            }
            85..97 => {
                let (space, range) = self.range();
                KvOp::Scan(space, range)
            }
            _ => {
                let batches = (0..self.rng.below(6)).map(|_| self.batch()).collect();
                let ranges = (0..3).map(|_| self.range()).collect();
                KvOp::Snapshot(batches, ranges)
            }
        }
    }

    /// One batch: mostly a few writes, sometimes many, often to one key more than once.
    pub fn batch(&mut self) -> Vec<KvWrite> {
        let len = match self.rng.below(20) {
            0 => self.rng.between(20, 100),
            1..8 => self.rng.between(2, 8),
            _ => 1,
        };
        (0..len).map(|_| self.write()).collect()
    }

    fn write(&mut self) -> KvWrite {
        let space = self.space();
        let key = self.key(space);
        let value = (!self.rng.chance(30)).then(|| self.value());
        KvWrite { space, key, value }
    }

    fn value(&mut self) -> Vec<u8> {
        let max = self.universe.value_bytes_max.max(1);
        let len = match self.rng.below(50) {
            0 => self.rng.below(max + 1),
            1..5 => self.rng.below(max / 10 + 1),
            _ => self.rng.below(max.min(150) + 1),
        };
        if self.rng.chance(30) {
            return vec![b'v'; len as usize];
        }
        self.rng.bytes(len as usize)
    }

    fn space(&mut self) -> Space {
        self.rng.below(self.universe.spaces.len() as u64) as Space
    }

    fn key(&mut self, space: Space) -> Vec<u8> {
        let number = self.rng.below(self.universe.keys);
        match self.universe.spaces[space] {
            KeyShape::Prefixed => {
                let prefix = number % 7;
                // The row of the directory itself has suffix 0.
                let suffix = if number < 7 { 0 } else { mix(number) };
                [prefix.to_be_bytes(), suffix.to_be_bytes()].concat()
            }
            KeyShape::Arbitrary => {
                let hash = mix(number);
                let len = if hash.is_multiple_of(16) { 300 } else { 1 + hash % 9 };
                (0..len)
                    .map(|at| [0, b'a', b'b', u8::MAX][(hash >> (8 + at % 24)) as usize % 4])
                    .collect()
            }
        }
    }

    fn range(&mut self) -> (Space, KvRange) {
        let space = self.space();
        let (a, b) = (self.key(space), self.key(space));
        let (low, high) = if a <= b { (a, b) } else { (b, a) };
        let range = match self.rng.below(5) {
            0 => KvRange::all(),
            1 if self.universe.spaces[space] == KeyShape::Prefixed => {
                let mut end = low[..8].to_vec();
                end[7] += 1;
                KvRange {
                    start: Bound::Included(low[..8].to_vec()),
                    end: Bound::Excluded(end),
                    reverse: false,
                }
            }
            _ => KvRange { start: self.bound(low), end: self.bound(high), reverse: false },
        };
        (space, KvRange { reverse: self.rng.chance(50), ..range })
    }

    fn bound(&mut self, key: Vec<u8>) -> Bound<Vec<u8>> {
        match self.rng.below(5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(key),
            _ => Bound::Excluded(key),
        }
    }
}
