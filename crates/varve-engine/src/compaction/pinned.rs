//! Remembers by which older states rows are seen that the newest state does not see, so that it is known when these may go.
//!
//! There may be as many such pairs of states as rows. Beyond a limit neighbours are taken together, as if all states from the
//! oldest to the newest of both saw their rows: those first for whose bytes that adds the least. It is noticed later that some
//! may go, and never too early. So where pairs were taken together rows are counted again when a quarter of the states have
//! gone, which is O(log n) times while n of them go.

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

/// So many of the states at a count, from the oldest to the newest of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StatesThen {
    among: PinnedBy,
    count: usize,
}

/// Bytes of rows by the states that see them.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    bytes: BTreeMap<PinnedBy, u64>,
    /// The states when they were counted, if there were any.
    then: Option<StatesThen>,
    /// Whether pairs were taken together.
    is_joined: bool,
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

    /// How far these are from each other.
    fn width(self) -> u128 {
        u128::from(self.newest.get() - self.oldest.get())
    }
}

impl StatesThen {
    /// Whether so many of them have gone that rows are to be counted again: `states`, ascending, are left.
    pub(crate) fn are_few_by_now(self, states: &[SeqNo]) -> bool {
        let from = states.partition_point(|state| *state < self.among.oldest);
        let to = states.partition_point(|state| *state <= self.among.newest);
        (to - from) * 4 <= self.count * 3
    }
}

impl Pinned {
    /// Of no rows yet, while somebody looks at `states`, ascending.
    pub(crate) fn new(states: &[SeqNo]) -> Pinned {
        let then = states.first().zip(states.last()).map(|(oldest, newest)| StatesThen {
            among: PinnedBy { newest: *newest, oldest: *oldest },
            count: states.len(),
        });
        Pinned { then, ..Pinned::default() }
    }

    /// Adds `bytes` of rows, and keeps to `pairs_max` pairs.
    pub(crate) fn add(&mut self, pinned_by: PinnedBy, bytes: u64, pairs_max: usize) {
        *self.bytes.entry(pinned_by).or_default() += bytes;
        self.keep_to(pairs_max);
    }

    /// Takes neighbours together until there are at most `pairs_max` pairs, or one.
    pub(crate) fn keep_to(&mut self, pairs_max: usize) {
        while self.bytes.len() > pairs_max.max(1) {
            let neighbours = self.bytes.iter().zip(self.bytes.iter().skip(1));
            let closest = neighbours.min_by_key(|(one, other)| {
                let width = one.0.and(*other.0).width();
                let added = |(pair, bytes): &(&PinnedBy, &u64)| {
                    u128::from(**bytes).saturating_mul(width - pair.width())
                };
                added(one).saturating_add(added(other))
            });
            let Some(((one, a), (other, b))) = closest else { return };
            let (one, other, bytes) = (*one, *other, a + b);
            self.bytes.remove(&one);
            self.bytes.remove(&other);
            *self.bytes.entry(one.and(other)).or_default() += bytes;
            self.is_joined = true;
        }
    }

    /// The states then, if more may go of these rows than [`Pinned::let_go`] tells once some have gone.
    pub(crate) fn unclear_after(&self) -> Option<StatesThen> {
        self.then.filter(|_| self.is_joined)
    }

    /// Bytes of all these rows.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.bytes.values().sum()
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

    /// Neighbours of the fewest bytes were taken together, however far apart their states were: then nothing could be told
    /// before nearly all states had gone.
    #[test]
    fn what_is_taken_together_is_not_far_apart() {
        const STATES: u64 = 200;
        let (mut exact, mut bounded) = (Pinned::default(), Pinned::default());
        for _ in 0..150 {
            // Each row was written again between any two states; of a key the newest comes first.
            for state in (0..STATES).rev() {
                exact.add(pair(state, state), 100, usize::MAX);
                bounded.add(pair(state, state), 100, PAIRS_MAX);
            }
        }
        let half = states(0..STATES / 2);
        let tenth = states((0..STATES).step_by(10));
        for left in [half, tenth] {
            let (may_go, told) = (exact.let_go(&left), bounded.let_go(&left));
            assert!(told > may_go / 2, "{told} of {may_go} bytes are told");
        }
    }

    #[test]
    fn rows_are_counted_again_when_a_quarter_of_the_states_has_gone() {
        let at_count = states((0..40).map(|at| 10 + at * 10));
        let mut pinned = Pinned::new(&at_count);
        pinned.add(pair(10, 10), 1, 2);
        pinned.add(pair(50, 60), 1, 2);
        assert_eq!(pinned.unclear_after(), None);
        pinned.add(pair(90, 100), 1, 2);
        let then = pinned.unclear_after().unwrap();
        // Those that came since, and older ones that nobody had been told of, do not count.
        let left = |from: usize| {
            let others = states(500..600);
            [&states([1, 2])[..], &at_count[from..], &others].concat()
        };
        assert!(!then.are_few_by_now(&left(0)) && !then.are_few_by_now(&left(9)));
        assert!(then.are_few_by_now(&left(10)) && then.are_few_by_now(&[]));
    }

    #[test]
    fn many_tables_have_few_pairs_each() {
        let all = |tables: usize| tables * pairs_max(tables);
        assert_eq!((pairs_max(0), pairs_max(1), pairs_max(1024)), (64, 64, 64));
        assert!((1..200_000).all(|tables| all(tables) <= ALL_PAIRS_MAX.max(tables)));
        assert_eq!(all(100_000), 100_000);
    }
}
