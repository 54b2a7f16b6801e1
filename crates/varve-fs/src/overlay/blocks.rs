//! A set of block numbers, as bits: a large file that is written to everywhere takes 1 bit for each block.

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks in one piece of the set.
const PIECE: u64 = 4096;
const WORDS: usize = (PIECE / 64) as usize;

/// See the module's comment.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    /// Pieces with at least one block, by number.
    pieces: BTreeMap<u64, Box<[u64; WORDS]>>,
}

impl Blocks {
    /// Puts all blocks of a range in.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let piece = self.pieces.entry(at / PIECE).or_insert_with(|| Box::new([0; WORDS]));
            let end = range.end.min((at / PIECE + 1) * PIECE);
            while at < end {
                let bit = at % 64;
                let count = (64 - bit).min(end - at);
                piece[(at % PIECE / 64) as usize] |= (u64::MAX >> (64 - count)) << bit;
                at += count;
            }
        }
    }

    /// Whether a block is in, and the first one above it for which that is otherwise, at most `end`.
    pub(super) fn run(&self, first: u64, end: u64) -> (bool, u64) {
        let (is_in, _) = self.stretch(first);
        let mut at = first;
        while at < end {
            let (same, next) = self.stretch(at);
            if same != is_in {
                break;
            }
            at = next;
        }
        (is_in, at.min(end))
    }

    /// Whether a block is in, and up to where that is known to go on.
    fn stretch(&self, at: u64) -> (bool, u64) {
        let Some(piece) = self.pieces.get(&(at / PIECE)) else {
            let next =
                self.pieces.range(at / PIECE..).next().map_or(u64::MAX, |(no, _)| no * PIECE);
            return (false, next);
        };
        let (word, bit) = (piece[(at % PIECE / 64) as usize], at % 64);
        let is_in = word >> bit & 1 == 1;
        let rest = if is_in { !(word >> bit) } else { word >> bit };
        // Beyond the end of the word the shift has put bits that say nothing.
        let count = u64::from(rest.trailing_zeros()).clamp(1, 64 - bit);
        (is_in, at + count)
    }

    /// The runs of blocks that are in, below `end`.
    pub(super) fn runs(&self, end: u64) -> Vec<Range<u64>> {
        let (mut runs, mut at) = (Vec::new(), 0);
        while at < end {
            let (is_in, next) = self.run(at, end);
            if is_in {
                runs.push(at..next);
            }
            at = next;
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use varve_testkit::rng::Rng;

    use super::*;

    #[test]
    fn it_holds_what_a_set_of_numbers_holds() {
        for seed in 0..20 {
            let (mut rng, mut blocks, mut model) =
                (Rng::new(seed), Blocks::default(), BTreeSet::new());
            let end = [70, 5000, 3 * PIECE + 7][seed as usize % 3];
            for _ in 0..30 {
                let first = rng.below(end);
                let range = first..(first + rng.below(end / 8) + 1).min(end);
                model.extend(range.clone());
                blocks.insert(range);
            }
            let found: BTreeSet<u64> = blocks.runs(end).into_iter().flatten().collect();
            assert_eq!(found, model);
            for at in (0..end).step_by(13) {
                let (is_in, next) = blocks.run(at, end);
                assert!((at..next).all(|at| model.contains(&at) == is_in), "{at}..{next}");
                assert!(next == end || model.contains(&next) != is_in);
            }
        }
    }
}
