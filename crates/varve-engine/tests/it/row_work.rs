//! What the default store writes and reads on rows as a file system makes them: 8 + 8 + 256 bytes, 128 to a directory. Bytes
//! are counted, by the store itself.

use std::sync::Arc;

use varve_engine::{Batch, Db, DbOptions, Direction, KeyRange, Store, StoreDesign};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

use crate::common::*;

const ROWS: u64 = 128;
const VALUE_BYTES: u64 = 256;
const ROW_BYTES: u64 = 16 + VALUE_BYTES;
/// A memtable holds 10 directories, more than most a level.
const MEMTABLE_BYTES: usize = 512 << 10;

/// A store of the default design whose proportions are those of a large one.
fn open(env: &Arc<SimEnv>, change: impl FnOnce(&mut DbOptions)) -> (Db, KeyspaceId) {
    let mut options = DbOptions::with_memory_budget(16 << 20);
    options.memtable_bytes = MEMTABLE_BYTES;
    options.table_bytes = MEMTABLE_BYTES as u64;
    options.space_reserve_bytes = 0;
    StoreDesign::default().apply(&mut options);
    change(&mut options);
    let db = Db::open(Arc::clone(env) as Arc<dyn Env>, &store_dir(), options).unwrap();
    let space = make_spaces(&db).unwrap()[0];
    (db, space)
}

fn key(directory: u64, row: u64) -> Vec<u8> {
    let name = (directory << 8 | row).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [directory.to_be_bytes(), (name ^ name >> 29).to_be_bytes()].concat()
}

/// Creates rows 0 to 127 of `directories`, each directory whole or all of them in turn.
fn create(db: &Db, space: KeyspaceId, directories: std::ops::Range<u64>, whole: bool) {
    let count = directories.end - directories.start;
    // An order that looks random: 7 parts no count of this file's.
    let shuffled = |at: u64| directories.start + at * 7 % count;
    for at in 0..count * ROWS {
        let (directory, row) = if whole {
            (shuffled(at / ROWS), at % ROWS)
        } else {
            (shuffled(at % count), at / count)
        };
        let mut batch = Batch::new();
        batch.put(space, key(directory, row), vec![(directory + row) as u8; VALUE_BYTES as usize]);
        db.write(batch).unwrap();
    }
}

/// Bytes that merges wrote, for each byte of `rows` rows, in hundredths.
fn merged(db: &Db, rows: u64) -> u64 {
    merged_bytes(db) * 100 / (rows * ROW_BYTES)
}

/// Bytes of logs and flushed tables, the same.
fn logged_and_flushed(db: &Db, rows: u64) -> u64 {
    (counter(db, "log_bytes") + counter(db, "flush_bytes")) * 100 / (rows * ROW_BYTES)
}

fn sublevels(db: &Db, level: usize) -> u64 {
    metrics(db)["keyspaces"][0]["levels"][level]["sublevels"].as_u64().unwrap()
}

fn check(db: &Db, space: KeyspaceId, directories: std::ops::Range<u64>) {
    for directory in directories {
        let range = KeyRange::prefix(&directory.to_be_bytes());
        let rows = db.scan(space, range, Direction::Forward).unwrap();
        let mut found: Vec<_> = rows.map(Result::unwrap).collect();
        let mut expected: Vec<_> = (0..ROWS).map(|row| key(directory, row)).collect();
        expected.sort_unstable();
        found.sort();
        assert!(found.iter().map(|(key, _)| &key[..]).eq(expected.iter().map(|key| &key[..])));
    }
    assert!(db.verify(&mut |_| {}).unwrap().errors.is_empty());
}

/// SlimDB, thesis 5.1.2: a stepped merge writes a row once per level.
#[test]
fn rows_in_random_order_are_written_once_per_level() {
    let (db, space) = open(&SimEnv::new(1), |_| {});
    // 64 memtables: 4 merges of 16 into level 1.
    create(&db, space, 0..680, false);
    db.flush().unwrap();
    let rows = 680 * ROWS;
    let written = (logged_and_flushed(&db, rows), merged(&db, rows));
    assert!(written.0 <= 220, "log and flush: {written:?} hundredths");
    assert!(written.1 <= 106, "merges: {written:?} hundredths");
    assert!(sublevels(&db, 1) >= 3, "nothing was merged further down");
    assert_eq!(counter(&db, "stitched_bytes"), 0, "rows in random order leave no runs");
    check(&db, space, 0..10);
}

/// KVFS thesis 3.2: what is already sorted stays where it is.
#[test]
fn directories_made_whole_are_written_to_the_log_and_once_more() {
    let written = [true, false].map(|stitches| {
        let (db, space) = open(&SimEnv::new(2), |options| {
            if !stitches {
                options.stitch_threshold_bytes = 0;
            }
        });
        create(&db, space, 0..680, true);
        db.flush().unwrap();
        let rows = 680 * ROWS;
        check(&db, space, 0..10);
        let first = logged_and_flushed(&db, rows);
        assert!(first <= 222, "log and flush: {first} hundredths");
        merged(&db, rows)
    });
    // One directory of ten stands in two memtables.
    assert!(
        written[0] <= 16 && written[1] >= 90,
        "merges with and without: {written:?} hundredths"
    );
}

/// Rows that are written over and over are merged down before they take more than three times their room; those that
/// replace none are not.
#[test]
fn only_rows_that_were_written_over_are_merged_early() {
    let (db, space) = open(&SimEnv::new(3), |_| {});
    create(&db, space, 0..540, false);
    db.flush().unwrap();
    assert_eq!((sublevels(&db, 1), sublevels(&db, 2)), (3, 0), "all rows are new");
    let (db, space) = open(&SimEnv::new(4), |_| {});
    for _ in 0..4 {
        create(&db, space, 0..180, false);
    }
    db.flush().unwrap();
    let live_bytes = 180 * ROWS * ROW_BYTES;
    assert!(sublevels(&db, 2) > 0, "all rows but the first replace others");
    let tables = db.fragmentation().bytes;
    assert!(tables <= live_bytes * 3, "{tables} bytes of tables for {live_bytes} of rows");
    check(&db, space, 0..10);
}

/// SlimDB, thesis 5.3.2: one block for a row that is there, hardly any for one that is not.
#[test]
fn a_lookup_reads_one_block_at_most() {
    let (db, space) = open(&SimEnv::new(5), |_| {});
    create(&db, space, 0..340, false);
    db.flush().unwrap();
    let blocks = |row: u64| {
        let before = counter(&db, "lookup_blocks");
        (0..3400).for_each(|n| drop(db.get(space, &key(n % 340, row + n / 340)).unwrap()));
        (counter(&db, "lookup_blocks") - before) as f64 / 3400.0
    };
    let (found, absent) = (blocks(0), blocks(200));
    assert!((1.0..1.08).contains(&found), "{found} blocks for a row that is there");
    assert!(absent < 0.08, "{absent} blocks for a row that is not");
}

/// A directory of 128 rows that was made whole is 9 blocks, and a scan fetches no others.
#[test]
fn the_scan_of_a_directory_made_whole_fetches_nine_blocks() {
    let env = SimEnv::new(6);
    let (db, space) = open(&env, |_| {});
    create(&db, space, 0..340, true);
    db.flush().unwrap();
    db.close().unwrap();
    let (db, space) = open(&env, |_| {});
    let (mut nine, mut last) = (0, counter(&db, "device_read_bytes"));
    // No neighbours, whose blocks would be in memory.
    for directory in (0..340u64).step_by(3) {
        let range = KeyRange::prefix(&directory.to_be_bytes());
        let rows = db.scan(space, range, Direction::Forward).unwrap();
        assert_eq!(rows.map(Result::unwrap).count() as u64, ROWS);
        let read = counter(&db, "device_read_bytes");
        nine += u64::from(read - last == 9 * 4096);
        last = read;
    }
    // One of ten stands in two memtables, and some scans are the first to load an index.
    assert!(nine >= 80, "{nine} of 114");
}
