//! Compactions while the tables' key space goes: its branch is committed by reference, or it is cleared.

use std::cell::{Cell, RefCell};
use std::path::Path;

use varve_env::sim::SimEnv;

use super::*;
use crate::read_state::ReadState;
use crate::{Batch, Branch, BranchOptions, Db, DbOptions, KeyspaceOptions, Merged, Store};

const ROWS: u64 = 200;
const VALUE: [u8; 200] = [7; 200];
/// A row that the store has, too.
const SHARED_ROW: u64 = 3;

fn key(row: u64) -> [u8; 8] {
    row.to_be_bytes()
}

fn open(env: &Arc<SimEnv>) -> Db {
    let options = DbOptions {
        memtable_bytes: 64 << 10,
        sublevels_trigger: 1000,
        level_base_bytes: 1 << 30,
        ..DbOptions::default()
    };
    Db::open(Arc::clone(env) as _, Path::new("/store"), options).unwrap()
}

fn put(store: &dyn Store, space: KeyspaceId, rows: std::ops::Range<u64>, value: &'static [u8]) {
    let mut batch = Batch::new();
    rows.for_each(|row| batch.put(space, key(row), value));
    store.write(batch).unwrap();
}

/// A store and a branch of it with two tables, too large to be committed as a batch.
fn store_with_branch(env: &Arc<SimEnv>) -> (Db, KeyspaceId, Branch) {
    let db = open(env);
    let options = KeyspaceOptions { prefixed: false, compressed: false };
    let space = db.keyspace("rows", options).unwrap();
    let branch = db.branch(&BranchOptions::default()).unwrap();
    for rows in [0..ROWS / 2, ROWS / 2..ROWS] {
        put(&branch, space, rows, &VALUE);
        db.flush().unwrap();
    }
    (db, space, branch)
}

fn branch_space<'a>(read_state: &'a ReadState, branch: &Branch, base: KeyspaceId) -> &'a Keyspace {
    let own = read_state.branch(branch.id()).unwrap().space(base).unwrap();
    read_state.keyspace(own.id).unwrap()
}

/// Takes the branch's tables down to level 1, all of them if there is no `end`.
fn job(space: &Keyspace, end: Option<u64>) -> Job {
    let tables: Vec<_> = space.version.tables().collect();
    assert_eq!(tables.len(), 2);
    Job {
        level: 0,
        inputs: tables.iter().map(|(place, table)| (*place, table.file_no())).collect(),
        output_level: 1,
        output_sublevel: None,
        end: end.map(|row| key(row).to_vec().into()),
        is_move: false,
        state: Default::default(),
    }
}

/// Closes the store and opens it anew: all rows that the branch wrote are there.
fn check(env: &Arc<SimEnv>, db: Db, space: KeyspaceId) {
    let check_rows = |db: &Db| {
        for row in 0..ROWS {
            assert_eq!(db.get(space, &key(row)).unwrap().as_deref(), Some(&VALUE[..]), "row {row}");
        }
        let report = db.verify(&mut |_| {}).unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
    };
    check_rows(&db);
    db.close().unwrap();
    drop(db);
    check_rows(&open(env));
}

/// The tables that a compaction moved or left in place were marked for deletion because their branch had ended, although
/// they had joined its parent.
#[test]
fn a_compaction_that_a_commit_by_reference_overtakes_leaves_the_tables_alone() {
    let merges = [Some(0), Some(ROWS / 2 - 1), Some(ROWS - 2), None];
    for (is_move, end) in [(true, None)].into_iter().chain(merges.map(|end| (false, end))) {
        let env = SimEnv::new(1);
        let (db, space, branch) = store_with_branch(&env);
        let read_state = db.inner.reads.read_states.get();
        let from = branch_space(&read_state, &branch, space);
        branch.commit(&mut |_| Merged::Conflict).unwrap();
        assert_eq!(db.inner.metrics.branches_joined.get(), 1);
        if is_move {
            db.inner.compactor.move_down(from, &job(from, None)).unwrap();
        } else {
            let _job = db.inner.compactor.job.lock();
            db.inner
                .compactor
                .merge(from, &job(from, end), Purpose::Shape, &Damaged::default())
                .unwrap();
        }
        drop((read_state, branch));
        check(&env, db, space);
    }
}

/// The parent got the tables that the branch had when the commit began to put them in force, and the compaction that
/// had replaced them meanwhile deleted them.
#[test]
fn a_commit_by_reference_that_a_compaction_overtakes_takes_the_new_tables() {
    for end in [Some(0), Some(ROWS / 2 - 1), Some(ROWS - 2), None] {
        let env = SimEnv::new(1);
        let (db, space, branch) = store_with_branch(&env);
        let inner = Arc::clone(&db.inner);
        let change_shared_row = || put(&db, space, SHARED_ROW..SHARED_ROW + 1, b"theirs");
        change_shared_row();
        let (job_lock, merges) = (RefCell::new(Some(inner.compactor.job.lock())), Cell::new(0));
        branch
            .commit(&mut |clash| {
                if !inner.log.is_writer_held() {
                    // So that it is asked again while the branch is put in force.
                    change_shared_row();
                } else if job_lock.borrow_mut().take().is_some() {
                    let read_state = inner.reads.read_states.get();
                    let from = branch_space(&read_state, &branch, space);
                    let _job = inner.compactor.job.lock();
                    inner
                        .compactor
                        .merge(from, &job(from, end), Purpose::Shape, &Damaged::default())
                        .unwrap();
                    merges.set(merges.get() + 1);
                }
                Merged::Value(clash.ours.clone().unwrap())
            })
            .unwrap();
        assert_eq!((inner.metrics.branches_joined.get(), merges.get()), (1, 1));
        drop((branch, job_lock));
        drop(inner);
        check(&env, db, space);
    }
}

/// A merge that took the first keys out of tables left them in their places, so all tables that were to go were still
/// there, and what the merge had written stayed behind.
#[test]
fn a_clearing_that_a_compaction_overtakes_looks_again() {
    let env = SimEnv::new(1);
    let db = open(&env);
    let options = KeyspaceOptions { prefixed: false, compressed: false };
    let space = db.keyspace("rows", options).unwrap();
    for value in [b"old", b"new"] {
        put(&db, space, 0..ROWS, value);
        db.flush().unwrap();
    }
    let read_state = db.inner.reads.read_states.get();
    let tables = read_state.keyspace(space).unwrap();
    let job_lock = db.inner.compactor.job.lock();
    db.inner
        .compactor
        .merge(tables, &job(tables, Some(0)), Purpose::Shape, &Damaged::default())
        .unwrap();
    drop(job_lock);
    assert!(!db.inner.commits.remove_tables(&read_state, space).unwrap());
    assert_eq!(db.get(space, &key(1)).unwrap().as_deref(), Some(&b"new"[..]));
    db.clear_keyspace(space).unwrap();
    assert_eq!(db.get(space, &key(0)).unwrap(), None);
}
