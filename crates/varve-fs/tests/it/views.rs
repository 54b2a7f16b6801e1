//! Transactions and snapshots where machines crash and disks are full.

use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_fs::fsck::{Finding, Severity};
use varve_fs::{
    CommitError, FormatOptions, Isolation, MountOptions, TransactionOptions, VarveFs, ViewKind,
    ViewName,
};
use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_vfs::{Caller, FsError, FsResult, Vfs};

use crate::crash::{STORE, open, sim_store};
use crate::support::{BOTH, Calls, READ, ROOT, Rig, name};

const LARGE: usize = 70_000;

fn snapshot(fs: &VarveFs, name: &str) -> VarveFs {
    fs.open_view(&ViewName { kind: ViewKind::Snapshot, name: name.to_owned() }).unwrap()
}

/// A store with a snapshot and a transaction that has changed small and large files.
struct Scene {
    fs: VarveFs,
    id: String,
    view: VarveFs,
}

fn txn(id: &str) -> ViewName {
    ViewName { kind: ViewKind::Transaction, name: id.to_owned() }
}

fn scene(env: &Arc<SimEnv>) -> Scene {
    scene_as(env, Isolation::Snapshot)
}

fn scene_as(env: &Arc<SimEnv>, isolation: Isolation) -> Scene {
    let fs = open(env);
    let dir = fs.mk_dir(ROOT, "dir");
    for (name, len) in [("large", LARGE), ("gone", LARGE), ("small", 100), ("replaced", 5000)] {
        let ino = fs.mk(dir, name);
        fs.put_at(ino, 0, &vec![1; len]);
    }
    fs.sync().unwrap();
    fs.create_snapshot("before").unwrap();
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let id = fs.begin_transaction(ROOT, &options).unwrap().name;
    let view = fs.open_view(&txn(&id)).unwrap();
    let dir = view.find(ROOT, "dir").unwrap().ino;
    for name in ["large", "small"] {
        view.put_at(view.find(dir, name).unwrap().ino, 10, b"changed");
    }
    view.unlink(dir, name("gone")).unwrap();
    let new = view.mk(ROOT, "new");
    view.put_at(new, 0, &vec![2; LARGE]);
    view.mv(ROOT, "new", dir, "replaced").unwrap();
    let made = view.mk_dir(dir, "made");
    view.mk(made, "file");
    view.sync().unwrap();
    Scene { fs, id, view }
}

/// Has the large file that the transaction has changed read straight from now on, so that a commit copies it whole.
fn read_straight(env: &Arc<SimEnv>, fs: &VarveFs) {
    let dir = fs.find(ROOT, "dir").unwrap().ino;
    #[allow(clippy::disallowed_methods, reason = "a descriptor that nobody uses")]
    let descriptor = std::fs::File::open("/dev/null").unwrap();
    env.set_descriptor(descriptor.into());
    assert!(fs.open(fs.find(dir, "large").unwrap().ino, READ).unwrap().passthrough);
}

/// What is found of one of the two states: whether the transaction is in it, or what contradicts both.
fn state(fs: &VarveFs) -> Result<bool, String> {
    let dir = fs.find(ROOT, "dir").map_err(|error| error.to_string())?.ino;
    let is = |name: &str, bytes: &[u8]| -> FsResult<bool> {
        let ino = fs.find(dir, name)?.ino;
        Ok(fs.contents(ino) == bytes)
    };
    let mut changed = vec![1; LARGE];
    changed[10..17].copy_from_slice(b"changed");
    let facts = [
        is("large", &changed).unwrap(),
        is("small", &changed[..100]).unwrap(),
        fs.find(dir, "gone").is_err(),
        is("replaced", &vec![2; LARGE]).unwrap(),
        fs.find(dir, "made").is_ok_and(|made| fs.find(made.ino, "file").is_ok()),
    ];
    let old = [is("large", &vec![1; LARGE]), is("small", &[1; 100]), is("gone", &vec![1; LARGE])];
    match facts {
        [true, true, true, true, true] => Ok(true),
        [false, false, false, false, false]
            if old.into_iter().all(|old| old.is_ok_and(|old| old)) =>
        {
            Ok(false)
        }
        other => Err(format!("{other:?}")),
    }
}

/// Nothing is broken. What these tests have looked up and others have removed waits to be forgotten.
#[track_caller]
pub(crate) fn sound(fs: &VarveFs) {
    let report = fs.check(&mut |_| ()).unwrap();
    let broken = report.findings.into_iter().filter(|found| {
        found.severity() != Severity::Waste && !matches!(found, Finding::Pending { .. })
    });
    assert_eq!(broken.collect::<Vec<_>>(), []);
}

/// The snapshot is as it was, and the transaction either over or still to be committed.
fn check(fs: &VarveFs, id: &str) -> bool {
    let committed = state(fs).unwrap();
    let before = snapshot(fs, "before");
    assert_eq!(state(&before), Ok(false));
    sound(fs);
    let open = fs.transactions().unwrap();
    assert_eq!(open.len(), usize::from(!committed));
    if !committed {
        let view = fs.open_view(&txn(id)).unwrap();
        assert_eq!(state(&view), Ok(true));
        fs.commit_transaction(id, &view).unwrap();
        assert_eq!(state(fs), Ok(true));
        assert_eq!(state(&before), Ok(false));
        sound(fs);
    }
    committed
}

#[test]
fn a_name_that_was_absent_before_a_commit_is_there_after_it() {
    let fs = open(&sim_store(1, &FormatOptions::default()));
    let id = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap().name;
    let view = fs.open_view(&txn(&id)).unwrap();
    view.mk(ROOT, "new");
    assert!(fs.find(ROOT, "new").is_err());
    fs.commit_transaction(&id, &view).unwrap();
    let made = fs.mkdir(Caller::ROOT, ROOT, name("new"), 0o755);
    assert!(matches!(made, Err(FsError::Exists)), "{made:?}");
}

/// What the end of the process, or a power cut, may leave.
fn images(env: &Arc<SimEnv>, n: u64) -> [Arc<SimEnv>; 4] {
    [
        env.process_kill_within(n),
        env.power_cut_keep_nothing(),
        env.power_cut_keep_all(),
        env.power_cut(n),
    ]
}

/// Also where what others read is copied: its object had moved to where a snapshot sees it, and the copy was lost.
#[test]
fn every_crash_of_a_commit_leaves_all_of_it_or_nothing() {
    for straight in [false, true] {
        let (mut whole, mut absent) = (0, 0);
        for n in 0.. {
            let env = sim_store(n, &FormatOptions::default());
            let Scene { fs, id, view } = scene(&env);
            if straight {
                read_straight(&env, &fs);
            }
            env.crash_after(env.op_count() + n);
            let committed = fs.commit_transaction(&id, &view);
            let crashed = env.crashed();
            assert!(crashed || committed.is_ok(), "{committed:?}");
            for image in images(&env, n) {
                let fs = open(&image);
                let found = check(&fs, &id);
                assert!(found || committed.is_err(), "a commit that returned is lost");
                if found { whole += 1 } else { absent += 1 }
            }
            if !crashed {
                break;
            }
        }
        assert!(whole > 20 && absent > 20, "{whole} whole, {absent} absent");
    }
}

/// In a transaction a file becomes large, and others that are open there lose their names. The process dies anywhere in that;
/// what it left was installed as a large file that no row claims, or stayed for good.
#[test]
fn a_transaction_that_a_crash_left_commits_what_its_rows_say() {
    let (mut large, mut small) = (0, 0);
    for n in 0.. {
        let env = sim_store(1, &FormatOptions::default());
        let fs = open(&env);
        for (name, len) in [("grows", 100), ("goes", 100), ("large goes", LARGE)] {
            fs.put_at(fs.mk(ROOT, name), 0, &vec![1; len]);
        }
        let id = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap().name;
        let view = fs.open_view(&txn(&id)).unwrap();
        fs.sync().unwrap();
        env.crash_after(env.op_count() + n);
        let work = || -> FsResult<()> {
            let new = view.create(Caller::ROOT, ROOT, name("new"), 0o644, BOTH)?.0.attr.ino;
            for file in ["goes", "large goes"] {
                let ino = view.find(ROOT, file)?.ino;
                let handle = view.open(ino, BOTH)?.handle;
                view.unlink(ROOT, name(file))?;
                view.write(ino, handle, 0, &vec![2; LARGE], false)?;
            }
            for ino in [view.find(ROOT, "grows")?.ino, new] {
                let handle = view.open(ino, BOTH)?.handle;
                view.write(ino, handle, 50, &vec![2; LARGE], false)?;
            }
            Ok(())
        };
        let done = work();
        let crashed = env.crashed();
        assert!(crashed || done.is_ok(), "{done:?}");
        drop((view, fs));
        let image = env.process_kill();
        let fs = open(&image);
        let view = fs.open_view(&txn(&id)).unwrap();
        let found = |fs: &VarveFs| -> Vec<(String, Vec<u8>)> {
            let names = fs.list(ROOT).into_iter();
            names
                .map(|name| (name.clone(), fs.contents(fs.find(ROOT, &name).unwrap().ino)))
                .collect()
        };
        let expected = found(&view);
        fs.commit_transaction(&id, &view).unwrap();
        drop(view);
        assert!(found(&fs) == expected, "crash {n}");
        fs.close().unwrap();
        drop(fs);
        let fs = open(&image);
        assert!(found(&fs) == expected, "crash {n}");
        assert_eq!(fs.check(&mut |_| ()).unwrap().findings, [], "crash {n}");
        let grown = expected.iter().any(|(name, bytes)| name == "grows" && bytes.len() > LARGE);
        if grown {
            large += 1
        } else {
            small += 1
        }
        if !crashed {
            break;
        }
    }
    assert!(large > 2 && small > 10, "{large} large, {small} small");
}

/// What the store has after a crash in a commit is first looked at without writing. That mount threw away what the commit had not
/// put in place yet.
#[test]
fn a_read_only_mount_after_a_crash_of_a_commit_shows_all_of_it_or_nothing() {
    let (mut whole, mut absent) = (0, 0);
    for n in 0.. {
        let env = sim_store(n, &FormatOptions::default());
        let Scene { fs, id, view } = scene(&env);
        read_straight(&env, &fs);
        env.crash_after(env.op_count() + n);
        let committed = fs.commit_transaction(&id, &view);
        for image in images(&env, n) {
            let dyn_env: Arc<dyn Env> = image.clone();
            let read_only = MountOptions { read_only: true, ..MountOptions::default() };
            let fs = VarveFs::open(dyn_env, Path::new(STORE), read_only).unwrap();
            let found = state(&fs).unwrap();
            assert_eq!(state(&snapshot(&fs, "before")), Ok(false), "crash {n}");
            if n.is_multiple_of(2) {
                fs.close().unwrap();
            }
            drop(fs);
            let fs = open(&image.process_kill());
            assert_eq!(check(&fs, &id), found, "crash {n}");
            if found { whole += 1 } else { absent += 1 }
        }
        if committed.is_ok() {
            break;
        }
    }
    assert!(whole > 20 && absent > 20, "{whole} whole, {absent} absent");
}

/// A serializable transaction ends with the process, as what it has looked at is not protected after that: its commit
/// is there, or nothing of it.
#[test]
fn every_crash_of_a_serializable_transaction_leaves_all_of_it_or_nothing() {
    let (mut whole, mut absent) = (0, 0);
    for n in 0.. {
        let env = sim_store(n, &FormatOptions::default());
        let Scene { fs, id, view } = scene_as(&env, Isolation::Serializable);
        env.crash_after(env.op_count() + n);
        let aborts = n % 4 == 0;
        let ended = match aborts {
            true => fs.abort_transaction(&id).is_ok(),
            false => fs.commit_transaction(&id, &view).is_ok(),
        };
        let crashed = env.crashed();
        assert!(crashed || ended);
        for image in images(&env, n) {
            let fs = open(&image);
            let found = state(&fs).unwrap();
            assert!(!found || !aborts, "what was aborted is there");
            assert!(found || aborts || !ended, "a commit that returned is lost");
            assert_eq!(fs.transactions().unwrap().len(), 0);
            sound(&fs);
            if found { whole += 1 } else { absent += 1 }
        }
        if !crashed && !aborts {
            break;
        }
    }
    assert!(whole > 20 && absent > 20, "{whole} whole, {absent} absent");
}

/// The storage fails once, anywhere in a commit. Who is told that it is not committed finds nothing of it, now and after mounting
/// again; who is told that something of it is missing finds all of it after mounting again. Failures of what follows a commit
/// were told as if it had not happened.
#[test]
fn a_commit_that_meets_a_failure_says_whether_it_has_happened() {
    let (mut refused, mut unfinished) = (0, 0);
    let kinds = [
        (SimOp::Open, 5),
        (SimOp::Stat, 5),
        (SimOp::Read, 5),
        (SimOp::Write, 5),
        (SimOp::Write, 28),
        (SimOp::Create, 28),
        (SimOp::SetLen, 5),
        (SimOp::Sync, 5),
        (SimOp::SyncDir, 5),
        (SimOp::SyncFs, 5),
        (SimOp::Rename, 5),
        (SimOp::Remove, 5),
    ];
    for (op, errno) in kinds {
        for nth in 1.. {
            let env = sim_store(1, &FormatOptions::default());
            let Scene { fs, id, view } = scene(&env);
            read_straight(&env, &fs);
            let path_suffix = String::new();
            env.fail(FaultRule { path_suffix, op, nth, errno, sticky: false });
            let committed = fs.commit_transaction(&id, &view);
            let met = env.fault_count() > 0;
            env.clear_faults();
            let what = format!("{op:?} {nth}: {committed:?}");
            let has_happened = match &committed {
                Ok(_) => true,
                Err(error) => error.committed().is_some(),
            };
            if !has_happened || committed.is_ok() {
                assert_eq!(state(&fs), Ok(has_happened), "{what}");
            }
            refused += u32::from(!has_happened);
            unfinished += u32::from(has_happened && committed.is_err());
            drop((view, fs));
            let fs = open(&env.process_kill());
            assert_eq!(state(&fs), Ok(has_happened), "{what}");
            assert_eq!(fs.transactions().unwrap().is_empty(), has_happened, "{what}");
            sound(&fs);
            if !met {
                break;
            }
        }
    }
    assert!(refused > 20 && unfinished > 10, "{refused} refused, {unfinished} unfinished");
}

#[test]
fn a_full_disk_refuses_a_commit_and_loses_nothing() {
    let env = sim_store(1, &FormatOptions::default());
    let Scene { fs, id, view } = scene(&env);
    env.set_capacity(env.used_bytes());
    let refused = fs.commit_transaction(&id, &view);
    env.set_capacity(u64::MAX);
    if let Err(error) = refused {
        assert!(matches!(error, CommitError::Failed(_)), "{error:?}");
        assert_eq!(state(&fs), Ok(false));
        assert_eq!(state(&view), Ok(true));
        fs.commit_transaction(&id, &view).unwrap();
    }
    assert_eq!(state(&fs), Ok(true));
    drop((fs, view));
    let env: Arc<dyn Env> = env.process_kill();
    sound(&VarveFs::open(env, Path::new(STORE), MountOptions::default()).unwrap());
}

/// Where there is no room to keep what a view sees of a large file, the file cannot be changed, and the view is as it was.
#[test]
fn a_full_disk_refuses_to_change_what_a_view_sees() {
    let (mut refused, mut written) = (0, 0);
    for room in 0..40 {
        let env = sim_store(1, &FormatOptions::default());
        let fs = open(&env);
        let ino = fs.mk(ROOT, "large");
        fs.put_at(ino, 0, &vec![1; LARGE]);
        let handle = fs.open_as(ino, BOTH);
        fs.sync().unwrap();
        fs.create_snapshot("before").unwrap();
        env.set_capacity(env.used_bytes() + room * 4096);
        let changed = fs.write(ino, handle, 10, b"changed", false);
        env.set_capacity(u64::MAX);
        match changed {
            Err(ref error) => {
                assert!(matches!(error, FsError::NoSpace(_)), "{error:?}");
                refused += 1;
            }
            Ok(_) => written += 1,
        }
        let view = snapshot(&fs, "before");
        assert_eq!(view.find(ROOT, "large").unwrap().ino, ino);
        assert!(fs.contents(ino)[10] == if changed.is_ok() { b'c' } else { 1 });
        assert!(view.contents(ino) == vec![1; LARGE]);
        fs.write(ino, handle, 10, b"changed", false).unwrap();
        fs.release(ino, handle).unwrap();
        assert!(fs.contents(ino)[10..17] == *b"changed" && view.contents(ino) == vec![1; LARGE]);
        sound(&fs);
    }
    assert!(refused > 10 && written > 10, "{refused} refused, {written} written");
}

/// Files come and go in the main tree and in transactions at the same time, in the same directories; the accounts of
/// all directories stay right.
#[test]
fn commits_keep_the_accounts_of_directories() {
    let mut commits = 0;
    for seed in 0..6 {
        let (rig, mut rng) = (Rig::new(), Rng::new(seed));
        let fs = &rig.fs;
        let mut dirs = vec![ROOT];
        for i in 0..6 {
            let above = *rng.pick(&dirs);
            dirs.push(fs.mk_dir(above, &format!("d{i}")));
        }
        let mut next = 0;
        let mut work = |fs: &VarveFs, dirs: &[InodeId], rng: &mut Rng| {
            for _ in 0..10 {
                next += 1;
                let dir = *rng.pick(dirs);
                let ino = fs.mk(dir, &format!("f{next}"));
                fs.put_at(ino, 0, &vec![1; rng.below(3000) as usize + 1]);
                let old = format!("f{}", rng.below(next) + 1);
                // Most names are in other directories, or in another view.
                let _ = fs.unlink(*rng.pick(dirs), name(&old));
            }
        };
        for _ in 0..8 {
            let id = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap().name;
            let view = fs.open_view(&txn(&id)).unwrap();
            work(&view, &dirs, &mut rng);
            work(fs, &dirs, &mut rng);
            match fs.commit_transaction(&id, &view) {
                Err(CommitError::Conflict(paths)) => {
                    assert!(paths.iter().all(|path| path.contains("/f")), "{paths:?}");
                    fs.abort_transaction(&id).unwrap();
                }
                committed => {
                    committed.unwrap();
                    commits += 1;
                }
            }
            sound(fs);
        }
        sound(&rig.remount().fs);
    }
    assert!(commits > 20, "{commits}");
}
