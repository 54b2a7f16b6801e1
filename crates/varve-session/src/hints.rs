//! Where files were found that nobody knew any more: hints of searches through all names.
//!
//! Programs that have handles of files mostly ask for several files of about the same age. So a search leaves hints for the run of ids in which the
//! wanted one lies, of [`HINTED_IDS`] ids. Hints of the last [`HINTED_RUNS`] searches are kept. A hint is believed when the
//! inode is found there.

use std::collections::{HashMap, VecDeque};

use parking_lot::{Mutex, MutexGuard};
use varve_schema::RowKey;
use varve_types::InodeId;

use crate::IdHash;

/// How many ids one search leaves hints for.
const HINTED_IDS: u64 = 1 << 15;
/// Of how many searches hints are kept: some 5 MiB.
const HINTED_RUNS: usize = 4;

/// An entry row, and the slot in it.
pub type Hint = (RowKey, u8);

/// Where names of files were when they were searched for.
#[derive(Debug, Default)]
pub struct LocationHints {
    runs: Mutex<VecDeque<Run>>,
}

#[derive(Debug)]
struct Run {
    number: u64,
    hints: HashMap<u64, Hint, IdHash>,
}

/// The hints, held by the one who may search.
#[derive(Debug)]
pub struct HeldHints<'a> {
    runs: MutexGuard<'a, VecDeque<Run>>,
}

impl LocationHints {
    /// The run in which `ino` lies.
    pub fn run_of(ino: InodeId) -> u64 {
        ino.get() / HINTED_IDS
    }

    /// Waits until nobody searches.
    pub fn hold(&self) -> HeldHints<'_> {
        HeldHints { runs: self.runs.lock() }
    }

    /// The hints, unless somebody searches.
    pub fn try_hold(&self) -> Option<HeldHints<'_>> {
        self.runs.try_lock().map(|runs| HeldHints { runs })
    }
}

impl HeldHints<'_> {
    /// Where `ino` was.
    pub fn get(&self, ino: InodeId) -> Option<Hint> {
        let number = LocationHints::run_of(ino);
        let run = self.runs.iter().find(|run| run.number == number)?;
        run.hints.get(&ino.get()).copied()
    }

    /// Keeps what a search has found of the run `number`, by id.
    pub fn keep(&mut self, number: u64, hints: HashMap<u64, Hint, IdHash>) {
        self.runs.retain(|run| run.number != number);
        self.runs.truncate(HINTED_RUNS - 1);
        self.runs.push_front(Run { number, hints });
    }
}

#[cfg(test)]
mod tests {
    use varve_schema::EntrySuffix;

    use super::*;

    #[test]
    fn hints_of_the_last_searches_are_kept() {
        let hints = LocationHints::default();
        let ino = |run: u64| InodeId::new(run * HINTED_IDS + 7);
        let hint = |slot| (RowKey::entry(InodeId::ROOT, EntrySuffix::from_hash(9)), slot);
        for run in 0..6 {
            hints.hold().keep(run, HashMap::from_iter([(ino(run).get(), hint(run as u8))]));
        }
        let held = hints.hold();
        assert_eq!((held.get(ino(0)), held.get(ino(1))), (None, None));
        assert!((2..6).all(|run| held.get(ino(run)) == Some(hint(run as u8))));
        assert_eq!(held.get(InodeId::new(ino(5).get() + 1)), None);
    }
}
