//! Who locks much locks in larger pieces, and others are left alone.

use varve_engine::{Batch, Branch, BranchOptions, Db, LockOptions, Store, StoreError, StoreResult};
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

use crate::common::*;

/// A row of a directory.
fn key(dir: u64, n: u64) -> Vec<u8> {
    [dir.to_be_bytes(), n.to_be_bytes()].concat()
}

fn store(seed: u64) -> (Db, KeyspaceId) {
    let db = open(&SimEnv::new(seed)).unwrap();
    let id = make_spaces(&db).unwrap()[0];
    (db, id)
}

fn begin(db: &Db) -> Branch {
    let locks = Some(LockOptions { wait: None, ..LockOptions::default() });
    db.branch(&BranchOptions { locks, ..BranchOptions::default() }).unwrap()
}

fn write(store: &dyn Store, id: KeyspaceId, key: Vec<u8>) -> StoreResult<()> {
    let mut batch = Batch::new();
    batch.put(id, key, vec![1]);
    store.write(batch)
}

fn is_blocked(result: &StoreResult<()>) -> bool {
    matches!(result, Err(StoreError::Blocked(_)))
}

/// Beyond a number of locks, those of keys become locks of all that begins like them.
#[test]
fn who_locks_much_locks_in_larger_pieces() {
    const READ: u64 = 160_000;
    let (db, id) = store(3);
    let branch = begin(&db);
    for n in 0..READ {
        branch.get(id, &key(n % 2, n)).unwrap();
        if n == 1000 {
            write(&db, id, key(0, READ + 2)).unwrap();
        }
    }
    let locked = db.lock_status()[0].locks;
    assert!(locked < 100_010, "{locked}");
    assert!(is_blocked(&write(&db, id, key(0, READ + 2))), "its prefix is locked");
    write(&db, id, key(2, 0)).unwrap();
    branch.abort().unwrap();
    write(&db, id, key(0, READ + 2)).unwrap();
}

/// One transaction had locked very much, and each other locked whole directories from then on, and then everything.
#[test]
fn who_locks_little_locks_keys_whatever_others_have_locked() {
    for dirs in [1, 60_000] {
        let (db, id) = store(4);
        let (large, small) = (begin(&db), begin(&db));
        for n in 0..150_000 {
            large.get(id, &key(100 + n % dirs, n)).unwrap();
        }
        write(&small, id, key(2, 1)).unwrap();
        small.get(id, &key(3, 1)).unwrap();
        write(&db, id, key(2, 2)).unwrap();
        write(&db, id, key(3, 2)).unwrap();
        write(&db, id, key(4, 1)).unwrap();
        for taken in [key(2, 1), key(3, 1), key(100, 0)] {
            assert!(is_blocked(&write(&db, id, taken)));
        }
        assert_eq!(db.lock_status()[1].locks, 5);
    }
}

/// What takes the place of locks of keys protects what was read under these, and leaves directories alone in which
/// others are at work.
#[test]
fn a_directory_in_which_others_write_is_not_locked_as_a_whole() {
    let (db, id) = store(5);
    let (large, other) = (begin(&db), begin(&db));
    write(&other, id, key(1, u64::MAX)).unwrap();
    for n in 0..120_000 {
        large.get(id, &key(n % 2, n)).unwrap();
    }
    assert!(db.lock_status()[0].locks < 100_010, "{:?}", db.lock_status());
    write(&other, id, key(1, u64::MAX - 1)).unwrap();
    for n in [0, 1, 119_999] {
        assert!(is_blocked(&write(&other, id, key(n % 2, n))), "{n}");
    }
    assert!(is_blocked(&write(&other, id, key(0, u64::MAX))), "its prefix is locked");
    other.abort().unwrap();
    large.abort().unwrap();
}
