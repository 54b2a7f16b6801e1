//! The map of the upper sub-levels: one block for a lookup, no source for a directory that is elsewhere, and what
//! blind writes, old snapshots and reopened stores make of it.

use std::sync::Arc;

use varve_engine::design::{Compaction, TableFilter, TableIndex};
use varve_engine::options::FilteredLevels;
use varve_engine::{Batch, Db, DbOptions, Direction, KeyRange, Store, StoreDesign};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

use crate::common::*;

const ROWS: u64 = 6000;
const ROWS_PER_PREFIX: u64 = 50;

fn options(filter: TableFilter) -> DbOptions {
    let mut options = small_options();
    let (compaction, index) = (Compaction::LazyLeveled, TableIndex::EliasFano);
    StoreDesign { compaction, index, filter, ..StoreDesign::default() }.apply(&mut options);
    options.sublevels_trigger = 4;
    options.level_base_bytes = 64 << 10;
    options.memory_budget_bytes = 4 << 20;
    options
}

struct Run {
    env: Arc<SimEnv>,
    db: Db,
    space: KeyspaceId,
}

fn open(env: &Arc<SimEnv>, options: DbOptions) -> Run {
    let shared: Arc<dyn Env> = env.clone();
    let db = Db::open(shared, &store_dir(), options).unwrap();
    let space = make_spaces(&db).unwrap()[0];
    Run { env: Arc::clone(env), db, space }
}

fn key(number: u64) -> Vec<u8> {
    let mut key = (number / ROWS_PER_PREFIX).to_be_bytes().to_vec();
    key.extend_from_slice(&Rng::new(number).next().to_be_bytes());
    key
}

impl Run {
    fn put(&self, number: u64, looks_first: bool) {
        if looks_first {
            self.db.get(self.space, &key(number)).unwrap();
        }
        let mut batch = Batch::new();
        batch.put(self.space, key(number), vec![number as u8; 30]);
        self.db.write(batch).unwrap();
    }

    fn counter(&self, name: &str) -> u64 {
        self.metrics()["counters"][name].as_u64().unwrap()
    }

    fn metrics(&self) -> serde_json::Value {
        serde_json::from_str(&self.db.metrics_json()).unwrap()
    }

    fn map(&self, field: &str) -> serde_json::Value {
        self.metrics()["keyspaces"][0]["sublevel_map"][field].clone()
    }

    /// Blocks searched per lookup of all rows, each of which must be there.
    fn blocks_per_lookup(&self) -> f64 {
        let before = self.counter("lookup_blocks");
        for number in 0..ROWS {
            let found = self.db.get(self.space, &key(number)).unwrap();
            assert_eq!(found.as_deref(), Some(&[number as u8; 30][..]), "row {number}");
        }
        (self.counter("lookup_blocks") - before) as f64 / ROWS as f64
    }
}

/// Rows in an order that looks random, each looked for before it is written.
fn filled(filter: TableFilter) -> Run {
    let run = open(&SimEnv::new(5), options(filter));
    (0..ROWS).for_each(|i| run.put(i * 4441 % ROWS, true));
    run
}

/// SlimDB 5.3.2 and 5.5.2: a lookup reads one block at most, although the levels have many sub-levels.
#[test]
fn a_lookup_reads_one_block() {
    let without = filled(TableFilter::None).blocks_per_lookup();
    let run = filled(TableFilter::MultiLevelCuckoo);
    let sublevels: u64 = run.metrics()["keyspaces"][0]["levels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|level| level["sublevels"].as_u64().unwrap())
        .sum();
    assert!(sublevels > 3 && run.map("tables").as_u64() > Some(3), "{sublevels}");
    let with = run.blocks_per_lookup();
    assert!(with < 1.02 && without > 1.5, "{with}, without filters {without}");
    let before = run.counter("lookup_blocks");
    (0..ROWS).for_each(|i| assert_eq!(run.db.get(run.space, &key(i + (1 << 40))).unwrap(), None));
    // Another suffix in a directory that is there.
    for number in 0..ROWS {
        let mut key = key(number);
        key[15] ^= 0x55;
        assert_eq!(run.db.get(run.space, &key).unwrap(), None);
    }
    let passed = (run.counter("lookup_blocks") - before) as f64 / (2 * ROWS) as f64;
    assert!(passed < 0.02, "{passed} blocks per absent lookup");
    assert!(run.db.verify(&mut |_| {}).unwrap().errors.is_empty());
}

/// Writes that look first leave the filter whole whatever they overwrite; blind ones degrade it and lose nothing.
#[test]
fn only_blind_writes_degrade_the_filter() {
    for blind in [false, true] {
        let run = filled(TableFilter::MultiLevelCuckoo);
        let mut rng = Rng::new(9);
        // Hot rows, which every sub-level has.
        (0..ROWS).for_each(|_| run.put(rng.below(300), !blind));
        let whole = run.map("whole_keys").as_u64().unwrap();
        assert_eq!(run.map("degraded"), blind, "{whole} whole keys");
        assert!(blind || whole < 40, "{whole} whole keys");
        let blocks = run.blocks_per_lookup();
        assert!(blocks < if blind { 2.0 } else { 1.02 }, "{blocks}, blind {blind}");
        assert!(run.db.verify(&mut |_| {}).unwrap().errors.is_empty());
    }
}

/// SlimDB 5.3.3 must open every sub-level to list a directory.
#[test]
fn a_scan_of_a_directory_opens_the_sub_levels_that_have_it() {
    let run = open(&SimEnv::new(6), options(TableFilter::MultiLevelCuckoo));
    // Five directories far from each other at a time, so that the sub-levels' ranges overlap.
    let apart = ROWS / ROWS_PER_PREFIX / 5;
    for first in 0..apart {
        for row in 0..5 * ROWS_PER_PREFIX {
            let dir = first + row % 5 * apart;
            run.put(dir * ROWS_PER_PREFIX + row / 5, true);
        }
    }
    let before = run.counter("map_negatives");
    for dir in 0..ROWS / ROWS_PER_PREFIX {
        let range = KeyRange::prefix(&dir.to_be_bytes());
        let rows = run.db.scan(run.space, range, Direction::Forward).unwrap().count();
        assert_eq!(rows as u64, ROWS_PER_PREFIX, "directory {dir}");
    }
    assert!(run.counter("map_negatives") - before > ROWS / ROWS_PER_PREFIX);
}

/// The newest row is named, which an old snapshot must not see; what it sees is in another sub-level.
#[test]
fn a_snapshot_finds_rows_that_newer_sub_levels_hide() {
    let run = filled(TableFilter::MultiLevelCuckoo);
    let snapshot = run.db.snapshot().unwrap();
    for number in (0..ROWS).step_by(3) {
        run.db.get(run.space, &key(number)).unwrap();
        let mut batch = Batch::new();
        match number % 2 {
            0 => batch.delete(run.space, key(number)),
            _ => batch.put(run.space, key(number), &b"new"[..]),
        }
        run.db.write(batch).unwrap();
    }
    for number in 0..ROWS {
        let found = snapshot.get(run.space, &key(number)).unwrap();
        assert_eq!(found.as_deref(), Some(&[number as u8; 30][..]), "row {number}");
        let found = run.db.get(run.space, &key(number)).unwrap();
        let now = match number % 6 {
            0 => None,
            3 => Some(&b"new"[..]),
            _ => Some(&[number as u8; 30][..]),
        };
        assert_eq!(found.as_deref(), now, "row {number} now");
    }
}

/// The map is not on disk: after an open, tables answer for themselves until they were merged.
#[test]
fn a_reopened_store_reads_through_the_tables_own_filters() {
    let run = filled(TableFilter::MultiLevelCuckoo);
    run.db.close().unwrap();
    let run = open(&run.env, options(TableFilter::MultiLevelCuckoo));
    assert!(run.metrics()["keyspaces"][0]["sublevel_map"].is_null());
    assert!(run.blocks_per_lookup() < 1.05);
    (0..ROWS).for_each(|i| run.put(i * 4441 % ROWS, true));
    assert!(run.map("tables").as_u64() > Some(3));
    assert!(run.blocks_per_lookup() < 1.02);
    run.db.close().unwrap();
    let run = open(&run.env, options(TableFilter::Bloom));
    assert!(run.metrics()["keyspaces"][0]["sublevel_map"].is_null());
    run.blocks_per_lookup();
}

/// More rows than a map may take: it ends, and begins anew, and memory stays within the budget.
#[test]
fn a_small_budget_bounds_the_map() {
    let mut options = options(TableFilter::MultiLevelCuckoo);
    options.memory_budget_bytes = 400 << 10;
    let run = open(&SimEnv::new(7), options);
    let mut most = 0;
    for i in 0..ROWS {
        run.put(i * 4441 % ROWS, true);
        most = most.max(run.map("memory_bytes").as_u64().unwrap_or(0));
        let [used, budget] =
            ["memory_bytes", "memory_budget_bytes"].map(|name| run.metrics()[name].as_u64());
        assert!(used <= budget, "{used:?} of {budget:?}");
    }
    assert!((1..=52 << 10).contains(&most), "{most}");
    run.blocks_per_lookup();
}

/// The analytic model gives filters to the upper levels only, where memory is short (thesis figure 5.4).
#[test]
fn levels_below_the_filtered_ones_have_no_filters() {
    let passed = |filtered_levels| {
        let mut options = options(TableFilter::Fuse);
        options.filtered_levels = filtered_levels;
        let run = open(&SimEnv::new(8), options);
        (0..ROWS).for_each(|i| run.put(i * 4441 % ROWS, true));
        run.db.compact().unwrap();
        let before = run.counter("lookup_blocks");
        for number in 0..ROWS {
            let mut key = key(number);
            key[15] ^= 0x55;
            assert_eq!(run.db.get(run.space, &key).unwrap(), None);
        }
        (run.counter("lookup_blocks") - before) as f64 / ROWS as f64
    };
    let all = passed(FilteredLevels::All);
    let upper = passed(FilteredLevels::Upper(1));
    assert!(all < 0.05 && upper > 0.9, "{all} blocks with filters, {upper} without those below");
}
