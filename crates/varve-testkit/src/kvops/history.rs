//! The oracle: every batch that was written, and the states after each.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{KvRange, KvWrite, Row, Space};

/// What must have survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survived {
    /// A prefix of the batches that holds everything synced: the power went.
    Synced,
    /// A prefix of the batches that holds everything acknowledged: the process went, or the store was
    /// closed.
    Acknowledged,
}

/// The rows of all key spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State(Vec<BTreeMap<Vec<u8>, Vec<u8>>>);

impl State {
    /// No rows.
    pub fn empty(spaces: usize) -> State {
        State(vec![BTreeMap::new(); spaces])
    }

    /// Returns the rows given, by key space.
    pub fn from_rows(rows: Vec<Vec<Row>>) -> State {
        State(rows.into_iter().map(|rows| rows.into_iter().collect()).collect())
    }

    /// Applies a batch.
    pub fn apply(&mut self, batch: &[KvWrite]) {
        for KvWrite { space, key, value } in batch {
            match value {
                Some(value) => self.0[*space].insert(key.clone(), value.clone()),
                None => self.0[*space].remove(key),
            };
        }
    }

    /// Returns the value of a key.
    pub fn get(&self, space: Space, key: &[u8]) -> Option<Vec<u8>> {
        self.0[space].get(key).cloned()
    }

    /// Returns the rows of a range.
    pub fn scan(&self, space: Space, range: &KvRange) -> Vec<Row> {
        let bounds =
            (range.start.as_ref().map(Vec::as_slice), range.end.as_ref().map(Vec::as_slice));
        if is_inverted(&bounds) {
            return Vec::new();
        }
        let rows = self.0[space].range::<[u8], _>(bounds);
        let copy = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
        if range.reverse { rows.rev().map(copy).collect() } else { rows.map(copy).collect() }
    }

    /// Returns what is different in `other`, in a few lines.
    pub fn differences(&self, other: &State) -> Vec<String> {
        const LINES_MAX: usize = 10;
        let mut lines = Vec::new();
        for (space, (expected, found)) in self.0.iter().zip(&other.0).enumerate() {
            let keys =
                expected.keys().chain(found.keys().filter(|key| !expected.contains_key(*key)));
            for key in keys.filter(|key| expected.get(*key) != found.get(*key)) {
                let show = |value: Option<&Vec<u8>>| value.map(|value| value.len());
                let (a, b) = (show(expected.get(key)), show(found.get(key)));
                lines.push(format!(
                    "{space}:{} expected {a:?} bytes, found {b:?}",
                    key.escape_ascii()
                ));
            }
        }
        lines.truncate(LINES_MAX);
        lines
    }
}

/// Returns whether a range is empty in a way that ordered maps refuse to be asked for.
fn is_inverted(bounds: &(Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match bounds {
        (Bound::Excluded(a), Bound::Excluded(b)) => a >= b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a > b,
        _ => false,
    }
}

/// Every batch since a known state. Batches are numbered from 1; number 0 is the known state.
#[derive(Clone, Debug)]
pub struct History {
    base: State,
    batches: Vec<Vec<KvWrite>>,
    newest: State,
    acknowledged: usize,
    synced: usize,
}

impl History {
    /// Of an empty store.
    pub fn new(spaces: usize) -> History {
        History::starting_at(State::empty(spaces))
    }

    /// Of a store that durably holds `base`.
    fn starting_at(base: State) -> History {
        History { newest: base.clone(), base, batches: Vec::new(), acknowledged: 0, synced: 0 }
    }

    /// Returns the state after every acknowledged batch.
    pub fn newest(&self) -> &State {
        &self.newest
    }

    /// Returns how many batches were acknowledged since the known state.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged
    }

    /// Returns how many batches were synced since the known state.
    pub fn synced(&self) -> usize {
        self.synced
    }

    /// A batch was acknowledged. REQUIRES: no batch is in doubt.
    pub fn acknowledge(&mut self, batch: &[KvWrite]) {
        assert_eq!(self.batches.len(), self.acknowledged, "an earlier batch is in doubt");
        self.newest.apply(batch);
        self.batches.push(batch.to_vec());
        self.acknowledged += 1;
    }

    /// A batch failed at a crash: it may be found or not. It must be the last before
    /// [`History::recover`].
    pub fn doubt(&mut self, batch: &[KvWrite]) {
        self.batches.push(batch.to_vec());
    }

    /// Everything acknowledged is durable.
    pub fn sync(&mut self) {
        self.synced = self.acknowledged;
    }

    /// Finds the longest prefix of the batches that leads to `found`, and its length; `Err` says how
    /// `found` differs from the newest state if no allowed prefix does. What is found after a power cut
    /// is on disk and becomes the known state; what is found after the death of the process may still
    /// be lost to a power cut.
    pub fn recover(&mut self, found: State, survived: Survived) -> Result<usize, Vec<String>> {
        let least = match survived {
            Survived::Synced => self.synced,
            Survived::Acknowledged => self.acknowledged,
        };
        let mut state = self.base.clone();
        let mut matching = None;
        for number in 0..=self.batches.len() {
            if let Some(batch) = number.checked_sub(1).and_then(|at| self.batches.get(at)) {
                state.apply(batch);
            }
            if number >= least && state == found {
                matching = Some(number);
            }
        }
        let number = matching.ok_or_else(|| self.newest.differences(&found))?;
        match survived {
            Survived::Synced => *self = History::starting_at(found),
            Survived::Acknowledged => {
                self.batches.truncate(number);
                self.acknowledged = number;
                self.newest = found;
            }
        }
        Ok(number)
    }
}
