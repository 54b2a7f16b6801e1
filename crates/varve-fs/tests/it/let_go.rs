//! Large files that nobody writes to any more, and whose rows could not follow them.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use varve_env::Env;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_fs::{CommitError, FormatOptions, Isolation, MountOptions, TransactionOptions, VarveFs};
use varve_types::InodeId;
use varve_vfs::{Caller, FsError, FsResult, Handle, OpenFlags, SeekFrom, SetAttr, TreeLimits, Vfs};

use crate::crash::{STORE, open, sim_store};
use crate::interposed::{Interposed, interposed};
use crate::snapshots::view;
use crate::support::{BOTH, Calls, READ, ROOT, Rig, WRITE, name, opened_straight, os_env};

const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;
const LARGE: usize = 100_000;

/// The next operation `op` on the object of `ino`, or with `None` on any file, fails.
fn fail_next(env: &SimEnv, op: SimOp, errno: i32, ino: Option<InodeId>) {
    fail(env, op, errno, ino, 1);
}

fn fail(env: &SimEnv, op: SimOp, errno: i32, ino: Option<InodeId>, nth: u64) {
    let path_suffix = ino.map_or_else(String::new, |ino| format!("/{}", ino.get()));
    env.fail(FaultRule { path_suffix, op, nth, errno, sticky: false });
}

fn begin_serializable(fs: &VarveFs) -> FsResult<(String, VarveFs)> {
    let isolation = Isolation::Serializable;
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let txn = fs.begin_transaction(ROOT, &options)?;
    Ok((txn.name.clone(), fs.open_view(&txn)?))
}

/// A store with a large file whose bytes are durable, as all is that earlier processes left.
fn store_with_file() -> (Arc<SimEnv>, VarveFs, InodeId) {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "f");
    fs.mk(ROOT, "other");
    fs.put_at(ino, 0, &[1; LARGE]);
    fs.sync().unwrap();
    (env, fs, ino)
}

/// Writes to `f` and lets go of it while its row cannot follow.
fn write_and_fail_to_settle(env: &SimEnv, fs: &VarveFs, ino: InodeId) {
    let handle = fs.open_as(ino, WRITE);
    fs.write(ino, handle, 0, &[2; LARGE], false).unwrap();
    fail_to_settle(env, fs, ino, handle);
}

fn fail_to_settle(env: &SimEnv, fs: &VarveFs, ino: InodeId, handle: Handle) {
    let before = env.fault_count();
    fail_next(env, SimOp::Stat, EMFILE, Some(ino));
    fs.release(ino, handle).unwrap();
    assert_eq!(env.fault_count(), before + 1);
}

fn after_power_cut(env: &SimEnv, fs: VarveFs, text: &str) -> Vec<u8> {
    let env = env.power_cut_keep_nothing();
    drop(fs);
    let fs = open(&env);
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
    fs.contents(fs.find(ROOT, text).unwrap().ino)
}

type Sync<'a> = (&'a str, &'a dyn Fn(&VarveFs) -> FsResult<()>);

/// Its bytes were left out of each sync but that of everything.
#[test]
fn a_sync_of_anything_covers_a_closed_file_whose_row_could_not_follow() {
    let fsync_other = |fs: &VarveFs| {
        let other = fs.find(ROOT, "other")?.ino;
        let handle = fs.open_as(other, WRITE);
        fs.fsync(other, handle, true)
    };
    let syncs: [Sync<'_>; 3] = [
        ("a directory", &|fs| fs.fsync_dir(ROOT)),
        ("another file", &fsync_other),
        ("everything", &|fs| fs.sync()),
    ];
    for (what, sync) in syncs {
        let (env, fs, ino) = store_with_file();
        write_and_fail_to_settle(&env, &fs, ino);
        sync(&fs).unwrap();
        assert!(after_power_cut(&env, fs, "f") == [2; LARGE], "{what}");
    }
}

/// Moves `f` to a directory, has a transaction lock that, and lets go of the file after writing to it.
fn write_beside_locks(fs: &VarveFs, ino: InodeId) -> (InodeId, String) {
    let dir = fs.mk_dir(ROOT, "dir");
    fs.mv(ROOT, "f", dir, "f").unwrap();
    let handle = fs.open_as(ino, WRITE);
    fs.write(ino, handle, 0, &[2; LARGE], false).unwrap();
    fs.write(ino, handle, LARGE as u64, &[2], false).unwrap();
    let (id, view) = begin_serializable(fs).unwrap();
    view.mv(ROOT, "dir", ROOT, "moved").unwrap();
    fs.release(ino, handle).unwrap();
    (dir, id)
}

/// The same where a transaction has its directory locked.
#[test]
fn a_sync_of_a_directory_covers_a_file_closed_beside_locks() {
    let (env, fs, ino) = store_with_file();
    let (dir, _) = write_beside_locks(&fs, ino);
    fs.fsync_dir(dir).unwrap();
    let env = env.power_cut_keep_nothing();
    drop(fs);
    let fs = open(&env);
    let dir = fs.find(ROOT, "dir").unwrap().ino;
    assert!(fs.contents(fs.find(dir, "f").unwrap().ino) == [2; LARGE + 1]);
}

/// It counted as open no more, and no row claimed it yet.
#[test]
fn a_sync_of_everything_covers_a_file_that_is_being_closed() {
    let sim = sim_store(1, &FormatOptions::default());
    let env = Arc::new(interposed(&sim));
    // Closing a file opens it, so that something can happen there.
    let options = MountOptions { open_files_max: 1, ..MountOptions::default() };
    let dyn_env: Arc<dyn Env> = Arc::<Interposed>::clone(&env);
    let fs = Arc::new(VarveFs::open(dyn_env, Path::new(STORE), options).unwrap());
    let [ino, other] = ["f", "other"].map(|text| fs.mk(ROOT, text));
    [ino, other].into_iter().for_each(|ino| fs.put_at(ino, 0, &[1; LARGE]));
    fs.sync().unwrap();
    let handle = fs.open_as(ino, WRITE);
    fs.write(ino, handle, 0, &[2; LARGE], false).unwrap();
    fs.contents(other);
    let (seen, cut) = (Arc::downgrade(&fs), Arc::new(Mutex::new(None)));
    let (machine, after) = (Arc::clone(&sim), Arc::clone(&cut));
    *env.hooks.after_open.lock() = Some(Box::new(move || {
        seen.upgrade().unwrap().sync().unwrap();
        *after.lock() = Some(machine.power_cut_keep_nothing());
    }));
    fs.release(ino, handle).unwrap();
    let env = cut.lock().take().expect("its closing opened it");
    let fs = open(&env);
    assert!(fs.contents(fs.find(ROOT, "f").unwrap().ino) == [2; LARGE]);
}

/// The sync failed, as the file was gone that was open when it began.
#[test]
fn a_sync_of_everything_passes_over_a_file_that_is_removed_meanwhile() {
    let sim = sim_store(1, &FormatOptions::default());
    let env = Arc::new(interposed(&sim));
    // So that the sync opens both, one after the other.
    let options = MountOptions { open_files_max: 1, ..MountOptions::default() };
    let dyn_env: Arc<dyn Env> = Arc::<Interposed>::clone(&env);
    let fs = Arc::new(VarveFs::open(dyn_env, Path::new(STORE), options).unwrap());
    let [ino, other] = ["f", "other"].map(|text| fs.mk(ROOT, text));
    [ino, other].into_iter().for_each(|ino| fs.put_at(ino, 0, &[1; LARGE]));
    fs.sync().unwrap();
    let [_stays, handle] = [ino, other].map(|ino| {
        let handle = fs.open_as(ino, WRITE);
        fs.write(ino, handle, 0, &[2; LARGE], false).unwrap();
        handle
    });
    let (seen, gone) = (Arc::downgrade(&fs), Arc::new(AtomicBool::new(false)));
    let is_gone = Arc::clone(&gone);
    *env.hooks.after_open.lock() = Some(Box::new(move || {
        let fs = seen.upgrade().unwrap();
        fs.release(other, handle).unwrap();
        fs.unlink(ROOT, name("other")).unwrap();
        fs.forget(other, 1);
        is_gone.store(fs.getattr(other).is_err(), Ordering::Relaxed);
    }));
    fs.sync().unwrap();
    assert!(gone.load(Ordering::Relaxed), "it was not removed while the sync opened the first");
    assert!(after_power_cut(&sim, Arc::into_inner(fs).unwrap(), "f") == [2; LARGE]);
}

/// Its row could not follow the writer, as nothing without a name does, and stayed so with its name.
#[test]
fn a_sync_covers_a_file_that_got_its_name_after_it_was_written() {
    for is_synced_first in [false, true] {
        let (env, fs, _) = store_with_file();
        let (entry, opened) = fs.tmpfile(Caller::ROOT, ROOT, 0o600, BOTH).unwrap();
        let ino = entry.attr.ino;
        fs.write(ino, opened.handle, 0, &[2; LARGE], false).unwrap();
        if is_synced_first {
            fs.sync().unwrap();
            fs.write(ino, opened.handle, 0, &[3; LARGE], false).unwrap();
        }
        let reader = fs.open_as(ino, READ);
        fs.release(ino, opened.handle).unwrap();
        fs.link(ino, ROOT, name("new")).unwrap();
        fs.fsync_dir(ROOT).unwrap();
        fs.release(ino, reader).unwrap();
        let expected = if is_synced_first { [3; LARGE] } else { [2; LARGE] };
        assert!(after_power_cut(&env, fs, "new") == expected, "synced first: {is_synced_first}");
    }
}

/// Whether a serializable transaction may change `f`, which it may not while somebody writes to it.
fn is_free(fs: &VarveFs) -> bool {
    let (id, view) = begin_serializable(fs).unwrap();
    let ino = view.find(ROOT, "f").unwrap().ino;
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    let changed = view.setattr(Caller::ROOT, ino, set);
    drop(view);
    fs.abort_transaction(&id).unwrap();
    match changed {
        Ok(_) => true,
        Err(FsError::Busy) => false,
        Err(error) => panic!("{error}"),
    }
}

type Call<'a> = (&'a str, &'a dyn Fn(&VarveFs, InodeId) -> FsResult<()>);

/// A call that failed after the row said that the file is written to left it so.
#[test]
fn a_call_that_fails_leaves_nobody_who_writes() {
    const KINDS: [(SimOp, i32); 7] = [
        (SimOp::Stat, EMFILE),
        (SimOp::Open, EMFILE),
        (SimOp::Create, ENOSPC),
        (SimOp::CreateDir, ENOSPC),
        (SimOp::SetLen, ENOSPC),
        (SimOp::SetTimes, ENOSPC),
        (SimOp::Write, ENOSPC),
    ];
    let set_size = |fs: &VarveFs, ino, size| {
        fs.setattr(Caller::ROOT, ino, SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
    };
    let open_as = |fs: &VarveFs, ino, flags| {
        let opened = fs.open(ino, flags)?;
        fs.release(ino, opened.handle)
    };
    let calls: [Call<'_>; 5] = [
        ("cut", &|fs, ino| set_size(fs, ino, 10)),
        ("extend", &|fs, ino| set_size(fs, ino, 2 * LARGE as u64)),
        ("open", &|fs, ino| open_as(fs, ino, WRITE)),
        ("open sync", &|fs, ino| open_as(fs, ino, OpenFlags { sync: true, ..WRITE })),
        ("open cut", &|fs, ino| open_as(fs, ino, OpenFlags { truncate: true, ..WRITE })),
    ];
    let mut failed = 0;
    for (what, call) in calls {
        for (op, errno) in KINDS {
            for nth in 1.. {
                let (env, fs, ino) = store_with_file();
                // What it sees is kept before it changes.
                fs.create_snapshot("then").unwrap();
                fail(&env, op, errno, None, nth);
                let done = call(&fs, ino);
                if env.fault_count() == 0 {
                    break;
                }
                failed += u32::from(done.is_err());
                if done.is_err() {
                    assert!(is_free(&fs), "{what}, {op:?} {nth}");
                }
            }
        }
    }
    assert!(failed > 20, "{failed}");
}

/// It was kept for the snapshot, so that its room came back with the end of that.
#[test]
fn a_file_that_could_not_become_large_leaves_nothing_beside_snapshots() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "f");
    fs.put_at(ino, 0, &[1; 1000]);
    fs.create_snapshot("then").unwrap();
    let before = env.files_raw();
    fail_next(&env, SimOp::Write, ENOSPC, Some(ino));
    let handle = fs.open_as(ino, WRITE);
    let written = fs.write(ino, handle, 0, &[2; LARGE], false);
    assert!(matches!(written, Err(FsError::NoSpace(_))), "{written:?}");
    fs.release(ino, handle).unwrap();
    assert_eq!(env.files_raw(), before);
    assert_eq!(fs.contents(ino), [1; 1000]);
}

/// It looked written to until somebody wrote to it again, or the next mount.
#[test]
fn a_row_that_could_not_follow_follows_later() {
    let (env, fs, ino) = store_with_file();
    fs.create_snapshot("then").unwrap();
    let before = fs.usage(ROOT).unwrap().bytes;
    let handle = fs.open_as(ino, WRITE);
    fs.write(ino, handle, LARGE as u64, &[2; LARGE], false).unwrap();
    fail_to_settle(&env, &fs, ino, handle);
    fs.mk_dir(ROOT, "at once");
    assert_eq!(fs.usage(ROOT).unwrap().bytes, before);
    env.sleep(Duration::from_secs(1));
    fs.mk_dir(ROOT, "a second later");
    assert_eq!(fs.usage(ROOT).unwrap().bytes, before + LARGE as u64);

    write_and_fail_to_settle(&env, &fs, ino);
    assert!(is_free(&fs));
    write_and_fail_to_settle(&env, &fs, ino);
    fs.roll_back("then").unwrap();
    assert!(fs.contents(ino) == [1; LARGE]);
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}

/// Who came first after a second tried all that waited.
#[test]
fn few_of_many_rows_that_cannot_follow_are_tried_at_once() {
    const FILES: u64 = 200;
    const AT_ONCE_MAX: u64 = 64;
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let open_file = |n| {
        let ino = fs.mk(ROOT, &format!("f{n}"));
        fs.put_at(ino, 0, &[1; LARGE]);
        let handle = fs.open_as(ino, WRITE);
        fs.write(ino, handle, LARGE as u64, &[2; 10], false).unwrap();
        (ino, handle)
    };
    let files: Vec<_> = (0..FILES).map(open_file).collect();
    let fault = FaultRule {
        path_suffix: String::new(),
        op: SimOp::Stat,
        nth: 1,
        errno: EMFILE,
        sticky: true,
    };
    env.fail(fault);
    files.iter().for_each(|(ino, handle)| fs.release(*ino, *handle).unwrap());
    let mut made = 0;
    let mut tries_of_change = || {
        let before = env.fault_count();
        made += 1;
        fs.mk(ROOT, &format!("x{made}"));
        env.fault_count() - before
    };
    let own = tries_of_change();
    for second in 0..5 {
        assert_eq!(tries_of_change(), own, "before it is time");
        env.sleep(Duration::from_secs(1));
        assert_eq!(tries_of_change(), own + AT_ONCE_MAX, "{second}");
    }
    let behind = fs.usage(ROOT).unwrap().bytes;
    env.clear_faults();
    env.sleep(Duration::from_secs(1));
    // What can be done at all does not wait for another second.
    for n in 0..FILES.div_ceil(AT_ONCE_MAX) {
        fs.mk_dir(ROOT, &format!("d{n}"));
    }
    assert_eq!(fs.usage(ROOT).unwrap().bytes, behind + 10 * FILES);
}

/// Who was to bring its row up to date, and failed, kept the file from ever going.
#[test]
fn a_file_whose_row_could_not_follow_late_either_goes() {
    let (env, fs, ino) = store_with_file();
    let (dir, id) = write_beside_locks(&fs, ino);
    fs.abort_transaction(&id).unwrap();
    fail_next(&env, SimOp::Stat, EMFILE, Some(ino));
    fs.mk_dir(ROOT, "and again");
    assert_eq!(env.fault_count(), 1);
    fs.unlink(dir, name("f")).unwrap();
    fs.forget(ino, 1);
    env.sleep(Duration::from_secs(1));
    fs.mk_dir(ROOT, "a second later");
    fs.sync().unwrap();
    let object = format!("/{}", ino.get());
    let left = env.files_raw().into_iter().filter(|path| path.to_string_lossy().ends_with(&object));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<std::path::PathBuf>::new());
}

/// The next mount took what a program went on appending straight, even synchronously, for what a power cut had left, and cut it off; and
/// the program's changes showed in snapshots.
#[test]
fn who_has_a_file_open_straight_when_the_daemon_dies_goes_on_writing() {
    let mut rig = Rig::new();
    let ino = rig.mk(ROOT, "f");
    rig.put_at(ino, 0, &[1; LARGE]);
    let opened = rig.open(ino, WRITE).unwrap();
    let mut file = None;
    rig.with_passthrough(opened.handle, &mut |fd| file = Some(opened_straight(fd))).unwrap();
    let (file, mut expected) = (file.unwrap(), vec![1; LARGE]);
    let append = |expected: &mut Vec<u8>| {
        file.write_all_at(&[2; 1000], expected.len() as u64).unwrap();
        expected.resize(expected.len() + 1000, 2);
    };
    for mount in 0..4 {
        rig = match mount {
            1 => rig.remount(),
            2 => rig.after_upgrade(),
            _ => rig.after_death(),
        };
        let ino = rig.find(ROOT, "f").unwrap().ino;
        append(&mut expected);
        assert!(rig.contents(ino) == expected, "{mount}: somebody has opened it");
        rig.put_at(ino, 0, &[1; 10]);
        append(&mut expected);
        assert!(rig.contents(ino) == expected, "{mount}: somebody else has written to it");
        rig.cut(ino, LARGE as u64);
        expected.truncate(LARGE);
        append(&mut expected);
        assert!(rig.contents(ino) == expected, "{mount}: somebody has cut it");
        let snapshot = format!("s{mount}");
        rig.create_snapshot(&snapshot).unwrap();
        let then = expected.clone();
        append(&mut expected);
        let seen = view(&rig, &snapshot);
        let ino = seen.find(ROOT, "f").unwrap().ino;
        assert!(seen.contents(ino) == then, "{mount}: a snapshot has changed");
        drop(seen);
    }
    drop(file);
    rig.mk_dir(ROOT, "a change");
    os_env().sleep(Duration::from_millis(1100));
    rig.mk_dir(ROOT, "a second later");
    assert!(is_free(&rig), "it looks written to");
    assert_eq!(rig.usage(ROOT).unwrap().bytes, expected.len() as u64);
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

/// The store was said to be damaged.
#[test]
fn a_store_is_dumped_when_nobody_writes_to_it_any_more() {
    let rig = Rig::new();
    let ino = rig.mk(ROOT, "f");
    rig.put_at(ino, 0, &[1; LARGE]);
    let opened = rig.open(ino, WRITE).unwrap();
    let mut file = None;
    rig.with_passthrough(opened.handle, &mut |fd| file = Some(opened_straight(fd))).unwrap();
    let (dumped, rig) = rig.dumped();
    let refused = dumped.unwrap_err();
    assert!(refused.contains("open for writing since a daemon of the store died"), "{refused}");
    drop(file);
    assert!(rig.dumped().0.is_ok());
}

/// What a power cut left of a file beyond its size could be read where nothing may be cut.
#[test]
fn a_mount_that_may_change_nothing_reads_what_rows_claim() {
    let mut beyond = 0;
    for seed in 0..60 {
        let (env, fs, ino) = store_with_file();
        fs.put_at(ino, LARGE as u64, &[2; 50_000]);
        let env = env.power_cut(seed);
        drop(fs);
        let object = Path::new(STORE).join("objects/0/0").join(ino.get().to_string());
        let there = env.read_raw(&object).unwrap().len() as u64;
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let dyn_env: Arc<dyn Env> = env.clone();
        let fs = VarveFs::open(dyn_env, Path::new(STORE), options).unwrap();
        let attr = fs.find(ROOT, "f").unwrap();
        beyond += u32::from(there > attr.size);
        assert_eq!(fs.contents(ino).len() as u64, attr.size, "seed {seed}");
        let handle = fs.open_as(ino, READ);
        let seek = |offset, what| fs.lseek(ino, handle, offset, what);
        assert!(seek(LARGE as u64 - 1, SeekFrom::Hole).unwrap() <= attr.size, "seed {seed}");
        for what in [SeekFrom::Hole, SeekFrom::Data] {
            assert!(matches!(seek(attr.size, what), Err(FsError::NoSuchOffset)), "seed {seed}");
        }
        fs.release(ino, handle).unwrap();
    }
    assert!(beyond > 0, "no seed kept the bytes and lost the row");
}

fn begin_snapshot(fs: &VarveFs) -> (String, VarveFs) {
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    (txn.name, view)
}

fn write_over(view: &VarveFs, ino: InodeId, size: usize) {
    let handle = view.open_as(ino, WRITE);
    view.write(ino, handle, 0, &vec![9; size], false).unwrap();
    view.release(ino, handle).unwrap();
}

/// It took the row for what it was when the transaction began, and put its own bytes over those of the last writer.
#[test]
fn a_commit_keeps_what_a_row_does_not_tell_yet() {
    type Leave<'a> = (&'a str, &'a dyn Fn(&SimEnv, &VarveFs, InodeId, Handle));
    let ways: [Leave<'_>; 3] = [
        ("beside locks", &|_, fs, ino, handle| {
            let (id, view) = begin_serializable(fs).unwrap();
            view.mv(ROOT, "dir", ROOT, "moved").unwrap();
            fs.release(ino, handle).unwrap();
            drop(view);
            fs.abort_transaction(&id).unwrap();
        }),
        ("after a failure", &|env, fs, ino, handle| {
            fail_to_settle(env, fs, ino, handle);
        }),
        ("after a failure, and nobody knows it", &|env, fs, ino, handle| {
            fail_to_settle(env, fs, ino, handle);
            fs.forget(ino, 100);
        }),
    ];
    for (what, leave) in ways {
        for size in [1, LARGE, LARGE + 1, LARGE + 2] {
            let (env, fs, ino) = store_with_file();
            let dir = fs.mk_dir(ROOT, "dir");
            fs.mv(ROOT, "f", dir, "f").unwrap();
            let handle = fs.open_as(ino, WRITE);
            fs.write(ino, handle, 0, &[1; 1], false).unwrap();
            let (id, view) = begin_snapshot(&fs);
            fs.write(ino, handle, 0, &[2; LARGE + 1], false).unwrap();
            leave(&env, &fs, ino, handle);
            let seen = view.find(dir, "f").unwrap().ino;
            write_over(&view, seen, size);
            let committed = fs.commit_transaction(&id, &view);
            assert!(matches!(committed, Err(CommitError::Conflict(_))), "{what}: {committed:?}");
            drop(view);
            fs.abort_transaction(&id).unwrap();
            let found = fs.find(dir, "f").unwrap().ino;
            assert!(fs.contents(found) == [2; LARGE + 1], "{what}, {size}");
            assert_eq!(fs.check(&mut |_| ()).unwrap().findings, [], "{what}, {size}");
        }
    }
}

/// It brought the main tree a row that says that the file is written to, which nobody was ever to bring up to date.
#[test]
fn a_commit_brings_no_file_that_looks_written_to() {
    for (is_serializable, was_written_to) in [(false, false), (false, true), (true, false)] {
        let (env, fs, ino) = store_with_file();
        fs.set_limits(ROOT, TreeLimits { bytes: Some(150_000), inodes: None }).unwrap();
        let handle = was_written_to.then(|| fs.open_as(ino, WRITE));
        let (id, view) =
            if is_serializable { begin_serializable(&fs).unwrap() } else { begin_snapshot(&fs) };
        handle.into_iter().for_each(|handle| fs.release(ino, handle).unwrap());
        let seen = view.find(ROOT, "f").unwrap().ino;
        let handle = view.open_as(seen, WRITE);
        view.write(seen, handle, 0, &vec![9; LARGE + 20_000], false).unwrap();
        fail_next(&env, SimOp::Stat, EMFILE, None);
        view.release(seen, handle).unwrap();
        assert_eq!(env.fault_count(), 1);
        let committed = fs.commit_transaction(&id, &view);
        drop(view);
        match was_written_to {
            true => assert!(matches!(committed, Err(CommitError::Conflict(_))), "{committed:?}"),
            false => {
                committed.unwrap();
                assert!(is_free(&fs));
                assert!(fs.contents(ino) == [9; LARGE + 20_000]);
                let more = fs.mk(ROOT, "more");
                let handle = fs.open_as(more, WRITE);
                let written = fs.write(more, handle, 0, &[3; 40_000], false);
                assert_eq!(written.unwrap().bytes, 30_000);
                fs.release(more, handle).unwrap();
            }
        }
        assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
    }
}

/// What it was to sync was forgotten when it could not look what that is, and the next try left it out.
#[test]
fn a_commit_that_is_tried_again_syncs_all() {
    let mut again = 0;
    for (op, nth) in [SimOp::SyncFs, SimOp::List, SimOp::Stat, SimOp::Open]
        .into_iter()
        .flat_map(|op| (1..12).map(move |nth| (op, nth)))
    {
        let (env, fs, _) = store_with_file();
        let names: Vec<String> = (0..70).map(|i| format!("large {i}")).collect();
        let inos: Vec<InodeId> = names.iter().map(|text| fs.mk(ROOT, text)).collect();
        inos.iter().for_each(|ino| fs.put_at(*ino, 0, &[1; LARGE]));
        fs.sync().unwrap();
        let (id, view) = begin_snapshot(&fs);
        // So that nothing is left of earlier processes, for which all is synced.
        write_over(&view, view.find(ROOT, "f").unwrap().ino, LARGE);
        view.sync().unwrap();
        for text in &names {
            write_over(&view, view.find(ROOT, text).unwrap().ino, LARGE);
        }
        fail(&env, op, EMFILE, None, nth);
        let Err(CommitError::Failed(_)) = fs.commit_transaction(&id, &view) else { continue };
        // The next mount is to find in the view what is to be put in place.
        let path_suffix = format!("{STORE}/objects");
        env.fail(FaultRule {
            path_suffix,
            op: SimOp::SyncFs,
            nth: 1,
            errno: EMFILE,
            sticky: false,
        });
        match fs.commit_transaction(&id, &view) {
            Err(CommitError::Unfinished(..)) => again += 1,
            // A sync that failed is not tried again.
            Err(CommitError::Failed(_)) => continue,
            other => panic!("{other:?}"),
        }
        drop(view);
        let env = env.power_cut_keep_nothing();
        drop(fs);
        let fs = open(&env);
        for text in &names {
            assert!(
                fs.contents(fs.find(ROOT, text).unwrap().ino) == [9; LARGE],
                "{op:?} {nth}: {text}"
            );
        }
    }
    assert!(again > 0);
}
