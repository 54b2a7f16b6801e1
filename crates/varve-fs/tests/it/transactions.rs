//! Transactions with pairs of dictionaries, against limits, on full disks, and by many at once.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_engine::{Direction, KeyRange};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::dictionaries::PairChange;
use varve_fs::fsck::repair::{dropped_views, repair_engine};
use varve_fs::{CommitError, Dictionaries, FormatOptions, Isolation, MountOptions, VarveFs};
use varve_fs::{TransactionOptions, ViewKind, ViewName};
use varve_testkit::hooked::{Before, HookedEnv, Hooks};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, Vfs};

use crate::bench::Rows;
use crate::crash::{STORE, open, sim_store};
use crate::interposed::Instead;
use crate::support::{Calls, READ, ROOT, Rig, WRITE, name};
use crate::views::sound;

fn view_of(id: &str) -> ViewName {
    ViewName { kind: ViewKind::Transaction, name: id.to_owned() }
}

/// Begins a transaction; gives its id and its file system.
fn begin(fs: &VarveFs) -> (String, VarveFs) {
    let view = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let opened = fs.open_view(&view).unwrap();
    (view.name, opened)
}

fn put(key: &str, value: &str) -> PairChange {
    (key.as_bytes().to_vec().into(), Some(value.as_bytes().to_vec().into()))
}

fn get(dictionaries: &Dictionaries, key: &str) -> Option<String> {
    let value = dictionaries.get(b"tags", key.as_bytes()).unwrap();
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

fn keys(dictionaries: &Dictionaries) -> Vec<String> {
    let page = dictionaries.scan(b"tags", KeyRange::all(), Direction::Forward, usize::MAX).unwrap();
    page.pairs.iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect()
}

#[track_caller]
fn conflict(committed: Result<varve_fs::Committed, CommitError>) -> Vec<String> {
    match committed {
        Err(CommitError::Conflict(told)) => told,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pairs_are_seen_committed_and_dropped_with_their_transaction() {
    let rig = Rig::new();
    let main = rig.dictionaries();
    main.create(b"tags").unwrap();
    main.change(b"tags", vec![put("kept", "1"), put("gone", "1")]).unwrap();
    let (id, view) = begin(&rig);
    let own = rig.transaction_dictionaries(&id).unwrap();
    own.change(b"tags", vec![put("kept", "2"), put("new", "2"), (b"gone"[..].into(), None)])
        .unwrap();
    main.change(b"tags", vec![put("later", "1")]).unwrap();
    assert_eq!(keys(&own), ["kept", "new"]);
    assert_eq!(keys(view.dictionaries()), ["kept", "new"]);
    assert_eq!(keys(main), ["gone", "kept", "later"]);
    assert_eq!(get(main, "kept").as_deref(), Some("1"));
    for refused in [own.create(b"more"), own.remove(b"tags")] {
        assert!(matches!(refused, Err(FsError::Invalid(why)) if why.contains("outside")));
    }
    assert_eq!(rig.transaction_pairs(&id).unwrap(), 3);
    let rig = rig.remount();
    let main = rig.dictionaries();
    assert_eq!(keys(&rig.transaction_dictionaries(&id).unwrap()), ["kept", "new"]);
    let view = rig.open_view(&view_of(&id)).unwrap();
    rig.commit_transaction(&id, &view).unwrap();
    assert_eq!(keys(main), ["kept", "later", "new"]);
    assert_eq!(get(main, "kept").as_deref(), Some("2"));
    assert!(own.get(b"tags", b"kept").is_err(), "its transaction has ended");
    let (id, _view) = begin(&rig);
    let own = rig.transaction_dictionaries(&id).unwrap();
    own.change(b"tags", vec![put("kept", "3")]).unwrap();
    rig.abort_transaction(&id).unwrap();
    assert!(matches!(own.change(b"tags", vec![put("kept", "4")]), Err(FsError::Stale)));
    assert!(matches!(rig.transaction_dictionaries(&id), Err(FsError::NotFound)));
    assert_eq!(get(main, "kept").as_deref(), Some("2"));
    sound(&rig);
}

/// The first to commit a pair wins, also where both have made the same of it.
#[test]
fn pairs_in_conflict_are_named() {
    let rig = Rig::new();
    let main = rig.dictionaries();
    main.create(b"tags").unwrap();
    main.change(b"tags", vec![put("count", "1")]).unwrap();
    let ours: [(&str, &[&str]); 3] =
        [("2", &["count"]), ("1", &["count"]), ("2", &["16 bytes of a key"])];
    for (value, changed) in ours {
        let (id, view) = begin(&rig);
        let own = rig.transaction_dictionaries(&id).unwrap();
        for key in changed {
            own.change(b"tags", vec![put(key, value)]).unwrap();
            main.change(b"tags", vec![put(key, "2")]).unwrap();
        }
        let dir = view.mk_dir(ROOT, "dir");
        view.mk(dir, "file");
        let told = conflict(rig.commit_transaction(&id, &view));
        assert_eq!(told, [format!("key {} of dictionary tags", changed[0])]);
        assert!(rig.find(ROOT, "dir").is_err(), "neither files nor pairs");
        rig.abort_transaction(&id).unwrap();
        main.change(b"tags", vec![put("count", "1")]).unwrap();
    }
}

/// A transaction has the dictionaries that were there when it began and still are.
#[test]
fn dictionaries_that_come_and_go_beside_a_transaction() {
    let rig = Rig::new();
    let main = rig.dictionaries();
    main.create(b"tags").unwrap();
    main.change(b"tags", vec![put("k", "old")]).unwrap();
    let (id, view) = begin(&rig);
    let own = rig.transaction_dictionaries(&id).unwrap();
    main.create(b"later").unwrap();
    assert_eq!(own.list().unwrap(), [b"tags"]);
    assert!(matches!(own.get(b"later", b"k"), Err(FsError::NotFound)));
    own.change(b"tags", vec![put("k", "new")]).unwrap();
    main.remove(b"tags").unwrap();
    assert!(matches!(own.get(b"tags", b"k"), Err(FsError::NotFound)));
    let gone = ["dictionary tags, which was dropped"];
    assert_eq!(conflict(rig.commit_transaction(&id, &view)), gone);
    // Another takes its number, then its name.
    main.create(b"other").unwrap();
    assert_eq!(conflict(rig.commit_transaction(&id, &view)), gone);
    main.remove(b"other").unwrap();
    main.create(b"tags").unwrap();
    let rig = rig.remount();
    let main = rig.dictionaries();
    let own = rig.transaction_dictionaries(&id).unwrap();
    assert!(matches!(own.get(b"tags", b"k"), Err(FsError::NotFound)));
    let view = rig.open_view(&view_of(&id)).unwrap();
    assert_eq!(conflict(rig.commit_transaction(&id, &view)), gone);
    rig.abort_transaction(&id).unwrap();
    assert_eq!(main.get(b"tags", b"k").unwrap(), None);
    let (id, _view) = begin(&rig);
    let own = rig.transaction_dictionaries(&id).unwrap();
    assert_eq!(own.list().unwrap(), [&b"later"[..], b"tags"]);
    sound(&rig);
}

/// Works in a transaction on files and their tags until the machine stops; gives the file of the last commit that
/// returned.
fn files_with_tags(env: &Arc<SimEnv>) -> Option<u32> {
    let dyn_env: Arc<dyn Env> = env.clone();
    let fs = VarveFs::open(dyn_env, Path::new(STORE), MountOptions::default()).ok()?;
    let mut committed = None;
    for n in 0..3 {
        let work = || -> FsResult<()> {
            let id = fs.begin_transaction(ROOT, &TransactionOptions::default())?.name;
            let view = fs.open_view(&view_of(&id))?;
            let file = format!("f{n}");
            let own = fs.transaction_dictionaries(&id)?;
            own.change(b"tags", vec![put(&file, "size 3")])?;
            let caller = varve_vfs::Caller::ROOT;
            let made = view.create(caller, ROOT, name(&file), 0o644, crate::support::BOTH)?;
            let (ino, handle) = (made.0.attr.ino, made.1.handle);
            view.write(ino, handle, 0, b"abc", false)?;
            view.release(ino, handle)?;
            fs.commit_transaction(&id, &view).map(drop).map_err(|error| match error {
                CommitError::Failed(error) | CommitError::Unfinished(_, error) => error,
                other => panic!("{other:?}"),
            })
        };
        match work() {
            Ok(()) => committed = Some(n),
            Err(error) => {
                assert!(env.crashed(), "{error}");
                break;
            }
        }
    }
    committed
}

fn tagged_store(seed: u64) -> Arc<SimEnv> {
    let env = sim_store(seed, &FormatOptions::default());
    let fs = open(&env);
    fs.dictionaries().create(b"tags").unwrap();
    fs.close().unwrap();
    env
}

#[test]
fn no_crash_leaves_a_file_without_its_tag() {
    let whole = tagged_store(1);
    let before = whole.op_count();
    assert_eq!(files_with_tags(&whole), Some(2));
    let ops = whole.op_count() - before;
    let mut found = [0; 4];
    for at in 0..ops {
        let env = tagged_store(1);
        env.crash_after(env.op_count() + at);
        let committed = files_with_tags(&env);
        for image in [env.process_kill_within(at), env.power_cut_keep_nothing(), env.power_cut(at)]
        {
            let fs = open(&image);
            let tags = keys(fs.dictionaries());
            assert_eq!(fs.list(ROOT), tags, "crash after {at}");
            assert!(tags.len() as u32 >= committed.map_or(0, |n| n + 1), "crash after {at}");
            found[tags.len()] += 1;
            for txn in fs.transactions().unwrap() {
                // It may have the tag without the file: only a commit makes them one.
                fs.abort_transaction(&txn.name().name).unwrap();
            }
            assert_eq!(keys(fs.dictionaries()), tags, "crash after {at}");
            assert_eq!(fs.list(ROOT), tags, "crash after {at}");
            sound(&fs);
        }
    }
    assert!(found[..3].iter().all(|times| *times > 10), "{found:?}");
}

/// They were those that it does away with.
#[test]
fn a_commit_keeps_to_the_limits_that_it_brings() {
    let rig = Rig::new();
    let (raised, cleared) = (rig.mk_dir(ROOT, "raised"), rig.mk_dir(ROOT, "cleared"));
    let limits = |inodes| varve_vfs::TreeLimits { bytes: None, inodes };
    for top in [raised, cleared] {
        rig.set_limits(top, limits(Some(4))).unwrap();
    }
    let fill = |view: &VarveFs, top, count| {
        for n in 0..count {
            view.mk(top, &format!("f{n}"));
        }
    };
    let (one, first) = begin(&rig);
    first.set_limits(raised, limits(Some(20))).unwrap();
    first.set_limits(cleared, limits(None)).unwrap();
    fill(&first, raised, 10);
    fill(&first, cleared, 10);
    rig.commit_transaction(&one, &first).unwrap();
    sound(&rig);
    // Lower ones hold as well, for what others have done meanwhile.
    let (two, second) = begin(&rig);
    second.set_limits(raised, limits(Some(11))).unwrap();
    second.mk(raised, "g");
    rig.mk(raised, "h");
    assert!(matches!(rig.commit_transaction(&two, &second), Err(CommitError::OverLimits(_))));
}

/// Who has filled a tree may limit it to less, in a transaction as elsewhere; the commit was refused.
#[test]
fn a_commit_brings_limits_on_what_it_has_filled() {
    let cases = [
        (Isolation::Snapshot, false),
        (Isolation::Snapshot, true),
        (Isolation::Serializable, false),
    ];
    for (isolation, are_others_there) in cases {
        for before in [None, Some(100)] {
            let rig = Rig::new();
            let top = rig.mk_dir(ROOT, "top");
            let limits = |inodes| varve_vfs::TreeLimits { bytes: None, inodes };
            for n in 0..10 {
                rig.mk(top, &format!("f{n}"));
            }
            rig.set_limits(top, limits(before)).unwrap();
            let options = TransactionOptions { isolation, ..TransactionOptions::default() };
            let begun = rig.begin_transaction(ROOT, &options).unwrap();
            let view = rig.open_view(&begun).unwrap();
            view.mk(top, "own");
            view.set_limits(top, limits(Some(5))).unwrap();
            if are_others_there {
                rig.mk(top, "other");
            }
            let case = format!("{isolation:?} {before:?} {are_others_there}");
            match rig.commit_transaction(&begun.name, &view) {
                Ok(_) => assert!(!are_others_there, "{case}"),
                Err(CommitError::OverLimits(told)) => {
                    assert!(are_others_there, "{case}");
                    assert_eq!(told, ["/top: 12 files and directories, its limit is 5"]);
                }
                Err(other) => panic!("{case}: {other:?}"),
            }
            sound(&rig);
        }
    }
}

/// Two that each fit do not exceed a limit together.
#[test]
fn a_commit_keeps_to_the_limits_of_its_moment() {
    let rig = Rig::new();
    let (top, free) = (rig.mk_dir(ROOT, "top"), rig.mk_dir(ROOT, "free"));
    let deep = rig.mk_dir(top, "deep");
    let limits = varve_vfs::TreeLimits { bytes: Some(10_000), inodes: Some(8) };
    rig.set_limits(top, limits).unwrap();
    let (one, first) = begin(&rig);
    let (two, second) = begin(&rig);
    for (view, file) in [(&first, "a"), (&second, "b")] {
        let ino = view.mk(deep, file);
        view.put_at(ino, 0, &[1; 6000]);
    }
    rig.commit_transaction(&one, &first).unwrap();
    drop(first);
    let over = |committed| match committed {
        Err(CommitError::OverLimits(told)) => told,
        other => panic!("{other:?}"),
    };
    let told = over(rig.commit_transaction(&two, &second));
    assert_eq!(told, ["/top: 12000 bytes, its limit is 10000"]);
    assert!(rig.find(deep, "b").is_err() && second.find(deep, "b").is_ok(), "nothing changed");
    sound(&rig);
    // Trimmed it fits.
    second.cut(inode(&second, deep, "b"), 4000);
    rig.commit_transaction(&two, &second).unwrap();
    assert_eq!(rig.usage(top).unwrap().bytes, 10_000);
    // By number, by moves into the tree, and by trees that are moved where they grow.
    let (moved, inside) = (rig.mk_dir(free, "moved"), rig.mk_dir(free, "inside"));
    for n in 0..3 {
        rig.mk(moved, &format!("f{n}"));
    }
    let (three, third) = begin(&rig);
    third.mv(free, "moved", top, "moved").unwrap();
    rig.mk(inside, "x");
    rig.mv(free, "inside", deep, "inside").unwrap();
    let told = over(rig.commit_transaction(&three, &third));
    assert_eq!(told, ["/top: 9 files and directories, its limit is 8"]);
    rig.unlink(inside, name("x")).unwrap();
    rig.commit_transaction(&three, &third).unwrap();
    rig.unlink(deep, name("a")).unwrap();
    let grown = rig.mk_dir(free, "grown");
    let (four, fourth) = begin(&rig);
    fourth.mk(grown, "new");
    rig.mv(free, "grown", top, "grown").unwrap();
    let told = over(rig.commit_transaction(&four, &fourth));
    assert_eq!(told, ["/top: 9 files and directories, its limit is 8"]);
    rig.unlink(deep, name("b")).unwrap();
    rig.commit_transaction(&four, &fourth).unwrap();
    sound(&rig);
    let used = rig.quotas(ROOT).unwrap()[0].usage;
    assert_eq!(used, rig.usage(top).unwrap());
    sound(&rig.remount());
}

/// A tree that holds more than its limit allows may shrink by a commit, and stay, but not grow.
#[test]
fn a_commit_may_bring_less_to_a_tree_over_its_limit() {
    let rig = Rig::new();
    let top = rig.mk_dir(ROOT, "top");
    let file = rig.mk(top, "file");
    rig.put_at(file, 0, &[1; 5000]);
    let (id, view) = begin(&rig);
    view.mk(top, "empty");
    view.cut(inode(&view, top, "file"), 4000);
    let limits = varve_vfs::TreeLimits { bytes: Some(1000), inodes: None };
    rig.set_limits(top, limits).unwrap();
    rig.commit_transaction(&id, &view).unwrap();
    assert_eq!(rig.usage(top).unwrap().bytes, 4000);
    sound(&rig);
}

/// Of transactions on one tree that are committed at the same moment one wins, and the others are told.
#[test]
fn commits_of_overlapping_trees_at_one_moment() {
    for round in 0..10 {
        let rig = Rig::new();
        rig.dictionaries().create(b"tags").unwrap();
        let dir = rig.mk_dir(ROOT, "dir");
        let shared = rig.mk(dir, "shared");
        let begun: Vec<(String, VarveFs)> = (0..4).map(|_| begin(&rig)).collect();
        for (n, (id, view)) in begun.iter().enumerate() {
            view.mk(dir, &format!("own{n}"));
            if round % 2 == 0 {
                view.put_at(inode(view, dir, "shared"), 0, format!("by {n}").as_bytes());
            } else {
                let own = rig.transaction_dictionaries(id).unwrap();
                own.change(b"tags", vec![put("shared", &format!("by {n}"))]).unwrap();
            }
        }
        let fs = &rig.fs;
        let won: Vec<usize> = std::thread::scope(|scope| {
            let threads = begun.iter().enumerate().map(|(n, (id, view))| {
                scope.spawn(move || match fs.commit_transaction(id, view) {
                    Ok(_) => Some(n),
                    Err(CommitError::Conflict(told)) => {
                        assert!(told.iter().all(|what| what.contains("shared")), "{told:?}");
                        None
                    }
                    other => panic!("{other:?}"),
                })
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(won.len(), 1);
        let winner = won[0];
        assert_eq!(fs.list(dir), [format!("own{winner}"), "shared".to_owned()]);
        let by = match round % 2 {
            0 => String::from_utf8(fs.contents(shared)).unwrap(),
            _ => get(fs.dictionaries(), "shared").unwrap(),
        };
        assert_eq!(by, format!("by {winner}"));
        assert_eq!(fs.transactions().unwrap().len(), 3);
        sound(fs);
    }
}

/// Files large and small, and a pair, in the main tree and changed in a transaction.
fn worked(env: &Arc<SimEnv>) -> (VarveFs, String, VarveFs) {
    let fs = open(env);
    fs.dictionaries().create(b"tags").unwrap();
    let dir = fs.mk_dir(ROOT, "dir");
    for (name, len) in [("large", 70_000), ("kept", 5000)] {
        let ino = fs.mk(dir, name);
        fs.put_at(ino, 0, &vec![1; len]);
    }
    fs.create_snapshot("before").unwrap();
    let (id, view) = begin(&fs);
    view.put_at(inode(&view, dir, "large"), 60_000, &[2; 20_000]);
    let new = view.mk(dir, "new");
    view.put_at(new, 0, &[3; 80_000]);
    for n in 0..20 {
        let small = view.mk(dir, &format!("small{n}"));
        view.put_at(small, 0, &[4; 3000]);
    }
    let own = fs.transaction_dictionaries(&id).unwrap();
    own.change(b"tags", vec![put("large", "grown")]).unwrap();
    view.sync().unwrap();
    (fs, id, view)
}

/// Whether all of what [`worked`] has changed is there, or nothing.
#[track_caller]
fn is_all_there(fs: &VarveFs) -> bool {
    let dir = inode(fs, ROOT, "dir");
    let changed = fs.list(dir).len() > 2;
    assert_eq!(fs.list(dir).len(), if changed { 23 } else { 2 });
    let mut large = vec![1; 70_000];
    if changed {
        large.truncate(60_000);
        large.extend_from_slice(&[2; 20_000]);
        assert!(fs.contents(inode(fs, dir, "new")) == vec![3; 80_000]);
        assert!(fs.contents(inode(fs, dir, "small7")) == vec![4; 3000]);
    }
    assert!(fs.contents(inode(fs, dir, "large")) == large);
    let tag = fs.dictionaries().get(b"tags", b"large").unwrap();
    assert_eq!(tag.as_deref(), changed.then_some(&b"grown"[..]));
    changed
}

/// A commit that finds the disk full at any of its steps says so, has changed nothing, and goes through once there is
/// room.
#[test]
fn a_disk_that_fills_anywhere_in_a_commit_loses_nothing() {
    let (mut refused, mut room) = (0, 0);
    loop {
        let env = sim_store(3, &FormatOptions::default());
        let (fs, id, view) = worked(&env);
        env.set_capacity(env.used_bytes() + room);
        let committed = fs.commit_transaction(&id, &view);
        env.set_capacity(u64::MAX);
        match &committed {
            Ok(_) => {}
            Err(CommitError::Failed(FsError::NoSpace(_))) => {
                refused += 1;
                assert!(!is_all_there(&fs), "room for {room}");
                assert!(is_all_there(&view), "room for {room}");
                fs.commit_transaction(&id, &view).unwrap();
            }
            Err(other) => panic!("room for {room}: {other:?}"),
        }
        assert!(is_all_there(&fs), "room for {room}");
        assert_eq!(fs.transactions().unwrap().len(), 0);
        sound(&fs);
        drop((fs, view));
        let fs = open(&env.power_cut_keep_nothing());
        assert!(is_all_there(&fs), "room for {room}: durable when it returns");
        sound(&fs);
        if committed.is_ok() && room > 200_000 {
            break;
        }
        room += if room < 16_384 { 512 } else { 16_384 };
    }
    assert!(refused > 5, "{refused} refused");
}

/// Transactions over a store that keeps values apart, larger than its memory, committed, dropped, and cut short.
#[test]
fn transactions_with_values_apart_outgrow_memory() {
    let design = varve_engine::StoreDesign::TABLEFS_COLUMN;
    let options = FormatOptions { design, ..FormatOptions::default() };
    let env = sim_store(5, &options);
    let memory = MountOptions { memory_budget_bytes: 4 << 20, ..MountOptions::default() };
    let open = |env: &Arc<SimEnv>| {
        let dyn_env: Arc<dyn Env> = env.clone();
        VarveFs::open(dyn_env, Path::new(STORE), memory.clone()).unwrap()
    };
    let fs = open(&env);
    let dir = fs.mk_dir(ROOT, "dir");
    let fill = |fs: &VarveFs, dir: InodeId, byte: u8| {
        for n in 0..1500 {
            let ino = match fs.find(dir, &format!("f{n}")) {
                Ok(found) => found.ino,
                Err(_) => fs.mk(dir, &format!("f{n}")),
            };
            fs.put_at(ino, 0, &[byte; 12_000]);
        }
    };
    let is = |fs: &VarveFs, byte: u8| {
        let dir = inode(fs, ROOT, "dir");
        (0..1500)
            .step_by(100)
            .all(|n| fs.contents(inode(fs, dir, &format!("f{n}"))) == [byte; 12_000])
    };
    fill(&fs, dir, 1);
    let (dropped, view) = begin(&fs);
    fill(&view, dir, 2);
    fs.abort_transaction(&dropped).unwrap();
    drop(view);
    assert!(is(&fs, 1));
    let (id, view) = begin(&fs);
    fill(&view, dir, 3);
    view.sync().unwrap();
    assert!(is(&fs, 1) && is(&view, 3));
    let image = env.process_kill();
    let again = open(&image);
    let found = again.open_view(&view_of(&id)).unwrap();
    assert!(is(&again, 1) && is(&found, 3));
    again.commit_transaction(&id, &found).unwrap();
    assert!(is(&again, 3));
    sound(&again);
    for image in [image.power_cut_keep_nothing(), image.process_kill()] {
        let fs = open(&image);
        assert!(is(&fs, 3));
        assert_eq!(fs.transactions().unwrap().len(), 0);
        sound(&fs);
    }
}

/// A repair of anything in the engine dropped all snapshots and transactions. Those that the manifest names are there afterwards
/// and see what they saw, whichever other file was damaged.
#[test]
fn a_repair_keeps_the_views_that_the_manifest_names() {
    for lost in ["CURRENT", "MANIFEST", ".wal", ".table"] {
        let env = sim_store(4, &FormatOptions::default());
        let fs = open(&env);
        fs.create_snapshot("deleted").unwrap();
        fs.mk(ROOT, "before");
        fs.create_snapshot("kept").unwrap();
        let (open_id, view) = begin(&fs);
        view.mk(ROOT, "file");
        let (ended, view) = begin(&fs);
        view.mk(ROOT, "committed");
        fs.commit_transaction(&ended, &view).unwrap();
        fs.delete_snapshot("deleted").unwrap();
        fs.close().unwrap();
        drop((fs, view));
        if lost == ".table" {
            let rows = Rows::open(&env);
            rows.db.flush().unwrap();
            rows.close();
        }
        let engine = Path::new(STORE).join("engine");
        let mut damaged = 0;
        for item in env.list(&engine).unwrap() {
            let (path, name) = (engine.join(&item.name), item.name.to_string_lossy().into_owned());
            if !name.contains(lost) {
                continue;
            }
            damaged += 1;
            let file = env.open(&path, varve_env::OpenMode::ReadWrite).unwrap();
            let len = file.stat().unwrap().len;
            match lost {
                "CURRENT" => file.write_all_at(b"x", 3).unwrap(),
                // Room behind the last edit, and the footer of a table.
                _ => file.write_all_at(&[0xee; 4], len - 4).unwrap(),
            }
        }
        assert!(damaged > 0, "{lost}");
        let dyn_env: Arc<dyn Env> = env.clone();
        let options = varve_fs::fsck::CheckOptions::default();
        let repaired = repair_engine(&dyn_env, Path::new(STORE), &options).unwrap();
        assert!(repaired.lost.is_empty() && !repaired.is_merged, "{lost}: {repaired:?}");
        assert_eq!(dropped_views(&repaired), [], "{lost}");
        let fs = open(&env);
        let open_transactions: Vec<_> =
            fs.transactions().unwrap().into_iter().map(|txn| txn.name()).collect();
        assert_eq!(open_transactions, [view_of(&open_id)], "{lost}");
        assert_eq!(fs.list(ROOT), ["before", "committed"], "{lost}");
        let snapshot = ViewName { kind: ViewKind::Snapshot, name: "kept".to_owned() };
        assert_eq!(fs.open_view(&snapshot).unwrap().list(ROOT), ["before"], "{lost}");
        let txn = fs.open_view(&view_of(&open_id)).unwrap();
        assert_eq!(txn.list(ROOT), ["before", "file"], "{lost}");
        assert!(fs.open_view(&view_of(&ended)).is_err(), "{lost}");
    }
}

fn inode(fs: &VarveFs, dir: InodeId, text: &str) -> InodeId {
    fs.find(dir, text).unwrap().ino
}

/// Whoever opened a transaction that was open already took what had lost its name from under those who had it open.
#[test]
fn a_transaction_that_is_opened_twice_is_settled_when_nobody_has_it_open() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let (id, one) = begin(&fs);
    let ino = one.mk(ROOT, "f");
    one.put_at(ino, 0, &[7; 70_000]);
    let handle = one.open_as(ino, READ);
    one.unlink(ROOT, name("f")).unwrap();
    let grown = one.mk(ROOT, "grown");
    one.put_at(grown, 0, &[7; 70_000]);
    let writer = one.open_as(grown, WRITE);
    one.write(grown, writer, 70_000, &[7; 100], false).unwrap();
    for _ in 0..2 {
        let two = fs.open_view(&view_of(&id)).unwrap();
        assert_eq!(one.read(ino, handle, 60_000, 100).unwrap(), [7; 100][..]);
        drop(two);
    }
    drop(one);
    let again = fs.open_view(&view_of(&id)).unwrap();
    assert_eq!(again.usage(ROOT).unwrap().bytes, 70_100);
    fs.commit_transaction(&id, &again).unwrap();
    drop(again);
    sound(&fs);
}

/// Whoever opened a transaction that was open already took the sync of large files from who had it open, also who had let go of it.
#[test]
fn large_files_of_a_transaction_that_is_opened_twice_are_synced() {
    let written = |fs: &VarveFs| fs.contents(inode(fs, ROOT, "f")) == [7; 200_000];
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let (id, one) = begin(&fs);
    drop(fs.open_view(&view_of(&id)).unwrap());
    one.put_at(one.mk(ROOT, "f"), 0, &[7; 200_000]);
    one.sync().unwrap();
    let fs = open(&env.power_cut_keep_nothing());
    assert!(written(&fs.open_view(&view_of(&id)).unwrap()), "as it was synced");
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let (id, one) = begin(&fs);
    let two = fs.open_view(&view_of(&id)).unwrap();
    one.put_at(one.mk(ROOT, "f"), 0, &[7; 200_000]);
    fs.commit_transaction(&id, &two).unwrap();
    let fs = open(&env.power_cut_keep_nothing());
    assert!(written(&fs), "as it was committed by another");
    sound(&fs);
}

/// The store knew a transaction by a number, but not yet that it was taken, and gave it to another.
#[test]
fn no_power_cut_gives_two_transactions_one_name() {
    let env = sim_store(1, &FormatOptions::default());
    let begin = |fs: &VarveFs| fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let fs = open(&env);
    let first = begin(&fs);
    let env = env.power_cut_keep_nothing();
    drop(fs);
    let fs = open(&env);
    let made = fs.mk(ROOT, "f").get();
    let second = begin(&fs);
    assert_eq!(fs.view_names(ViewKind::Transaction).unwrap().len(), 2);
    let [first, second] = [first, second].map(|view| view.name.parse::<u64>().unwrap());
    assert!(first < made && made < second, "{first}, {made}, {second}");
}

/// Something happens once, before a large file of a transaction is synced.
struct BeforeSync(Arc<Mutex<Option<Instead>>>);

impl Hooks for BeforeSync {
    fn before_syncs_of(&self, path: &Path) -> Option<Before> {
        let once = Arc::clone(&self.0);
        let before: Before = Arc::new(move || {
            let what = once.lock().take();
            what.into_iter().for_each(|what| what());
        });
        path.to_string_lossy().contains("/views/").then_some(before)
    }
}

/// Its directories had gone when the sync of its files came to them, which ended all writing to the store.
#[test]
fn a_transaction_may_end_while_its_large_files_are_synced() {
    let sim = sim_store(1, &FormatOptions::default());
    let happens = Arc::new(Mutex::new(None));
    let env: Arc<dyn Env> = Arc::new(HookedEnv::new(&sim, BeforeSync(Arc::clone(&happens))));
    let fs = VarveFs::open(env, Path::new(STORE), MountOptions::default()).unwrap();
    let fs = Arc::new(fs);
    let (id, view) = begin(&fs);
    for file in ["one", "two"] {
        view.put_at(view.mk(ROOT, file), 0, &[7; 70_000]);
    }
    drop(view);
    let main = Arc::clone(&fs);
    *happens.lock() = Some(Box::new(move || main.abort_transaction(&id).unwrap()));
    fs.sync().unwrap();
    assert!(happens.lock().is_none(), "it ended meanwhile");
    fs.mk(ROOT, "after");
    fs.sync().unwrap();
    sound(&fs);
}
