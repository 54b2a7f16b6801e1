//! What is installed holds for all who read.

use std::path::Path;

use bytes::Bytes;
use parking_lot::Mutex;
use varve_env::Env;
use varve_env::sim::{FaultRule, JournalEntry, SimEnv, SimOp};
use varve_format::edit::TableMeta;
use varve_types::{SeqNo, SublevelId};

use super::*;
use crate::files::StoreFile;
use crate::{
    Batch, BranchOptions, Db, DbOptions, Direction, KeyRange, KeyspaceOptions, Merged, Store,
    StoreError,
};

const ROWS: u64 = 300;

fn key(row: u64) -> [u8; 16] {
    (u128::from(row / 7) << 64 | u128::from(row)).to_be_bytes()
}

fn put(db: &Db, space: KeyspaceId, rows: impl Iterator<Item = u64>, value: &'static [u8]) {
    let mut batch = Batch::new();
    rows.for_each(|row| batch.put(space, key(row), Bytes::from_static(value)));
    db.write(batch).unwrap();
}

fn check(db: &Db, space: KeyspaceId, expected: impl Fn(u64) -> &'static [u8]) {
    for row in 0..ROWS {
        assert_eq!(db.get(space, &key(row)).unwrap().as_deref(), Some(expected(row)), "{row}");
    }
    for direction in [Direction::Forward, Direction::Reverse] {
        let rows = db.scan(space, KeyRange::all(), direction).unwrap();
        let mut rows: Vec<_> = rows.map(|row| row.unwrap().1).collect();
        if direction == Direction::Reverse {
            rows.reverse();
        }
        assert!(rows.iter().zip(0..).all(|(value, row)| **value == *expected(row)));
        assert_eq!(rows.len() as u64, ROWS);
    }
    assert!(db.verify(&mut |_| {}).unwrap().errors.is_empty());
}

/// Makes all rows of the table that holds the oldest rows count as written at `seq`, as the newest sub-level.
fn rewrite_history(db: &Db, space: KeyspaceId, seq: SeqNo) {
    let read_state = db.inner.reads.read_states.get();
    let tables = read_state.keyspace(space).unwrap().version.tables();
    let (place, table) = tables.min_by_key(|(_, table)| table.meta().largest_seq).unwrap();
    let meta = TableMeta {
        smallest_seq: seq,
        largest_seq: seq,
        seq_override: Some(seq),
        ..table.meta().clone()
    };
    let sublevel = SublevelId::new(db.inner.versions.file_numbers.take().get());
    let newest = Place { level: 0, sublevel };
    let again = Table::new(Arc::clone(&db.inner.env), &db.inner.dir, space, meta);
    let added = vec![(space, newest, Arc::new(again))];
    let removed = vec![(space, place, Arc::clone(table))];
    assert!(db.inner.versions.install(&Changes { added, removed, ..Changes::default() }).unwrap());
}

#[test]
fn a_sequence_override_holds_for_reads_merges_verification_and_the_next_open() {
    let env = SimEnv::new(7);
    let dir = Path::new("/store");
    let options = DbOptions { create_if_missing: true, ..DbOptions::default() };
    let db = Db::open(env.clone(), dir, options.clone()).unwrap();
    let space = KeyspaceOptions { prefixed: true, compressed: false };
    let space = db.keyspace("rows", space).unwrap();
    put(&db, space, 0..ROWS, b"old");
    db.flush().unwrap();
    put(&db, space, (0..ROWS).filter(|row| row % 3 == 0), b"new");
    db.flush().unwrap();
    let mixed = |row| if row % 3 == 0 { &b"new"[..] } else { b"old" };
    check(&db, space, mixed);
    let before = db.snapshot().unwrap();
    rewrite_history(&db, space, SeqNo::new(1_000_000));
    assert_eq!(before.get(space, &key(1)).unwrap(), None, "written later, it now seems");
    assert_eq!(before.get(space, &key(3)).unwrap().as_deref(), Some(&b"new"[..]));
    drop(before);
    db.close().unwrap();
    let db = Db::open(env.clone(), dir, options.clone()).unwrap();
    check(&db, space, |_| b"old");
    put(&db, space, (0..ROWS).filter(|row| row % 5 == 0), b"last");
    let last = |row| if row % 5 == 0 { &b"last"[..] } else { b"old" };
    check(&db, space, last);
    db.flush().unwrap();
    let trigger = DbOptions { sublevels_trigger: 1, ..options };
    db.close().unwrap();
    let db = Db::open(env, dir, trigger).unwrap();
    db.compact().unwrap();
    check(&db, space, last);
    let read_state = db.inner.reads.read_states.get();
    let tables = read_state.keyspace(space).unwrap().version.tables();
    assert!(tables.into_iter().all(|(_, table)| table.meta().seq_override.is_none()));
}

/// Once the state alone was longer than the limit, each edit wrote all of it anew.
#[test]
fn the_manifest_is_rewritten_in_proportion_to_its_edits() {
    let env = SimEnv::new(3);
    let options = DbOptions {
        sublevels_trigger: 1000,
        level_base_bytes: 1 << 40,
        manifest_bytes_max: 500,
        ..DbOptions::default()
    };
    let db = Db::open(env.clone(), Path::new("/store"), options).unwrap();
    let space = KeyspaceOptions { prefixed: true, compressed: false };
    let space = db.keyspace("rows", space).unwrap();
    for row in 0..100 {
        put(&db, space, row..row + 1, b"value");
        db.flush().unwrap();
    }
    let manifests = || {
        let created = |entry: &&JournalEntry| {
            let name = entry.path.to_string_lossy();
            entry.op == SimOp::Create && name.contains("MANIFEST") && !name.ends_with(".copy")
        };
        env.journal().iter().filter(created).count()
    };
    let before = manifests();
    assert!((2..12).contains(&before), "{before} manifests");
    for name in 0..40 {
        db.create_snapshot(&name.to_string()).unwrap();
    }
    assert!(manifests() <= before + 1, "{} manifests", manifests());
}

/// A flush of rows of branches that were gone took the number of the newest write in tables back to zero.
#[test]
fn what_tables_hold_never_goes_back() {
    let env = SimEnv::new(3);
    let dir = Path::new("/store");
    let db = Db::open(env.clone(), dir, DbOptions::default()).unwrap();
    let space = KeyspaceOptions { prefixed: true, compressed: false };
    let space = db.keyspace("rows", space).unwrap();
    put(&db, space, 0..ROWS, b"value");
    db.flush().unwrap();
    let last_seq = || crate::manifest::load(&*env, dir).unwrap().unwrap().last_seq;
    assert_eq!(last_seq(), SeqNo::new(ROWS));
    let branch = db.branch(&BranchOptions::default()).unwrap();
    let mut batch = Batch::new();
    batch.put(space, key(0), Bytes::from_static(b"gone"));
    branch.write(batch).unwrap();
    branch.abort().unwrap();
    db.flush().unwrap();
    assert_eq!(db.inner.metrics.flushes.get(), 2);
    assert_eq!(last_seq(), SeqNo::new(ROWS));
}

/// A merge that was under way when the sync of an edit failed wrote its own behind that, and its sync, which was told of no
/// failure, vouched for both.
#[test]
fn the_manifest_takes_nothing_after_a_failure() {
    let env = SimEnv::new(3);
    let db = Db::open(env.clone(), Path::new("/store"), DbOptions::default()).unwrap();
    let no = db.inner.versions.manifest.lock().file_no();
    let manifest = StoreFile::Manifest(no).path(Path::new("/store"));
    let path_suffix = manifest.file_name().unwrap().to_str().unwrap().to_owned();
    env.fail(FaultRule { path_suffix, op: SimOp::Sync, nth: 1, errno: 5, sticky: false });
    db.create_snapshot("a").unwrap_err();
    let len = env.stat(&manifest).unwrap().len;
    let refused = db.inner.versions.install(&Changes::default());
    assert!(matches!(refused, Err(StoreError::Poisoned { .. })), "{refused:?}");
    assert_eq!(env.stat(&manifest).unwrap().len, len);
}

/// Another process may have the store by then.
#[test]
fn nothing_is_installed_after_the_end() {
    let env = SimEnv::new(3);
    let db = Db::open(env, Path::new("/store"), DbOptions::default()).unwrap();
    let branch = db.branch(&BranchOptions::default()).unwrap();
    db.close().unwrap();
    let refused = db.inner.versions.install(&Changes::default());
    assert!(matches!(refused, Err(StoreError::Closed)), "{refused:?}");
    assert!(matches!(branch.abort(), Err(StoreError::Closed)));
    assert!(matches!(db.inner.compactor.compact_one(false), Err(StoreError::Closed)));
    assert!(matches!(db.inner.flusher.flush_one(), Err(StoreError::Closed)));
}

/// A reader of an old state opened a table once more that was to go, and nobody closed it: its room stayed taken.
#[test]
fn tables_that_go_are_not_kept_open() {
    let env = SimEnv::new(3);
    let db = Db::open(env.clone(), Path::new("/store"), DbOptions::default()).unwrap();
    let space = KeyspaceOptions { prefixed: true, compressed: false };
    let space = db.keyspace("rows", space).unwrap();
    put(&db, space, 0..ROWS, b"old");
    db.flush().unwrap();
    let old = db.inner.reads.read_states.get();
    db.clear_keyspace(space).unwrap();
    let tables = old.keyspace(space).unwrap().version.tables();
    let (_, table) = tables.into_iter().next().unwrap();
    assert!(table.file().owned().is_obsolete());
    let opened = env.open_handles();
    db.inner.reads.cache.load_footer(table).unwrap();
    assert_eq!(env.open_handles(), opened);
}

/// Tables from outside and those of a branch were visible before their number was that of the newest state. Who pinned the
/// state before it meanwhile lost rows, if a merge of these tables had begun without knowing of him.
#[test]
fn no_table_is_newer_than_the_newest_state() {
    let env = SimEnv::new(3);
    let options =
        DbOptions { manifest_bytes_max: 0, memtable_bytes: 64 << 10, ..DbOptions::default() };
    let db = Db::open(env.clone(), Path::new("/store"), options).unwrap();
    let space = KeyspaceOptions { prefixed: true, compressed: false };
    let space = db.keyspace("rows", space).unwrap();
    let (inner, looks) = (Arc::clone(&db.inner), Arc::new(Mutex::new([0; 2])));
    let counted = Arc::clone(&looks);
    env.watch(Box::new(move |_, _| {
        let (read_state, mut looks) = (inner.reads.read_states.get(), counted.lock());
        let tables = read_state.keyspaces.iter().flat_map(|space| space.version.tables());
        let newest = tables.map(|(_, table)| table.meta().largest_seq).max();
        looks[usize::from(newest > Some(inner.reads.snapshots.last_seq()))] += 1;
    }));
    for round in 0..8_u8 {
        let value = vec![round; 100];
        let mut rows = (0..ROWS).map(|row| (key(row).to_vec().into(), value.clone().into()));
        db.insert_sorted(space, &mut rows, false).unwrap();
        let branch = db.branch(&BranchOptions::default()).unwrap();
        let mut batch = Batch::new();
        (0..ROWS).for_each(|row| batch.put(space, key(row), value.clone()));
        branch.write(batch).unwrap();
        branch.commit(&mut |_| Merged::Conflict).unwrap();
    }
    env.unwatch();
    assert_eq!(db.inner.metrics.branches_joined.get(), 8);
    let [sound, early] = *looks.lock();
    assert!(sound > 100 && early == 0, "{early} of {} times", sound + early);
}
