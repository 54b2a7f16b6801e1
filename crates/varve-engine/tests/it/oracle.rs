//! Random operations on a store and on a `BTreeMap` show the same rows.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use varve_engine::{Db, Direction, Fit, KeyRange, Store, StoreSnapshot, ValuePolicy};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

use crate::common::*;
use crate::designs::{PRESETS, options_of};

fn random_bound(rng: &mut Rng, space: usize) -> Bound<Vec<u8>> {
    let key = random_key(rng, space);
    match rng.below(4) {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(key),
        _ => Bound::Included(key),
    }
}

fn random_range(rng: &mut Rng, space: usize) -> KeyRange {
    if rng.one_in(2) {
        let key = random_key(rng, space);
        return KeyRange::prefix(&key[..key.len().min(8)]);
    }
    KeyRange { start: random_bound(rng, space), end: random_bound(rng, space) }
}

fn in_range(range: &KeyRange, key: &[u8]) -> bool {
    let after = match &range.start {
        Bound::Included(start) => key >= &start[..],
        Bound::Excluded(start) => key > &start[..],
        Bound::Unbounded => true,
    };
    let before = match &range.end {
        Bound::Included(end) => key <= &end[..],
        Bound::Excluded(end) => key < &end[..],
        Bound::Unbounded => true,
    };
    after && before
}

fn expected(rows: &Rows, range: &KeyRange, direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
    let rows = rows.iter().filter(|(key, _)| in_range(range, key));
    let mut rows: Vec<_> = rows.map(|(key, value)| (key.clone(), value.clone())).collect();
    if direction == Direction::Reverse {
        rows.reverse();
    }
    rows
}

fn random_fit(rng: &mut Rng) -> Fit {
    if rng.one_in(2) { Fit::Best } else { Fit::First }
}

enum Reader<'a> {
    Now(&'a Db),
    Then(&'a dyn StoreSnapshot),
}

fn check_reads(rng: &mut Rng, reader: &Reader<'_>, ids: &[KeyspaceId], model: &Model) {
    let space = rng.below(ids.len() as u64) as usize;
    let rows = &model.spaces[space];
    for _ in 0..4 {
        let key = random_key(rng, space);
        let value = match reader {
            Reader::Now(db) => db.get(ids[space], &key),
            Reader::Then(snapshot) => snapshot.get(ids[space], &key),
        };
        assert_eq!(value.unwrap().as_deref(), rows.get(&key).map(|value| &value[..]), "{key:?}");
    }
    let range = random_range(rng, space);
    for direction in [Direction::Forward, Direction::Reverse] {
        let scan = match reader {
            Reader::Now(db) => db.scan(ids[space], range.clone(), direction),
            Reader::Then(snapshot) => snapshot.scan(ids[space], range.clone(), direction),
        };
        let found: Vec<_> = scan
            .unwrap()
            .map(|row| row.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
            .collect();
        assert_eq!(found, expected(rows, &range, direction), "{range:?} {direction:?}");
    }
    if let Reader::Now(db) = reader {
        let keys = db.keys(ids[space], range.clone()).unwrap();
        let found: Vec<_> = keys.map(|key| key.unwrap().to_vec()).collect();
        let all = expected(rows, &range, Direction::Forward);
        assert!(found.iter().eq(all.iter().map(|(key, _)| key)), "keys of {range:?}");
    }
}

/// How often tables were clipped, tables moved as they are, tables spared by the map of the sub-levels; bytes that merges
/// left where they were; how often tables were defragmented, segments cleaned, and values read out of segments.
pub(crate) type Counts = [u64; 7];

const COUNTED: [&str; 7] = [
    "table_clips",
    "table_moves",
    "map_negatives",
    "stitched_bytes",
    "defragmentations",
    "cleanings",
    "value_reads",
];

fn counts_of(db: &Db) -> Counts {
    COUNTED.map(|name| counter(db, name))
}

fn run(env: &Arc<dyn Env>, dir: &Path, designs: Designs, seed: u64, steps: usize) -> Counts {
    let mut rng = Rng::new(seed);
    let mut model = Model::new();
    let open = |rng: &mut Rng| {
        let options = designs.options(&mut |below| rng.below(below));
        Db::open(Arc::clone(env), dir, options).unwrap()
    };
    let mut db = open(&mut rng);
    let mut ids = make_spaces(&db).unwrap();
    let (mut step, mut counts) = (0, Counts::default());
    let mut count = |db: &Db| {
        let report = db.verify(&mut |_| {}).unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        counts.iter_mut().zip(counts_of(db)).for_each(|(sum, new)| *sum += new);
    };
    while step < steps {
        {
            let snapshot = db.snapshot().unwrap();
            let then = model.clone();
            for _ in 0..rng.below(60) {
                step += 1;
                let ops = random_ops(&mut rng);
                db.write(to_batch(&ids, &ops)).unwrap();
                model.apply(&ops);
                match rng.below(100) {
                    0 => db.flush().unwrap(),
                    1 => db.compact().unwrap(),
                    2 => db.sync().unwrap(),
                    3 => drop(db.defragment(random_fit(&mut rng)).unwrap()),
                    5 => while !db.redesign().unwrap().done {},
                    4 => {
                        let run = random_run(&mut rng);
                        insert_run(&**env, dir.parent().unwrap(), &db, &ids, &run).unwrap();
                        model.apply(&run);
                    }
                    _ => {}
                }
                check_reads(&mut rng, &Reader::Now(&db), &ids, &model);
                check_reads(&mut rng, &Reader::Then(&*snapshot), &ids, &then);
            }
        }
        match rng.below(4) {
            0 => {
                count(&db);
                db.close().unwrap();
                drop(db);
                db = open(&mut rng);
                ids = make_spaces(&db).unwrap();
                assert_eq!(contents(&db, &ids).unwrap(), model, "after a reopen");
            }
            1 if rng.one_in(3) => {
                let space = rng.below(ids.len() as u64) as usize;
                db.clear_keyspace(ids[space]).unwrap();
                model.spaces[space].clear();
            }
            _ => {}
        }
    }
    assert_eq!(contents(&db, &ids).unwrap(), model);
    count(&db);
    db.close().unwrap();
    counts
}

/// A run on a simulated machine.
pub(crate) fn run_on_sim(designs: Designs, seed: u64, steps: usize) -> Counts {
    let env: Arc<dyn Env> = SimEnv::new(seed);
    run(&env, &store_dir(), designs, seed, steps)
}

#[test]
fn a_simulated_store_agrees_with_the_model() {
    let mut counts = Counts::default();
    for seed in 0..9 {
        let new = run_on_sim(Designs::Drawn, seed, 2500);
        counts.iter_mut().zip(new).for_each(|(sum, new)| *sum += new);
    }
    let [clips, moves, spared, stitched, defragmentations, cleanings, values] = counts;
    assert!(clips > 100 && moves > 20, "{clips} tables clipped, {moves} moved");
    assert!(spared > 1000, "the map spared {spared} tables");
    assert!(stitched > 50_000, "{stitched} bytes stitched");
    assert!(defragmentations > 20, "{defragmentations} tables defragmented");
    assert!(cleanings > 5 && values > 10_000, "{cleanings} cleanings, {values} values read");
}

/// Each stays what it is over many opens, and does what it is for.
#[test]
fn every_preset_agrees_with_the_model() {
    for (name, design) in PRESETS {
        let [_, _, spared, stitched, _, _, values] = run_on_sim(Designs::Always(design), 40, 1200);
        let options = options_of(design);
        let stitches = options.stitch_threshold_bytes > 0;
        let apart = options.values != ValuePolicy::InRow;
        assert_eq!(spared > 1000, options.sublevel_map, "{name}: the map spared {spared} tables");
        assert_eq!(stitched > 10_000, stitches, "{name}: {stitched} bytes stitched");
        assert_eq!(values > 1000, apart, "{name}: {values} values read");
    }
}

#[test]
fn a_real_store_agrees_with_the_model() {
    for seed in 100..102 {
        let dir = tempfile::tempdir().unwrap();
        let env: Arc<dyn Env> = OsEnv::new();
        run(&env, &dir.path().join("store"), Designs::Drawn, seed, 1500);
    }
}

#[test]
fn a_batch_counts_in_order() {
    let env = SimEnv::new(1);
    let db = open(&env).unwrap();
    let ids = make_spaces(&db).unwrap();
    let mut batch = varve_engine::Batch::new();
    batch.put(ids[1], &b"a"[..], &b"first"[..]);
    batch.delete(ids[1], &b"a"[..]);
    batch.put(ids[1], &b"a"[..], &b"last"[..]);
    batch.put(ids[1], &b"b"[..], &b"gone"[..]);
    batch.delete(ids[1], &b"b"[..]);
    db.write(batch).unwrap();
    assert_eq!(db.get(ids[1], b"a").unwrap().as_deref(), Some(&b"last"[..]));
    assert_eq!(db.get(ids[1], b"b").unwrap(), None);
}

/// A row that is overwritten in place for ever leaves the memtable small; the log must not grow with it.
#[test]
fn the_log_of_one_hot_row_is_bounded() {
    let env = SimEnv::new(2);
    let db = open(&env).unwrap();
    let ids = make_spaces(&db).unwrap();
    for number in 0..5000u32 {
        let mut batch = varve_engine::Batch::new();
        batch.put(ids[1], &b"hot"[..], number.to_be_bytes().to_vec());
        db.write(batch).unwrap();
    }
    let is_log = |path: &&std::path::PathBuf| path.to_string_lossy().ends_with(".wal");
    let files = env.files_raw();
    let bytes: u64 = files.iter().filter(is_log).map(|path| log_end(&env, path)).sum();
    assert!(bytes < 3 * small_options().memtable_bytes as u64, "{bytes} bytes of logs");
    let value = db.get(ids[1], b"hot").unwrap();
    assert_eq!(value.as_deref(), Some(&4999u32.to_be_bytes()[..]));
}
