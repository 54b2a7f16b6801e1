//! Batches that depend on data outside the store.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use varve_engine::{Batch, Db, DbOptions, Store, StoreError};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

use crate::common::*;

fn external(keyspace: KeyspaceId, key: &'static str) -> Batch {
    let mut batch = Batch::new();
    batch.put(keyspace, key.as_bytes(), &b"outside"[..]);
    batch.depends_on_external();
    batch
}

fn rows(env: &Arc<SimEnv>) -> usize {
    let db = open(env).unwrap();
    let ids = make_spaces(&db).unwrap();
    contents(&db, &ids).unwrap().spaces[1].len()
}

/// A batch whose outside data were written after the hook began is not covered by that hook.
#[test]
fn a_batch_that_comes_during_the_hook_waits_for_the_next() {
    let env = SimEnv::new(1);
    let db = Arc::new(open(&env).unwrap());
    let space = make_spaces(&db).unwrap()[1];
    let calls = Arc::new(AtomicUsize::new(0));
    let itself: Arc<OnceLock<Weak<Db>>> = Arc::default();
    itself.set(Arc::downgrade(&db)).unwrap();
    let (counted, weak) = (Arc::clone(&calls), Arc::clone(&itself));
    db.set_external_sync(Box::new(move || {
        if counted.fetch_add(1, Ordering::SeqCst) == 0 {
            let db = weak.get().and_then(Weak::upgrade).unwrap();
            db.write(external(space, "during")).unwrap();
        }
        Ok(())
    }));
    db.write(external(space, "before")).unwrap();
    db.sync().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(rows(&env.power_cut_keep_all()), 1, "the second batch is not covered");
    db.sync().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!(rows(&env.power_cut_keep_nothing()), 2);
    db.sync().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2, "nothing new to cover");
}

#[test]
fn a_failed_hook_poisons() {
    let env = SimEnv::new(2);
    let db = open(&env).unwrap();
    let space = make_spaces(&db).unwrap()[1];
    db.set_external_sync(Box::new(|| Err(std::io::Error::from_raw_os_error(5))));
    db.write(external(space, "a")).unwrap();
    assert!(matches!(db.sync(), Err(StoreError::Poisoned { .. })));
    assert!(matches!(db.write(external(space, "b")), Err(StoreError::Poisoned { .. })));
    assert_eq!(rows(&env.power_cut_keep_all()), 0);
}

#[test]
fn without_a_hook_such_batches_are_refused() {
    let env = SimEnv::new(3);
    let db = open(&env).unwrap();
    let space = make_spaces(&db).unwrap()[1];
    assert!(matches!(db.write(external(space, "a")), Err(StoreError::Invalid(_))));
}

/// The process dies before a sync; the next one finds the batches, and its sync covers them.
#[test]
fn recovered_batches_are_covered_by_the_next_sync() {
    let env = SimEnv::new(4);
    let db = open(&env).unwrap();
    let space = make_spaces(&db).unwrap()[1];
    db.set_external_sync(Box::new(|| Ok(())));
    db.write(external(space, "a")).unwrap();
    let env = env.process_kill();
    let db = open(&env).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    db.set_external_sync(Box::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }));
    assert_eq!(rows(&env.power_cut_keep_all()), 0);
    db.sync().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(rows(&env.power_cut_keep_nothing()), 1);
}

/// Recovered batches wait for their flush until the hook is set; writers are told so, and do not hang.
#[test]
fn recovered_batches_are_not_flushed_without_a_hook() {
    let env = SimEnv::new(5);
    let db = open(&env).unwrap();
    let space = make_spaces(&db).unwrap()[1];
    db.set_external_sync(Box::new(|| Ok(())));
    let mut big = external(space, "a");
    big.put(space, &b"large"[..], vec![1; 7 << 10]);
    db.write(big).unwrap();
    let env = env.process_kill();
    let db = open(&env).unwrap();
    let refused = (0u64..1000).find_map(|number| {
        let mut batch = Batch::new();
        batch.put(space, number.to_be_bytes(), vec![2; 500]);
        db.write(batch).err()
    });
    assert!(matches!(refused, Some(StoreError::Invalid(_))), "{refused:?}");
    db.set_external_sync(Box::new(|| Ok(())));
    let mut batch = Batch::new();
    batch.put(space, &b"b"[..], vec![2; 500]);
    db.write(batch).unwrap();
    db.close().unwrap();
}

/// The record that was torn could have let go of the data that the barrier behind it speaks of, which may be gone then. Whatever the first
/// recovery decides, a second one decides.
#[test]
fn a_barrier_after_a_torn_record_does_not_count() {
    let env = SimEnv::new(6);
    let db = open(&env).unwrap();
    let space = make_spaces(&db).unwrap()[1];
    db.set_external_sync(Box::new(|| Ok(())));
    db.write(external(space, "covered")).unwrap();
    db.sync().unwrap();
    db.write(external(space, "lost")).unwrap();
    let log = env.files_raw().into_iter().find(|path| path.extension().is_some_and(|e| e == "wal"));
    let log = log.unwrap();
    let torn_at = log_end(&env, &log);
    let mut torn = Batch::new();
    torn.put(space, &b"torn"[..], &b"value"[..]);
    db.write(torn).unwrap();
    env.crash_at_sync(env.sync_count() + 1);
    db.sync().unwrap_err();
    let whole = env.power_cut_keep_all();
    assert_eq!(rows(&whole), 3);
    let env = env.power_cut_keep_all();
    env.damage(&log, torn_at + 20, 1).unwrap();
    for _ in 0..2 {
        let db = open(&env).unwrap();
        let ids = make_spaces(&db).unwrap();
        let rows: Vec<_> = contents(&db, &ids).unwrap().spaces[1].keys().cloned().collect();
        assert_eq!(rows, [b"covered".to_vec()]);
    }
    assert_eq!(rows(&env.power_cut_keep_nothing()), 1);
}

/// A later batch may let go of the data on the strength of the log alone: a table must not have the earlier one without it.
#[test]
fn the_log_is_durable_before_a_table_has_rows_that_depend_on_a_hook() {
    let env = SimEnv::new(7);
    let db = open(&env).unwrap();
    let space = make_spaces(&db).unwrap()[1];
    db.set_external_sync(Box::new(|| Ok(())));
    db.write(external(space, "claims")).unwrap();
    let is_table =
        |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "table");
    let mut number = 0u64;
    while !env.files_raw().iter().any(is_table) {
        let mut batch = Batch::new();
        batch.delete(space, &b"claims"[..]);
        batch.put(space, number.to_be_bytes(), vec![3; 500]);
        db.write(batch).unwrap();
        number += 1;
    }
    assert_eq!(rows(&env.power_cut_keep_nothing()) as u64, number);
}

/// The barrier that spoke of a batch in tables lay behind what a first power cut had cut; a second one cut the log at that
/// batch, and what had been written and synced since was lost.
#[test]
fn a_batch_that_tables_hold_needs_no_barrier() {
    let env = SimEnv::new(8);
    let open_with = |env: &Arc<SimEnv>, memtable_bytes| {
        let shared: Arc<dyn Env> = env.clone();
        let options = DbOptions { memtable_bytes, ..small_options() };
        Arc::new(Db::open(shared, &store_dir(), options).unwrap())
    };
    let db = open_with(&env, 64 << 10);
    let space = make_spaces(&db).unwrap()[1];
    db.set_external_sync(Box::new(|| Ok(())));
    db.write(external(space, "claims")).unwrap();
    for number in 0..18_u64 {
        let mut batch = Batch::new();
        batch.put(space, number.to_be_bytes(), vec![4; 500]);
        db.write(batch).unwrap();
    }
    // With less memory the batch and the end of the log are in different memtables, of which only one is flushed.
    let env = env.process_kill();
    let db = open_with(&env, 8 << 10);
    let (weak, called) = (Arc::downgrade(&db), AtomicUsize::new(0));
    db.set_external_sync(Box::new(move || {
        if called.fetch_add(1, Ordering::SeqCst) == 0 {
            weak.upgrade().unwrap().write(external(space, "during")).unwrap();
        }
        Ok(())
    }));
    assert_eq!(counter(&db, "flushes"), 1);
    let env = env.power_cut_keep_all();
    let db = open_with(&env, 8 << 10);
    let mut batch = Batch::new();
    batch.put(space, &b"after"[..], &b"inside"[..]);
    db.write(batch).unwrap();
    db.sync().unwrap();
    assert_eq!(counter(&db, "flushes"), 0);
    assert_eq!(rows(&env.power_cut_keep_nothing()), 20);
}
