//! Tables that are taken in whole.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_engine::{Db, DbOptions, Store, StoreError};
use varve_env::os::OsEnv;
use varve_env::sim::SimEnv;
use varve_env::{Env, OpenMode};
use varve_types::KeyspaceId;

use crate::common::*;

/// A table outside of the store with `rows` of the first key space.
fn table(db: &Db, id: KeyspaceId, path: &Path, rows: &[ModelOp]) {
    let mut table = db.table_file(id, path).unwrap();
    rows.iter().for_each(|op| table.add(&op.key, op.value.as_deref()).unwrap());
    table.finish().unwrap();
}

fn rows(from: u64, to: u64, value: &[u8]) -> Vec<ModelOp> {
    let row = |n: u64| {
        let key = [n.to_be_bytes(), [7; 8]].concat();
        ModelOp { space: 0, key, value: Some(value.to_vec()) }
    };
    (from..to).map(row).collect()
}

/// Bytes by level of the first key space, and what was flushed and logged.
fn levels(db: &Db) -> (Vec<(u64, u64)>, u64) {
    let metrics = metrics(db);
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let levels = metrics["keyspaces"][0]["levels"].as_array().unwrap();
    let levels = levels.iter().map(|level| (number(&level["level"]), number(&level["tables"])));
    let written =
        number(&metrics["counters"]["log_bytes"]) + number(&metrics["counters"]["flush_bytes"]);
    (levels.filter(|(_, tables)| *tables > 0).collect(), written)
}

#[test]
fn what_is_disjoint_goes_deep_and_what_overlaps_hides_what_was() {
    let env = SimEnv::new(1);
    let db = Db::open(env.clone(), &store_dir(), small_options()).unwrap();
    let ids = make_spaces(&db).unwrap();
    let path = PathBuf::from("/incoming.table");
    let mut model = Model::new();
    let take = |model: &mut Model, rows: &[ModelOp]| {
        table(&db, ids[0], &path, rows);
        let changes = db.store_changes();
        db.ingest(std::slice::from_ref(&path)).unwrap();
        assert_ne!(db.store_changes(), changes);
        env.remove_file(&path).unwrap();
        model.apply(rows);
        assert_eq!(contents(&db, &ids).unwrap(), *model);
    };
    for part in 0..20 {
        take(&mut model, &rows(part * 100, part * 100 + 100, b"first"));
    }
    let (deep, written) = levels(&db);
    assert_eq!(written, 0, "neither the log nor a flush wrote anything");
    assert!(deep.len() > 1 && deep.iter().all(|(level, _)| *level > 0), "{deep:?}");
    assert_eq!(deep.iter().map(|(_, tables)| tables).sum::<u64>(), 20, "nothing was merged");
    let before = db.snapshot().unwrap();
    db.write(to_batch(&ids, &rows(150, 250, b"logged"))).unwrap();
    model.apply(&rows(150, 250, b"logged"));
    take(&mut model, &rows(0, 230, b"second"));
    let seen = before.get(ids[0], &rows(200, 201, b"")[0].key).unwrap();
    assert_eq!(seen.as_deref(), Some(&b"first"[..]), "a snapshot sees nothing of it");
    drop(before);
    db.write(to_batch(&ids, &rows(10, 20, b"third"))).unwrap();
    model.apply(&rows(10, 20, b"third"));
    assert_eq!(contents(&db, &ids).unwrap(), model);
    db.close().unwrap();
    let db = Db::open(env, &store_dir(), small_options()).unwrap();
    db.compact().unwrap();
    assert_eq!(contents(&db, &ids).unwrap(), model);
    assert!(db.verify(&mut |_| {}).unwrap().errors.is_empty());
}

#[test]
fn corrupt_and_foreign_tables_are_refused_whole() {
    let env = SimEnv::new(2);
    let db = open(&env).unwrap();
    let ids = make_spaces(&db).unwrap();
    let paths = ["/good.table", "/bad.table"].map(PathBuf::from);
    table(&db, ids[0], &paths[0], &rows(0, 50, b"good"));
    table(&db, ids[0], &paths[1], &rows(50, 90, b"bad"));
    let sound = env.read_raw(&paths[1]).unwrap();
    let put = |bytes: &[u8]| {
        env.truncate_raw(&paths[1], 0).unwrap();
        env.write_raw(&paths[1], 0, bytes).unwrap();
    };
    let names = || env.list(&store_dir()).unwrap().len();
    let there = names();
    let refused = |why: &str| {
        let error = db.ingest(&paths).unwrap_err();
        assert!(
            !matches!(error, StoreError::Io { .. } | StoreError::Poisoned { .. }),
            "{why}: {error}"
        );
        assert_eq!(contents(&db, &ids).unwrap(), Model::new(), "{why}");
        assert_eq!(names(), there, "{why}: nothing is left in the store");
    };
    let mut noticed = 0;
    for at in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x20;
        put(&bytes);
        // Bytes between blocks, which no checksum covers, hold nothing.
        if bytes[at] != 0x20 || at + 600 > sound.len() {
            refused(&format!("byte {at}"));
            noticed += 1;
        }
    }
    assert!(noticed > sound.len() / 2);
    for len in [0, 10, sound.len() / 2, sound.len() - 1] {
        put(&sound[..len]);
        refused(&format!("cut to {len} bytes"));
    }
    table_of_another_shape(&db, &ids, &env, &paths[1]);
    refused("rows that are not prefixed in a key space that is");
    env.remove_file(&paths[1]).unwrap();
    table(&db, ids[0], &paths[1], &rows(49, 60, b"both"));
    refused("two tables with one key");
    env.remove_file(&paths[1]).unwrap();
    let error = db.ingest(&paths).unwrap_err();
    assert!(matches!(&error, StoreError::Io { path, .. } if *path == paths[1]), "{error}");
    db.ingest(&paths[..1]).unwrap();
    assert_eq!(contents(&db, &ids).unwrap().spaces[0].len(), 50);
}

/// A table of a store that made its key spaces in another order.
fn table_of_another_shape(db: &Db, ids: &[KeyspaceId], env: &Arc<SimEnv>, path: &Path) {
    let other = Db::open(env.clone(), Path::new("/other"), small_options()).unwrap();
    let (name, options) = SPACES[1];
    let first = other.keyspace(name, options).unwrap();
    assert_eq!(first, ids[0]);
    env.remove_file(path).unwrap();
    let mut table = other.table_file(first, path).unwrap();
    table.add(b"key", Some(b"value")).unwrap();
    table.finish().unwrap();
    drop((other, db));
}

/// A table with a history, as the store's own have, has no place in one moment.
#[test]
fn several_versions_of_a_key_are_refused() {
    let env = SimEnv::new(3);
    let db = Db::open(env.clone(), &store_dir(), small_options()).unwrap();
    let ids = make_spaces(&db).unwrap();
    db.write(to_batch(&ids, &rows(0, 5, b"old"))).unwrap();
    let pinned = db.snapshot().unwrap();
    db.write(to_batch(&ids, &rows(0, 5, b"new"))).unwrap();
    db.flush().unwrap();
    drop(pinned);
    let own =
        env.files_raw().into_iter().find(|path| path.extension().is_some_and(|e| e == "table"));
    let error = db.ingest(&[own.unwrap()]).unwrap_err();
    assert!(error.to_string().contains("two versions of a key"), "{error}");
}

#[test]
fn a_table_on_another_file_system_is_copied() {
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let env: Arc<dyn Env> = OsEnv::new();
    let db = Db::open(Arc::clone(&env), &dir.path().join("store"), small_options()).unwrap();
    let ids = make_spaces(&db).unwrap();
    let path = elsewhere.path().join("incoming.table");
    table(&db, ids[0], &path, &rows(0, 500, b"value"));
    db.ingest(std::slice::from_ref(&path)).unwrap();
    // What becomes of the file does not matter any more.
    env.open(&path, OpenMode::ReadWrite).unwrap().set_len(0).unwrap();
    assert_eq!(contents(&db, &ids).unwrap().spaces[0].len(), 500);
    assert!(db.verify(&mut |_| {}).unwrap().errors.is_empty());
}

/// The tables were there already when room for them was asked for, twice over, as for rows that go through the log.
#[test]
fn what_is_inserted_in_bulk_needs_its_room_once() {
    const ROWS: u64 = 256;
    const VALUE_BYTES: usize = 4 << 10;
    let bytes = ROWS * VALUE_BYTES as u64;
    let env = SimEnv::new(5);
    let space_reserve_bytes = 128 << 10;
    let options = DbOptions { space_reserve_bytes, ..DbOptions::default() };
    let db = Db::open(env.clone(), &store_dir(), options).unwrap();
    let ids = make_spaces(&db).unwrap();
    let insert = |from: u64| {
        let pair = |n: u64| {
            let key = [n.to_be_bytes(), [7; 8]].concat();
            (key.into(), vec![n as u8; VALUE_BYTES].into())
        };
        db.insert_sorted(ids[0], &mut (from..from + ROWS).map(pair), false)
    };
    env.set_capacity(env.used_bytes() + space_reserve_bytes + bytes * 5 / 2);
    insert(0).unwrap();
    // What would have to go into the reserve is refused, and leaves nothing behind.
    let used = env.used_bytes();
    env.set_capacity(used + bytes + space_reserve_bytes / 2);
    assert!(matches!(insert(ROWS), Err(StoreError::NoSpace { .. })));
    assert_eq!(env.used_bytes(), used);
    assert_eq!(contents(&db, &ids).unwrap().spaces[0].len() as u64, ROWS);
}

#[test]
fn a_table_file_that_is_not_finished_goes() {
    let env = SimEnv::new(4);
    let db = open(&env).unwrap();
    let ids = make_spaces(&db).unwrap();
    let path = PathBuf::from("/unfinished.table");
    let mut unfinished = db.table_file(ids[0], &path).unwrap();
    unfinished.add(&[7; 16], None).unwrap();
    assert!(unfinished.add(&[6; 16], None).is_err(), "keys ascend");
    drop(unfinished);
    assert!(env.stat(&path).is_err());
}
