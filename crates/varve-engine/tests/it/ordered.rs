//! Scans over all prefixes in the order of the prefixes, in every design: no key is stored by a hash of its prefix, so
//! no second index has to say what the order is (ADR 2026-11-22-scans-over-directories).

use std::ops::Bound;
use std::sync::Arc;

use varve_engine::{Batch, Db, Direction, KeyRange, Store};
use varve_env::Env;
use varve_env::sim::SimEnv;

use crate::common::*;
use crate::designs::{PRESETS, options_of};
use crate::redesign::finish;

const PREFIXES: u64 = 120;

/// The ends of the range among them, so that order by number and order by bytes are one.
fn prefix(number: u64) -> u64 {
    match number {
        0 => 0,
        n if n + 1 == PREFIXES => u64::MAX,
        n => n * 0x0123_4567_89ab_cdef,
    }
}

/// SlimDB 5.3.3: a store that hashes prefixes cannot do this with one index.
#[test]
fn prefixes_are_scanned_in_their_order_in_every_design() {
    for (name, design) in PRESETS {
        let env = SimEnv::new(3);
        let shared: Arc<dyn Env> = env.clone();
        let db = Db::open(shared, &store_dir(), options_of(design)).unwrap();
        let ids = make_spaces(&db).unwrap();
        let mut rows = Rows::new();
        let mut rng = Rng::new(17);
        for step in 0..6000u64 {
            let mut key = prefix(rng.below(PREFIXES)).to_be_bytes().to_vec();
            key.extend_from_slice(
                &rng.below(1 << 12).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(),
            );
            let value = vec![step as u8; if step % 7 == 0 { 400 } else { 40 }];
            let mut batch = Batch::new();
            batch.put(ids[0], key.clone(), value.clone());
            db.write(batch).unwrap();
            rows.insert(key, value);
        }
        finish(&db);
        let levels = metrics(&db)["keyspaces"][0]["levels"].clone();
        let levels = levels.as_array().unwrap().iter();
        let tables: u64 = levels.map(|level| level["tables"].as_u64().unwrap()).sum();
        assert!(tables > 3, "{name}: {tables} tables");
        let scanned = |range: KeyRange, direction| -> Vec<(Vec<u8>, Vec<u8>)> {
            let found = db.scan(ids[0], range, direction).unwrap();
            found.map(|row| row.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect()
        };
        let all: Vec<_> = rows.clone().into_iter().collect();
        assert_eq!(scanned(KeyRange::all(), Direction::Forward), all, "{name}");
        let backward: Vec<_> = all.iter().rev().cloned().collect();
        assert_eq!(scanned(KeyRange::all(), Direction::Reverse), backward, "{name}");
        // From the middle of one prefix to the middle of another.
        let (from, to) = (all[all.len() / 3].0.clone(), all[2 * all.len() / 3].0.clone());
        let between =
            KeyRange { start: Bound::Included(from.clone()), end: Bound::Excluded(to.clone()) };
        let expected: Vec<_> = rows.range(from..to).map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(scanned(between, Direction::Forward), expected, "{name}");
        let keys = db.keys(ids[0], KeyRange::all()).unwrap().map(|key| key.unwrap().to_vec());
        assert!(keys.eq(rows.keys().cloned()), "{name}");
        db.close().unwrap();
    }
}
