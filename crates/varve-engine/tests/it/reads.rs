//! What readers fetch from the device.

use std::ops::{Bound, Range};
use std::sync::Arc;

use varve_engine::{Batch, Db, DbOptions, Direction, KeyRange, Store};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

use crate::common::*;

const DIRECTORIES: u64 = 100;
const ROWS: u64 = 128;
const VALUE_BYTES: usize = 256;
/// A block with its row's worth of rounding.
const BLOCK_BYTES: u64 = 4 << 10;

/// One memtable holds all, so that there is one table.
fn one_table() -> DbOptions {
    DbOptions { memtable_bytes: 8 << 20, ..DbOptions::with_memory_budget(32 << 20) }
}

fn open(env: &Arc<SimEnv>, options: &DbOptions) -> (Db, KeyspaceId) {
    let env = Arc::clone(env) as Arc<dyn Env>;
    let db = Db::open(env, &store_dir(), options.clone()).unwrap();
    let space = make_spaces(&db).unwrap()[0];
    (db, space)
}

/// A store of directories whose rows came in random order, opened anew.
fn filled(options: &DbOptions) -> (Db, KeyspaceId) {
    let env = SimEnv::new(5);
    let (db, space) = open(&env, options);
    let mut rng = Rng::new(7);
    for row in 0..DIRECTORIES * ROWS {
        let mut batch = Batch::new();
        let (directory, name) = (row % DIRECTORIES, rng.next_u64());
        let key = [directory.to_be_bytes(), name.to_be_bytes()].concat();
        batch.put(space, key, vec![7; VALUE_BYTES]);
        db.write(batch).unwrap();
    }
    db.flush().unwrap();
    db.compact().unwrap();
    db.close().unwrap();
    drop(db);
    open(&env, options)
}

#[test]
fn the_scan_of_a_directory_fetches_its_blocks_together_and_no_others() {
    let (db, space) = filled(&one_table());
    let scan = |directory: u64| {
        let range = KeyRange::prefix(&directory.to_be_bytes());
        let rows = db.scan(space, range, Direction::Forward).unwrap();
        assert_eq!(rows.map(Result::unwrap).count() as u64, ROWS);
    };
    // Reads index and filters.
    scan(0);
    let read = |name| counter(&db, name);
    let before = (read("device_read_bytes"), read("prefetched_bytes"));
    scan(50);
    let rows_bytes = ROWS * (16 + VALUE_BYTES as u64);
    let used = read("device_read_bytes") - before.0;
    let fetched = read("prefetched_bytes") - before.1;
    assert!(
        used >= rows_bytes && used <= rows_bytes * 9 / 8 + 2 * BLOCK_BYTES,
        "{used} bytes read"
    );
    assert!(fetched <= used + BLOCK_BYTES, "{fetched} bytes fetched for {used}");
    assert!(fetched >= rows_bytes / 2, "{fetched} bytes fetched together of {used}");
    scan(50);
    assert_eq!(read("prefetched_bytes") - before.1, fetched, "what is in memory is fetched again");
}

#[test]
fn a_walk_that_is_given_up_wastes_little() {
    let (db, space) = filled(&one_table());
    let mut rows = db.scan(space, KeyRange::all(), Direction::Forward).unwrap();
    rows.next().unwrap().unwrap();
    drop(rows);
    assert!(counter(&db, "prefetched_bytes") <= 16 * BLOCK_BYTES);
}

/// A walk over several tables fetched up to 64 blocks behind the end of its range, in the last of them.
#[test]
fn a_walk_over_several_tables_fetches_nothing_behind_its_end() {
    // Some memtables are merged into one level.
    let merged = DbOptions { memtable_bytes: 1 << 20, level_base_bytes: 64 << 20, ..one_table() };
    let merged = DbOptions { table_bytes: 256 << 10, sublevels_trigger: 1, ..merged };
    let (db, space) = filled(&DbOptions { stitch_threshold_bytes: 0, ..merged });
    let scan = |directories: Range<u64>| {
        let [start, end] = [directories.start, directories.end].map(|n| n.to_be_bytes().to_vec());
        let range = KeyRange { start: Bound::Included(start), end: Bound::Excluded(end) };
        let rows = db.scan(space, range, Direction::Forward).unwrap();
        rows.map(Result::unwrap).count() as u64
    };
    let read = || counter(&db, "prefetched_bytes");
    for first in (0..DIRECTORIES - 10).step_by(11) {
        let before = read();
        let rows = scan(first..first + 10);
        assert_eq!(rows, 10 * ROWS);
        let (fetched, used) = (read() - before, rows * (16 + VALUE_BYTES as u64));
        assert!(
            fetched >= used / 2 && fetched <= used * 9 / 8 + 3 * BLOCK_BYTES,
            "from {first} on: {fetched} bytes fetched for {used}"
        );
    }
}
