//! What is bounded: names that share a hash, inodes known in memory, descriptors.

use std::path::Path;
use std::sync::Arc;

use varve_engine::{KeyspaceOptions, Store};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::{FormatOptions, MountOptions, TransactionOptions, VarveFs, ViewKind, ViewName};
use varve_types::InodeId;
use varve_vfs::{FsError, Vfs};

use crate::bench::Rows;
use crate::crash::{STORE, sim_store};
use crate::snapshots::open_with;
use crate::support::{BOTH, Calls, ROOT, Rig, name};

fn colliding() -> Rig {
    let narrow = FormatOptions { name_hash_bits: 1, ..FormatOptions::default() };
    Rig::with(&narrow, MountOptions::default())
}

#[test]
fn at_most_256_names_of_one_directory_share_a_hash() {
    let rig = colliding();
    for i in 0..256 {
        rig.mk(ROOT, &format!("n{i}"));
    }
    let full = rig.mknod(varve_vfs::Caller::ROOT, ROOT, name("one more"), 0o100_644, 0);
    assert!(matches!(full, Err(FsError::NoSpace(_))));
    let dir = rig.find(ROOT, "n0").map(|_| ()).and_then(|()| rig.unlink(ROOT, name("n7")));
    dir.unwrap();
    rig.mk(ROOT, "one more");
    let other = rig.mv(ROOT, "n8", ROOT, "n9");
    other.unwrap();
    let inside = rig.mv(ROOT, "n10", ROOT, "renamed");
    inside.unwrap();
    assert_eq!(rig.list(ROOT).len(), 255);
    assert_eq!(rig.list_by(ROOT, 3), rig.list(ROOT));
    let rig = rig.remount();
    assert_eq!(rig.list(ROOT).len(), 255);
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

/// A refused name must leave an open target of the rename as it was.
#[test]
fn a_full_row_refuses_a_rename_and_changes_nothing() {
    let rig = colliding();
    let dir = rig.mk_dir(ROOT, "d");
    for i in 0..256 {
        rig.mk(dir, &format!("n{i}"));
    }
    let moved = rig.mk(ROOT, "moved");
    rig.put_at(moved, 0, b"here");
    assert!(matches!(rig.mv(ROOT, "moved", dir, "new"), Err(FsError::NoSpace(_))));
    assert!(matches!(rig.link(moved, dir, name("new")), Err(FsError::NoSpace(_))));
    assert_eq!(rig.contents(moved), b"here");
    rig.mv(ROOT, "moved", dir, "n5").unwrap();
    assert_eq!(rig.contents(moved), b"here");
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

#[test]
fn inodes_beyond_the_limit_are_kept_in_the_store_and_found_again() {
    let options = MountOptions { located_inodes_max: Some(256), ..MountOptions::default() };
    let rig = Rig::with(&FormatOptions::default(), options);
    let inos: Vec<_> = (0..5000).map(|i| rig.mk(ROOT, &format!("f{i}"))).collect();
    let count = |rig: &Rig, key: &str| {
        let status: serde_json::Value = serde_json::from_str(&rig.status_json()).unwrap();
        status[key].as_u64().unwrap()
    };
    assert!(count(&rig, "inodes_known") <= 256 + 64);
    assert!(count(&rig, "inodes_spilled") >= 4600);
    rig.mv(ROOT, "f0", ROOT, "g0").unwrap();
    for ino in &inos {
        assert_eq!(rig.getattr(*ino).unwrap().ino, *ino);
    }
    assert!(count(&rig, "inodes_known") <= 256 + 64, "also after reading them back");
    for ino in &inos {
        rig.forget(*ino, 1);
    }
    assert_eq!((count(&rig, "inodes_known"), count(&rig, "inodes_spilled")), (0, 0));
    assert!(matches!(rig.getattr(inos[17]), Err(FsError::Stale)));
    let rig = rig.remount();
    assert!(matches!(rig.getattr(inos[17]), Err(FsError::Stale)));
    assert_eq!(rig.find(ROOT, "g0").unwrap().ino, inos[0]);
}

/// Each file of a directory, looked up.
fn look_up_all(fs: &VarveFs, count: usize) -> Vec<InodeId> {
    (0..count).map(|i| fs.find(ROOT, &format!("f{i}")).unwrap().ino).collect()
}

/// What an earlier opening of a view had left in the store was taken for the next one's, and counted: files that the kernel knew
/// were forgotten.
#[test]
fn a_view_that_is_opened_again_knows_what_was_looked_up_in_it() {
    let options = MountOptions { located_inodes_max: Some(64), ..MountOptions::default() };
    let env = sim_store(1, &FormatOptions::default());
    let dyn_env: Arc<dyn Env> = Arc::<SimEnv>::clone(&env);
    let fs = VarveFs::open(dyn_env, Path::new(STORE), options).unwrap();
    for i in 0..2000 {
        let ino = fs.mk(ROOT, &format!("f{i}"));
        fs.forget(ino, 1);
    }
    fs.create_snapshot("s").unwrap();
    let name = ViewName { kind: ViewKind::Snapshot, name: "s".to_owned() };
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let beside = fs.open_view(&name).unwrap();
    look_up_all(&beside, 2000);
    for name in [&name, &txn] {
        for _ in 0..2 {
            let view = fs.open_view(name).unwrap();
            let inos = look_up_all(&view, 2000);
            inos[..1000].iter().for_each(|ino| view.forget(*ino, 1));
            for ino in &inos[1000..] {
                assert_eq!(view.getattr(*ino).unwrap().ino, *ino);
            }
            assert!(matches!(view.getattr(inos[17]), Err(FsError::Stale)));
        }
    }
    for ino in look_up_all(&beside, 2000) {
        beside.forget(ino, 1);
        assert_eq!(beside.getattr(ino).unwrap().ino, ino, "it was looked up twice");
    }
    drop(beside);
    fs.close().unwrap();
    drop(fs);
    let rows = Rows::open(&env);
    let plain = KeyspaceOptions { prefixed: true, compressed: false };
    let lookups = rows.db.keyspace("lookups", plain).unwrap();
    assert_eq!(rows.all(lookups).len(), 0, "what views leave goes with them");
}

#[test]
fn many_new_large_files_are_synced_without_holding_all_open() {
    let rig = Rig::new();
    for i in 0..100 {
        let ino = rig.mk(ROOT, &format!("f{i}"));
        rig.put_at(ino, 0, &[1; 70_000]);
    }
    let descriptors = std::path::Path::new("/proc/self/fd");
    #[allow(clippy::disallowed_methods, reason = "counts this process's descriptors")]
    let open = std::fs::read_dir(descriptors).unwrap().count();
    assert!(open < 100 + 400, "{open} descriptors, other tests' included");
    rig.sync().unwrap();
    assert_eq!(rig.check(&mut |_| ()).unwrap().objects, 100);
}

/// Of 24 files that are open at once half are large ones; a sync of all may open one more.
const OPEN_MAX: usize = 12 + 1;

/// More large files open than descriptors: idle ones are closed and opened again when they are needed.
#[test]
fn more_large_files_are_open_than_descriptors() {
    let few = MountOptions { open_files_max: 24, ..MountOptions::default() };
    let rig = Rig::with(&FormatOptions::default(), few);
    let open: Vec<_> = (0..200_u8)
        .map(|i| {
            let ino = rig.mk(ROOT, &format!("f{i}"));
            rig.put_at(ino, 0, &[i; 70_000]);
            (ino, rig.open_as(ino, BOTH))
        })
        .collect();
    let open_now = own_objects_open(&rig);
    assert!(open_now <= OPEN_MAX, "{open_now}, those that wait for a sync included");
    for (i, (ino, handle)) in (0..).zip(&open) {
        assert_eq!(rig.read(*ino, *handle, 69_999, 10).unwrap(), [i][..]);
        rig.write(*ino, *handle, 70_000, &[i], false).unwrap();
    }
    rig.sync().unwrap();
    assert!(own_objects_open(&rig) <= OPEN_MAX);
    for (i, (ino, handle)) in (0..).zip(open) {
        rig.fsync(ino, handle, true).unwrap();
        assert_eq!(rig.read(ino, handle, 69_999, 10).unwrap(), [i, i][..]);
        rig.release(ino, handle).unwrap();
        assert_eq!(rig.getattr(ino).unwrap().size, 70_001);
    }
    rig.sync().unwrap();
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

/// Each view had as many descriptors as the store has.
#[test]
fn large_files_open_in_views_share_the_descriptors_of_the_store() {
    let few = MountOptions { open_files_max: 24, ..MountOptions::default() };
    let rig = Rig::with(&FormatOptions::default(), few);
    let views: Vec<_> = (0..4)
        .map(|_| {
            let name = rig.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
            rig.open_view(&name).unwrap()
        })
        .collect();
    let mut open = Vec::new();
    for i in 0..20_u8 {
        for view in &views {
            let ino = view.mk(ROOT, &format!("f{i}"));
            view.put_at(ino, 0, &[i; 70_000]);
            open.push((view, i, ino, view.open_as(ino, BOTH)));
        }
    }
    let open_now = own_objects_open(&rig);
    assert!(open_now <= OPEN_MAX, "{open_now}");
    for (view, i, ino, handle) in open {
        assert_eq!(view.read(ino, handle, 69_999, 10).unwrap(), [i][..]);
        view.fsync(ino, handle, true).unwrap();
    }
    let open_now = own_objects_open(&rig);
    assert!(open_now <= OPEN_MAX, "{open_now}");
}

/// What a view had written to stayed open for ever if it ended before that was synced.
#[test]
fn what_a_transaction_was_about_to_sync_ends_with_it() {
    let env = sim_store(5, &FormatOptions::default());
    let fs = open_with(&env, MountOptions::default());
    fs.put_at(fs.mk(ROOT, "old"), 0, &[1; 70_000]);
    let mut open_files = 0;
    for round in 0..20 {
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let view = fs.open_view(&txn).unwrap();
        let both = [view.find(ROOT, "old").unwrap().ino, view.mk(ROOT, "new")];
        for ino in both {
            view.put_at(ino, 0, &[2; 70_000]);
        }
        drop(view);
        fs.abort_transaction(&txn.name).unwrap();
        match round {
            0 => open_files = env.open_handles(),
            _ => assert_eq!(env.open_handles(), open_files, "after {round} more"),
        }
    }
}

/// Descriptors of this process on object files of this store.
#[allow(clippy::disallowed_methods, reason = "counts this process's descriptors")]
fn own_objects_open(rig: &Rig) -> usize {
    let store = crate::support::store_of(rig.dir.path());
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    descriptors
        .map(|entry| entry.unwrap().path())
        .filter(|path| std::fs::metadata(path).is_ok_and(|found| found.is_file()))
        .filter_map(|path| std::fs::read_link(path).ok())
        .filter(|path| ["objects", "views"].iter().any(|dir| path.starts_with(store.join(dir))))
        .count()
}
