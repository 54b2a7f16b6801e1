//! How large the tables are that merges and bulk insertions put out.

use std::sync::Arc;

use varve_engine::{Batch, Db, DbOptions, KeyspaceOptions, Store};
use varve_env::Env;
use varve_env::sim::SimEnv;

use crate::common::*;

const ROWS: u64 = 600;
const KEY_BYTES: usize = 8 << 10;
const TABLE_BYTES: u64 = 64 << 10;

/// A long key that has nearly all its bytes in common with the others.
fn key(row: u64) -> Vec<u8> {
    let mut key = vec![7; KEY_BYTES];
    key[KEY_BYTES - 16..KEY_BYTES - 8].copy_from_slice(&row.to_be_bytes());
    key
}

/// Bytes of the largest table.
fn largest(env: &SimEnv) -> u64 {
    let mut files = env.files_raw();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "table"));
    files.iter().map(|path| env.read_raw(path).unwrap().len() as u64).max().unwrap()
}

/// Only blocks were counted, which such keys leave nearly empty when they are compressed: with enough of them the index, which
/// has them whole, became longer than a section may be, and the store took no more writes.
#[test]
fn tables_are_cut_by_their_index_too() {
    let env = SimEnv::new(4);
    let shared: Arc<dyn Env> = env.clone();
    let options = DbOptions {
        memtable_bytes: TABLE_BYTES as usize,
        table_bytes: TABLE_BYTES,
        level_base_bytes: 4 * TABLE_BYTES,
        ..DbOptions { memory_budget_bytes: 8 << 20, ..small_options() }
    };
    let db = Db::open(shared, &store_dir(), options).unwrap();
    let options = KeyspaceOptions { prefixed: false, compressed: true };
    let [merged, inserted] = ["merged", "inserted"].map(|name| db.keyspace(name, options).unwrap());
    for i in 0..ROWS {
        let mut batch = Batch::new();
        batch.put(merged, key(i * 77 % ROWS), &b"merged"[..]);
        db.write(batch).unwrap();
    }
    db.flush().unwrap();
    db.compact().unwrap();
    assert!(largest(&env) < 2 * TABLE_BYTES, "{} merged", largest(&env));
    let mut rows = (0..ROWS).map(|row| (key(row).into(), (&b"inserted"[..]).into()));
    db.insert_sorted(inserted, &mut rows, false).unwrap();
    assert!(largest(&env) < 2 * TABLE_BYTES, "{} inserted", largest(&env));
    for row in 0..ROWS {
        assert_eq!(db.get(merged, &key(row)).unwrap().as_deref(), Some(&b"merged"[..]));
        assert_eq!(db.get(inserted, &key(row)).unwrap().as_deref(), Some(&b"inserted"[..]));
    }
    assert!(db.verify(&mut |_| {}).unwrap().errors.is_empty());
}
