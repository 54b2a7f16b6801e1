//! Verification and inspection.

use std::sync::Arc;

use varve_engine::{Db, Inspection, Store, StoreError, inspect};
use varve_env::sim::SimEnv;

use crate::common::*;

/// An open store with tables and rows in the log.
fn sample() -> (Arc<SimEnv>, Db) {
    let env = SimEnv::new(1);
    let mut rng = Rng::new(1);
    let db = open(&env).unwrap();
    let ids = make_spaces(&db).unwrap();
    for i in 0..400 {
        db.write(to_batch(&ids, &random_ops(&mut rng))).unwrap();
        if i == 380 {
            db.flush().unwrap();
        }
    }
    db.sync().unwrap();
    (env, db)
}

fn files(env: &SimEnv, kind: &str) -> Vec<std::path::PathBuf> {
    let mut files = env.files_raw();
    files.retain(|path| path.to_string_lossy().contains(kind));
    files
}

#[test]
fn verify_finds_every_damaged_table() {
    let (env, db) = sample();
    let mut last = None;
    let report = db.verify(&mut |progress| last = Some(progress)).unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert!(report.tables > 3 && report.blocks > report.tables && report.versions > 100);
    let last = last.unwrap();
    assert_eq!((last.tables_done, last.bytes_done), (last.tables, last.bytes));
    let tables = files(&env, ".table");
    for (i, table) in tables.iter().enumerate() {
        env.damage(table, 100 * i as u64 % 300, 4).unwrap();
    }
    let report = db.verify(&mut |_| ()).unwrap();
    for table in &tables {
        let named = |error: &&StoreError| matches!(error, StoreError::Damaged { path, .. } if path == table);
        assert_eq!(report.errors.iter().filter(named).count(), 1, "{}", table.display());
    }
}

#[test]
fn every_file_can_be_inspected() {
    let (env, db) = sample();
    let mut counted = 0;
    for path in files(&env, "/store/") {
        let Ok(report) = inspect(&*env, &path, true) else {
            assert!(path.ends_with("LOCK"), "{}", path.display());
            continue;
        };
        assert!(report.to_string().lines().count() > 0);
        match report {
            Inspection::Wal(log) => {
                assert_eq!((log.broken, log.valid_bytes), (None, log.length_bytes));
                assert!(log.durable_bytes > 0);
                let batches = log.records.iter().filter(|record| record.kind == "batch");
                counted += batches.map(|record| record.rows.len()).sum::<usize>();
            }
            Inspection::Table(table) => {
                let rows: usize = table.blocks.iter().map(|block| block.rows.len()).sum();
                assert_eq!(rows as u64, table.versions);
                counted += rows;
            }
            Inspection::Manifest(log) => assert!(log.records.iter().any(|r| r.kind == "edit")),
            Inspection::Current { manifest } => assert!(manifest > 0),
            Inspection::Segment(segment) => {
                assert_eq!((segment.broken, segment.values), (None, segment.records.len() as u64));
                assert!(segment.values > 0 && segment.used_bytes > Some(0));
            }
        }
    }
    let ids = make_spaces(&db).unwrap();
    let rows: usize = contents(&db, &ids).unwrap().spaces.iter().map(|rows| rows.len()).sum();
    assert!(counted >= rows && rows > 50, "{counted} versions for {rows} rows");
}

#[test]
fn a_damaged_log_is_described_up_to_the_damage() {
    let (env, _db) = sample();
    let path = files(&env, ".wal").remove(0);
    let Inspection::Wal(whole) = inspect(&*env, &path, false).unwrap() else { panic!("no log") };
    let victim = &whole.records[3];
    env.damage(&path, victim.offset + 2, 1).unwrap();
    let Inspection::Wal(broken) = inspect(&*env, &path, false).unwrap() else { panic!("no log") };
    assert_eq!((broken.records.len(), broken.valid_bytes), (3, victim.offset));
    assert!(broken.broken.unwrap().contains("it was durable"));
}
