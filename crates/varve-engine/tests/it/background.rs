//! The background threads, under faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use varve_engine::{Batch, Db, DbOptions, Store, StoreDesign, StoreError};
use varve_env::Env;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_testkit::eventually;

use crate::common::*;
use crate::threaded::threaded;

fn open_threaded(env: &Arc<SimEnv>, options: DbOptions) -> Db {
    Db::open(Arc::new(threaded(env)), &store_dir(), options).unwrap()
}

fn row(number: u64, len: usize, space: varve_types::KeyspaceId) -> Batch {
    let mut batch = Batch::new();
    batch.put(space, number.to_be_bytes(), vec![number as u8; len]);
    batch
}

#[test]
fn a_flush_without_room_refuses_writes_and_recovers_by_itself() {
    let env = SimEnv::new(1);
    let db = open_threaded(&env, small_options());
    let space = make_spaces(&db).unwrap()[1];
    env.fail(FaultRule {
        path_suffix: ".table".to_owned(),
        op: SimOp::Create,
        nth: 1,
        errno: 28,
        sticky: true,
    });
    let mut taken = 0;
    eventually("a refusal", || match db.write(row(taken, 200, space)) {
        Ok(()) => {
            taken += 1;
            false
        }
        Err(error) => {
            assert!(matches!(error, StoreError::NoSpace { .. }), "{error}");
            true
        }
    });
    assert!(db.get(space, &0u64.to_be_bytes()).unwrap().is_some());
    let mut freeing = row(u64::MAX, 10, space);
    freeing.reclaims_space();
    db.write(freeing).unwrap();
    env.clear_faults();
    eventually("room", || db.write(row(taken, 200, space)).is_ok());
    for number in 0..=taken {
        assert!(db.get(space, &number.to_be_bytes()).unwrap().is_some(), "row {number}");
    }
    db.close().unwrap();
}

/// The thread that gets room back on a nearly full device did not look at a small one that was not.
#[test]
fn a_small_device_gets_back_what_was_removed_after_a_while() {
    let env = SimEnv::new(3);
    env.set_capacity(1 << 30);
    let options = DbOptions { sync_interval: Duration::from_millis(5), ..DbOptions::default() };
    let db = open_threaded(&env, options);
    let space = make_spaces(&db).unwrap()[1];
    (0..200).for_each(|number| db.write(row(number, 16 << 10, space)).unwrap());
    db.flush().unwrap();
    let full = env.used_bytes();
    (0..200_u64).for_each(|number| {
        let mut batch = Batch::new();
        batch.delete(space, number.to_be_bytes());
        db.write(batch).unwrap();
    });
    eventually("room", || env.used_bytes() < full - (3 << 20));
    db.close().unwrap();
}

#[test]
fn unsynced_writes_are_synced_after_a_while() {
    let env = SimEnv::new(2);
    let mut options = small_options();
    options.sync_interval = Duration::from_millis(20);
    let db = open_threaded(&env, options);
    let space = make_spaces(&db).unwrap()[1];
    db.write(row(7, 10, space)).unwrap();
    eventually("a sync", || {
        let db = open(&env.power_cut_keep_nothing()).unwrap();
        let space = make_spaces(&db).unwrap()[1];
        db.get(space, &7u64.to_be_bytes()).unwrap().is_some()
    });
    let syncs = || env.sync_count();
    eventually("quiet", || {
        let before = syncs();
        std::thread::yield_now();
        before == syncs()
    });
}

#[test]
fn a_failed_sync_in_the_background_poisons() {
    let env = SimEnv::new(3);
    let mut options = small_options();
    options.sync_interval = Duration::from_millis(10);
    let db = open_threaded(&env, options);
    let space = make_spaces(&db).unwrap()[1];
    env.fail(FaultRule {
        path_suffix: ".wal".to_owned(),
        op: SimOp::Sync,
        nth: 1,
        errno: 5,
        sticky: false,
    });
    let mut number = 0;
    eventually("poison", || {
        number += 1;
        matches!(db.write(row(number, 10, space)), Err(StoreError::Poisoned { .. }))
    });
    assert!(db.metrics_json().contains("cannot sync"));
}

#[test]
fn a_worker_that_panics_poisons() {
    let env = SimEnv::new(4);
    let db = open_threaded(&env, small_options());
    let space = make_spaces(&db).unwrap()[1];
    db.set_external_sync(Box::new(|| panic!("planned")));
    let mut number = 0;
    eventually("poison", || {
        number += 1;
        let mut batch = row(number, 500, space);
        batch.depends_on_external();
        matches!(db.write(batch), Err(StoreError::Poisoned { cause }) if cause.contains("panicked"))
    });
}

/// While one sync runs others queue up; the next one serves them all.
#[test]
fn concurrent_syncs_share() {
    const OTHERS: usize = 7;
    let env = SimEnv::new(5);
    let db = open_threaded(&env, small_options());
    let space = make_spaces(&db).unwrap()[1];
    let written = Arc::new(AtomicUsize::new(0));
    let hook_sees = Arc::clone(&written);
    db.set_external_sync(Box::new(move || {
        eventually("the others' writes", || hook_sees.load(Ordering::SeqCst) == OTHERS);
        Ok(())
    }));
    let mut slow = row(100, 5, space);
    slow.depends_on_external();
    db.write(slow).unwrap();
    let before = env.sync_count();
    std::thread::scope(|scope| {
        let (db, written) = (&db, &written);
        let first = scope.spawn(move || db.sync().unwrap());
        for number in 0..OTHERS as u64 {
            scope.spawn(move || {
                db.write(row(number, 5, space)).unwrap();
                written.fetch_add(1, Ordering::SeqCst);
                db.sync().unwrap();
            });
        }
        first.join().unwrap();
    });
    let syncs = env.sync_count() - before;
    assert!(syncs <= 2, "{syncs} syncs for {} callers", OTHERS + 1);
    let after = open(&env.power_cut_keep_nothing()).unwrap();
    let ids = make_spaces(&after).unwrap();
    assert_eq!(contents(&after, &ids).unwrap().spaces[1].len(), OTHERS + 1);
}

/// Readers of a store that nobody writes to profit from fewer sub-levels.
#[test]
fn a_store_at_rest_merges_level_0_before_it_must() {
    let env = SimEnv::new(8);
    let mut options = small_options();
    StoreDesign::default().apply(&mut options);
    let enough = options.sublevels_trigger / 3;
    let db = open_threaded(&env, options);
    let space = make_spaces(&db).unwrap()[1];
    let sublevels =
        |level: usize| metrics(&db)["keyspaces"][1]["levels"][level]["sublevels"].as_u64().unwrap();
    for number in 0..enough as u64 {
        db.write(row(number, 100, space)).unwrap();
        db.write(row(number + 1, 100, space)).unwrap();
        db.flush().unwrap();
    }
    eventually("a merge", || sublevels(0) == 0);
    assert_eq!(sublevels(1), 1);
    db.close().unwrap();
}

/// Rows many times the budget pass through; memory stays within it and descriptors are few.
#[test]
fn memory_stays_within_the_budget() {
    let env = SimEnv::new(6);
    let budget = 1 << 20;
    let mut options = DbOptions::with_memory_budget(budget);
    options.table_bytes = 32 << 10;
    options.level_base_bytes = 256 << 10;
    options.space_reserve_bytes = 0;
    let env_dyn: Arc<dyn Env> = Arc::clone(&env) as Arc<dyn Env>;
    let db = Db::open(env_dyn, &store_dir(), options).unwrap();
    let space = make_spaces(&db).unwrap()[1];
    let mut rng = Rng::new(6);
    for number in 0..40_000u64 {
        db.write(row(rng.next_u64() % 30_000, 100, space)).unwrap();
        if number % 50 == 0 {
            let _ = db.get(space, &rng.below(30_000).to_be_bytes()).unwrap();
        }
        if number % 2000 == 0 {
            let bytes = metrics(&db)["memory_bytes"].as_u64().unwrap();
            assert!(bytes <= budget as u64, "{bytes} bytes after {number} rows");
        }
    }
    let levels = metrics(&db)["keyspaces"][1]["levels"].clone();
    let levels = levels.as_array().unwrap();
    let reached = levels.iter().filter(|level| level["tables"].as_u64() > Some(0)).count();
    assert!(reached >= 2, "{levels:?}");
}
