//! What readers fetch from the device.

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

fn open(env: &Arc<SimEnv>) -> (Db, KeyspaceId) {
    // One memtable holds all, so that there is one table.
    let options = DbOptions { memtable_bytes: 8 << 20, ..DbOptions::with_memory_budget(32 << 20) };
    let db = Db::open(Arc::clone(env) as Arc<dyn Env>, &store_dir(), options).unwrap();
    let space = make_spaces(&db).unwrap()[0];
    (db, space)
}

/// A store of directories whose rows came in random order, opened anew.
fn filled() -> (Db, KeyspaceId) {
    let env = SimEnv::new(5);
    let (db, space) = open(&env);
    let mut rng = Rng::new(7);
    for row in 0..DIRECTORIES * ROWS {
        let mut batch = Batch::new();
        let (directory, name) = (row % DIRECTORIES, rng.next());
        let key = [directory.to_be_bytes(), name.to_be_bytes()].concat();
        batch.put(space, key, vec![7; VALUE_BYTES]);
        db.write(batch).unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
    drop(db);
    open(&env)
}

#[test]
fn the_scan_of_a_directory_fetches_its_blocks_together_and_no_others() {
    let (db, space) = filled();
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
    let (db, space) = filled();
    let mut rows = db.scan(space, KeyRange::all(), Direction::Forward).unwrap();
    rows.next().unwrap().unwrap();
    drop(rows);
    assert!(counter(&db, "prefetched_bytes") <= 16 * BLOCK_BYTES);
}
