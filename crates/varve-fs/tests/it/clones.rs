//! Clones: copies that are made when somebody looks, but are as if they had been made at once.

use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::dump::{dump_store, load_store};
use varve_fs::fsck::Finding;
use varve_fs::{
    ChangeKind, CommitError, FormatOptions, MountOptions, TransactionOptions, VarveFs, ViewKind,
    ViewName, format,
};
use varve_schema::key::MetaRow;
use varve_schema::{CloneReference, RowKey};
use varve_testkit::crash::{ScriptOptions, Subject};
use varve_testkit::fsops::{Lockstep, Times, Universe, tree as whole_tree};
use varve_types::InodeId;
use varve_vfs::{FsError, TreeLimits, Vfs, XattrMode};

use crate::bench::{Rows, check, repair};
use crate::crash::{STORE, open, sim_store};
use crate::crash_points;
use crate::support::{Calls, ROOT, Rig, WRITE, name, os_env, store_of};

/// Clones `from` in `dir` as `to` in `parent`.
fn clone(fs: &VarveFs, dir: InodeId, from: &str, parent: InodeId, to: &str) -> InodeId {
    fs.clone_tree(dir, name(from), parent, name(to)).unwrap().attr.ino
}

fn snapshot(text: &str) -> ViewName {
    ViewName { kind: ViewKind::Snapshot, name: text.to_owned() }
}

fn sound(fs: &VarveFs) {
    fs.sync().unwrap();
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}

/// `/d` with a small and a large file, and `/d/e` with a file.
fn tree(fs: &VarveFs) -> InodeId {
    let d = fs.mk_dir(ROOT, "d");
    for (text, len) in [("tiny", 5), ("small", 40_000), ("large", 200_000)] {
        let ino = fs.mk(d, text);
        fs.put_at(ino, 0, &vec![b'x'; len]);
    }
    let e = fs.mk_dir(d, "e");
    let deep = fs.mk(e, "deep");
    fs.put_at(deep, 0, b"deep");
    d
}

#[test]
fn a_clone_has_what_the_original_had_and_goes_its_own_way() {
    let rig = Rig::new();
    let d = tree(&rig.fs);
    let c = clone(&rig.fs, ROOT, "d", ROOT, "c");
    let large = rig.find(d, "large").unwrap().ino;
    rig.put_at(large, 0, b"changed");
    rig.unlink(d, name("tiny")).unwrap();
    assert_eq!(rig.list(c), ["e", "large", "small", "tiny"]);
    sound(&rig.fs);
    let rig = rig.remount();
    for (text, len) in [("tiny", 5), ("small", 40_000), ("large", 200_000)] {
        let ino = rig.find(c, text).unwrap().ino;
        assert_eq!(rig.contents(ino), vec![b'x'; len], "{text}");
        rig.put_at(ino, 1, b"yy");
        assert_eq!(&rig.contents(ino)[..4], b"xyyx", "{text}");
        assert_eq!(rig.contents(ino).len(), len);
    }
    let d = rig.find(ROOT, "d").unwrap().ino;
    let large = rig.find(d, "large").unwrap().ino;
    assert_eq!(&rig.contents(large)[..8], b"changedx");
    let e = rig.find(c, "e").unwrap().ino;
    assert_eq!(rig.contents(rig.find(e, "deep").unwrap().ino), b"deep");
    sound(&rig.fs);
    // With the last name copied and the last byte owned the state that was read from goes.
    rig.mk(ROOT, "afterwards");
    let kept = os_env().list(&store_of(rig.dir.path()).join("kept")).unwrap();
    assert!(kept.is_empty(), "{kept:?}");
    sound(&rig.fs);
}

#[test]
fn a_clone_counts_at_once_and_limits_hold_for_it() {
    let rig = Rig::new();
    let d = tree(&rig.fs);
    let whole = rig.usage(d).unwrap();
    let q = rig.mk_dir(ROOT, "q");
    rig.set_limits(q, TreeLimits { bytes: Some(whole.bytes - 1), inodes: None }).unwrap();
    let refused = rig.clone_tree(ROOT, name("d"), q, name("c")).unwrap_err();
    assert!(matches!(refused, FsError::QuotaExceeded));
    rig.set_limits(q, TreeLimits { bytes: Some(whole.bytes), inodes: None }).unwrap();
    let c = clone(&rig.fs, ROOT, "d", q, "c");
    assert_eq!(rig.usage(c).unwrap(), whole);
    assert_eq!(rig.usage(q).unwrap().dirs, whole.dirs + 1);
    rig.list(c);
    assert_eq!(rig.usage(c).unwrap(), whole);
    sound(&rig.fs);
}

/// How many rows were written since the mount.
fn rows_written(fs: &VarveFs) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&fs.status_json()).unwrap();
    status["engine"]["counters"]["writes"].as_u64().unwrap()
}

#[test]
fn a_clone_of_many_files_writes_a_few_rows() {
    let rig = Rig::new();
    let d = rig.mk_dir(ROOT, "d");
    let mut written = Vec::new();
    for size in [10, 3000] {
        for i in 0..size {
            rig.mk(d, &format!("{size}-{i}"));
        }
        rig.sync().unwrap();
        let before = rows_written(&rig);
        clone(&rig.fs, ROOT, "d", ROOT, &format!("c{size}"));
        written.push(rows_written(&rig) - before);
    }
    assert!(written[1] <= written[0] + 4 && written[1] < 40, "{written:?}");
    sound(&rig.fs);
}

#[test]
fn names_of_one_file_stay_names_of_one_file() {
    let rig = Rig::new();
    let d = rig.mk_dir(ROOT, "d");
    let (a, b) = (rig.mk_dir(d, "a"), rig.mk_dir(d, "b"));
    let file = rig.mk(a, "one");
    rig.link(file, b, name("two")).unwrap();
    rig.link(file, ROOT, name("outside")).unwrap();
    let c = clone(&rig.fs, ROOT, "d", ROOT, "c");
    let ca = rig.find(c, "a").unwrap().ino;
    let one = rig.find(ca, "one").unwrap();
    assert_eq!(one.nlink, 2, "the name outside is not of the clone");
    rig.put_at(one.ino, 0, b"seen by both");
    rig.unlink(ca, name("one")).unwrap();
    sound(&rig.fs);
    let rig = rig.remount();
    let cb = rig.find(c, "b").unwrap().ino;
    let two = rig.find(cb, "two").unwrap();
    assert_eq!((two.ino, two.nlink), (one.ino, 1));
    assert_eq!(rig.contents(two.ino), b"seen by both");
    assert_eq!(rig.contents(file), b"");
    sound(&rig.fs);
}

/// A file with names in two directories of a clone, of which one was cloned before anybody had looked at the other: the
/// second clone counted that name as its own, so that the file stayed when its only name went.
#[test]
fn a_name_outside_of_a_clone_of_a_clone_is_no_name_of_its_file() {
    let rig = Rig::new();
    let d = rig.mk_dir(ROOT, "d");
    let (a, b) = (rig.mk_dir(d, "a"), rig.mk_dir(d, "b"));
    let file = rig.mk(a, "one");
    rig.link(file, b, name("two")).unwrap();
    let c = clone(&rig.fs, ROOT, "d", ROOT, "c");
    let e = clone(&rig.fs, c, "a", ROOT, "e");
    assert_eq!(rig.find(e, "one").unwrap().nlink, 1);
    let ca = rig.find(c, "a").unwrap().ino;
    assert_eq!(rig.find(ca, "one").unwrap().nlink, 2);
    sound(&rig.fs);
}

/// A file of several names in a clone of a clone had all of what was cloned first unfolded, however little of it was cloned
/// again.
#[test]
fn what_was_not_cloned_again_stays_folded_in_the_first_clone() {
    let rig = Rig::new();
    let d = rig.mk_dir(ROOT, "d");
    let (a, large) = (rig.mk_dir(d, "a"), rig.mk_dir(d, "large"));
    let (b, c) = (rig.mk_dir(a, "b"), rig.mk_dir(a, "c"));
    let file = rig.mk(a, "one");
    for (dir, text) in [(b, "two"), (c, "three"), (large, "four")] {
        rig.link(file, dir, name(text)).unwrap();
    }
    for i in 0..3000 {
        rig.mk(large, &format!("file-{i}"));
    }
    let first = clone(&rig.fs, ROOT, "d", ROOT, "first");
    let second = clone(&rig.fs, first, "a", ROOT, "second");
    let before = rows_written(&rig);
    let one = rig.find(second, "one").unwrap();
    assert_eq!(one.nlink, 3);
    let written = rows_written(&rig) - before;
    assert!(written < 100, "{written} rows");
    for (dir, text) in [("b", "two"), ("c", "three")] {
        let dir = rig.find(second, dir).unwrap().ino;
        assert_eq!(rig.find(dir, text).unwrap().ino, one.ino);
        rig.unlink(dir, name(text)).unwrap();
    }
    assert_eq!(rig.getattr(one.ino).unwrap().nlink, 1);
    rig.unlink(second, name("one")).unwrap();
    let large = rig.find(first, "large").unwrap().ino;
    assert_eq!(rig.find(large, "four").unwrap().nlink, 4);
    sound(&rig.fs);
}

#[test]
fn clones_are_in_snapshots_and_of_them() {
    let rig = Rig::new();
    let d = tree(&rig.fs);
    let c = clone(&rig.fs, ROOT, "d", ROOT, "c");
    rig.create_snapshot("then").unwrap();
    let file = rig.find(c, "small").unwrap().ino;
    rig.put_at(file, 0, b"later");
    let view = rig.open_view(&snapshot("then")).unwrap();
    assert_eq!(view.list(c), ["e", "large", "small", "tiny"]);
    let seen = view.find(c, "small").unwrap().ino;
    assert_eq!(seen, file, "a view gives the same ids");
    assert_eq!(&view.contents(seen)[..5], b"xxxxx");
    assert!(matches!(view.unlink(c, name("tiny")), Err(FsError::ReadOnly)));
    view.close().unwrap();
    drop(view);
    let original = varve_fs::Original { snapshot: Some("then"), dir: ROOT, name: Some(name("c")) };
    let back = rig.do_clone(original, ROOT, name("back")).unwrap();
    rig.delete_snapshot("then").unwrap();
    assert!(rig.view_names(ViewKind::Snapshot).unwrap().is_empty());
    assert!(matches!(rig.delete_snapshot(".clone"), Err(FsError::NotFound)));
    let rig = rig.remount();
    assert_eq!(rig.list(back), ["e", "large", "small", "tiny"]);
    let small = rig.find(back, "small").unwrap().ino;
    assert_eq!(&rig.contents(small)[..5], b"xxxxx");
    assert_eq!(rig.contents(rig.find(back, "large").unwrap().ino).len(), 200_000);
    assert_eq!(rig.list(d).len(), 4);
    sound(&rig.fs);
}

/// The last clone of a snapshot was removed, then the snapshot, both before a sync. A power cut brought the clone back without what
/// it reads from.
#[test]
fn a_power_cut_brings_no_clone_back_without_its_snapshot() {
    let env = sim_store(8, &FormatOptions::default());
    let fs = open(&env);
    tree(&fs);
    fs.create_snapshot("then").unwrap();
    let original = varve_fs::Original { snapshot: Some("then"), dir: ROOT, name: Some(name("d")) };
    let c = fs.do_clone(original, ROOT, name("c")).unwrap();
    fs.sync().unwrap();
    let e = fs.find(c, "e").unwrap().ino;
    for (dir, file) in [(c, "tiny"), (c, "small"), (c, "large"), (e, "deep")] {
        fs.unlink(dir, name(file)).unwrap();
    }
    fs.rmdir(c, name("e")).unwrap();
    fs.rmdir(ROOT, name("c")).unwrap();
    fs.delete_snapshot("then").unwrap();
    assert!(fs.view_names(ViewKind::Snapshot).unwrap().is_empty());
    for image in [env.power_cut_keep_nothing(), env.power_cut_keep_all()] {
        let fs = open(&image);
        if let Ok(c) = fs.find(ROOT, "c") {
            let large = fs.find(c.ino, "large").unwrap().ino;
            assert_eq!(fs.contents(large), vec![b'x'; 200_000]);
        }
        sound(&fs);
    }
}

#[test]
fn clones_go_on_in_transactions() {
    let rig = Rig::new();
    tree(&rig.fs);
    let c = clone(&rig.fs, ROOT, "d", ROOT, "c");
    let txn = rig.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = rig.open_view(&txn).unwrap();
    let small = view.find(c, "small").unwrap().ino;
    view.put_at(small, 0, b"mine");
    let large = view.find(c, "large").unwrap().ino;
    view.put_at(large, 0, b"mine");
    assert!(matches!(
        view.clone_tree(ROOT, name("c"), ROOT, name("x")),
        Err(FsError::NotSupported(_))
    ));
    // Only looked at in the main tree: no conflict.
    assert_eq!(rig.list(c).len(), 4);
    assert_eq!(&rig.contents(rig.find(c, "large").unwrap().ino)[..4], b"xxxx");
    let told = rig.transaction_diff(&txn.name).unwrap().changes;
    let told: Vec<_> = told.iter().map(|told| (told.path.to_str().unwrap(), told.change)).collect();
    assert_eq!(told, [("/c/large", ChangeKind::Changed), ("/c/small", ChangeKind::Changed)]);
    rig.commit_transaction(&txn.name, &view).unwrap();
    drop(view);
    for (text, ino) in [("small", small), ("large", large)] {
        assert_eq!(rig.find(c, text).unwrap().ino, ino);
        assert_eq!(&rig.contents(ino)[..5], b"minex");
    }
    sound(&rig.fs);
}

/// A transaction that only looked into a clone brought back what the main tree had removed there meanwhile: an attribute of a
/// file that was gone, and an access list that had been taken away.
#[test]
fn attributes_that_one_removes_from_what_both_have_unfolded_do_not_come_back() {
    for remover_is_main in [true, false] {
        for removes_file in [true, false] {
            let rig = Rig::new();
            let d = tree(&rig.fs);
            let small = rig.find(d, "small").unwrap().ino;
            rig.setxattr(small, b"user.a", b"1", XattrMode::Set).unwrap();
            rig.setxattr(small, b"user.b", b"2", XattrMode::Set).unwrap();
            let c = clone(&rig.fs, ROOT, "d", ROOT, "c");
            let txn = rig.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
            let view = rig.open_view(&txn).unwrap();
            assert_eq!((view.list(c).len(), rig.list(c).len()), (4, 4));
            let remover: &VarveFs = if remover_is_main { &rig.fs } else { &view };
            let ino = remover.find(c, "small").unwrap().ino;
            match removes_file {
                true => remover.unlink(c, name("small")).unwrap(),
                false => remover.removexattr(ino, b"user.a").unwrap(),
            }
            remover.forget(ino, 1);
            let done = rig.commit_transaction(&txn.name, &view);
            let is_conflict = matches!(done, Err(CommitError::Conflict(_)));
            assert!(done.is_ok() || is_conflict, "{done:?}");
            drop(view);
            if is_conflict {
                rig.abort_transaction(&txn.name).unwrap();
            }
            // What the main tree removed is gone whatever happens, what the transaction did only if it was committed.
            let has_gone = remover_is_main || !is_conflict;
            match rig.find(c, "small") {
                Ok(attr) if !removes_file => {
                    let found = rig.getxattr(attr.ino, b"user.a");
                    assert_eq!(matches!(found, Err(FsError::NoXattr)), has_gone, "{found:?}");
                    assert_eq!(rig.getxattr(attr.ino, b"user.b").unwrap(), b"2"[..]);
                    rig.forget(attr.ino, 1);
                }
                found => assert_eq!(found.is_err(), has_gone, "{found:?}"),
            }
            sound(&rig.fs);
        }
    }
}

/// What a transaction adds in a directory that both it and the main tree have got by looking counts at its commit.
#[test]
fn limits_hold_for_clones_that_both_sides_have_looked_into() {
    let rig = Rig::new();
    tree(&rig.fs);
    let top = rig.mk_dir(ROOT, "top");
    let c = clone(&rig.fs, ROOT, "d", top, "c");
    let before = rig.usage(top).unwrap().bytes;
    let limits = TreeLimits { bytes: Some(before + 10_000), inodes: None };
    rig.set_limits(top, limits).unwrap();
    let txn = rig.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = rig.open_view(&txn).unwrap();
    assert_eq!((rig.list(c).len(), view.list(c).len()), (4, 4));
    let made = view.mk(c, "made");
    view.put_at(made, 0, &[1; 6000]);
    let beside = rig.mk(top, "beside");
    rig.put_at(beside, 0, &[1; 6000]);
    let refused = rig.commit_transaction(&txn.name, &view);
    assert!(matches!(refused, Err(CommitError::OverLimits(_))), "{refused:?}");
    view.cut(made, 3000);
    rig.commit_transaction(&txn.name, &view).unwrap();
    drop(view);
    assert_eq!(rig.usage(top).unwrap().bytes, before + 9000);
    sound(&rig.fs);
}

/// A store that can clone, whose every crash is tried.
struct Cloning;

impl Subject for Cloning {
    type Fs = VarveFs;

    fn format(&self, env: &Arc<SimEnv>) -> Result<(), String> {
        let env: Arc<dyn Env> = Arc::clone(env) as Arc<dyn Env>;
        let options =
            FormatOptions { large_file_threshold_bytes: 8 << 10, ..FormatOptions::default() };
        format(&env, Path::new(STORE), &options).map(drop).map_err(|error| error.to_string())
    }

    fn open(&self, env: &Arc<SimEnv>) -> Result<VarveFs, String> {
        crash_points::open_tiny(env, MountOptions::default())
    }

    fn problems(&self, fs: &VarveFs) -> Result<Vec<String>, String> {
        crash_points::Store.problems(fs)
    }

    fn close(&self, fs: VarveFs) -> Result<(), String> {
        crash_points::Store.close(fs)
    }
}

#[test]
fn a_crash_while_cloning_or_unfolding_leaves_a_state_that_existed() {
    let options = ScriptOptions {
        steps: 70,
        large_file_threshold_bytes: 8 << 10,
        new_large: crash_points::GUESSED_LARGE,
        restarts: true,
        clones_percent: 12,
        copies_percent: 0,
    };
    let seeds = [0..3, 49..50, 63..64, 71..72, 73..74, 95..96, 108..109, 149..150];
    let points = seeds.map(|seeds| crash_points::explore_seeds(&Cloning, seeds, &options));
    assert!(points.iter().sum::<u64>() > 400, "{points:?}");
}

/// The clone of a large file that was open for writing said how large it was, and nothing made those bytes durable: after a power cut
/// the clone was there and could not be read.
#[test]
fn a_power_cut_leaves_clones_of_files_that_were_open_for_writing_as_they_were() {
    let env = sim_store(3, &FormatOptions::default());
    let fs = open(&env);
    let d = fs.mk_dir(ROOT, "d");
    let file = fs.mk(d, "file");
    let handle = fs.open(file, WRITE).unwrap().handle;
    let write = |round: u64| {
        fs.write(file, handle, 50_000 * round, &[7; 50_000], false).unwrap();
    };
    write(0);
    // That it became large is durable.
    fs.dictionaries().sync().unwrap();
    write(1);
    clone(&fs, d, "file", ROOT, "of the file");
    fs.dictionaries().sync().unwrap();
    write(2);
    clone(&fs, ROOT, "d", ROOT, "of the directory");
    // Rows alone.
    fs.dictionaries().sync().unwrap();
    for image in [env.power_cut_keep_nothing(), env.power_cut_keep_all()] {
        let fs = open(&image);
        let of_file = fs.find(ROOT, "of the file").unwrap().ino;
        assert!(fs.contents(of_file) == [7; 100_000]);
        let of_dir = fs.find(ROOT, "of the directory").unwrap().ino;
        let below = fs.find(of_dir, "file").unwrap().ino;
        assert!(fs.contents(below) == [7; 150_000]);
        sound(&fs);
    }
}

/// A directory that takes several batches to unfold, in which others work meanwhile.
#[test]
fn a_directory_of_many_files_is_unfolded_while_others_work_in_it() {
    let rig = Rig::new();
    let d = rig.mk_dir(ROOT, "d");
    for i in 0..2500 {
        rig.mk(d, &format!("file-{i}"));
    }
    for round in 0..3 {
        let text = format!("c{round}");
        let c = clone(&rig.fs, ROOT, "d", ROOT, &text);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let fs = &rig.fs;
                scope.spawn(move || {
                    for i in (thread..2500).step_by(4) {
                        let old = format!("file-{i}");
                        match (i + thread) % 3 {
                            0 => fs.unlink(c, name(&old)).unwrap(),
                            1 => fs.mv(c, &old, c, &format!("moved-{i}")).unwrap(),
                            _ => drop(fs.find(c, &old).unwrap()),
                        }
                        if i % 50 == thread {
                            fs.mk(c, &format!("new-{i}"));
                        }
                    }
                });
            }
        });
        let (listed, expected) = (rig.list(c), rig.getattr(c).unwrap().size);
        assert_eq!(listed.len() as u64, expected);
        assert_eq!(rig.usage(c).unwrap().files, expected);
        sound(&rig.fs);
    }
    assert_eq!(rig.list(d).len(), 2500);
}

/// `/d` with a large, a small and a deep file, cloned as `/c` and not looked at; the store is closed.
fn cloned() -> (Arc<SimEnv>, InodeId) {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    tree(&fs);
    let c = clone(&fs, ROOT, "d", ROOT, "c");
    fs.close().unwrap();
    (env, c)
}

#[test]
fn a_dump_has_the_files_of_clones() {
    let (env, _) = cloned();
    let dump = |dir: &str| {
        let (env, mut out): (Arc<dyn Env>, _) = (env.clone(), Vec::new());
        dump_store(env, Path::new(dir), 16 << 20, &mut out, &mut |_| ()).unwrap();
        out
    };
    let bytes = dump(STORE);
    let dyn_env: Arc<dyn Env> = env.clone();
    load_store(dyn_env, Path::new("/loaded"), 16 << 20, &mut &bytes[..], &mut |_| ()).unwrap();
    assert_eq!(dump("/loaded"), bytes);
    let dyn_env: Arc<dyn Env> = env.clone();
    let fs = VarveFs::open(dyn_env, Path::new("/loaded"), MountOptions::default()).unwrap();
    let c = fs.find(ROOT, "c").unwrap().ino;
    for (text, len) in [("tiny", 5), ("small", 40_000), ("large", 200_000)] {
        assert_eq!(fs.contents(fs.find(c, text).unwrap().ino), vec![b'x'; len]);
    }
}

#[test]
fn loans_that_are_lost_or_of_nothing_are_found_and_mended() {
    let (env, c) = cloned();
    assert_eq!(check(&env).findings, []);
    let rows = Rows::open(&env);
    let stray = RowKey::clone_reference(InodeId::new(900_000), InodeId::new(900_001));
    rows.put(rows.meta, stray, CloneReference::File.encode());
    let info = rows.all(rows.meta).into_iter().find_map(|(key, value)| {
        let key = RowKey::from_bytes(&key)?;
        matches!(key.meta_kind(), MetaRow::CloneReference(_, ino) if ino == c)
            .then_some((key, value))
    });
    let (loan, _) = info.unwrap();
    rows.delete(rows.meta, loan);
    rows.close();
    let state = loan.prefix();
    let found = check(&env).findings;
    assert!(found.contains(&Finding::MissingLoan { ino: c.get(), state }), "{found:?}");
    assert!(found.contains(&Finding::StrayLoan { ino: 900_001, state: 900_000 }), "{found:?}");
    let report = repair(&env);
    assert_eq!(report.left.findings, [], "{:?}", report.mended);
    let fs = open(&env);
    assert!(fs.list(c).is_empty());
    assert_eq!(fs.list(fs.find(ROOT, "d").unwrap().ino).len(), 4);
}

#[test]
fn a_clone_whose_source_is_gone_keeps_what_it_has() {
    let (env, c) = cloned();
    let fs = open(&env);
    assert_eq!(fs.list(c).len(), 4);
    fs.close().unwrap();
    drop(fs);
    let rows = Rows::open(&env);
    for snapshot in rows.db.snapshots() {
        rows.db.delete_snapshot(&snapshot.name).unwrap();
    }
    rows.close();
    let found = check(&env).findings;
    assert!(found.iter().any(|f| matches!(f, Finding::SourceGone { .. })), "{found:?}");
    let report = repair(&env);
    assert_eq!(report.left.findings, [], "{:?}", report.mended);
    let fs = open(&env);
    assert_eq!(fs.list(c).len(), 4);
    assert_eq!(fs.contents(fs.find(c, "tiny").unwrap().ino), b"xxxxx");
    assert_eq!(fs.contents(fs.find(c, "large").unwrap().ino), b"");
}

fn lockstep(seed: u64, format_options: &FormatOptions) {
    let env = SimEnv::new(seed);
    let dyn_env: Arc<dyn Env> = env.clone();
    format(&dyn_env, Path::new(STORE), format_options).unwrap();
    let universe = Universe { clones_percent: 6, ..Universe::default() };
    let mut lockstep = Lockstep::with_universe(seed, universe);
    let open = || {
        let env: Arc<dyn Env> = env.clone();
        VarveFs::open(env, Path::new(STORE), MountOptions::default()).unwrap()
    };
    for _ in 0..4 {
        let fs = open();
        lockstep.run(&fs, 150).unwrap();
        let report = fs.check(&mut |_| ()).unwrap();
        assert!(report.is_clean(), "seed {seed}: {:?}", report.findings);
        lockstep.run(&fs, 50).unwrap();
        lockstep.release_all(&fs).unwrap();
        let before = whole_tree(&fs).unwrap();
        fs.close().unwrap();
        let fs = open();
        let after = whole_tree(&fs).unwrap();
        assert_eq!(before.differences(&after, Times::Compare), [""; 0], "seed {seed}");
        lockstep.check_tree(&fs).unwrap();
        lockstep.check_usage(&fs).unwrap();
        sound(&fs);
        fs.close().unwrap();
    }
}

#[test]
fn random_operations_with_clones_answer_as_the_model_does() {
    for seed in 0..12 {
        lockstep(seed, &FormatOptions::default());
    }
}

#[test]
fn random_operations_with_clones_and_colliding_names_answer_as_the_model_does() {
    for seed in 100..106 {
        let options = FormatOptions {
            name_hash_bits: 2,
            large_file_threshold_bytes: 4096,
            ..FormatOptions::default()
        };
        lockstep(seed, &options);
    }
}

/// What two file systems of one snapshot unfolded at the same moment was counted twice, or was to be unfolded again.
#[test]
fn a_clone_in_a_snapshot_is_unfolded_once_however_many_look_at_it() {
    let rig = Rig::new();
    let d = rig.mk_dir(ROOT, "d");
    let other = rig.mk_dir(d, "other");
    for i in 0..1500 {
        let ino = rig.mk(d, &format!("file-{i}"));
        if i % 3 == 0 {
            rig.link(ino, other, name(&format!("link-{i}"))).unwrap();
        }
    }
    let clones: Vec<InodeId> =
        (0..8).map(|n| clone(&rig.fs, ROOT, "d", ROOT, &format!("c{n}"))).collect();
    rig.create_snapshot("s").unwrap();
    let views = [(); 2].map(|()| rig.open_view(&snapshot("s")).unwrap());
    for c in clones {
        std::thread::scope(|scope| {
            for view in &views {
                scope.spawn(move || {
                    assert_eq!(view.list(c).len(), 1501);
                    assert_eq!(view.list(view.find(c, "other").unwrap().ino).len(), 500);
                });
            }
        });
        for view in &views {
            assert_eq!(view.list(c).len(), 1501);
            assert_eq!(view.usage(c).unwrap().files, 1500);
            let linked = view.find(c, "file-3").unwrap();
            assert_eq!(linked.nlink, 2);
        }
    }
    drop(views);
    sound(&rig.fs);
}

/// Each directory of a clone that was looked at, each file that was removed, and the end of each transaction, had all clones' sources
/// asked whether anything reads from them.
#[test]
fn a_loan_that_is_returned_asks_no_other_source() {
    const DIRS: usize = 30;
    let scans = |clones: usize| {
        let env = sim_store(1, &FormatOptions::default());
        let fs = open(&env);
        let d = fs.mk_dir(ROOT, "d");
        for n in 0..DIRS {
            let dir = fs.mk_dir(d, &format!("d{n}"));
            fs.put_at(fs.mk(dir, "f"), 0, &[7; 2000]);
        }
        for n in 0..clones {
            clone(&fs, ROOT, "d", ROOT, &format!("c{n}"));
        }
        // What is found out once is known from then on.
        fs.mk(ROOT, "f");
        let count = || {
            let status: serde_json::Value = serde_json::from_str(&fs.status_json()).unwrap();
            status["engine"]["counters"]["scans"].as_u64().unwrap()
        };
        let before = count();
        let c = fs.find(ROOT, "c3").unwrap().ino;
        for n in 0..DIRS {
            let dir = fs.find(c, &format!("d{n}")).unwrap().ino;
            fs.unlink(dir, name("f")).unwrap();
            fs.rmdir(c, name(&format!("d{n}"))).unwrap();
        }
        let walked = count() - before;
        for n in 0..5 {
            let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
            let view = fs.open_view(&txn).unwrap();
            view.mk(ROOT, &format!("t{n}"));
            fs.commit_transaction(&txn.name, &view).unwrap();
            drop(view);
            let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
            fs.abort_transaction(&txn.name).unwrap();
        }
        [walked, count() - before - walked]
    };
    let (few, many) = (scans(5), scans(60));
    for (few, many) in few.into_iter().zip(many) {
        assert!(many <= 2 * few, "{few} scans with 5 clones, {many} with 60");
    }
}
