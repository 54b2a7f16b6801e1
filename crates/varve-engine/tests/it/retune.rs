//! A store that tunes itself goes by what is asked of it, and loses nothing when it changes its layout.

use std::sync::Arc;

use varve_engine::options::Tuning;
use varve_engine::{Batch, Db, DbOptions, Direction, KeyRange, Store};
use varve_env::Env;
use varve_env::sim::SimEnv;

use crate::common::*;

const ROWS: u64 = 12_000;

fn key(number: u64) -> Vec<u8> {
    let mut key = (number / 50).to_be_bytes().to_vec();
    key.extend_from_slice(&Rng::new(number).next_u64().to_be_bytes());
    key
}

fn plan(db: &Db) -> serde_json::Value {
    metrics(db)["plan"].clone()
}

fn filled(lookups: u64) -> Db {
    filled_with(lookups, 0)
}

/// Fills a store, each row after `lookups` of rows that are there, or of itself if none, and `scans` of a directory;
/// returns it.
fn filled_with(lookups: u64, scans: u64) -> Db {
    let env: Arc<dyn Env> = SimEnv::new(3);
    let memory_budget_bytes = 4 << 20;
    let options = DbOptions { tuning: Tuning::Auto, memory_budget_bytes, ..small_options() };
    let db = Db::open(env, &store_dir(), options).unwrap();
    let space = make_spaces(&db).unwrap()[0];
    let mut rng = Rng::new(4);
    for i in 0..ROWS {
        let number = |i: u64| i * 7919 % ROWS;
        for _ in 0..lookups.max(1) {
            let sought = if lookups == 0 { i } else { rng.below(i.max(1)) };
            let found = db.get(space, &key(number(sought))).unwrap();
            assert_eq!(found.is_some(), sought < i);
        }
        for _ in 0..scans {
            let range = KeyRange::prefix(&key(rng.below(ROWS))[..8]);
            let rows = db.scan(space, range, Direction::Forward).unwrap();
            let rows: Vec<_> = rows.map(|row| row.unwrap()).collect();
            assert!(rows.len() <= 50);
        }
        let mut batch = Batch::new();
        batch.put(space, key(number(i)), i.to_be_bytes().to_vec());
        db.write(batch).unwrap();
    }
    for i in 0..ROWS {
        let found = db.get(space, &key(i * 7919 % ROWS)).unwrap();
        assert_eq!(found.as_deref(), Some(&i.to_be_bytes()[..]), "row {i}");
    }
    assert!(db.verify(&mut |_| {}).unwrap().errors.is_empty());
    db
}

/// SlimDB 5.4, figure 5.9: creating is cheapest with sub-levels and a filter at each level.
#[test]
fn a_store_that_is_written_to_becomes_stepped() {
    let db = filled(0);
    let plan = plan(&db);
    assert_ne!(plan["compaction"], "leveled", "{plan}");
    assert_eq!(plan["sublevel_map"], true, "{plan}");
    assert!((1..4).contains(&plan["changes"].as_u64().unwrap()), "{plan}");
    let mix = &plan["mix"];
    assert!(mix["absent"].as_f64() > Some(0.4) && mix["writes"].as_f64() > Some(0.4), "{plan}");
    db.close().unwrap();
}

/// Directories that are listed as often as names are made keep a store in few runs, although sub-levels write less.
#[test]
fn a_store_that_is_listed_stays_leveled() {
    let db = filled_with(0, 2);
    let plan = plan(&db);
    assert!(plan["mix"]["scans"].as_f64() > Some(0.4), "{plan}");
    assert_eq!(
        (&plan["compaction"], plan["changes"].as_u64()),
        (&"leveled".into(), Some(0)),
        "{plan}"
    );
    db.close().unwrap();
}

/// Where nothing is gained by a change, none is made.
#[test]
fn a_store_that_is_read_stays_leveled() {
    let db = filled(20);
    let plan = plan(&db);
    assert_eq!((&plan["compaction"], plan["changes"].as_u64()), (&"leveled".into(), Some(0)));
    db.close().unwrap();
}
