//! What is remembered of rows that older states see.

use std::path::{Path, PathBuf};

use varve_env::sim::{FaultRule, SimEnv, SimOp};

use super::*;
use crate::compaction::policy::Shape;
use crate::{Batch, CompactionPolicy, Db, DbOptions, KeyspaceOptions, Store, StoreSnapshot};

const ROWS: u64 = 400;
const STATES: u64 = 100;

fn opened(env: &Arc<SimEnv>, options: DbOptions) -> (Db, KeyspaceId) {
    let db = Db::open(Arc::clone(env) as _, Path::new("/store"), options).unwrap();
    let space = KeyspaceOptions { prefixed: false, compressed: false };
    let space = db.keyspace("rows", space).unwrap();
    (db, space)
}

/// No tables are merged.
fn left_as_they_are() -> DbOptions {
    DbOptions { sublevels_trigger: 1000, level_base_bytes: 1 << 30, ..DbOptions::default() }
}

/// Lets no more be read of a file.
fn fail_reads(env: &SimEnv, file: &Path) {
    let path_suffix = file.to_str().unwrap().to_owned();
    env.fail(FaultRule { path_suffix, op: SimOp::Read, nth: 1, errno: 5, sticky: true });
}

fn newest_table(env: &SimEnv) -> PathBuf {
    let is_table = |path: &PathBuf| path.extension() == Some("table".as_ref());
    env.files_raw().into_iter().filter(is_table).max().unwrap()
}

fn put(db: &Db, space: KeyspaceId, row: u64, round: u64) {
    let mut batch = Batch::new();
    let value = [row.to_be_bytes(), round.to_be_bytes()].concat();
    batch.put(space, row.to_be_bytes(), value.repeat(16));
    db.write(batch).unwrap();
}

fn check(snapshot: &dyn StoreSnapshot, space: KeyspaceId, rounds: &[u64]) {
    for (row, round) in (0..).zip(rounds) {
        let value = snapshot.get(space, &u64::to_be_bytes(row)).unwrap().unwrap();
        assert_eq!(value[8..16], round.to_be_bytes(), "row {row}");
    }
}

/// For each pair of states of which one was the first and one the last to see a row something was kept, without a bound.
#[test]
fn what_is_kept_of_pinned_rows_is_bounded_however_many_states_see_them() {
    let env = SimEnv::new(1);
    let (db, space) = opened(&env, DbOptions { memtable_bytes: 16 << 20, ..DbOptions::default() });
    let mut rounds = vec![0; ROWS as usize];
    let mut write = |row: u64, round| {
        rounds[row as usize] = round;
        put(&db, space, row, round);
        rounds.clone()
    };
    let mut seen: Vec<u64> = (0..ROWS).map(|row| write(row, 0)).last().unwrap();
    let mut states = Vec::new();
    for round in 1..=STATES {
        states.push((db.snapshot().unwrap(), seen));
        seen = (0..40).map(|at| write((at * at + round * round * 7) % ROWS, round)).last().unwrap();
    }
    db.flush().unwrap();
    (0..ROWS).for_each(|row| put(&db, space, row, STATES + 1));
    while db.reclaim().unwrap() > 0 {}
    let kept = || -> usize {
        let memory = db.inner.compactor.job.lock();
        let looked = memory.values().flat_map(|memory| memory.looked.values());
        looked.filter_map(|looked| Some(looked.counted.as_ref()?.1.pinned.len())).max().unwrap()
    };
    assert!((2..=64).contains(&kept()), "{} are kept of a table", kept());
    let searched = db.inner.compactor.searched.lock().pinned.len();
    assert!((2..=64).contains(&searched), "{searched} are kept of a search");
    // The device has no room for a large row until of each ten states that stand together one stays.
    let full = env.used_bytes();
    env.set_capacity(full + (2400 << 10));
    db.inner.space.wrote(1 << 40);
    let write_large = || {
        let mut batch = Batch::new();
        batch.put(space, ROWS.to_be_bytes(), vec![1; 1200 << 10]);
        db.write(batch)
    };
    let reclaims = || db.inner.metrics.reclaims.get();
    let is_refused = || matches!(write_large(), Err(StoreError::NoSpace { .. }));
    let before = reclaims();
    assert!(is_refused() && reclaims() == before, "all of it is seen");
    let stays = |states: &mut Vec<_>, nth: usize| {
        let mut number = 0..;
        states.retain(|_| number.next().unwrap() % nth == 0);
    };
    stays(&mut states, 2);
    assert!(is_refused() && reclaims() > before, "what others do not see has gone");
    stays(&mut states, 5);
    write_large().unwrap();
    env.set_capacity(1 << 40);
    let mut batch = Batch::new();
    batch.delete(space, ROWS.to_be_bytes());
    db.write(batch).unwrap();
    while db.reclaim().unwrap() > 0 {}
    states.iter().for_each(|(snapshot, rounds)| check(&**snapshot, space, rounds));
    // In the end one alone.
    states.drain(1..);
    while db.reclaim().unwrap() > 0 {}
    let left = env.used_bytes();
    assert!(left < full / 2, "{full} bytes, then {left}");
    check(&*states[0].0, space, &states[0].1);
    check(&*db.snapshot().unwrap(), space, &[STATES + 1; ROWS as usize]);
}

/// A table of which nothing could be read had all tables below it pass for damaged.
#[test]
fn a_damaged_table_is_not_in_the_way_of_those_below() {
    let env = SimEnv::new(2);
    let (db, space) = opened(&env, left_as_they_are());
    (0..ROWS).for_each(|row| put(&db, space, row, 0));
    db.flush().unwrap();
    [0, ROWS - 1].iter().for_each(|row| put(&db, space, *row, 1));
    db.flush().unwrap();
    let damaged = newest_table(&env);
    (0..ROWS - 10).for_each(|row| {
        let mut batch = Batch::new();
        batch.delete(space, row.to_be_bytes());
        db.write(batch).unwrap();
    });
    db.flush().unwrap();
    fail_reads(&env, &damaged);
    let full = env.used_bytes();
    assert!(db.reclaim().unwrap() > 0);
    assert!(env.fault_count() > 0, "nobody looked");
    let left = env.used_bytes();
    assert!(left < full / 2, "{full} bytes, then {left}");
    env.clear_faults();
    for row in 0..ROWS {
        let value = db.get(space, &row.to_be_bytes()).unwrap();
        let round = value.map(|value| u64::from_be_bytes(value[8..16].try_into().unwrap()));
        let expected = (row >= ROWS - 10).then_some(u64::from(row == ROWS - 1));
        assert_eq!(round, expected, "row {row}");
    }
}

/// An index that could not be read, of a table without which nothing was known of those above it, had all tables that these cover
/// pass for damaged, and poisoned the store where merges ask the same.
#[test]
fn an_unreadable_index_below_is_not_in_the_way_of_tables_beside_it() {
    const TABLES: u64 = 4;
    const NEWER: usize = 3;
    let env = SimEnv::new(3);
    let (db, space) = opened(&env, left_as_they_are());
    for table in 0..TABLES {
        (table * ROWS..(table + 1) * ROWS).for_each(|row| put(&db, space, row, 0));
        db.flush().unwrap();
    }
    let unreadable = newest_table(&env);
    for _ in 0..NEWER {
        for row in 0..TABLES * ROWS {
            let mut batch = Batch::new();
            batch.put(space, row.to_be_bytes(), vec![1; 200]);
            db.write(batch).unwrap();
        }
        db.flush().unwrap();
    }
    fail_reads(&env, &unreadable);
    // As if so much stood above the last level that merges ask.
    let read_state = db.inner.reads.read_states.get();
    let version = &read_state.keyspace(space).unwrap().version;
    let mut runs = version.runs();
    runs[2] = runs[0].split_off(NEWER);
    runs[1] = runs[0].split_off(NEWER - 1);
    let shape = Shape { policy: CompactionPolicy::LazyLeveled, ..db.inner.compactor.plans.shape() };
    let mut shares = Shares::new();
    db.inner.compactor.note_replaced(&shape, version, &mut runs, &mut shares).unwrap();
    assert_eq!(shares.len(), NEWER + TABLES as usize);
    let parts = shares.values().map(|sampled| sampled.replacing);
    let (newer, older): (Vec<f64>, Vec<f64>) = parts.partition(|share| *share > 0.5);
    assert_eq!((newer.len(), older.len()), (NEWER, TABLES as usize), "{newer:?} {older:?}");
    drop(read_state);
    let full = env.used_bytes();
    while db.reclaim().unwrap() > 0 {}
    assert!(env.fault_count() > 0, "nobody looked");
    let left = env.used_bytes();
    assert!(left < full * 2 / 3, "{full} bytes, then {left}");
    env.clear_faults();
    for row in 0..TABLES * ROWS {
        assert_eq!(db.get(space, &row.to_be_bytes()).unwrap().unwrap()[..], [1; 200]);
    }
}
