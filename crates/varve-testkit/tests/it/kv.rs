//! A store of maps with planted bugs: the sound one must pass, each broken one must be caught.

use std::cell::{Cell, RefCell};

use varve_testkit::kvops::{
    KvFailure, KvLockstep, KvRange, KvRead, KvStore, KvUniverse, KvWrite, Pause, Row, Space, State,
    Survived,
};

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    LosesDelete,
    ScansPastTheEnd,
    ReverseLosesRow,
    SnapshotMoves,
    HalfBatchAfterCrash,
    LosesSyncedAfterCrash,
    HoleAfterCrash,
    LosesAcknowledgedAfterKill,
}

/// A store that remembers every batch.
struct MapStore {
    bug: Bug,
    batches: RefCell<Vec<Vec<KvWrite>>>,
    synced: Cell<usize>,
    chances: Cell<u64>,
    state: RefCell<State>,
}

const SPACES: usize = 2;

impl MapStore {
    fn new(bug: Bug) -> MapStore {
        MapStore {
            bug,
            batches: RefCell::new(Vec::new()),
            synced: Cell::new(0),
            chances: Cell::new(0),
            state: RefCell::new(State::empty(SPACES)),
        }
    }

    fn strikes(&self, bug: Bug) -> bool {
        self.chances.set(self.chances.get() + u64::from(self.bug == bug));
        self.bug == bug && self.chances.get().is_multiple_of(5)
    }

    /// The store after a crash that kept `kept` batches, or all that were synced if those are more.
    fn crash(&self, kept: usize) -> MapStore {
        let batches = self.batches.borrow();
        let mut kept: Vec<_> = batches[..kept.max(self.synced.get())].to_vec();
        let last = kept.len();
        match self.bug {
            Bug::HalfBatchAfterCrash => kept.iter_mut().skip(1).for_each(|batch| batch.truncate(1)),
            Bug::LosesSyncedAfterCrash => kept.truncate(self.synced.get().saturating_sub(20)),
            Bug::HoleAfterCrash if last > 30 => drop(kept.drain(last - 30..last - 15)),
            _ => {}
        }
        let next = MapStore::new(self.bug);
        kept.iter().for_each(|batch| next.state.borrow_mut().apply(batch));
        next.synced.set(self.synced.get().min(kept.len()));
        next.batches.replace(kept);
        next
    }

    /// The store after the power went: what is left is on disk.
    fn power_cut(&self, kept: usize) -> MapStore {
        let next = self.crash(kept);
        next.synced.set(next.batches.borrow().len());
        next
    }
}

impl KvRead for MapStore {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        Ok(self.state.borrow().get(space, key))
    }

    fn scan(&self, space: Space, range: &KvRange) -> Result<Vec<Row>, String> {
        let mut range = range.clone();
        if self.strikes(Bug::ScansPastTheEnd) {
            range.end = std::ops::Bound::Unbounded;
        }
        let mut rows = self.state.borrow().scan(space, &range);
        if range.reverse && self.strikes(Bug::ReverseLosesRow) {
            rows.pop();
        }
        Ok(rows)
    }
}

/// A pinned state.
struct Pinned(State);

impl KvRead for Pinned {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        Ok(self.0.get(space, key))
    }

    fn scan(&self, space: Space, range: &KvRange) -> Result<Vec<Row>, String> {
        Ok(self.0.scan(space, range))
    }
}

impl KvStore for MapStore {
    fn write(&self, batch: &[KvWrite]) -> Result<(), String> {
        let mut batch = batch.to_vec();
        batch.retain(|write| write.value.is_some() || !self.strikes(Bug::LosesDelete));
        self.state.borrow_mut().apply(&batch);
        self.batches.borrow_mut().push(batch);
        Ok(())
    }

    fn sync(&self) -> Result<(), String> {
        self.synced.set(self.batches.borrow().len());
        Ok(())
    }

    fn with_snapshot(&self, inspect: &mut dyn FnMut(&dyn KvRead)) -> Result<(), String> {
        if self.bug == Bug::SnapshotMoves {
            inspect(self);
        } else {
            let pinned = Pinned(self.state.borrow().clone());
            inspect(&pinned);
        }
        Ok(())
    }
}

/// Operations with reopens, power cuts and kills in between.
fn run(bug: Bug, seed: u64) -> Result<(), KvFailure> {
    let mut lockstep =
        KvLockstep::new(seed, KvUniverse { reopen_per_mille: 10, ..KvUniverse::default() });
    let mut store = MapStore::new(bug);
    let mut crashes = 0;
    while lockstep.run(&store, 3000)? != Pause::Finished {
        crashes += 1;
        let written = store.batches.borrow().len();
        let survived = if crashes % 4 < 2 { Survived::Acknowledged } else { Survived::Synced };
        store = match crashes % 4 {
            0 | 1 if bug == Bug::LosesAcknowledgedAfterKill => store.crash(written - 1),
            0 | 1 => store.crash(written),
            2 => store.power_cut(0),
            _ => store.power_cut(written * 3 / 4),
        };
        lockstep.check_recovered(&store, survived)?;
    }
    lockstep.check_all(&store)
}

#[test]
fn a_sound_store_passes() {
    for seed in 0..4 {
        run(Bug::None, seed).unwrap();
    }
}

#[test]
fn canary_a_broken_store_is_caught() {
    let bugs = [
        Bug::LosesDelete,
        Bug::ScansPastTheEnd,
        Bug::ReverseLosesRow,
        Bug::SnapshotMoves,
        Bug::HalfBatchAfterCrash,
        Bug::LosesSyncedAfterCrash,
        Bug::HoleAfterCrash,
        Bug::LosesAcknowledgedAfterKill,
    ];
    for bug in bugs {
        for seed in 0..4 {
            let result = run(bug, seed);
            assert!(
                matches!(result, Err(KvFailure::Mismatch(_))),
                "{bug:?} went through, seed {seed}"
            );
        }
    }
}
