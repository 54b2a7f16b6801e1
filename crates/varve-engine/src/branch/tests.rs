use std::path::Path;

use varve_env::sim::SimEnv;

use super::*;
use crate::{Batch, DbOptions, KeyspaceOptions, Merged, Store};

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
    let count = |db: &Db| db.inner.views.get().branch_spaces.len();
    assert_eq!(count(&db), 2);
    let changes = db.inner.views.changes();
    put(&branch, &[spaces[7], spaces[1]], b"ours");
    assert_eq!((count(&db), db.inner.views.changes() - changes), (2, 0));
    put(&branch, &[spaces[6], spaces[1], spaces[5], spaces[7], spaces[6]], b"ours");
    assert_eq!((count(&db), db.inner.views.changes() - changes), (4, 1));
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
