//! Remembers by which older states rows are seen that the newest state does not see, so that it is known when these may go.
//!
//! There may be as many such pairs of states as rows. Beyond a limit neighbours are taken together, those of the fewest bytes
//! first, as if all states from the oldest to the newest of both saw their rows: it is noticed later that some may go, and
//! never too early.

use std::collections::BTreeMap;

use varve_types::SeqNo;

/// The most pairs of states that are told apart in one place.
pub(crate) const PAIRS_MAX: usize = 64;
/// And for all tables together, some 3 MiB, as long as each may have one.
const ALL_PAIRS_MAX: usize = 1024 * PAIRS_MAX;

/// The states that see a row which the newest state of all does not: the newest and the oldest of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PinnedBy {
    newest: SeqNo,
    oldest: SeqNo,
}

/// Bytes of rows by the states that see them.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    bytes: BTreeMap<PinnedBy, u64>,
}

impl PinnedBy {
    /// Those of `states`, ascending, that see a version of `seq`, of whose key the next is of `newer`.
    pub(crate) fn of(states: &[SeqNo], seq: SeqNo, newer: SeqNo) -> PinnedBy {
        let before = |bound| states.partition_point(|state| *state < bound);
        let seen = &states[before(seq)..before(newer)];
        match (seen.first(), seen.last()) {
            (Some(oldest), Some(newest)) => PinnedBy { newest: *newest, oldest: *oldest },
            _ => PinnedBy { newest: seq, oldest: seq },
        }
    }

    /// Whether one of `states`, ascending, is one of these or stands between them.
    fn is_one_of(self, states: &[SeqNo]) -> bool {
        let at = states.partition_point(|state| *state < self.oldest);
        states.get(at).is_some_and(|state| *state <= self.newest)
    }

    fn and(self, other: PinnedBy) -> PinnedBy {
        PinnedBy { newest: self.newest.max(other.newest), oldest: self.oldest.min(other.oldest) }
    }
}

impl Pinned {
    /// Adds `bytes` of rows, and keeps to `pairs_max` pairs.
    pub(crate) fn add(&mut self, pinned_by: PinnedBy, bytes: u64, pairs_max: usize) {
        *self.bytes.entry(pinned_by).or_default() += bytes;
        self.keep_to(pairs_max);
    }

    /// Takes neighbours together until there are at most `pairs_max` pairs, or one.
    pub(crate) fn keep_to(&mut self, pairs_max: usize) {
        while self.bytes.len() > pairs_max.max(1) {
            let neighbours = self.bytes.iter().zip(self.bytes.iter().skip(1));
            let smallest = neighbours.min_by_key(|((_, a), (_, b))| **a + **b);
            let Some(((older, a), (newer, b))) = smallest else { return };
            let (older, newer, bytes) = (*older, *newer, a + b);
            self.bytes.remove(&older);
            self.bytes.remove(&newer);
            *self.bytes.entry(older.and(newer)).or_default() += bytes;
        }
    }

    /// Bytes of rows that nobody sees any more, some states having gone: `states` are left.
    pub(crate) fn let_go(&self, states: &[SeqNo]) -> u64 {
        let gone = self.bytes.iter().filter(|(pinned_by, _)| !pinned_by.is_one_of(states));
        gone.map(|(_, bytes)| bytes).sum()
    }

    /// The pairs of which somebody looks at one of `states`, with their bytes.
    pub(crate) fn seen(&self, states: &[SeqNo]) -> impl Iterator<Item = (PinnedBy, u64)> {
        let pairs = self.bytes.iter().map(|(pinned_by, bytes)| (*pinned_by, *bytes));
        pairs.filter(|(pinned_by, _)| pinned_by.is_one_of(states))
    }

    /// Whether somebody sees rows of each pair, as `states` are left.
    pub(crate) fn are_seen(&self, states: &[SeqNo]) -> bool {
        self.bytes.keys().all(|pinned_by| pinned_by.is_one_of(states))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// Pairs of states that are told apart in each of `tables` tables.
pub(crate) fn pairs_max(tables: usize) -> usize {
    (ALL_PAIRS_MAX / tables.max(1)).clamp(1, PAIRS_MAX)
}

#[cfg(test)]
mod tests {
    use varve_testkit::rng::Rng;

    use super::*;

    fn states(numbers: impl IntoIterator<Item = u64>) -> Vec<SeqNo> {
        numbers.into_iter().map(SeqNo::new).collect()
    }

    fn pair(oldest: u64, newest: u64) -> PinnedBy {
        PinnedBy { newest: SeqNo::new(newest), oldest: SeqNo::new(oldest) }
    }

    #[test]
    fn a_version_is_pinned_by_the_states_up_to_the_next() {
        let states = states([3, 5, 8]);
        let of = |seq, newer| PinnedBy::of(&states, SeqNo::new(seq), SeqNo::new(newer));
        assert_eq!(of(3, 8), pair(3, 5));
        assert_eq!(of(4, 9), pair(5, 8));
        assert_eq!(of(1, 4), pair(3, 3));
    }

    #[test]
    fn what_is_taken_together_is_let_go_later_and_never_too_early() {
        const PAIRS: usize = 8;
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut left: Vec<u64> = (0..30).collect();
            // In the one they are as they come.
            let (mut exact, mut bounded) = (Pinned::default(), Pinned::default());
            let count = rng.below(40);
            for _ in 0..count {
                let oldest = rng.below(30);
                let newest = oldest + rng.below(30 - oldest);
                let bytes = 1 + rng.below(100);
                exact.add(pair(oldest, newest), bytes, usize::MAX);
                bounded.add(pair(oldest, newest), bytes, PAIRS);
                assert!(bounded.len() <= PAIRS);
            }
            let all = exact.let_go(&[]);
            loop {
                let states = states(left.iter().copied());
                let (may_go, told) = (exact.let_go(&states), bounded.let_go(&states));
                assert!(told <= may_go, "{told} of {may_go} bytes may go");
                assert!(told == may_go || exact.len() > PAIRS, "{told} of {may_go} bytes are told");
                assert_eq!(bounded.are_seen(&states), told == 0);
                let seen: u64 = bounded.seen(&states).map(|(_, bytes)| bytes).sum();
                assert_eq!(seen + told, all);
                if left.is_empty() {
                    break;
                }
                left.remove(rng.below(left.len() as u64) as usize);
            }
            assert_eq!(bounded.let_go(&[]), all);
        }
    }

    #[test]
    fn what_has_most_bytes_is_told_apart() {
        let mut pinned = Pinned::default();
        for at in 0..50 {
            pinned.add(pair(at, at), if at % 10 == 5 { 1000 } else { 1 }, 12);
        }
        for heavy in [5, 15, 25, 35, 45] {
            let told = pinned.let_go(&states((0..50).filter(|state| *state != heavy)));
            assert_eq!(told, 1000, "{heavy}");
        }
    }

    #[test]
    fn many_tables_have_few_pairs_each() {
        let all = |tables: usize| tables * pairs_max(tables);
        assert_eq!((pairs_max(0), pairs_max(1), pairs_max(1024)), (64, 64, 64));
        assert!((1..200_000).all(|tables| all(tables) <= ALL_PAIRS_MAX.max(tables)));
        assert_eq!(all(100_000), 100_000);
    }
}
