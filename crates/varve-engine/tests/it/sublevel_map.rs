//! The map of the upper sub-levels: one block for a lookup, no source for a directory that is elsewhere, and what
//! blind writes, old snapshots, closes, crashes and damage make of it.

use std::path::PathBuf;
use std::sync::Arc;

use varve_engine::design::{Compaction, TableFilter, TableIndex};
use varve_engine::options::FilteredLevels;
use varve_engine::{
    Batch, Db, DbOptions, Direction, Inspection, KeyRange, Store, StoreDesign, inspect,
};
use varve_env::Env;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_testkit::eventually;
use varve_types::KeyspaceId;

use crate::common::*;
use crate::threaded::threaded;

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
    key.extend_from_slice(&Rng::new(number).next_u64().to_be_bytes());
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
        counter(&self.db, name)
    }

    fn metrics(&self) -> serde_json::Value {
        metrics(&self.db)
    }

    /// Sub-levels of the first two levels.
    fn upper_sublevels(&self) -> [u64; 2] {
        let levels = self.metrics()["keyspaces"][0]["levels"].clone();
        [0, 1].map(|level| levels[level]["sublevels"].as_u64().unwrap_or(0))
    }

    /// Writes `rows`, each looked for before, and makes a sub-level of them.
    fn flush_rows(&self, rows: std::ops::Range<u64>) {
        rows.for_each(|row| self.put(row, true));
        self.db.flush().unwrap();
        self.db.compact().unwrap();
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
        let (notes, others) = (run.counter("map_notes"), run.counter("map_unnoted"));
        assert!((notes > 500) != blind && others > ROWS / 2, "{notes} noted, {others} not");
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

fn map_files(env: &SimEnv) -> Vec<PathBuf> {
    let mut files = env.files_raw();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "map"));
    files
}

/// Leaves nothing to do to the next open.
fn settled(run: &Run) {
    run.db.flush().unwrap();
    run.db.compact().unwrap();
}

/// What the map says of the store is right.
fn verified(run: &Run) {
    assert!(run.db.verify(&mut |_| {}).unwrap().errors.is_empty());
}

#[test]
fn a_map_survives_a_close() {
    let run = filled(TableFilter::MultiLevelCuckoo);
    settled(&run);
    let before = ["tables", "fingerprints", "whole_keys"].map(|field| run.map(field));
    run.db.close().unwrap();
    assert_eq!(map_files(&run.env).len(), 1);
    let run = open(&run.env, options(TableFilter::MultiLevelCuckoo));
    assert_eq!(["tables", "fingerprints", "whole_keys"].map(|field| run.map(field)), before);
    assert!(run.blocks_per_lookup() < 1.02);
    assert!(run.counter("map_hits") > 500, "{}", run.metrics());
    verified(&run);
    // It goes on being changed, and saved.
    (0..ROWS).for_each(|i| run.put(i * 4441 % ROWS, true));
    assert!(run.map("tables").as_u64() > Some(3));
    verified(&run);
    run.db.close().unwrap();
    let run = open(&run.env, options(TableFilter::MultiLevelCuckoo));
    assert_eq!((run.map("degraded"), map_files(&run.env).len()), (false.into(), 1));
    assert!(run.blocks_per_lookup() < 1.02);
    verified(&run);
    settled(&run);
    run.db.close().unwrap();
    // Nothing changes: nothing is written.
    let file = map_files(&run.env);
    let run = open(&run.env, options(TableFilter::MultiLevelCuckoo));
    run.blocks_per_lookup();
    run.db.close().unwrap();
    assert_eq!(map_files(&run.env), file);
    let run = open(&run.env, options(TableFilter::Bloom));
    assert!(run.metrics()["keyspaces"][0]["sublevel_map"].is_null());
    assert_eq!(map_files(&run.env), Vec::<PathBuf>::new());
    run.blocks_per_lookup();
}

/// What it says holds for the tables that it numbers, whatever came since; if one of them has gone it says nothing.
#[test]
fn a_map_of_before_is_used_while_its_tables_are_there() {
    let run = filled(TableFilter::MultiLevelCuckoo);
    settled(&run);
    run.db.close().unwrap();
    let run = open(&run.env, options(TableFilter::MultiLevelCuckoo));
    let tables = run.map("tables");
    // One flush more, which nobody saved.
    (0..20).for_each(|i| run.put(i, true));
    run.db.flush().unwrap();
    let env = run.env.process_kill();
    let again = open(&env, options(TableFilter::MultiLevelCuckoo));
    let all = again.metrics()["keyspaces"][0]["levels"].clone();
    let all: u64 = all.as_array().unwrap().iter().map(|l| l["tables"].as_u64().unwrap()).sum();
    assert!(again.map("tables") == tables && Some(all) > tables.as_u64(), "{tables} of {all}");
    again.blocks_per_lookup();
    verified(&again);
    // Merges that nobody saved.
    let run = open(&run.env.process_kill(), options(TableFilter::MultiLevelCuckoo));
    (0..ROWS / 2).for_each(|i| run.put(i * 7919 % ROWS, i % 2 == 0));
    run.db.compact().unwrap();
    let env = run.env.process_kill();
    let again = open(&env, options(TableFilter::MultiLevelCuckoo));
    again.blocks_per_lookup();
    verified(&again);
    (0..ROWS).for_each(|i| again.put(i * 4441 % ROWS, true));
    verified(&again);
}

/// Rows whose newest version was in a table without a number left the map with that of an older one, where a merge listed no
/// rows or only others, although a table below with a number has them too: then nobody knows where they are.
#[test]
fn a_map_ends_when_a_merge_takes_rows_of_it_from_tables_it_does_not_know() {
    let hot = 0..20;
    for others in [0, 10] {
        let run = filled(TableFilter::MultiLevelCuckoo);
        // Level 1 has one sub-level, of these rows alone.
        for sublevels in [[0, 0], [0, 1]] {
            run.flush_rows(hot.clone());
            while run.upper_sublevels() != sublevels {
                run.flush_rows(hot.clone());
            }
        }
        // One more above it, that the saved map knows, and two that it does not.
        let apart = hot.end + ROWS_PER_PREFIX;
        (apart..apart + others).for_each(|row| run.put(row, true));
        run.flush_rows(hot.clone());
        run.db.close().unwrap();
        let run = open(&run.env, options(TableFilter::MultiLevelCuckoo));
        assert!(run.map("tables").as_u64() > Some(1), "{}", run.metrics());
        (0..2).for_each(|_| run.flush_rows(hot.clone()));
        assert_eq!(run.upper_sublevels(), [3, 1]);
        let run = open(&run.env.process_kill(), options(TableFilter::MultiLevelCuckoo));
        assert!(run.map("tables").as_u64() > Some(1), "{}", run.metrics());
        let merging = DbOptions { sublevels_trigger: 3, ..options(TableFilter::MultiLevelCuckoo) };
        let again = open(&run.env.process_kill(), merging);
        again.db.compact().unwrap();
        assert_eq!(again.upper_sublevels(), [0, 2]);
        verified(&again);
        again.blocks_per_lookup();
    }
}

/// A file of maps that could not be removed kept the store from opening.
#[test]
fn a_map_that_cannot_be_removed_keeps_no_store_from_opening() {
    let run = filled(TableFilter::MultiLevelCuckoo);
    run.db.close().unwrap();
    let env = run.env;
    let (path_suffix, op) = (".map".to_owned(), SimOp::Remove);
    env.fail(FaultRule { path_suffix, op, nth: 1, errno: 5, sticky: true });
    let run = open(&env, options(TableFilter::Bloom));
    run.blocks_per_lookup();
    run.db.close().unwrap();
    assert_eq!(map_files(&env).len(), 1);
    env.clear_faults();
    let run = open(&env, options(TableFilter::Bloom));
    assert_eq!(map_files(&run.env), Vec::<PathBuf>::new());
}

/// Maps that stood before a damaged one in their file were taken up, but the file was removed, and with it what the next open
/// could have taken up.
#[test]
fn a_map_before_a_damaged_one_outlasts_it() {
    let run = filled(TableFilter::MultiLevelCuckoo);
    let other = make_spaces(&run.db).unwrap()[1];
    let mut batch = Batch::new();
    (0..20).for_each(|row| batch.put(other, key(row), &b"other"[..]));
    run.db.write(batch).unwrap();
    run.db.flush().unwrap();
    let tables = run.map("tables");
    run.db.close().unwrap();
    let path = map_files(&run.env).remove(0);
    let len = run.env.read_raw(&path).unwrap().len() as u64;
    run.env.damage(&path, len - 1, 1).unwrap();
    let mut env = run.env;
    for _ in 0..2 {
        let run = open(&env, options(TableFilter::MultiLevelCuckoo));
        assert_eq!(run.map("tables"), tables);
        assert!(run.metrics()["keyspaces"][1]["sublevel_map"].is_null());
        verified(&run);
        env = run.env.process_kill();
    }
}

/// Torn or damaged, at any place: a map begins anew, and rows are what they are.
#[test]
fn a_damaged_map_is_never_wrong() {
    let run = filled(TableFilter::MultiLevelCuckoo);
    run.db.close().unwrap();
    let path = map_files(&run.env).remove(0);
    let len = run.env.read_raw(&path).unwrap().len() as u64;
    let (mut rng, mut lost, mut told) = (Rng::new(3), 0, 0);
    for round in 0..24 {
        let env = run.env.power_cut_keep_all();
        match round % 3 {
            0 => env.truncate_raw(&path, rng.below(len)).unwrap(),
            1 => env.damage(&path, rng.below(len), 1 << rng.below(8)).unwrap(),
            _ => env.damage(&path, rng.below(80), 1 << rng.below(8)).unwrap(),
        }
        told += u64::from(match inspect(&*env, &path, false) {
            Ok(Inspection::Map(report)) => report.broken.is_some(),
            Ok(other) => panic!("{other}"),
            Err(_) => true,
        });
        let again = open(&env, options(TableFilter::MultiLevelCuckoo));
        lost += u64::from(again.metrics()["keyspaces"][0]["sublevel_map"].is_null());
        if round < 6 {
            again.blocks_per_lookup();
        }
        verified(&again);
    }
    assert!(lost >= 22, "{lost} of 24 begin anew");
    assert!(told >= 22, "inspection tells {told} of 24");
    let text = inspect(&*run.env, &path, false).unwrap().to_string();
    assert!(text.contains("has number") && text.contains("fingerprints"), "{text}");
}

/// A store that came to rest has its map on disk, whatever becomes of the process.
#[test]
fn a_map_survives_a_crash_at_rest() {
    let sim = SimEnv::new(5);
    let env: Arc<dyn Env> = Arc::new(threaded(&sim));
    let db = Db::open(env, &store_dir(), options(TableFilter::MultiLevelCuckoo)).unwrap();
    let space = make_spaces(&db).unwrap()[0];
    let run = Run { env: sim, db, space };
    (0..ROWS).for_each(|i| run.put(i * 4441 % ROWS, true));
    eventually("the map is saved", || {
        // All may have gone down to the bottom, which no map is for.
        if run.map("tables").is_null() {
            (0..20).for_each(|i| run.put(i, true));
            run.db.flush().unwrap();
        }
        run.counter("map_saves") > 0 && !run.map("tables").is_null()
    });
    let again = open(&run.env.process_kill(), options(TableFilter::MultiLevelCuckoo));
    assert!(again.map("tables").as_u64() > Some(0), "{}", again.metrics());
    again.blocks_per_lookup();
    verified(&again);
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
