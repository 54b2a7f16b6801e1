//! Entropy-coded tries: sorted 64-bit keys in a few bits each (SlimDB 5.3.1; SILT, section 4.2).
//!
//! Each node of a binary trie splits its keys by the next bit and stores nothing but how many go left
//! ([`super::split_code`]); a node of one key is a leaf. Nodes stand in preorder, so that a search reads
//! the left subtree of each node it passes to the right of.
//!
//! ```text
//! n of 0      nothing
//! n of 1      gamma(1 + t), then t bits of the key from the leaf's depth on (its tail)
//! n above 1   the split; the trie of the keys that go left; the trie of those that go right
//! ```
//!
//! Uniform keys take 2.6 to 2.9 bits and their tails. A trie with only leaves distinguishes only the keys that it
//! holds. Here each key comes with the number of its leading bits that *matter*; if the leaf is less deep, the tail
//! holds the rest.
//!
//! Invariant: a search is exact for every key that differs in the bits that matter from all keys of the trie, or
//! equals one.
//!
//! Departure from the papers: tails. SlimDB looks up keys that the index does not hold (every key of a
//! block but its first and last), which leaves alone would place on either side.

use std::cmp::Ordering;

use super::split_code::{put_split, take_split};
use crate::bits::{BitReader, BitWriter};

/// Bits of a key.
pub(super) const KEY_BITS: u32 = 64;

/// A key of a trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TrieKey {
    pub(super) key: u64,
    /// Leading bits that tell the key from others that are looked up, at most 64.
    pub(super) matter: u32,
}

/// The position of a key among the keys of a trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPosition {
    /// After this many keys, and before the next.
    Before(usize),
    /// It equals the key of this number in all that matters.
    At(usize),
}

/// Appends the trie of `keys`, whose bits before `depth` are the same.
///
/// REQUIRES: ascending and distinct.
pub(super) fn encode(keys: &[TrieKey], depth: u32, out: &mut BitWriter) {
    match keys {
        [] => {}
        [leaf] => {
            let tail = leaf.matter.saturating_sub(depth);
            out.put_gamma(u64::from(tail) + 1);
            let rest = leaf.key.checked_shl(depth).unwrap_or(0);
            out.put(rest.checked_shr(KEY_BITS - tail).unwrap_or(0), tail);
        }
        _ => {
            let left = keys.partition_point(|key| key.key << depth >> (KEY_BITS - 1) == 0);
            put_split(out, keys.len(), left);
            encode(&keys[..left], depth + 1, out);
            encode(&keys[left..], depth + 1, out);
        }
    }
}

/// Returns the position of `key` among the `len` keys of the trie at `bits`, whose bits before `depth` are the same
/// as of `key`.
///
/// REQUIRES: [`check`] took the trie.
#[inline]
pub(super) fn find(mut bits: BitReader<'_>, len: usize, depth: u32, key: u64) -> KeyPosition {
    let (mut len, mut depth, mut before) = (len, depth, 0);
    while len > 1 {
        let left = take_split(&mut bits, len).unwrap_or(0);
        if key.checked_shl(depth).unwrap_or(0) >> (KEY_BITS - 1) == 0 {
            len = left;
        } else {
            skip(&mut bits, left);
            before += left;
            len -= left;
        }
        depth += 1;
    }
    if len == 0 {
        return KeyPosition::Before(before);
    }
    let (tail, rest) = take_leaf(&mut bits);
    let own = key.checked_shl(depth).unwrap_or(0).checked_shr(KEY_BITS - tail).unwrap_or(0);
    match own.cmp(&rest) {
        Ordering::Less => KeyPosition::Before(before),
        Ordering::Equal => KeyPosition::At(before),
        Ordering::Greater => KeyPosition::Before(before + 1),
    }
}

/// Moves past a trie of `len` keys.
pub(super) fn skip(bits: &mut BitReader<'_>, mut len: usize) {
    while len > 1 {
        let left = take_split(bits, len).unwrap_or(0);
        skip(bits, left);
        len -= left;
    }
    if len == 1 {
        take_leaf(bits);
    }
}

/// Moves past a trie of `len` keys at `depth`, and says whether it is well-formed.
pub(super) fn check(bits: &mut BitReader<'_>, len: usize, depth: u32) -> bool {
    match len {
        0 => true,
        1 => {
            let coded = bits.gamma();
            let tail = coded.saturating_sub(1);
            bits.skip(tail.min(KEY_BITS.into()) as u32);
            coded > 0 && u64::from(depth) + tail <= KEY_BITS.into()
        }
        _ if depth >= KEY_BITS => false,
        _ => take_split(bits, len)
            .is_some_and(|left| check(bits, left, depth + 1) && check(bits, len - left, depth + 1)),
    }
}

/// A leaf's tail: its length and its bits.
#[inline]
fn take_leaf(bits: &mut BitReader<'_>) -> (u32, u64) {
    let tail = (bits.gamma().saturating_sub(1) as u32).min(KEY_BITS);
    (tail, bits.take(tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(keys: &[TrieKey]) -> BitWriter {
        let mut out = BitWriter::default();
        encode(keys, 0, &mut out);
        out
    }

    /// Each key's bits that tell it from its neighbours.
    fn telling_apart(keys: &[u64]) -> Vec<TrieKey> {
        let apart = |a: u64, b: u64| (a ^ b).leading_zeros() + 1;
        let of = |i: usize, key: u64| {
            let before = i.checked_sub(1).map_or(0, |i| apart(keys[i], key));
            let after = keys.get(i + 1).map_or(0, |&next| apart(key, next));
            TrieKey { key, matter: before.max(after) }
        };
        keys.iter().enumerate().map(|(i, &key)| of(i, key)).collect()
    }

    fn sets() -> Vec<Vec<u64>> {
        let mix = |i: u64| {
            let i = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (i ^ (i >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        };
        let mut sets = vec![
            vec![],
            vec![0],
            vec![u64::MAX],
            vec![0, 1],
            vec![u64::MAX - 1, u64::MAX],
            vec![0, u64::MAX],
            (0..8000).collect(),
            (0..64).map(|bit| 1 << bit).collect(),
            (0..500).map(|i| (1 << 40) + i * 3).collect(),
            (0..500).map(|i| (i % 5) << 60 | i).collect(),
        ];
        sets.extend([2, 3, 17, 100, 8000].map(|count| (0..count).map(mix).collect()));
        for set in &mut sets {
            set.sort_unstable();
            set.dedup();
        }
        sets
    }

    #[test]
    fn every_key_of_any_set_has_its_rank() {
        for set in sets() {
            let out = encoded(&telling_apart(&set));
            let mut bits = BitReader::new(out.words(), 0);
            assert!(check(&mut bits, set.len(), 0));
            assert_eq!(bits.at(), out.bits());
            let mut bits = BitReader::new(out.words(), 0);
            skip(&mut bits, set.len());
            assert_eq!(bits.at(), out.bits());
            for (rank, &key) in set.iter().enumerate().step_by(1 + set.len() / 500) {
                let start = BitReader::new(out.words(), 0);
                assert_eq!(find(start, set.len(), 0, key), KeyPosition::At(rank));
            }
        }
    }

    #[test]
    fn keys_that_differ_in_what_matters_are_placed_between() {
        for set in sets() {
            // Every second key is in the trie, the others are looked up.
            let keys: Vec<TrieKey> = telling_apart(&set).into_iter().step_by(2).collect();
            let out = encoded(&keys);
            for (i, &key) in set.iter().enumerate().skip(1).step_by(2 + set.len() / 250 * 2) {
                let found = find(BitReader::new(out.words(), 0), keys.len(), 0, key);
                assert_eq!(found, KeyPosition::Before(i.div_ceil(2)), "key {i} of {}", set.len());
            }
        }
    }

    /// SlimDB 5.3.1: 2.5 bits per key. The entropy is 2.52 bits with 16 keys and 2.73 with 128.
    #[test]
    fn uniform_keys_take_their_entropy_and_an_eighth_of_a_bit() {
        let uniform = |i: u64| {
            let i = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let i = (i ^ (i >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let i = (i ^ (i >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            i ^ (i >> 31)
        };
        for (count, entropy) in [(16, 2.52), (128, 2.73)] {
            let mut bits = 0;
            for set in 0..200 {
                let mut set: Vec<u64> = (0..count).map(|i| uniform(set * count + i)).collect();
                set.sort_unstable();
                let keys = set.into_iter().map(|key| TrieKey { key, matter: 0 });
                bits += encoded(&keys.collect::<Vec<_>>()).bits();
            }
            // Each leaf has one bit more that says it has no tail.
            let bits = bits as f64 / (200 * count) as f64 - 1.0;
            assert!(
                bits > entropy - 0.05 && bits < entropy + 0.17,
                "{count} keys: {bits} bits each"
            );
        }
    }

    #[test]
    fn a_trie_that_splits_below_the_last_bit_is_refused() {
        let mut out = BitWriter::default();
        (0..70).for_each(|_| put_split(&mut out, 3, 3));
        assert!(!check(&mut BitReader::new(out.words(), 0), 3, 0));
        let mut out = BitWriter::default();
        out.put_gamma(66);
        assert!(!check(&mut BitReader::new(out.words(), 0), 1, 0));
    }
}
