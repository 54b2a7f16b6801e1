//! Full disks and failing syncs.

use std::path::Path;
use std::sync::Arc;

use varve_engine::{Batch, BranchOptions, Db, DbOptions, Merged, Store, StoreError};
use varve_env::os::OsEnv;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_env::{Env, OpenMode};
use varve_types::KeyspaceId;

use crate::common::*;

const NO_SPACE: i32 = 28;
const IO_ERROR: i32 = 5;
const TOO_MANY_FILES: i32 = 24;

fn rule(op: SimOp, nth: u64, errno: i32, sticky: bool) -> FaultRule {
    FaultRule { path_suffix: String::new(), op, nth, errno, sticky }
}

struct Store0 {
    db: Db,
    ids: Vec<KeyspaceId>,
    model: Model,
    rng: Rng,
    /// Writes refused for want of room.
    refused: usize,
}

impl Store0 {
    fn open(env: &Arc<SimEnv>, seed: u64) -> Store0 {
        Store0::of(open(env).unwrap(), seed)
    }

    fn open_with(env: &Arc<SimEnv>, seed: u64, options: DbOptions) -> Store0 {
        Store0::of(Db::open(Arc::clone(env) as _, &store_dir(), options).unwrap(), seed)
    }

    fn of(db: Db, seed: u64) -> Store0 {
        let ids = make_spaces(&db).unwrap();
        Store0 { db, ids, model: Model::new(), rng: Rng::new(seed), refused: 0 }
    }

    /// Writes; a refusal for want of room changes nothing. Any other error comes back.
    fn write(&mut self, count: usize) -> Result<(), StoreError> {
        for _ in 0..count {
            let ops = random_ops(&mut self.rng);
            match self.db.write(to_batch(&self.ids, &ops)) {
                Ok(()) => self.model.apply(&ops),
                Err(StoreError::NoSpace { .. }) => self.refused += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn check(&self) {
        assert_eq!(contents(&self.db, &self.ids).unwrap(), self.model);
    }
}

fn reopened(env: &Arc<SimEnv>) -> Model {
    let db = open(env).unwrap();
    let ids = make_spaces(&db).unwrap();
    contents(&db, &ids).unwrap()
}

#[test]
fn a_full_disk_refuses_writes_and_recovers_wherever_it_strikes() {
    let mut refused = 0;
    for (op, points) in [(SimOp::Write, 400), (SimOp::Create, 25)] {
        for nth in (1..points).step_by(if points > 100 { 9 } else { 1 }) {
            for sticky in [false, true] {
                let env = SimEnv::new(nth);
                let mut store = Store0::open(&env, nth);
                env.fail(rule(op, nth, NO_SPACE, sticky));
                store.write(250).unwrap();
                store.check();
                env.clear_faults();
                store.write(100).unwrap();
                store.check();
                refused += store.refused;
                store.db.close().unwrap();
                let model = store.model;
                assert_eq!(reopened(&env.power_cut_keep_nothing()), model, "{op:?} {nth} {sticky}");
            }
        }
    }
    assert!(refused > 100);
}

#[test]
fn an_open_without_room_changes_nothing() {
    let env = SimEnv::new(4);
    let mut store = Store0::open(&env, 4);
    store.write(200).unwrap();
    store.db.close().unwrap();
    let mut refused = 0;
    for (op, nth) in
        [SimOp::Create, SimOp::Write].into_iter().flat_map(|op| (1..8).map(move |n| (op, n)))
    {
        let env = env.power_cut_keep_all();
        env.fail(rule(op, nth, NO_SPACE, false));
        match open(&env) {
            Err(StoreError::NoSpace { .. }) => refused += 1,
            Err(error) => panic!("{op:?} {nth}: {error}"),
            Ok(db) => drop(db),
        }
        env.clear_faults();
        assert_eq!(reopened(&env), store.model, "{op:?} {nth}");
        assert_eq!(reopened(&env.power_cut_keep_nothing()), store.model, "{op:?} {nth}");
    }
    assert!(refused > 4, "{refused} opens refused");
}

#[test]
fn a_small_disk_fills_up_and_is_usable_again() {
    let env = SimEnv::new(9);
    let mut store = Store0::open(&env, 9);
    env.set_capacity(env.used_bytes() + (64 << 10));
    store.write(2000).unwrap();
    assert!(store.refused > 500, "{} refused", store.refused);
    store.check();
    env.set_capacity(1 << 30);
    let refused = store.refused;
    store.write(500).unwrap();
    assert_eq!(store.refused, refused);
    store.check();
    store.db.close().unwrap();
    assert_eq!(reopened(&env.power_cut_keep_nothing()), store.model);
}

#[test]
fn the_reserve_is_kept_for_writes_that_free_room() {
    let env = SimEnv::new(3);
    let mut options = small_options();
    options.space_reserve_bytes = 1 << 20;
    let db = Db::open(Arc::clone(&env) as Arc<dyn varve_env::Env>, &store_dir(), options).unwrap();
    let ids = make_spaces(&db).unwrap();
    let put = |key: &'static str, reclaims: bool| {
        let mut batch = Batch::new();
        batch.put(ids[1], key.as_bytes(), vec![7; 100]);
        if reclaims {
            batch.reclaims_space();
        }
        db.write(batch)
    };
    put("before", false).unwrap();
    env.set_capacity(32 << 20);
    let filler = env.open(Path::new("/filler"), OpenMode::CreateNew).unwrap();
    let len = (31 << 20) - env.used_bytes();
    filler.write_all_at(&vec![1; len as usize], 0).unwrap();
    // What was allowed before the disk shrank is used up first.
    let refused = (0..100_000).find_map(|_| put("more", false).err());
    assert!(matches!(refused, Some(StoreError::NoSpace { .. })));
    put("frees room", true).unwrap();
    assert!(put("more", false).is_err());
    filler.set_len(0).unwrap();
    put("more", false).unwrap();
}

/// Nothing could be removed any more on a full device once the memtable was full, as the next log found no room.
#[test]
fn writes_that_free_room_go_on_where_the_next_log_finds_none() {
    let env = SimEnv::new(3);
    let mut store = Store0::open_with(&env, 3, small_options());
    env.fail(rule(SimOp::Create, 1, NO_SPACE, true));
    let fill = |store: &mut Store0, reclaims: bool, rows: u32| {
        let mut taken = 0;
        for row in 0..rows {
            let row = row | u32::from(reclaims) << 16;
            let op =
                ModelOp { space: 1, key: row.to_be_bytes().to_vec(), value: Some(vec![7; 100]) };
            let mut batch = to_batch(&store.ids, std::slice::from_ref(&op));
            if reclaims {
                batch.reclaims_space();
            }
            match store.db.write(batch) {
                Ok(()) => store.model.apply(&[op]),
                Err(StoreError::NoSpace { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            taken += 1;
        }
        taken
    };
    let ordinary = fill(&mut store, false, 1000);
    assert!((20..200).contains(&ordinary), "{ordinary} rows in a memtable");
    let freeing = fill(&mut store, true, 1000);
    assert!(freeing > ordinary / 2 && freeing < ordinary * 3 / 2, "{freeing} and {ordinary} rows");
    store.check();
    env.clear_faults();
    assert_eq!(fill(&mut store, false, 300), 300);
    store.check();
    store.db.sync().unwrap();
    assert_eq!(reopened(&env.power_cut_keep_nothing()), store.model);
}

/// What was committed and synced long ago was reported as failed, because the flush that forgets ended branches found no
/// descriptor.
#[test]
fn a_commit_does_not_fail_for_branches_that_cannot_be_forgotten() {
    for errno in [NO_SPACE, IO_ERROR, TOO_MANY_FILES] {
        let env = SimEnv::new(5);
        let options = DbOptions { memtable_bytes: 256 << 10, ..small_options() };
        let mut store = Store0::open_with(&env, 5, options);
        env.fail(rule(SimOp::Create, 1, errno, true));
        for row in 0..80u8 {
            let branch = store.db.branch(&BranchOptions::default()).unwrap();
            let op = ModelOp { space: 1, key: vec![row], value: Some(vec![row; 30]) };
            branch.write(to_batch(&store.ids, std::slice::from_ref(&op))).unwrap();
            branch.commit(&mut |_| Merged::Conflict).unwrap();
            store.model.apply(&[op]);
        }
        assert!(env.fault_count() > 0);
        store.check();
        env.clear_faults();
        store.db.flush().unwrap();
        store.check();
        assert_eq!(reopened(&env.process_kill()), store.model, "{errno}");
    }
}

/// The flush that would make the next log's name durable finds no room, and then the power fails.
#[test]
fn a_sync_makes_the_name_of_a_new_log_durable() {
    let env = SimEnv::new(2);
    let mut store = Store0::open(&env, 2);
    let mut fault = rule(SimOp::Create, 1, NO_SPACE, true);
    fault.path_suffix = ".table".to_owned();
    env.fail(fault);
    let logs =
        || env.files_raw().iter().filter(|path| path.to_string_lossy().ends_with(".wal")).count();
    let before = logs();
    while logs() == before {
        store.write(1).unwrap();
    }
    store.write(1).unwrap();
    store.db.sync().unwrap();
    assert_eq!(reopened(&env.power_cut_keep_nothing()), store.model);
}

#[test]
fn a_failed_sync_poisons() {
    for (op, points) in [(SimOp::Sync, 30), (SimOp::SyncDir, 12)] {
        for nth in 1..points {
            let env = SimEnv::new(nth);
            let mut store = Store0::open(&env, nth);
            env.fail(rule(op, nth, IO_ERROR, false));
            let mut states = vec![store.model.clone()];
            let error = loop {
                let wrote = store.write(1);
                states.push(store.model.clone());
                let synced = if states.len() % 16 == 0 { store.db.sync() } else { Ok(()) };
                match wrote.and(synced) {
                    Ok(()) if states.len() % 16 == 0 => drop(states.drain(..states.len() - 1)),
                    Ok(()) => {}
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, StoreError::Poisoned { .. }), "{op:?} {nth}: {error}");
            // Nothing is tried again, although the disk works from now on.
            let write = store.db.write(to_batch(&store.ids, &random_ops(&mut store.rng)));
            assert!(matches!(write, Err(StoreError::Poisoned { .. })));
            assert!(matches!(store.db.sync(), Err(StoreError::Poisoned { .. })));
            assert!(matches!(store.db.flush(), Err(StoreError::Poisoned { .. })));
            store.check();
            assert!(matches!(store.db.close(), Err(StoreError::Poisoned { .. })));
            for after in [env.power_cut_keep_nothing(), env.power_cut(nth), env.process_kill()] {
                let found = reopened(&after);
                assert!(states.contains(&found), "{op:?} {nth}: not a state since the last sync");
            }
        }
    }
}

/// A store that was opened again after a failed sync took for durable what was left in memory: what it then synced was gone
/// after a power cut, or it did not open.
#[test]
fn what_a_failed_sync_left_in_memory_is_written_once_more() {
    for nth in 1..60 {
        let env = SimEnv::new(nth);
        let mut store = Store0::open(&env, nth);
        env.fail(rule(SimOp::Sync, nth, IO_ERROR, false));
        for step in 0.. {
            let wrote = store.write(1);
            let synced = if step % 16 == 15 { store.db.sync() } else { Ok(()) };
            // Of a sync that is no more than useful nobody is told.
            if wrote.and(synced).is_err() || env.fault_count() > 0 {
                break;
            }
        }
        let found = contents(&store.db, &store.ids).unwrap();
        let env = env.process_kill();
        let after = Store0::open(&env, nth);
        assert_eq!(contents(&after.db, &after.ids).unwrap(), found, "sync {nth}");
        after.db.sync().unwrap();
        assert_eq!(reopened(&env.power_cut_keep_nothing()), found, "sync {nth}");
        // So is what comes after it.
        let mut after = Store0 { model: found, ..after };
        after.write(20).unwrap();
        after.db.sync().unwrap();
        assert_eq!(reopened(&env.power_cut_keep_nothing()), after.model, "sync {nth}");
    }
}

#[test]
fn a_failed_append_to_the_log_poisons() {
    let env = SimEnv::new(1);
    let mut store = Store0::open(&env, 1);
    store.write(10).unwrap();
    let mut fault = rule(SimOp::Write, 1, IO_ERROR, false);
    fault.path_suffix = ".wal".to_owned();
    env.fail(fault);
    // A part of the record is in the file, and cannot be taken back.
    env.fail(rule(SimOp::SetLen, 1, IO_ERROR, true));
    assert!(matches!(store.write(1), Err(StoreError::Poisoned { .. })));
    store.check();
    assert_eq!(reopened(&env.process_kill()), store.model);
}

/// A log that somebody cuts fails as a disk does: the copy into its mapped room raises a signal, which becomes an error.
#[test]
fn a_log_that_is_cut_below_its_mapped_room_poisons() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(OsEnv::new(), dir.path(), small_options()).unwrap();
    let space = make_spaces(&db).unwrap()[1];
    let put = |row: u8| {
        let mut batch = Batch::new();
        batch.put(space, vec![row], vec![row; 100]);
        db.write(batch)
    };
    (0..20).for_each(|row| put(row).unwrap());
    assert!(counter(&db, "log_window_bytes") <= counter(&db, "log_bytes"));
    if counter(&db, "log_window_bytes") == 0 {
        varve_testkit::skipped("the storage of temporary files is not written as memory");
        return;
    }
    let env = OsEnv::new();
    for file in env.list(dir.path()).unwrap() {
        let path = dir.path().join(file.name);
        if path.extension().is_some_and(|extension| extension == "wal") {
            env.open(&path, OpenMode::ReadWrite).unwrap().set_len(0).unwrap();
        }
    }
    let failed = put(20).unwrap_err();
    assert!(matches!(&failed, StoreError::Poisoned { .. }), "{failed}");
    assert!(failed.to_string().contains(".wal"), "{failed}");
    assert!(put(21).is_err());
    assert_eq!(db.get(space, &[7]).unwrap().as_deref(), Some(&[7; 100][..]));
    assert_eq!(db.get(space, &[20]).unwrap(), None);
}
