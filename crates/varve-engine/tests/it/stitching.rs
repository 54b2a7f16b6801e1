//! Stitched and lazy-leveled stores: what the thesis of KVFS says of stitching (3.2) and of defragmentation (3.2.1).

use std::path::PathBuf;
use std::sync::Arc;

use varve_engine::{
    Batch, BranchOptions, CompactionPolicy, Db, DbOptions, Direction, Fit, KeyRange,
    KeyspaceOptions, Merged, Store,
};
use varve_env::sim::SimEnv;
use varve_format::index::IndexPolicy;
use varve_types::KeyspaceId;

use crate::common::*;

const THRESHOLD: u32 = 8 << 10;

/// The policies that leave runs where they are.
const POLICIES: [CompactionPolicy; 2] = [CompactionPolicy::Stitched, CompactionPolicy::LazyLeveled];

fn options(compaction: CompactionPolicy) -> DbOptions {
    DbOptions {
        compaction,
        stitch_threshold_bytes: THRESHOLD,
        index: IndexPolicy::EliasFano,
        block_bytes: 4096,
        memtable_bytes: 64 << 10,
        table_bytes: 128 << 10,
        dead_percent_max: 100,
        ..small_options()
    }
}

fn open_with(env: &Arc<SimEnv>, options: DbOptions) -> (Db, KeyspaceId) {
    let db = Db::open(env.clone(), &store_dir(), options).unwrap();
    let space = KeyspaceOptions { prefixed: true, compressed: false };
    let id = db.keyspace("rows", space).unwrap();
    (db, id)
}

fn key(dir: u64, row: u64) -> Vec<u8> {
    [dir.to_be_bytes(), row.to_be_bytes()].concat()
}

fn value(dir: u64, row: u64) -> Vec<u8> {
    vec![(dir * 31 + row) as u8; 200]
}

/// The rows of a directory.
const ROWS: u64 = 180;
/// Rows that are created at once.
const CHUNK: u64 = 60;

/// Fills directories in turn, a part of each at once, in an order that looks random; with each, some rows of others
/// are overwritten.
fn fill(db: &Db, id: KeyspaceId, dirs: u64, overwritten: u64) {
    write(db, id, dirs, overwritten);
    db.flush().unwrap();
    db.compact().unwrap();
}

fn write(store: &dyn Store, id: KeyspaceId, dirs: u64, overwritten: u64) {
    for from in (0..ROWS).step_by(CHUNK as usize) {
        for at in 0..dirs {
            let dir = (at * 37 + from) % dirs;
            let mut batch = Batch::new();
            (from..from + CHUNK).for_each(|row| batch.put(id, key(dir, row), value(dir, row)));
            for n in 0..overwritten.min(from) {
                let (other, row) = ((at * 53 + n * 17) % dirs, (at * 7 + n) % from);
                batch.put(id, key(other, row), value(other, row));
            }
            store.write(batch).unwrap();
        }
    }
}

fn check(db: &Db, id: KeyspaceId, dirs: u64) {
    let rows = db.scan(id, KeyRange::all(), Direction::Forward).unwrap();
    let expected = (0..dirs).flat_map(|dir| (0..ROWS).map(move |row| (dir, row)));
    let mut count = 0;
    for (found, (dir, row)) in rows.zip(expected) {
        let (found_key, found_value) = found.unwrap();
        assert_eq!((&found_key[..], &found_value[..]), (&key(dir, row)[..], &value(dir, row)[..]));
        count += 1;
    }
    assert_eq!(count, dirs * ROWS);
    for dir in (0..dirs).step_by(7) {
        assert_eq!(db.get(id, &key(dir, 9)).unwrap().as_deref(), Some(&value(dir, 9)[..]));
    }
    assert!(db.verify(&mut |_| {}).unwrap().errors.is_empty());
}

fn tables(env: &SimEnv) -> Vec<PathBuf> {
    let mut files = env.files_raw();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "table"));
    files
}

/// 3.2: what is already sorted stays in place, so that directories created at once are hardly written again.
#[test]
fn directories_that_were_created_at_once_are_not_copied() {
    for policy in POLICIES {
        let written = [0, THRESHOLD].map(|stitch_threshold_bytes| {
            let env = SimEnv::new(1);
            let (db, id) = open_with(&env, DbOptions { stitch_threshold_bytes, ..options(policy) });
            fill(&db, id, 120, 0);
            check(&db, id, 120);
            assert_eq!(counter(&db, "stitched_bytes") > 0, stitch_threshold_bytes > 0);
            merged_bytes(&db)
        });
        assert!(written[1] * 2 < written[0], "{policy:?}: {written:?} without and with stitching");
    }
}

/// A zone of which a block could not be read poisoned the store when it was to be emptied, although nobody had asked for it.
#[test]
fn a_damaged_zone_is_passed_by_where_zones_are_emptied() {
    let options = options(CompactionPolicy::Stitched);
    let env = SimEnv::new(3);
    let (db, id) = open_with(&env, options.clone());
    fill(&db, id, 60, 2);
    let before = db.fragmentation();
    assert!(before.under_utilized > 3, "{before:?}");
    db.close().unwrap();
    // Nothing is merged for the shape of the levels.
    let options = DbOptions {
        dead_percent_max: 0,
        sublevels_trigger: 1000,
        level_base_bytes: 1 << 30,
        ..options
    };
    let mut emptied = 0;
    let damaged = tables(&env);
    for damaged in &damaged {
        let env = env.power_cut_keep_all();
        env.damage(damaged, 2000, 1).unwrap();
        let (db, _) = open_with(&env, options.clone());
        for at in 0..2000 {
            let mut batch = Batch::new();
            batch.put(id, key(1000, at), value(1000, at));
            db.write(batch).unwrap();
        }
        emptied += u64::from(db.fragmentation().dead_bytes < before.dead_bytes / 2);
    }
    assert!(emptied * 10 > damaged.len() as u64 * 9, "{emptied} of {}", damaged.len());
}

/// 3.2.1: zones of little use are emptied, and only the room that there is is needed.
#[test]
fn defragmentation_gives_room_back_and_loses_nothing() {
    for (fit, policy) in [Fit::Best, Fit::First].into_iter().zip(POLICIES) {
        let env = SimEnv::new(2);
        let (db, id) = open_with(&env, options(policy));
        fill(&db, id, 120, 2);
        let snapshot = db.snapshot().unwrap();
        let before = env.used_bytes();
        let done = db.defragment(fit).unwrap();
        assert_eq!(done.before.under_utilized > 0, done.rewrites > 0);
        assert!(done.rewrites > 0, "{done:?}");
        assert_eq!(done.after.under_utilized, 0, "{done:?}");
        assert!(done.after.dead_bytes < done.before.dead_bytes, "{done:?}");
        assert_eq!(counter(&db, "defragment_bytes"), done.written_bytes);
        check(&db, id, 120);
        drop(snapshot);
        assert!(env.used_bytes() < before);
        assert_eq!(tables(&env).len() as u64, done.after.files, "what is needed by none is gone");
        assert_eq!(db.defragment(fit).unwrap().rewrites, 0);
        db.close().unwrap();
        let (db, id) = open_with(&env, options(policy));
        assert_eq!(db.fragmentation(), done.after);
        check(&db, id, 120);
    }
}

#[test]
fn defragmentation_takes_no_more_room_than_there_is() {
    let env = SimEnv::new(3);
    let (db, id) = open_with(&env, options(CompactionPolicy::Stitched));
    fill(&db, id, 120, 2);
    let room = 64 << 10;
    env.set_capacity(env.used_bytes() + room);
    let before = db.fragmentation();
    let done = db.defragment(Fit::First).unwrap();
    assert!(done.rewrites > 0 && done.after.dead_bytes < before.dead_bytes, "{done:?}");
    check(&db, id, 120);
}

/// In the background no more than the bound stays.
#[test]
fn a_bound_on_what_nobody_needs_is_kept_while_the_store_is_used() {
    for policy in POLICIES {
        let env = SimEnv::new(4);
        let (db, id) = open_with(&env, DbOptions { dead_percent_max: 25, ..options(policy) });
        fill(&db, id, 120, 2);
        let found = db.fragmentation();
        assert!(found.dead_bytes * 100 <= found.bytes * 26, "{policy:?}: {found:?}");
        assert!(counter(&db, "defragmentations") > 0);
        check(&db, id, 120);
    }
}

/// In a table of a branch that was committed by reference two versions of a key have one number. To write such a table again
/// failed, as if it were damaged, and took the store out of use at every open.
#[test]
fn tables_of_a_committed_branch_are_defragmented() {
    for policy in POLICIES {
        let env = SimEnv::new(5);
        let (db, id) = open_with(&env, options(policy));
        let branch = db.branch(&BranchOptions::default()).unwrap();
        write(&branch, id, 120, 0);
        let overwrite = |value: &dyn Fn(u64, u64) -> Vec<u8>| {
            for dir in 0..120 {
                let mut batch = Batch::new();
                let rows = (0..80).step_by(8);
                rows.for_each(|row| batch.put(id, key(dir, row), value(dir, row)));
                branch.write(batch).unwrap();
            }
            db.flush().unwrap();
            db.compact().unwrap();
        };
        overwrite(&|_, _| b"old".to_vec());
        let pinned = db.snapshot().unwrap();
        overwrite(&value);
        drop(pinned);
        branch.commit(&mut |_| Merged::Conflict).unwrap();
        assert_eq!(counter(&db, "branches_joined"), 1);
        let done = db.defragment(Fit::Best).unwrap();
        assert!(done.rewrites > 0, "{done:?}");
        check(&db, id, 120);
    }
}
