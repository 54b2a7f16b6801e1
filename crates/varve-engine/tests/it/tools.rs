//! Verification and inspection.

use std::sync::Arc;

use varve_engine::{
    Db, DbOptions, Inspection, Store, StoreError, ValuePolicy, inspect, inspect_store,
};
use varve_env::sim::SimEnv;

use crate::common::*;

/// An open store with tables and rows in the log.
fn sample() -> (Arc<SimEnv>, Db) {
    let env = SimEnv::new(1);
    let mut rng = Rng::new(1);
    let apart = ValuePolicy::Separated { bytes_min: 25 };
    let options = DbOptions { values: apart, ..small_options() };
    let db = Db::open(env.clone(), &store_dir(), options).unwrap();
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
                assert_eq!(log.broken, None);
                assert!(log.valid_bytes <= log.length_bytes);
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
            Inspection::Map(maps) => assert!(maps.broken.is_none() && !maps.maps.is_empty()),
            Inspection::Store(_) => panic!("{} is a file", path.display()),
        }
    }
    let ids = make_spaces(&db).unwrap();
    let rows: usize = contents(&db, &ids).unwrap().spaces.iter().map(|rows| rows.len()).sum();
    assert!(counted >= rows && rows > 50, "{counted} versions for {rows} rows");
}

/// The store as a whole says of its tables what each says of itself, and which is damaged.
#[test]
fn a_store_is_described_by_its_levels() {
    let (env, db) = sample();
    let report = inspect_store(&*env, &store_dir()).unwrap();
    for (space, counted) in
        report.keyspaces.iter().zip(metrics(&db)["keyspaces"].as_array().unwrap())
    {
        assert_eq!(counted["name"], space.name.as_str());
        for level in &space.levels {
            let counted = &counted["levels"][level.level];
            assert_eq!(counted["sublevels"], level.sublevels.len());
            let tables = || level.sublevels.iter().flat_map(|sublevel| &sublevel.tables);
            assert_eq!(counted["tables"], tables().count());
            assert_eq!(counted["entries"], tables().map(|table| table.versions).sum::<u64>());
        }
    }
    let mut seen = 0;
    for summary in report.tables() {
        let path = store_dir().join(format!("{:012}.table", summary.number));
        let Inspection::Table(own) = inspect(&*env, &path, false).unwrap() else { panic!() };
        let parts = summary.parts.as_ref().unwrap();
        let index = own.sections.iter().find(|section| section.name == "index").unwrap();
        assert_eq!(
            (index.kind, u64::from(index.length_bytes)),
            (Some(parts.index), parts.index_bytes)
        );
        let filter = own.sections.iter().find(|section| section.name == "filter");
        assert_eq!(filter.map_or(0, |f| u64::from(f.length_bytes)), parts.filter_bytes);
        assert_eq!((own.versions, own.length_bytes), (summary.versions, summary.length_bytes));
        assert_eq!((own.zones.len(), own.segments.len()), (summary.zones, summary.segments));
        seen += 1;
    }
    assert!(seen > 3 && report.to_string().lines().count() > seen);
    let broken = report.tables().next().unwrap().number;
    let path = store_dir().join(format!("{broken:012}.table"));
    env.damage(&path, env.read_raw(&path).unwrap().len() as u64 - 10, 1).unwrap();
    let report = inspect_store(&*env, &store_dir()).unwrap();
    let told: Vec<_> = report.tables().filter(|table| table.broken.is_some()).collect();
    assert_eq!((told.len(), told[0].number), (1, broken));
    assert!(told[0].broken.as_ref().unwrap().contains(&*path.to_string_lossy()));
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
