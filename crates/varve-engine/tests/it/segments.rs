//! Values that stand apart from their rows.

use std::path::PathBuf;
use std::sync::Arc;

use varve_engine::repair::{RepairOptions, repair};
use varve_engine::{
    Batch, Db, DbOptions, Direction, Inspection, KeyRange, KeyspaceOptions, Store, StoreError,
    ValuePolicy, inspect,
};
use varve_env::Env;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_format::filter::FilterPolicy;
use varve_types::KeyspaceId;

use crate::common::*;
use crate::redesign::finish;

const VALUE_BYTES: usize = 400;
const KEYSPACE: KeyspaceOptions = KeyspaceOptions { prefixed: true, compressed: false };

fn separated() -> DbOptions {
    DbOptions { values: ValuePolicy::Separated { bytes_min: 100 }, ..small_options() }
}

fn open_with(env: &Arc<SimEnv>, options: DbOptions) -> (Db, KeyspaceId) {
    let env: Arc<dyn Env> = env.clone();
    let db = Db::open(env, &store_dir(), options).unwrap();
    let space = db.keyspace("rows", KEYSPACE).unwrap();
    (db, space)
}

pub(crate) fn key(row: u64) -> Vec<u8> {
    (u128::from(row / 8) << 64 | u128::from(row)).to_be_bytes().to_vec()
}

/// The value that row `row` has in `round`; every fifth is too short to stand apart.
fn value(row: u64, round: u64) -> Vec<u8> {
    let len = if row.is_multiple_of(5) { 50 } else { VALUE_BYTES };
    let mut rng = Rng::new(row << 20 | round);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

fn put(db: &Db, space: KeyspaceId, row: u64, round: u64) {
    let mut batch = Batch::new();
    batch.put(space, key(row), value(row, round));
    db.write(batch).unwrap();
}

pub(crate) fn segments(env: &SimEnv) -> Vec<PathBuf> {
    let mut files = env.files_raw();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    files
}

/// TableFS 4.2.8: values are written once, however often merges write the rows again.
#[test]
fn merges_move_rows_without_their_values() {
    let written = |options: DbOptions| {
        let env = SimEnv::new(1);
        let (db, space) = open_with(&env, options);
        let mut rng = Rng::new(1);
        for _ in 0..2000 {
            put(&db, space, rng.next_u64() >> 40, 0);
        }
        db.flush().unwrap();
        db.compact().unwrap();
        assert_eq!(counter(&db, "cleanings"), 0);
        merged_bytes(&db) + counter(&db, "segment_merge_bytes")
    };
    let (apart, in_row) = (written(separated()), written(small_options()));
    assert!(apart * 4 < in_row, "{apart} bytes merged with values apart, {in_row} in rows");
}

#[test]
fn keys_are_listed_without_their_values() {
    let env = SimEnv::new(2);
    let (db, space) = open_with(&env, separated());
    (0..100).for_each(|row| put(&db, space, row, 0));
    db.flush().unwrap();
    let range = KeyRange::prefix(&3u64.to_be_bytes());
    let keys: Vec<_> = db.keys(space, range.clone()).unwrap().map(|key| key.unwrap()).collect();
    assert!(keys.iter().eq((24..32).map(key).collect::<Vec<_>>().iter()));
    assert_eq!(counter(&db, "value_reads"), 0);
    let rows = db.scan(space, range, Direction::Forward).unwrap();
    assert!(rows.map(|row| row.unwrap().1.to_vec()).eq((24..32).map(|row| value(row, 0))));
    assert_eq!(counter(&db, "value_reads"), 6);
    // What a lookup read is at hand for the next one.
    for _ in 0..2 {
        assert_eq!(db.get(space, &key(26)).unwrap().unwrap(), value(26, 0));
    }
    assert_eq!((counter(&db, "value_reads"), counter(&db, "value_hits")), (7, 1));
}

#[test]
fn a_snapshot_reads_values_that_were_overwritten_and_their_segments_go_with_it() {
    let env = SimEnv::new(3);
    let (db, space) = open_with(&env, separated());
    (0..200).for_each(|row| put(&db, space, row, 0));
    db.flush().unwrap();
    let before = segments(&env);
    let snapshot = db.snapshot().unwrap();
    for round in 1..6 {
        (0..200).for_each(|row| put(&db, space, row, round));
        db.flush().unwrap();
        db.compact().unwrap();
    }
    for row in 0..200 {
        assert_eq!(snapshot.get(space, &key(row)).unwrap().unwrap(), value(row, 0));
    }
    let there = segments(&env);
    assert!(before.len() > 10 && before.iter().all(|path| there.contains(path)));
    drop(snapshot);
    for round in 6..12 {
        (0..200).for_each(|row| put(&db, space, row, round));
        db.flush().unwrap();
        db.compact().unwrap();
    }
    let left = segments(&env);
    // Versions that are hidden but have not been merged away keep some.
    let kept = before.iter().filter(|path| left.contains(path)).count();
    assert!(kept < before.len() / 4, "{kept} of {}", before.len());
    db.clear_keyspace(space).unwrap();
    assert_eq!(segments(&env), Vec::<PathBuf>::new());
}

/// Random overwrites for ever: what is not in use stays below its bound.
#[test]
fn cleaning_bounds_the_space_of_segments() {
    let env = SimEnv::new(4);
    let (db, space) = open_with(&env, DbOptions { table_bytes: 16 << 10, ..separated() });
    let mut rng = Rng::new(4);
    let rows = 500;
    for step in 0..8000 {
        put(&db, space, rng.below(rows), step);
        if step > 2000 && step % 500 == 0 {
            let report = &metrics(&db)["keyspaces"][0];
            let [all, used] =
                ["segment_bytes", "segment_used_bytes"].map(|name| report[name].as_u64().unwrap());
            let unused_max = (used / 3).max(16 << 10);
            assert!(all <= used + unused_max, "step {step}: {all} bytes, {used} in use");
            let files = segments(&env);
            let on_disk: usize = files.iter().map(|p| env.read_raw(p).unwrap().len()).sum();
            assert!(on_disk as u64 <= all + 24 * files.len() as u64, "{on_disk} of {all}");
        }
    }
    assert!(counter(&db, "cleanings") > 10);
    assert!(db.verify(&mut |_| ()).unwrap().errors.is_empty());
}

/// Cleaning, and merges that took values out of segments of little use, met one that could not be read and poisoned the
/// store, although nobody had asked for it.
#[test]
fn a_damaged_segment_does_not_end_a_store_that_is_written_over() {
    const STAYING: u64 = 40;
    let env = SimEnv::new(6);
    let (db, space) = open_with(&env, DbOptions { table_bytes: 16 << 10, ..separated() });
    let rows = 500;
    // Those that stay stand among the others.
    (0..rows).for_each(|row| put(&db, space, row * 7 % rows, 0));
    db.flush().unwrap();
    let damaged = &segments(&env)[0];
    let bytes = env.stat(damaged).unwrap().len;
    (100..bytes).step_by(100).for_each(|at| env.damage(damaged, at, 1).unwrap());
    let get = |row| db.get(space, &key(row));
    let sound: Vec<u64> = (0..STAYING).filter(|row| get(*row).is_ok()).collect();
    assert!((1..STAYING).contains(&(sound.len() as u64)), "{} of them can be read", sound.len());
    let mut rng = Rng::new(6);
    let write_over = |step| put(&db, space, STAYING + rng.below(rows - STAYING), step);
    (1..6000).for_each(write_over);
    db.compact().unwrap();
    assert!(segments(&env).contains(damaged), "what can be repaired is there");
    assert!(counter(&db, "cleanings") > 10);
    let report = &metrics(&db)["keyspaces"][0];
    let [all, used] =
        ["segment_bytes", "segment_used_bytes"].map(|name| report[name].as_u64().unwrap());
    let unused_max = (used / 3).max(16 << 10) + bytes;
    assert!(all <= used + unused_max, "{all} bytes, {used} in use");
    for row in sound {
        assert_eq!(get(row).unwrap().unwrap(), value(row, 0));
    }
}

/// A table that could not be read had the segments that it points into pass for damaged, for as long as the store was open, and
/// what nobody could clean slowed writers down.
#[test]
fn a_table_that_cannot_be_read_leaves_its_segments_sound() {
    let env = SimEnv::new(8);
    let rows = 300;
    let options = DbOptions { level_base_bytes: 1 << 30, memtable_bytes: 1 << 20, ..separated() };
    let (db, space) = open_with(&env, DbOptions { table_bytes: 1 << 20, ..options.clone() });
    let write_over = |db: &Db, round: u64, which: fn(u64) -> bool| {
        (0..rows).filter(|row| which(*row)).for_each(|row| put(db, space, row, round));
        db.flush().unwrap();
        db.compact().unwrap();
    };
    write_over(&db, 0, |_| true);
    let first = &segments(&env)[0];
    write_over(&db, 1, |row| row % 3 == 0);
    write_over(&db, 2, |row| row % 3 == 1);
    write_over(&db, 3, |row| row % 3 == 1);
    assert!(segments(&env).contains(first), "its values are in use");
    db.close().unwrap();
    let (path_suffix, op) = (".table".to_owned(), SimOp::Read);
    env.fail(FaultRule { path_suffix, op, nth: 1, errno: 5, sticky: true });
    // Cleaning is due.
    let (db, _) =
        open_with(&env, DbOptions { debt_soft_bytes: 1, debt_hard_bytes: 1000, ..options });
    let debt = || metrics(&db)["debt_bytes"].as_u64().unwrap();
    db.compact().unwrap();
    assert!(env.fault_count() > 0, "nobody looked");
    assert_eq!((debt(), metrics(&db)["delay_ns_per_byte"].as_u64().unwrap()), (0, 0));
    env.clear_faults();
    assert!(segments(&env).contains(first), "it is in use");
    // Merges put others in the place of the table.
    write_over(&db, 4, |row| row % 100 < 2);
    write_over(&db, 5, |row| row % 100 < 2);
    assert!(!segments(&env).contains(first), "it has been cleaned");
    for row in 0..rows {
        let round = if row % 100 < 2 { 5 } else { [1, 3, 0][(row % 3) as usize] };
        assert_eq!(db.get(space, &key(row)).unwrap().unwrap(), value(row, round), "row {row}");
    }
}

/// A change of design met a value that could not be read in a segment of little use, and was never done, although tables can
/// keep their values there.
#[test]
fn a_damaged_segment_does_not_keep_a_store_from_another_design() {
    let env = SimEnv::new(7);
    // No merge is due.
    let options = DbOptions {
        table_bytes: 1 << 20,
        memtable_bytes: 1 << 20,
        sublevels_trigger: 1000,
        level_base_bytes: 1 << 30,
        ..separated()
    };
    let (db, space) = open_with(&env, options.clone());
    let rows = 400;
    (0..rows).for_each(|row| put(&db, space, row, 0));
    db.flush().unwrap();
    let damaged = &segments(&env)[0];
    let bytes = env.stat(damaged).unwrap().len;
    (100..bytes).step_by(1000).for_each(|at| env.damage(damaged, at, 1).unwrap());
    for row in (0..rows).filter(|row| row % 10 < 7) {
        let mut batch = Batch::new();
        batch.delete(space, key(row));
        db.write(batch).unwrap();
    }
    while db.reclaim().unwrap() > 0 {}
    let values =
        |db: &Db| -> Vec<_> { (0..rows).map(|row| db.get(space, &key(row)).ok()).collect() };
    let before = values(&db);
    assert!(before.contains(&None) && before.iter().flatten().flatten().count() > 10);
    let report = &metrics(&db)["keyspaces"][0];
    let [all, used] =
        ["segment_bytes", "segment_used_bytes"].map(|name| report[name].as_u64().unwrap());
    assert!(used < all / 2, "{all} bytes, {used} in use");
    db.close().unwrap();
    let filter = FilterPolicy::None;
    assert_ne!(options.filter, filter);
    let (db, _) = open_with(&env, DbOptions { filter, ..options });
    let done = finish(&db);
    assert!(done.rewrites > 0 && done.tables_left == 0, "{done:?}");
    assert!(segments(&env).contains(damaged), "what can be repaired is there");
    assert_eq!(values(&db), before);
}

#[test]
fn a_store_changes_where_its_values_stand_as_merges_pass() {
    let env = SimEnv::new(5);
    let mut seen = Vec::new();
    for round in 0..4 {
        let options = if round % 2 == 0 { small_options() } else { separated() };
        let (db, space) = open_with(&env, options);
        for pass in 0..6 {
            (0..300).for_each(|row| put(&db, space, row, round * 6 + pass));
            db.flush().unwrap();
            db.compact().unwrap();
        }
        for row in 0..300 {
            assert_eq!(db.get(space, &key(row)).unwrap().unwrap(), value(row, round * 6 + 5));
        }
        assert!(db.verify(&mut |_| ()).unwrap().errors.is_empty());
        seen.push(segments(&env).len());
        db.close().unwrap();
    }
    assert!(seen[0] == 0 && seen[1] > 0 && seen[2] == 0 && seen[3] > 0, "{seen:?}");
}

#[test]
fn want_of_room_for_a_segment_changes_nothing() {
    for (op, points) in [(SimOp::Create, 12), (SimOp::Write, 40)] {
        for nth in 1..points {
            let env = SimEnv::new(nth);
            let (db, space) = open_with(&env, separated());
            let (path_suffix, errno) = (".seg".to_owned(), 28);
            env.fail(FaultRule { path_suffix, op, nth, errno, sticky: true });
            let mut model = std::collections::BTreeMap::new();
            for step in 0..300u64 {
                let (row, mut batch) = (step * 7 % 40, Batch::new());
                batch.put(space, key(row), value(row, step));
                match db.write(batch) {
                    Ok(()) => drop(model.insert(row, step)),
                    Err(error) => assert!(matches!(error, StoreError::NoSpace { .. }), "{error}"),
                }
            }
            env.clear_faults();
            db.flush().unwrap();
            db.compact().unwrap();
            db.close().unwrap();
            let (db, space) = open_with(&env.power_cut_keep_nothing(), separated());
            for (row, step) in model {
                assert_eq!(db.get(space, &key(row)).unwrap().unwrap(), value(row, step));
            }
            assert!(db.verify(&mut |_| ()).unwrap().errors.is_empty(), "{op:?} {nth}");
        }
    }
}

/// A closed store of 100 rows in one table and several segments.
fn sample() -> Arc<SimEnv> {
    let env = SimEnv::new(6);
    let options = DbOptions { memtable_bytes: 1 << 20, ..separated() };
    let (db, space) = open_with(&env, options);
    (0..100).for_each(|row| put(&db, space, row, 0));
    db.flush().unwrap();
    db.close().unwrap();
    assert!(segments(&env).len() > 2);
    env
}

/// Repairs; returns the rows that are there afterwards.
fn repaired(env: &Arc<SimEnv>) -> (varve_engine::repair::EngineRepair, Vec<u64>) {
    let (db, aside) = (small_options(), PathBuf::from("/aside"));
    let keyspaces = vec![("rows".to_owned(), KEYSPACE)];
    let options = RepairOptions { db, keyspaces, aside };
    let shared: Arc<dyn Env> = env.clone();
    let report = repair(&shared, &store_dir(), &options).unwrap();
    let (db, space) = open_with(env, separated());
    assert!(db.verify(&mut |_| ()).unwrap().errors.is_empty());
    let there = |row: &u64| {
        let found = db.get(space, &key(*row)).unwrap();
        found.inspect(|found| assert_eq!(*found, value(*row, 0))).is_some()
    };
    (report, (0..100).filter(there).collect())
}

#[test]
fn a_missing_segment_is_named_and_costs_the_rows_that_point_into_it() {
    let env = sample();
    let path = segments(&env).remove(1);
    env.remove_raw(&path).unwrap();
    let shared: Arc<dyn Env> = env.clone();
    let error = Db::open(shared, &store_dir(), separated()).unwrap_err().to_string();
    assert!(error.contains(&*path.to_string_lossy()) && error.contains("missing"), "{error}");
    let (report, there) = repaired(&env);
    assert!(there.len() > 60 && there.len() < 95, "{} rows left", there.len());
    assert!(
        there.iter().filter(|row| row.is_multiple_of(5)).count() == 20,
        "short values are in rows"
    );
    assert!(report.lost.iter().all(|lost| lost.why.contains("missing")), "{:?}", report.lost);
}

#[test]
fn damage_to_a_segment_is_named_and_costs_one_row() {
    for path in segments(&sample()) {
        let env = sample();
        let Inspection::Segment(whole) = inspect(&*env, &path, true).unwrap() else { panic!() };
        let record = &whole.records[whole.records.len() / 2];
        assert_eq!(whole.used_bytes, Some(whole.length_bytes - 24));
        env.damage(&path, record.offset + 70, 1).unwrap();
        let (db, space) = open_with(&env, separated());
        let errors = db.verify(&mut |_| ()).unwrap().errors;
        let [StoreError::Damaged { path: named, offset, .. }] = &errors[..] else { panic!() };
        assert_eq!((named, *offset), (&path, record.offset));
        let failed = (0..100).filter(|row| db.get(space, &key(*row)).is_err());
        let failed: Vec<u64> = failed.collect();
        db.close().unwrap();
        let (report, there) = repaired(&env);
        assert_eq!((failed.len(), there.len(), report.lost.len()), (1, 99, 1));
        assert!(!there.contains(&failed[0]));
        let aside = PathBuf::from("/aside").join(path.file_name().unwrap());
        assert_eq!(env.read_raw(&aside).unwrap().len() as u64, whole.length_bytes);
    }
}

#[test]
fn a_torn_segment_costs_the_rows_behind_the_tear() {
    let env = sample();
    let path = segments(&env).remove(0);
    let len = env.read_raw(&path).unwrap().len() as u64;
    env.truncate_raw(&path, len / 2).unwrap();
    let (_, there) = repaired(&env);
    assert!(there.len() > 90 && there.len() < 100, "{} rows left", there.len());
}

#[test]
fn a_lost_header_costs_nothing() {
    let env = sample();
    let path = segments(&env).remove(0);
    env.damage(&path, 13, 1).unwrap();
    let (report, there) = repaired(&env);
    assert_eq!((there.len(), report.lost.len()), (100, 0));
    assert_eq!(report.versions_saved, 100);
}

#[test]
fn a_segment_in_the_place_of_another_is_noticed() {
    let env = sample();
    let (paths, len) = (segments(&env), |path| env.read_raw(path).unwrap().len() as u64);
    let other = env.read_raw(&paths[0]).unwrap();
    env.truncate_raw(&paths[1], 0).unwrap();
    env.write_raw(&paths[1], 0, &other).unwrap();
    assert!(len(&paths[1]) > 0);
    let (db, space) = open_with(&env, separated());
    let failed = (0..100).filter(|row| match db.get(space, &key(*row)) {
        Ok(found) => {
            assert_eq!(found.unwrap(), value(*row, 0));
            false
        }
        Err(error) => {
            assert!(error.to_string().contains(&*paths[1].to_string_lossy()), "{error}");
            true
        }
    });
    assert!(failed.count() > 3);
}
