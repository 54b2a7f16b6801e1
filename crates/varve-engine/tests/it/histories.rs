//! Recorded histories of concurrent transactions against what their isolation promises.
//!
//! Locking transactions are equivalent to running them one after the other in the order of their commits: a read of one
//! that committed found what the rows were when it committed, but for what it wrote itself. Others read the rows as of
//! their beginning, and of two that changed one row the first to commit wins. Seeded schedules choose who acts next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_engine::{
    Batch, Branch, BranchOptions, Db, Direction, KeyRange, LockOptions, Merged, Store, StoreError,
};
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

use crate::common::*;
use crate::threaded::threaded;

/// The rows: key and value by number.
type State = BTreeMap<u64, u64>;

/// Rows are in two directories, so that prefixes are locked too.
fn key(n: u64) -> Vec<u8> {
    [(n % 2).to_be_bytes(), n.to_be_bytes()].concat()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(*bytes.last_chunk::<8>().unwrap())
}

struct Transaction {
    branch: Branch,
    locking: bool,
    began: State,
    /// What it found before it wrote there itself.
    reads: BTreeMap<u64, Option<u64>>,
    writes: State,
    steps: u64,
}

/// How often transactions committed, met a conflict, gave way, waited.
#[derive(Debug, Default)]
struct Counts {
    commits: u64,
    conflicts: u64,
    gave_way: u64,
    waits: u64,
    plain_waits: u64,
}

struct Schedule {
    db: Db,
    id: KeyspaceId,
    /// What is committed, and when each row was last.
    rows: State,
    changed: BTreeMap<u64, u64>,
    begun: Vec<u64>,
    open: Vec<Transaction>,
    clock: u64,
    counts: Counts,
}

const KEYS: u64 = 8;

impl Schedule {
    fn begin(&mut self, locking: bool) {
        let locks = locking.then_some(LockOptions { wait: None, ..LockOptions::default() });
        let branch = self.db.branch(&BranchOptions { locks, ..BranchOptions::default() }).unwrap();
        let (reads, writes, began) = (BTreeMap::new(), State::new(), self.rows.clone());
        self.open.push(Transaction { branch, locking, began, reads, writes, steps: 0 });
        self.begun.push(self.clock);
    }

    /// Notes what a transaction found in a row.
    fn note(transaction: &mut Transaction, n: u64, found: Option<u64>) {
        match transaction.writes.get(&n) {
            Some(own) => assert_eq!(found, Some(*own), "a transaction sees what it wrote"),
            None => {
                let before = *transaction.reads.entry(n).or_insert(found);
                assert_eq!(before, found, "a row read twice is the same");
            }
        }
    }

    fn act(&mut self, at: usize, rng: &mut Rng) -> Result<(), StoreError> {
        self.clock += 1;
        let (id, value) = (self.id, self.clock);
        let transaction = &mut self.open[at];
        let n = rng.below(KEYS);
        match rng.below(8) {
            0..3 => {
                let found = transaction.branch.get(id, &key(n))?;
                Schedule::note(transaction, n, found.map(|value| number(&value)));
            }
            3 => {
                let range = KeyRange::prefix(&(n % 2).to_be_bytes());
                let rows = transaction.branch.scan(id, range, Direction::Forward)?;
                let found: State = rows
                    .map(|row| row.map(|(key, value)| (number(&key), number(&value))).unwrap())
                    .collect();
                for other in (n % 2..KEYS).step_by(2) {
                    Schedule::note(transaction, other, found.get(&other).copied());
                }
            }
            _ => {
                let mut batch = Batch::new();
                batch.put(id, key(n), value.to_be_bytes().to_vec());
                transaction.branch.write(batch)?;
                transaction.writes.insert(n, value);
            }
        }
        transaction.steps += 1;
        Ok(())
    }

    fn commit(&mut self, at: usize) {
        self.clock += 1;
        let transaction = self.open.swap_remove(at);
        let begun = self.begun.swap_remove(at);
        let clashes = transaction
            .writes
            .keys()
            .any(|n| self.changed.get(n).is_some_and(|changed| *changed > begun));
        match transaction.branch.commit(&mut |_| Merged::Conflict) {
            Ok(()) => {
                self.counts.commits += 1;
                let state = if transaction.locking { &self.rows } else { &transaction.began };
                for (n, found) in &transaction.reads {
                    assert_eq!(state.get(n), found.as_ref(), "row {n} as it was read");
                }
                assert!(transaction.locking || !clashes, "the first to commit wins");
                for (n, value) in transaction.writes {
                    self.rows.insert(n, value);
                    self.changed.insert(n, self.clock);
                }
            }
            Err(StoreError::Conflict { .. }) => {
                assert!(clashes && !transaction.locking);
                self.counts.conflicts += 1;
                transaction.branch.abort().unwrap();
            }
            // Others that lock what this one changed go on; or it gave way to them.
            Err(StoreError::Blocked(_)) if !transaction.locking => {
                self.counts.plain_waits += 1;
                transaction.branch.abort().unwrap();
            }
            Err(StoreError::GaveWay { .. }) => {
                self.counts.gave_way += 1;
                transaction.branch.abort().unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A write outside of transactions.
    fn write(&mut self, rng: &mut Rng) {
        self.clock += 1;
        let n = rng.below(KEYS);
        let mut batch = Batch::new();
        batch.put(self.id, key(n), self.clock.to_be_bytes().to_vec());
        match self.db.write(batch) {
            Ok(()) => {
                self.rows.insert(n, self.clock);
                self.changed.insert(n, self.clock);
            }
            Err(StoreError::Blocked(_)) => self.counts.plain_waits += 1,
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        if self.open.len() < 4 && rng.one_in(3) {
            return self.begin(!rng.one_in(4));
        }
        if self.open.is_empty() || rng.one_in(12) {
            return self.write(rng);
        }
        let at = rng.below(self.open.len() as u64) as usize;
        if self.open[at].steps > rng.below(8) {
            return self.commit(at);
        }
        match self.act(at, rng) {
            Ok(()) => {}
            Err(StoreError::Blocked(_)) => {
                self.counts.waits += 1;
                // Who waits does something else later, or in the end gives up.
                self.open[at].steps += u64::from(rng.one_in(4));
            }
            Err(StoreError::GaveWay { .. }) => {
                self.counts.gave_way += 1;
                self.begun.swap_remove(at);
                self.open.swap_remove(at).branch.abort().unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn thousands_of_schedules_keep_their_isolation() {
    let mut counts = Counts::default();
    for seed in 0..2500 {
        let mut rng = Rng::new(seed);
        let db = open(&SimEnv::new(seed)).unwrap();
        let id = make_spaces(&db).unwrap()[0];
        let (rows, changed, begun, open) = Default::default();
        let mut schedule = Schedule { db, id, rows, changed, begun, open, clock: 0, counts };
        for _ in 0..60 {
            schedule.step(&mut rng);
        }
        while !schedule.open.is_empty() {
            schedule.commit(0);
        }
        for n in 0..KEYS {
            let found = schedule.db.get(id, &key(n)).unwrap().map(|value| number(&value));
            assert_eq!(found.as_ref(), schedule.rows.get(&n), "seed {seed}, row {n}");
        }
        counts = schedule.counts;
    }
    let Counts { commits, conflicts, gave_way, waits, plain_waits } = counts;
    let all = [commits, conflicts, gave_way, waits, plain_waits];
    assert!(all.iter().all(|n| *n > 500), "{counts:?}");
}

/// Moves one unit between accounts, if the two have three together; whether it went through.
fn transfer(db: &Db, id: KeyspaceId, from: u64, to: u64) -> Result<(), StoreError> {
    let locks =
        Some(LockOptions { wait: Some(Duration::from_secs(5)), give_way: from, restarts: false });
    let branch = db.branch(&BranchOptions { locks, ..BranchOptions::default() })?;
    let run = || {
        let read = |n| branch.get(id, &key(n)).map(|value| number(&value.unwrap()));
        let (a, b) = (read(from)?, read(to)?);
        if a > 0 && a + b >= 3 {
            let mut batch = Batch::new();
            batch.put(id, key(from), (a - 1).to_be_bytes().to_vec());
            batch.put(id, key(to), (b + 1).to_be_bytes().to_vec());
            branch.write(batch)?;
        }
        branch.commit(&mut |_| Merged::Conflict)
    };
    run().inspect_err(|_| branch.abort().unwrap())
}

/// Threads move units between accounts and write beside them; none is made or lost, and nobody waits for ever.
#[test]
fn threads_keep_what_each_transaction_keeps() {
    const ACCOUNTS: u64 = 4;
    let env = SimEnv::new(9);
    let db = open(&Arc::new(threaded(&env))).unwrap();
    let id = make_spaces(&db).unwrap()[0];
    let mut batch = Batch::new();
    (0..ACCOUNTS).for_each(|n| batch.put(id, key(n), 10u64.to_be_bytes().to_vec()));
    db.write(batch).unwrap();
    let (done, gave_way) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (db, done, gave_way) = (&db, &done, &gave_way);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..150 {
                    let from = rng.below(ACCOUNTS);
                    match transfer(db, id, from, (from + 1 + rng.below(ACCOUNTS - 1)) % ACCOUNTS) {
                        Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                        Err(StoreError::GaveWay { .. }) => gave_way.fetch_add(1, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    };
                    let mut batch = Batch::new();
                    batch.put(id, key(100 + thread), rng.next_u64().to_be_bytes().to_vec());
                    db.write(batch).unwrap();
                }
            });
        }
    });
    let total: u64 = (0..ACCOUNTS).map(|n| number(&db.get(id, &key(n)).unwrap().unwrap())).sum();
    assert_eq!(total, 10 * ACCOUNTS);
    assert!(done.into_inner() > 100, "{gave_way:?} gave way");
    assert_eq!(db.branches(), []);
}

/// A commit by reference meets the locks of its keys, and no others.
#[test]
fn large_commits_wait_for_locks_of_what_they_changed() {
    let env = SimEnv::new(4);
    let db = open(&env).unwrap();
    let id = make_spaces(&db).unwrap()[0];
    let locks = Some(LockOptions { wait: None, ..LockOptions::default() });
    let reader = db.branch(&BranchOptions { locks, ..BranchOptions::default() }).unwrap();
    reader.get(id, &key(6)).unwrap();
    for (meets, first) in [(true, 0), (false, 100)] {
        let branch = db.branch(&BranchOptions::default()).unwrap();
        for n in first..first + 100 {
            let mut batch = Batch::new();
            batch.put(id, key(n), vec![n as u8; 120_000]);
            branch.write(batch).unwrap();
        }
        let committed = branch.commit(&mut |_| Merged::Conflict);
        assert_eq!(matches!(committed, Err(StoreError::Blocked(_))), meets, "{committed:?}");
        if let Err(StoreError::Blocked(blocked)) = committed {
            assert!(
                !db.wait_for_locks(blocked.released, Duration::ZERO),
                "only its own went since"
            );
            assert_eq!(db.lock_status().len(), 1, "it keeps no locks");
            branch.abort().unwrap();
        }
    }
    assert_eq!(counter(&db, "branches_joined"), 1);
    reader.commit(&mut |_| Merged::Conflict).unwrap();
}

/// All ways to change the store count, and what only branches see does not.
#[test]
fn the_store_counts_its_own_changes() {
    let db = open(&SimEnv::new(5)).unwrap();
    let id = make_spaces(&db).unwrap()[0];
    let mut known = db.store_changes();
    let mut has_changed = |when: &str, expected: bool| {
        assert_eq!(std::mem::replace(&mut known, db.store_changes()) != known, expected, "{when}");
    };
    let write = |store: &dyn Store, n: u64, bytes: usize| {
        let mut batch = Batch::new();
        batch.put(id, key(n), vec![n as u8; bytes]);
        store.write(batch).unwrap();
    };
    write(&db, 1, 1);
    has_changed("a write", true);
    for (large, way) in [(false, "branches_logged"), (true, "branches_joined")] {
        let branch = db.branch(&BranchOptions::default()).unwrap();
        let (rows, bytes) = if large { (100, 120_000) } else { (3, 10) };
        (0..rows).for_each(|n| write(&branch, n, bytes));
        db.flush().unwrap();
        has_changed("writes of a branch", false);
        branch.commit(&mut |_| Merged::Conflict).unwrap();
        assert_eq!(counter(&db, way), 1);
        has_changed("a commit", true);
    }
    let (branch, within) = {
        let branch = db.branch(&BranchOptions::default()).unwrap();
        let within = branch.branch(&BranchOptions::default()).unwrap();
        (branch, within)
    };
    write(&within, 1, 1);
    within.commit(&mut |_| Merged::Conflict).unwrap();
    has_changed("a commit into a branch", false);
    branch.abort().unwrap();
    has_changed("an abort", false);
    db.clear_keyspace(id).unwrap();
    has_changed("a key space emptied", true);
}

/// A transaction that is known to hold what it asks for is still told that it has lost it.
#[test]
fn what_was_held_is_not_held_once_it_is_lost() {
    let db = open(&SimEnv::new(6)).unwrap();
    let id = make_spaces(&db).unwrap()[0];
    let locks = Some(LockOptions { wait: None, ..LockOptions::default() });
    let branch = db.branch(&BranchOptions { locks, ..BranchOptions::default() }).unwrap();
    let write = |store: &dyn Store| {
        let mut batch = Batch::new();
        batch.put(id, key(1), vec![1]);
        store.write(batch)
    };
    for _ in 0..2 {
        branch.lock_to_read(id, &key(1)).unwrap();
        assert!(matches!(write(&db), Err(StoreError::Blocked(_))));
        write(&branch).unwrap();
    }
    assert_eq!(branch.get(id, &key(1)).unwrap(), Some(vec![1].into()));
    db.overrule(branch.id());
    write(&db).unwrap();
    for told in [
        branch.get(id, &key(1)).map(drop),
        branch.lock_to_read(id, &key(1)),
        write(&branch),
        branch.commit(&mut |_| Merged::Conflict),
    ] {
        assert!(matches!(told, Err(StoreError::GaveWay { .. })), "{told:?}");
    }
    branch.abort().unwrap();
    assert!(matches!(branch.lock_to_read(id, &key(1)), Err(StoreError::Ended)));
}

/// A transaction that loses its locks while its commit is under way, as a large one is for long, is committed before whoever gets
/// them reads, or not at all.
#[test]
fn locks_are_lost_before_a_large_commit_or_after_it() {
    let db = open(&Arc::new(threaded(&SimEnv::new(7)))).unwrap();
    let id = make_spaces(&db).unwrap()[0];
    let locks = Some(LockOptions { wait: Some(Duration::from_secs(5)), ..LockOptions::default() });
    let options = BranchOptions { locks, ..BranchOptions::default() };
    let add = |branch: &Branch| -> Result<(), StoreError> {
        let count = branch.get(id, &key(0))?.map_or(0, |value| number(&value));
        let mut batch = Batch::new();
        batch.put(id, key(0), (count + 1).to_be_bytes().to_vec());
        branch.write(batch)
    };
    let pause = |micros: u64| {
        let nobody_tells = (Mutex::new(()), Condvar::new());
        let _ = nobody_tells.1.wait_for(&mut nobody_tells.0.lock(), Duration::from_micros(micros));
    };
    let (mut rng, mut done, mut gave_way) = (Rng::new(7), 0, 0);
    // How long it may go on before it loses them, at most: sooner after one that was committed, later after one that gave way, so
    // that both happen however slow the machine is.
    let mut micros_max = 20_000;
    for round in 0..40 {
        let large = db.branch(&options).unwrap();
        add(&large).unwrap();
        for n in 1..=100 {
            let mut batch = Batch::new();
            batch.put(id, key(n), vec![round; 120_000]);
            large.write(batch).unwrap();
        }
        let committed = std::thread::scope(|scope| {
            let committing = scope.spawn(|| large.commit(&mut |_| Merged::Conflict));
            pause(rng.below(micros_max));
            db.overrule(large.id());
            let small = db.branch(&options).unwrap();
            add(&small).unwrap();
            pause(rng.below(5_000));
            small.commit(&mut |_| Merged::Conflict).unwrap();
            committing.join().unwrap()
        });
        done += 1;
        match committed {
            Ok(()) => {
                done += 1;
                micros_max = (micros_max / 2).max(1);
            }
            Err(StoreError::GaveWay { .. }) => {
                gave_way += 1;
                micros_max = (micros_max * 2).min(5_000_000);
                large.abort().unwrap();
            }
            Err(error) => panic!("{error}"),
        }
        let count = number(&db.get(id, &key(0)).unwrap().unwrap());
        assert_eq!(count, done, "round {round}, {gave_way} gave way");
    }
    assert!((1..40).contains(&gave_way), "{gave_way} of 40 gave way");
}

/// A large commit of a branch that takes no locks of its own lost those it had for the commit while it flushed, and went
/// on: it changed rows that others had locked and read since.
#[test]
fn a_large_commit_of_a_branch_without_locks_begins_anew_without_them() {
    let db = open(&Arc::new(threaded(&SimEnv::new(8)))).unwrap();
    let id = make_spaces(&db).unwrap()[0];
    let locks = Some(LockOptions { wait: Some(Duration::from_secs(5)), ..LockOptions::default() });
    let options = BranchOptions { locks, ..BranchOptions::default() };
    let put = |branch: &Branch, n: u64, value: Vec<u8>| {
        let mut batch = Batch::new();
        batch.put(id, key(n), value);
        branch.write(batch).unwrap();
    };
    // Where nobody takes locks the commit takes none.
    let bystander = db.branch(&options).unwrap();
    let (mut lost, mut refused) = (0, 0);
    for round in 0..20_u64 {
        let large = db.branch(&BranchOptions::default()).unwrap();
        put(&large, 0, (1000 * round).to_be_bytes().to_vec());
        (1..=100).for_each(|n| put(&large, n, vec![round as u8; 120_000]));
        let small = db.branch(&options).unwrap();
        let read = || small.get(id, &key(0)).unwrap().map(|value| number(&value));
        let (found, committed) = std::thread::scope(|scope| {
            let committing = scope.spawn(|| large.commit(&mut |_| Merged::Conflict));
            while !committing.is_finished() {
                let all = db.lock_status();
                if all.iter().any(|status| status.id == large.id() && status.locks > 100) {
                    db.overrule(large.id());
                    lost += 1;
                    break;
                }
                std::thread::yield_now();
            }
            let found = (round % 2 == 0).then(read);
            (found, committing.join().unwrap())
        });
        let now = read();
        assert_eq!(found.unwrap_or(now), now, "round {round}: a row that was locked has changed");
        match committed {
            Ok(()) => assert_eq!(now, Some(1000 * round)),
            Err(StoreError::Blocked(_)) if found.is_some() => {
                refused += 1;
                large.abort().unwrap();
            }
            Err(error) => panic!("{error}"),
        }
        small.abort().unwrap();
    }
    assert!(lost > 0 && refused > 0, "{lost} lost their locks, {refused} were refused");
    bystander.abort().unwrap();
}

/// A large commit of a branch that takes no locks of its own failed as one that had lost them for good, where it lost those that
/// it had for the commit before it had all of them.
#[test]
fn a_large_commit_of_a_branch_without_locks_loses_nothing_while_it_takes_them() {
    let db = open(&SimEnv::new(9)).unwrap();
    let id = make_spaces(&db).unwrap()[0];
    let locks = Some(LockOptions { wait: None, ..LockOptions::default() });
    let older = db.branch(&BranchOptions { locks, ..BranchOptions::default() }).unwrap();
    older.get(id, &key(1)).unwrap();
    let large = db.branch(&BranchOptions::default()).unwrap();
    for n in (0..200).step_by(2) {
        let mut batch = Batch::new();
        batch.put(id, key(n), vec![n as u8; 120_000]);
        large.write(batch).unwrap();
    }
    let commit = |lose: &dyn Fn(&[u8])| {
        large.commit_beside(&mut |_| Merged::Conflict, &|_, key| {
            lose(key);
            false
        })
    };
    // It is overruled, each time.
    let overruled = commit(&|_| db.overrule(large.id()));
    assert!(matches!(overruled, Err(StoreError::Blocked(_))), "{overruled:?}");
    // An older transaction waits for it that has locked what it asks for.
    let mut batch = Batch::new();
    batch.put(id, key(1), vec![1; 120_000]);
    large.write(batch).unwrap();
    let deadlocked = commit(&|locked| {
        if locked == key(1) {
            let read = older.get(id, &key(0));
            assert!(matches!(read, Err(StoreError::Blocked(_))), "{read:?}");
        }
    });
    match deadlocked {
        Err(StoreError::Blocked(blocked)) => assert_eq!(blocked.holders, [older.id()]),
        other => panic!("{other:?}"),
    }
    assert_eq!(db.lock_status().len(), 1, "it keeps no locks");
    older.abort().unwrap();
    // It is overruled once, while another takes locks.
    let bystander = db.branch(&BranchOptions { locks, ..BranchOptions::default() }).unwrap();
    let calls = AtomicU64::new(0);
    commit(&|_| {
        if calls.fetch_add(1, Ordering::Relaxed) == 50 {
            db.overrule(large.id());
        }
    })
    .unwrap();
    assert_eq!((calls.into_inner(), counter(&db, "branches_joined")), (51 + 101, 1));
    bystander.abort().unwrap();
}

/// A commit that waited for locks brings what it would have brought at once.
#[test]
fn a_commit_that_waited_for_locks_brings_all_of_its_rows() {
    let db = open(&Arc::new(threaded(&SimEnv::new(10)))).unwrap();
    let id = make_spaces(&db).unwrap()[0];
    let mut batch = Batch::new();
    (0..4).for_each(|n| batch.put(id, key(n), vec![0; 100]));
    db.write(batch).unwrap();
    let branch = db.branch(&BranchOptions::default()).unwrap();
    let mut batch = Batch::new();
    (0..3).for_each(|n| batch.put(id, key(n), vec![1; 100]));
    batch.delete(id, key(3));
    branch.write(batch).unwrap();
    let mut batch = Batch::new();
    batch.put(id, key(1), vec![2; 100]);
    db.write(batch).unwrap();
    let locks = Some(LockOptions::default());
    let reader = db.branch(&BranchOptions { locks, ..BranchOptions::default() }).unwrap();
    reader.get(id, &key(0)).unwrap();
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| {
            let merged = Merged::Value(vec![3; 100].into());
            branch.commit_beside(&mut |_| merged.clone(), &|_, at| {
                rounds.fetch_add(u64::from(at == key(0)), Ordering::Relaxed);
                false
            })
        });
        while rounds.load(Ordering::Relaxed) == 0 && !committing.is_finished() {
            std::thread::yield_now();
        }
        reader.abort().unwrap();
        committing.join().unwrap().unwrap();
    });
    assert!(rounds.into_inner() > 1 && counter(&db, "branches_logged") == 1);
    let rows = [1, 3, 1].map(|value| Some(vec![value; 100].into()));
    let found = [0, 1, 2, 3].map(|n| db.get(id, &key(n)).unwrap());
    assert_eq!((&found[..3], &found[3]), (&rows[..], &None));
}
