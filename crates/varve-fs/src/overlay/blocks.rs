//! A set of block numbers: runs of whole pieces, and bits in pieces of which some blocks are in. A large file that is written
//! to everywhere takes 1 bit for each block at most, and a range of any length no more than its ends.

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks in one piece of the set.
const PIECE: u64 = 4096;
const WORDS: usize = (PIECE / 64) as usize;

/// See the module's comment.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    /// Pieces of which some blocks are in, and not all, by number.
    mixed: BTreeMap<u64, Box<[u64; WORDS]>>,
    /// Runs of pieces of which all are: the first piece, and the one behind the last. No two runs touch.
    full: BTreeMap<u64, u64>,
}

impl Blocks {
    /// Puts all blocks of a range in.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let piece = at / PIECE;
            let whole = piece..range.end / PIECE;
            if at.is_multiple_of(PIECE) && !whole.is_empty() {
                at = whole.end * PIECE;
                self.fill(whole);
            } else {
                let end = range.end.min((piece + 1) * PIECE);
                self.insert_within(piece, at..end);
                at = end;
            }
        }
    }

    /// The same for blocks of one piece.
    fn insert_within(&mut self, piece: u64, range: Range<u64>) {
        if self.full_to(piece).is_some() {
            return;
        }
        let bits = self.mixed.entry(piece).or_insert_with(|| Box::new([0; WORDS]));
        let mut at = range.start;
        while at < range.end {
            let bit = at % 64;
            let count = (64 - bit).min(range.end - at);
            bits[(at % PIECE / 64) as usize] |= (u64::MAX >> (64 - count)) << bit;
            at += count;
        }
        // From the end, as most are filled from their beginning.
        if bits.iter().rev().all(|word| *word == u64::MAX) {
            self.fill(piece..piece + 1);
        }
    }

    /// Puts whole pieces in.
    fn fill(&mut self, pieces: Range<u64>) {
        self.mixed.extract_if(pieces.clone(), |_, _| true).for_each(drop);
        let Range { mut start, mut end } = pieces;
        while let Some((first, to)) = self.full.range(..=end).next_back()
            && *to >= start
        {
            (start, end) = (start.min(*first), end.max(*to));
            let first = *first;
            self.full.remove(&first);
        }
        self.full.insert(start, end);
    }

    /// Where the run of full pieces ends that a piece is in, if it is in one.
    fn full_to(&self, piece: u64) -> Option<u64> {
        let (_, to) = self.full.range(..=piece).next_back()?;
        Some(*to).filter(|to| *to > piece)
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
        let piece = at / PIECE;
        let Some(bits) = self.mixed.get(&piece) else {
            if let Some(to) = self.full_to(piece) {
                return (true, to * PIECE);
            }
            let mixed = self.mixed.range(piece..).next().map(|(next, _)| *next);
            let full = self.full.range(piece..).next().map(|(next, _)| *next);
            let next = mixed.into_iter().chain(full).min();
            return (false, next.map_or(u64::MAX, |next| next * PIECE));
        };
        let (word, bit) = (bits[(at % PIECE / 64) as usize], at % 64);
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
    use varve_testkit::rng::Rng;

    use super::*;

    /// Each piece is in one of the two, and runs are as long as can be.
    fn is_sound(blocks: &Blocks) {
        let mut behind = None;
        for (first, to) in &blocks.full {
            assert!(first < to && behind < Some(*first), "{:?}", blocks.full);
            assert_eq!(blocks.mixed.range(first..to).next(), None);
            behind = Some(*to);
        }
        assert!(blocks.mixed.values().all(|bits| bits.iter().any(|word| *word != u64::MAX)));
    }

    /// The end of a file as long as can be, and one block after the other.
    #[test]
    fn what_is_in_as_a_whole_takes_no_memory() {
        let mut blocks = Blocks::default();
        blocks.insert(5..1 << 47);
        is_sound(&blocks);
        assert_eq!((blocks.mixed.len(), blocks.full.len()), (1, 1));
        assert_eq!(blocks.runs(1 << 47), std::slice::from_ref(&(5..1 << 47)));
        (0..5).for_each(|block| blocks.insert(block..block + 1));
        assert_eq!((blocks.mixed.len(), blocks.full.len()), (0, 1));
        assert_eq!(blocks.run(0, u64::MAX), (true, 1 << 47));
        let mut blocks = Blocks::default();
        (0..3 * PIECE).rev().for_each(|block| blocks.insert(block..block + 1));
        assert_eq!((blocks.mixed.len(), blocks.full), (0, BTreeMap::from([(0, 3)])));
    }

    #[test]
    fn it_holds_what_a_set_of_numbers_holds() {
        for seed in 0..20 {
            let (mut rng, mut blocks) = (Rng::new(seed), Blocks::default());
            let end = [70, 5000, 3 * PIECE + 7, 40 * PIECE][seed as usize % 4];
            let mut model = vec![false; end as usize];
            for _ in 0..30 {
                let (first, most) = (rng.below(end), *rng.pick(&[end / 8, 3 * PIECE]));
                let aligned = rng.chance(30);
                let first = if aligned { first / PIECE * PIECE } else { first };
                let range = first..(first + rng.below(most) + 1).min(end);
                model[range.start as usize..range.end as usize].fill(true);
                blocks.insert(range);
                is_sound(&blocks);
            }
            let found: Vec<u64> = blocks.runs(end).into_iter().flatten().collect();
            let held = (0..end).filter(|at| model[*at as usize]);
            assert_eq!(found, held.collect::<Vec<u64>>());
            let mut next = end;
            for at in (0..end).rev() {
                let is_in = model[at as usize];
                assert_eq!(blocks.run(at, end), (is_in, next), "{at}");
                if at > 0 && model[at as usize - 1] != is_in {
                    next = at;
                }
            }
        }
    }
}
