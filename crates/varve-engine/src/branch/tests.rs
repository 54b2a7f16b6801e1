use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

use super::*;
use crate::{
    Batch, Db, DbOptions, GaveWay, KeyspaceOptions, LockOptions, Merged, Store, StoreError,
};

fn open(env: &Arc<SimEnv>) -> Db {
    Db::open(Arc::<SimEnv>::clone(env), Path::new("/store"), DbOptions::default()).unwrap()
}

/// Key spaces of the store, so many.
fn make_spaces(db: &Db, count: usize) -> Vec<KeyspaceId> {
    let options = KeyspaceOptions { prefixed: false, compressed: false };
    (0..count).map(|n| db.keyspace(&format!("space {n}"), options).unwrap()).collect()
}

fn put(store: &dyn Store, spaces: &[KeyspaceId], value: &'static [u8]) {
    let mut batch = Batch::new();
    spaces.iter().for_each(|space| batch.put(*space, b"key", value));
    store.write(batch).unwrap();
}

fn get(store: &dyn Store, space: KeyspaceId) -> Option<Bytes> {
    store.get(space, b"key").unwrap()
}

/// A branch got a key space beside each of the store, which all of these had to be told of at each change, and numbers for
/// them ran out.
#[test]
fn a_branch_has_key_spaces_where_it_writes() {
    let env = SimEnv::new(1);
    let db = open(&env);
    let spaces = make_spaces(&db, 100);
    put(&db, &spaces, b"before");
    let options = BranchOptions { private: vec![spaces[1]], ..BranchOptions::default() };
    let written = BranchOptions { written: vec![spaces[7]], ..options };
    let branch = db.branch(&written).unwrap();
    let count = |db: &Db| db.inner.reads.read_states.get().branch_spaces.len();
    assert_eq!(count(&db), 2);
    let changes = db.inner.reads.read_states.changes();
    put(&branch, &[spaces[7], spaces[1]], b"ours");
    assert_eq!((count(&db), db.inner.reads.read_states.changes() - changes), (2, 0));
    put(&branch, &[spaces[6], spaces[1], spaces[5], spaces[7], spaces[6]], b"ours");
    assert_eq!((count(&db), db.inner.reads.read_states.changes() - changes), (4, 1));
    assert_eq!(branch.changed_spaces().unwrap(), spaces[5..8]);
    branch.clear_keyspace(spaces[1]).unwrap();
    branch.clear_keyspace(spaces[9]).unwrap();
    assert_eq!(count(&db), 5);
    let id = branch.id();
    drop(branch);
    db.close().unwrap();
    let db = open(&env);
    let branch = db.open_branch(id).unwrap();
    assert_eq!(count(&db), 5);
    let seen = |space: usize| get(&branch, spaces[space]);
    assert_eq!([seen(5), seen(7)].map(Option::unwrap), ["ours"; 2]);
    assert_eq!([seen(1), seen(9)], [None, None]);
    assert_eq!(seen(2).unwrap(), "before");
    branch.commit(&mut |_| Merged::Conflict).unwrap();
    let seen = |space: usize| get(&db, spaces[space]);
    assert_eq!([seen(5), seen(7)].map(Option::unwrap), ["ours"; 2]);
    assert_eq!([seen(1), seen(2)].map(Option::unwrap), ["before"; 2]);
    assert_eq!(seen(9), None);
}

/// Numbers for key spaces came to an end while a store was open, and opened anew it had few where one with a large number
/// was in use: no branch could be begun any more.
#[test]
fn numbers_of_key_spaces_come_again() {
    let env = SimEnv::new(2);
    let db = open(&env);
    let spaces = make_spaces(&db, 3);
    put(&db, &spaces, b"before");
    db.inner.branches.space_numbers.lock().used((1 << 31) - 4);
    let last = db.branch(&BranchOptions::default()).unwrap();
    put(&last, &spaces[..2], b"last");
    for reopened in [false, true] {
        let db = if reopened {
            db.close().unwrap();
            &open(&env)
        } else {
            &db
        };
        for round in 0..10 {
            let written = spaces.clone();
            let branch = db.branch(&BranchOptions { written, ..BranchOptions::default() }).unwrap();
            put(&branch, &spaces, b"ours");
            let other = db.branch(&BranchOptions::default()).unwrap();
            assert_eq!(get(&other, spaces[0]).unwrap() == "before", !reopened && round == 0);
            put(&other, &spaces[round % 3..], b"other");
            other.abort().unwrap();
            assert_eq!(get(&branch, spaces[0]).unwrap(), "ours");
            branch.commit(&mut |_| Merged::Conflict).unwrap();
        }
        let last = db.open_branch(last.id()).unwrap();
        assert_eq!(
            spaces.iter().map(|id| get(&last, *id).unwrap()).collect::<Vec<_>>(),
            ["last", "last", "before"]
        );
        let numbers = db
            .inner
            .reads
            .read_states
            .get()
            .branch_spaces
            .keys()
            .map(|id| id.number_of_branch())
            .max();
        assert_eq!(numbers, Some((1 << 31) - 3));
        db.flush().unwrap();
    }
    // What a crash leaves of rows with numbers that come again is that of the last who had them.
    let db = open(&env);
    assert_eq!(get(&db, spaces[2]).unwrap(), "ours");
    let last = db.open_branch(last.id()).unwrap();
    assert_eq!(get(&last, spaces[0]).unwrap(), "last");
}

/// A beginning that was refused took numbers all the same.
#[test]
fn a_refusal_takes_no_numbers() {
    let env = SimEnv::new(3);
    let db = open(&env);
    let spaces = make_spaces(&db, 2);
    let first = || db.inner.branches.space_numbers.lock().first();
    let before = first();
    let written = vec![spaces[0], KeyspaceId::new(9)];
    let refused = db.branch(&BranchOptions { written, ..BranchOptions::default() });
    assert!(matches!(refused, Err(StoreError::Invalid(_))));
    let capacity = env.used_bytes();
    env.set_capacity(capacity);
    let written = spaces.clone();
    let options = BranchOptions { written, ..BranchOptions::default() };
    let mut begun = 0;
    let refused = loop {
        match db.branch(&options) {
            Ok(_) => begun += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::NoSpace { .. }), "{refused}");
    assert_eq!(first(), before + 2 * begun);
}

/// What a commit had still to do outside of the store came after its locks had gone: others read rows that said what was not so yet.
#[test]
fn what_is_committed_is_locked_until_whoever_commits_says_so() {
    let locks = Some(LockOptions { wait: None, ..LockOptions::default() });
    let locking = || BranchOptions { locks, ..BranchOptions::default() };
    // By batch and by reference; the committed branch takes locks or does not.
    for (options, value) in [
        (locking(), vec![7; 10]),
        (BranchOptions::default(), vec![7; 10]),
        (locking(), vec![7; 20 << 20]),
        (BranchOptions::default(), vec![7; 20 << 20]),
    ] {
        let db = open(&SimEnv::new(1));
        let space = make_spaces(&db, 1)[0];
        let written = |store: &dyn Store, key: &[u8], value: &[u8]| {
            let mut batch = Batch::new();
            batch.put(space, key, value.to_vec());
            store.write(batch)
        };
        let (reader, other) = (db.branch(&locking()).unwrap(), db.branch(&locking()).unwrap());
        let branch = db.branch(&options).unwrap();
        for (n, part) in value.chunks(1 << 20).enumerate() {
            written(&branch, format!("key{n}").as_bytes(), part).unwrap();
        }
        other.get(space, b"other").unwrap();
        let mut conflict = |_: &Clash<'_>| Merged::Conflict;
        let kept = branch.commit_keeping_locks(&mut conflict, &|_, _| false, true).unwrap();
        assert!(matches!(branch.get(space, b"key0"), Err(StoreError::Ended)));
        assert!(matches!(reader.get(space, b"key0"), Err(StoreError::Blocked(_))));
        assert!(db.get(space, b"key0").unwrap().is_some(), "readers of the store do not wait");
        db.overrule(branch.id());
        assert!(matches!(reader.get(space, b"key0"), Err(StoreError::Blocked(_))), "it keeps them");
        let part = |key: &[u8]| {
            let mut batch = Batch::new();
            batch.put(space, key, b"after".to_vec());
            batch
        };
        kept.write(&part(b"key0")).unwrap();
        assert!(!other.has_lost_locks() && !reader.has_lost_locks());
        kept.write(&part(b"other")).unwrap();
        assert!(other.has_lost_locks() && !reader.has_lost_locks());
        let status = db.lock_status().into_iter().find(|status| status.id == other.id()).unwrap();
        assert_eq!(status.gave_way, Some(GaveWay::Committed(branch.id())));
        drop(kept);
        assert_eq!(reader.get(space, b"key0").unwrap().unwrap(), "after");
        assert!(written(&db, b"key1", b"x").is_ok());
        assert!(db.lock_status().iter().all(|status| status.id != branch.id()));
    }
}
