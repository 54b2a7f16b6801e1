//! Commits and rollbacks beside readers, and what they cost.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use parking_lot::Mutex;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_env::{Env, FileKind};
use varve_fs::fsck::Finding;
use varve_fs::{
    CommitError, FormatOptions, MountOptions, RollBackError, TransactionOptions, VarveFs,
};
use varve_schema::RowKey;
use varve_types::InodeId;
use varve_vfs::{Caller, Vfs, XattrMode};

use crate::bench::{Rows, check, hasher_of, repair};
use crate::crash::{STORE, open, sim_store};
use crate::interposed::{Interposed, interposed};
use crate::snapshots::{same, view};
use crate::support::{BOTH, Calls, READ, ROOT, Rig, name, opened_straight, os_env, store_of};
use crate::views::sound;

const LARGE: usize = 70_000;

/// A reader's object was closed as too many were open. While it is opened again, a rollback makes the file small; the
/// reader kept the object as that of the file, and what was written later went there.
#[test]
fn a_reader_does_not_bring_back_an_object_that_a_rollback_removes() {
    let sim = sim_store(71, &FormatOptions::default());
    let env = Arc::new(interposed(&sim));
    let few = MountOptions { open_files_max: 2, ..MountOptions::default() };
    let dyn_env: Arc<dyn Env> = Arc::<Interposed>::clone(&env);
    let fs = VarveFs::open(dyn_env, Path::new(STORE), few).unwrap();
    let ino = fs.mk(ROOT, "file");
    fs.put_at(ino, 0, b"small");
    let others = ["a", "b", "c"].map(|text| {
        let other = fs.mk(ROOT, text);
        fs.put_at(other, 0, &[1; LARGE]);
        other
    });
    fs.create_snapshot("small").unwrap();
    fs.put_at(ino, 0, &[2; LARGE]);
    let reader = fs.open_as(ino, READ);
    let others = others.map(|other| (other, fs.open_as(other, READ)));
    std::thread::scope(|scope| {
        let ((begin, is_begun), (done, is_done)) = (channel::<()>(), channel::<()>());
        *env.hooks.after_open.lock() = Some(Box::new(move || {
            drop(begin);
            // The rollback waits for the reader, or is done before.
            let _ = is_done.recv_timeout(Duration::from_secs(1));
        }));
        let back = &fs;
        scope.spawn(move || {
            let _ = is_begun.recv();
            back.roll_back("small").unwrap();
            drop(done);
        });
        let bytes = fs.read(ino, reader, 0, 5).unwrap();
        assert!(bytes == [2; 5][..] || bytes == b"small"[..], "{bytes:?}");
        assert!(env.hooks.after_open.lock().take().is_none(), "the object was open");
    });
    same(&view(&fs, "small"), &fs);
    let writer = fs.open_as(ino, BOTH);
    fs.write(ino, writer, 0, b"SMALL", false).unwrap();
    fs.release(ino, writer).unwrap();
    assert_eq!(fs.contents(ino), b"SMALL");
    assert_eq!(fs.read(ino, reader, 0, 100).unwrap(), b"SMALL"[..]);
    fs.release(ino, reader).unwrap();
    others.into_iter().for_each(|(other, handle)| fs.release(other, handle).unwrap());
    let then = view(&fs, "small");
    assert_eq!(then.contents(then.find(ROOT, "file").unwrap().ino), b"small");
    sound(&fs);
}

/// Everybody waits for a commit. It synced four directories for each large file.
#[test]
fn a_commit_syncs_each_directory_once_however_many_large_files_change() {
    let mut syncs = Vec::new();
    for count in [10, 60, 100] {
        let env = sim_store(72, &FormatOptions::default());
        let fs = open(&env);
        for n in 0..count {
            fs.put_at(fs.mk(ROOT, &format!("changed {n}")), 0, &[1; LARGE]);
            fs.put_at(fs.mk(ROOT, &format!("replaced {n}")), 0, &[1; LARGE]);
        }
        fs.create_snapshot("before").unwrap();
        let then = view(&fs, "before");
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let changing = fs.open_view(&txn).unwrap();
        for n in 0..count {
            let changed = changing.find(ROOT, &format!("changed {n}")).unwrap().ino;
            changing.put_at(changed, 10, b"changed");
            let replaced = changing.find(ROOT, &format!("replaced {n}")).unwrap().ino;
            changing.cut(replaced, 0);
            changing.put_at(replaced, 0, &[2; LARGE]);
        }
        changing.sync().unwrap();
        let before = env.count_of(SimOp::SyncDir);
        fs.commit_transaction(&txn.name, &changing).unwrap();
        syncs.push(env.count_of(SimOp::SyncDir) - before);
        let mut expected = vec![1; LARGE];
        expected[10..17].copy_from_slice(b"changed");
        for n in 0..count {
            let bytes = |fs: &VarveFs, text: &str| {
                fs.contents(fs.find(ROOT, &format!("{text} {n}")).unwrap().ino)
            };
            assert!(bytes(&fs, "changed") == expected && bytes(&fs, "replaced") == [2; LARGE]);
            assert!(
                bytes(&then, "changed") == [1; LARGE] && bytes(&then, "replaced") == [1; LARGE]
            );
        }
        sound(&fs);
    }
    assert!(syncs.iter().all(|syncs| *syncs < 60) && syncs[1] <= syncs[0] + 5, "{syncs:?}");
}

/// The storage fails when a commit is durable and its large files are not in place yet: whoever changed them now would
/// change what they were before.
#[test]
fn a_commit_that_cannot_be_finished_is_finished_by_the_next_mount() {
    let env = sim_store(73, &FormatOptions::default());
    let fs = open(&env);
    fs.put_at(fs.mk(ROOT, "changed"), 0, &[1; LARGE]);
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let changing = fs.open_view(&txn).unwrap();
    changing.put_at(changing.find(ROOT, "changed").unwrap().ino, 10, b"changed");
    let new = changing.mk(ROOT, "new");
    changing.put_at(new, 0, &[2; LARGE]);
    changing.sync().unwrap();
    let path_suffix = format!("/{}", new.get());
    env.fail(FaultRule { path_suffix, op: SimOp::Rename, nth: 1, errno: 5, sticky: true });
    let refused = format!("{:?}", fs.commit_transaction(&txn.name, &changing).unwrap_err());
    assert!(refused.contains("is committed") && refused.contains("mount"), "{refused}");
    let refused = format!("{:?}", fs.create_snapshot("later").unwrap_err());
    assert!(refused.contains("is committed"), "{refused}");
    drop(changing);
    let _ = fs.close();
    drop(fs);
    env.clear_faults();
    let fs = open(&env);
    let changed = fs.find(ROOT, "changed").unwrap().ino;
    let mut expected = vec![1; LARGE];
    expected[10..17].copy_from_slice(b"changed");
    assert!(fs.contents(changed) == expected);
    assert!(fs.contents(fs.find(ROOT, "new").unwrap().ino) == [2; LARGE]);
    assert!(fs.transactions().unwrap().is_empty());
    fs.put_at(changed, 0, b"goes on");
    sound(&fs);
}

/// A file that is open for writing straight and then closed, and what the kernel keeps of it as long as it is mapped.
fn mapped(rig: &Rig, text: &str) -> (InodeId, File) {
    let ino = rig.mk(ROOT, text);
    rig.put_at(ino, 0, &[1; LARGE]);
    let opened = rig.open(ino, BOTH).unwrap();
    let mut file = None;
    rig.with_passthrough(opened.handle, &mut |fd| file = Some(opened_straight(fd))).unwrap();
    rig.release(ino, opened.handle).unwrap();
    (ino, file.unwrap())
}

/// The large files of which all is kept, once for each time.
fn kept_whole(rig: &Rig) -> Vec<String> {
    let (env, mut dirs) = (os_env(), vec![store_of(rig.dir.path()).join("kept")]);
    let mut kept = Vec::new();
    while let Some(dir) = dirs.pop() {
        for item in env.list(&dir).unwrap_or_default() {
            match item.kind {
                FileKind::Dir => dirs.push(dir.join(item.name)),
                // Beside each there is a mark.
                _ => {
                    kept.extend(item.name.into_string().ok().filter(|name| !name.ends_with("mark")))
                }
            }
        }
    }
    kept
}

/// What a program changed in mapped memory of a large file that it had closed changed snapshots too, as the file was taken for
/// closed.
#[test]
fn what_is_mapped_is_kept_for_a_snapshot_like_what_is_open() {
    let rig = Rig::new();
    let ((ino, map), (_, closed)) = (mapped(&rig, "mapped"), mapped(&rig, "closed"));
    drop(closed);
    rig.create_snapshot("one").unwrap();
    assert_eq!(kept_whole(&rig), [ino.to_string()], "and nothing of what is closed");
    map.write_all_at(&[2; 100], 1000).unwrap();
    rig.create_snapshot("two").unwrap();
    map.write_all_at(&[3; 100], 2000).unwrap();
    drop(map);
    rig.create_snapshot("three").unwrap();
    assert_eq!(kept_whole(&rig).len(), 2, "it is mapped no more");
    rig.put_at(ino, 3000, &[4; 100]);
    let mut bytes = vec![1; LARGE];
    for (name, value) in [("one", 1), ("two", 2), ("three", 3)] {
        bytes[value * 1000 - 1000..][..100].fill(value as u8);
        let seen = view(&rig, name);
        assert!(seen.contents(seen.find(ROOT, "mapped").unwrap().ino) == bytes, "{name}");
    }
    bytes[3000..3100].fill(4);
    assert!(rig.contents(ino) == bytes);
    sound(&rig);
}

/// A commit wrote over what was changed in mapped memory meanwhile, and nobody was told.
#[test]
fn a_commit_that_changes_what_is_mapped_is_refused() {
    let rig = Rig::new();
    let (ino, map) = mapped(&rig, "mapped");
    let txn = rig.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let changing = rig.open_view(&txn).unwrap();
    changing.put_at(changing.find(ROOT, "mapped").unwrap().ino, 10, b"changed");
    let refused = rig.commit_transaction(&txn.name, &changing);
    assert!(
        matches!(&refused, Err(CommitError::InUse(paths)) if *paths == ["/mapped"]),
        "{refused:?}"
    );
    drop(map);
    rig.commit_transaction(&txn.name, &changing).unwrap();
    drop(changing);
    let mut changed = vec![1; LARGE];
    changed[10..17].copy_from_slice(b"changed");
    assert!(rig.contents(ino) == changed);
    sound(&rig);
}

/// A commit copies a large file whole that somebody reads past this program. Where there was no room for the copy, the commit
/// had happened already, and the store took no more changes.
#[test]
fn a_commit_that_cannot_copy_what_is_read_straight_has_not_happened() {
    let rig = Rig::new();
    let (file, other) = (rig.mk(ROOT, "file"), rig.mk(ROOT, "other"));
    rig.put_at(file, 0, &[1; LARGE]);
    let reader = rig.open(file, READ).unwrap();
    let mut open = None;
    let take = &mut |fd: BorrowedFd<'_>| open = fd.try_clone_to_owned().ok().map(File::from);
    rig.with_passthrough(reader.handle, take).unwrap();
    let begin = || {
        let txn = rig.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let changing = rig.open_view(&txn).unwrap();
        changing.put_at(changing.find(ROOT, "file").unwrap().ino, 10, b"changed");
        (txn.name, changing)
    };
    let mut changed = vec![1; LARGE];
    changed[10..17].copy_from_slice(b"changed");
    let (id, changing) = begin();
    let own = store_of(rig.dir.path()).join("views").join(&id).join("0/0");
    let copy = own.join(format!("{file}.begun"));
    os_env().create_dir(&copy).unwrap();
    let refused = rig.commit_transaction(&id, &changing);
    assert!(matches!(refused, Err(CommitError::Failed(_))), "{refused:?}");
    assert!(rig.contents(file) == [1; LARGE] && changing.contents(file) == changed);
    rig.put_at(other, 0, b"goes on");
    // Neither a conflict leaves the copy, nor what the view sees in another way.
    os_env().remove_dir(&copy).unwrap();
    changing.put_at(changing.find(ROOT, "other").unwrap().ino, 0, b"other");
    let refused = rig.commit_transaction(&id, &changing);
    assert!(matches!(refused, Err(CommitError::Conflict(_))), "{refused:?}");
    assert!(changing.contents(file) == changed && !copy.exists());
    rig.abort_transaction(&id).unwrap();
    drop(changing);
    let (id, changing) = begin();
    rig.commit_transaction(&id, &changing).unwrap();
    drop(changing);
    let mut seen = vec![0; LARGE];
    open.unwrap().read_exact_at(&mut seen, 0).unwrap();
    assert!(seen == [1; LARGE], "it is read as it was");
    rig.release(file, reader.handle).unwrap();
    assert!(rig.contents(file) == changed);
    sound(&rig);
    let rig = rig.remount();
    assert!(rig.contents(rig.find(ROOT, "file").unwrap().ino) == changed);
}

/// A large file that a transaction has changed was removed, with its object, in the main tree. That the object cannot be opened
/// was told as a failure of the storage.
#[test]
fn a_large_file_that_is_gone_is_a_conflict() {
    let fs = open(&sim_store(77, &FormatOptions::default()));
    for file in ["inline", "linked"] {
        let ino = fs.mk(ROOT, file);
        fs.put_at(ino, 0, &[1; LARGE]);
        if file == "linked" {
            fs.link(ino, ROOT, name("link")).unwrap();
        }
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let changing = fs.open_view(&txn).unwrap();
        changing.put_at(changing.find(ROOT, file).unwrap().ino, 10, b"changed");
        fs.unlink(ROOT, name(file)).unwrap();
        if file == "linked" {
            fs.unlink(ROOT, name("link")).unwrap();
            fs.forget(ino, 1);
        }
        fs.forget(ino, 1);
        fs.sync().unwrap();
        match fs.commit_transaction(&txn.name, &changing) {
            Err(CommitError::Conflict(paths)) => assert_eq!(paths.len(), 1, "{paths:?}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(fs.list(ROOT), [""; 0]);
        fs.abort_transaction(&txn.name).unwrap();
    }
    sound(&fs);
}

/// What a transaction had made of a large file is gone before the commit has put it in place, and so is an object that it has
/// blocks for, which no crash does. The check took for granted that the next mount would put them in place, which could not be
/// mounted.
#[test]
fn a_committed_file_that_is_gone_is_found_and_repaired() {
    let env = sim_store(74, &FormatOptions::default());
    let fs = open(&env);
    let old = fs.mk(ROOT, "old");
    fs.put_at(old, 0, &[1; LARGE]);
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let changing = fs.open_view(&txn).unwrap();
    changing.put_at(changing.find(ROOT, "old").unwrap().ino, 0, b"changed");
    let new = changing.mk(ROOT, "new");
    changing.put_at(new, 0, &[2; LARGE]);
    changing.put_at(changing.mk(ROOT, "small"), 0, b"small");
    changing.sync().unwrap();
    let path_suffix = format!("/{}", new.get());
    env.fail(FaultRule { path_suffix, op: SimOp::Rename, nth: 1, errno: 5, sticky: true });
    fs.commit_transaction(&txn.name, &changing).unwrap_err();
    drop((changing, fs));
    let env = env.process_kill();
    let own = Path::new(STORE).join("views").join(&txn.name).join("0/0");
    assert!(env.stat(&own.join(format!("{old}.blocks"))).is_ok());
    let object = Path::new(STORE).join(format!("objects/0/0/{old}"));
    [object, own.join(new.to_string())].iter().for_each(|path| env.remove_file(path).unwrap());
    let missing = [old, new].map(|ino| Finding::MissingObject { ino: ino.get() });
    let is_found = |found: Vec<Finding>| {
        assert!(missing.iter().all(|missing| found.contains(missing)), "{found:?}");
    };
    is_found(check(&env).findings);
    // All else can be used, and the next mounts forget nothing of it.
    for _ in 0..2 {
        let fs = open(&env);
        assert_eq!(fs.contents(fs.find(ROOT, "small").unwrap().ino), b"small");
        for (ino, name) in [(old, "old"), (new, "new")] {
            let error = fs.open(fs.find(ROOT, name).unwrap().ino, READ).unwrap_err().to_string();
            assert!(error.contains(&ino.to_string()), "{error}");
        }
        is_found(fs.check(&mut |_| ()).unwrap().findings);
        fs.close().unwrap();
    }
    assert_eq!(repair(&env).left.findings, []);
    let fs = open(&env);
    for name in ["old", "new"] {
        assert_eq!(fs.contents(fs.find(ROOT, name).unwrap().ino), b"");
    }
    assert!(fs.check(&mut |_| ()).unwrap().is_spotless());
}

/// A small file is open for writing when a commit makes it large. Its row did not say that it is written to, so that what was
/// written from then on, and synced, was cut off when the file was opened again.
#[test]
fn a_commit_makes_no_file_large_that_is_open_for_writing() {
    let env = sim_store(75, &FormatOptions::default());
    let fs = open(&env);
    let (inline, linked) = (fs.mk(ROOT, "inline"), fs.mk(ROOT, "linked"));
    fs.link(linked, ROOT, name("link")).unwrap();
    for (ino, path) in [(inline, "inline"), (linked, "linked")] {
        fs.put_at(ino, 0, b"small");
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let writer = fs.open_as(ino, BOTH);
        let changing = fs.open_view(&txn).unwrap();
        changing.put_at(changing.find(ROOT, path).unwrap().ino, 0, &[2; LARGE]);
        let paths = in_use(fs.commit_transaction(&txn.name, &changing).map(drop));
        assert_eq!(paths.len(), 1, "{paths:?}");
        fs.fsync(ino, writer, false).unwrap();
        fs.release(ino, writer).unwrap();
        assert_eq!(fs.contents(ino), b"small");
        fs.commit_transaction(&txn.name, &changing).unwrap();
        let writer = fs.open_as(ino, BOTH);
        fs.write(ino, writer, LARGE as u64, b"more", false).unwrap();
        fs.fsync(ino, writer, false).unwrap();
    }
    let fs = open(&env.power_cut_keep_nothing());
    for name in ["inline", "link", "linked"] {
        let bytes = fs.contents(fs.find(ROOT, name).unwrap().ino);
        assert!(bytes[..LARGE] == [2; LARGE] && bytes[LARGE..] == *b"more", "{name}");
    }
    sound(&fs);
}

/// The same of a rollback to a state in which the file was large.
#[test]
fn a_rollback_makes_no_file_large_that_is_open_for_writing() {
    let env = sim_store(76, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "file");
    fs.put_at(ino, 0, b"small");
    fs.create_snapshot("small").unwrap();
    fs.put_at(ino, 0, &[2; LARGE]);
    fs.create_snapshot("large").unwrap();
    fs.roll_back("small").unwrap();
    let writer = fs.open_as(ino, BOTH);
    let Err(RollBackError::NotCommitted(refused)) = fs.roll_back("large") else {
        panic!("it is open for writing")
    };
    assert_eq!(in_use(Err(refused)), ["/file"]);
    fs.write(ino, writer, 5, b" again", false).unwrap();
    fs.release(ino, writer).unwrap();
    assert_eq!(fs.contents(ino), b"small again");
    fs.roll_back("large").unwrap();
    assert!(fs.contents(ino) == [2; LARGE]);
    sound(&fs);
}

/// A crash in a commit, and rows of its large files are lost: what the commit has made of them was taken for gone, or dropped with
/// what was pending.
#[test]
fn a_repair_keeps_what_a_commit_has_yet_to_put_in_place() {
    for loses_names in [false, true] {
        let env = sim_store(82, &FormatOptions::default());
        let fs = open(&env);
        let changed = fs.mk(ROOT, "changed");
        fs.put_at(changed, 0, &[1; LARGE]);
        fs.link(changed, ROOT, name("changed2")).unwrap();
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let view = fs.open_view(&txn).unwrap();
        view.put_at(view.find(ROOT, "changed").unwrap().ino, LARGE as u64, &[2; LARGE]);
        let new = view.mk(ROOT, "new");
        view.put_at(new, 0, &[3; LARGE]);
        view.link(new, ROOT, name("new2")).unwrap();
        view.sync().unwrap();
        let path_suffix = format!("/objects/0/0/{changed}");
        env.fail(FaultRule { path_suffix, op: SimOp::Write, nth: 1, errno: 5, sticky: true });
        let refused = fs.commit_transaction(&txn.name, &view).unwrap_err();
        assert!(refused.committed().is_some(), "{refused:?}");
        drop((view, fs));
        let env = env.process_kill();
        let (rows, hasher) = (Rows::open(&env), hasher_of(&env));
        for (ino, names) in [(changed, ["changed", "changed2"]), (new, ["new", "new2"])] {
            if !loses_names {
                rows.delete(rows.meta, RowKey::inode(ino));
                continue;
            }
            for name in names {
                rows.delete(rows.meta, RowKey::entry(ROOT, hasher.entry(name.as_bytes())));
            }
        }
        rows.close();
        assert_eq!(repair(&env).left.findings, []);
        let fs = open(&env);
        let dir = if loses_names { fs.find(ROOT, "lost+found").unwrap().ino } else { ROOT };
        let bytes = |ino: InodeId, text: &str| {
            let lost = format!("#{ino}");
            fs.contents(fs.find(dir, if loses_names { &lost } else { text }).unwrap().ino)
        };
        assert!(bytes(changed, "changed2") == [[1; LARGE], [2; LARGE]].concat(), "{loses_names}");
        assert!(bytes(new, "new") == [3; LARGE], "{loses_names}");
    }
}

/// The records of blocks that a commit had yet to put in place were damaged: no mount opened the store, and no repair did anything
/// about it.
#[test]
fn damaged_blocks_that_a_commit_has_yet_to_put_in_place_keep_no_store_closed() {
    for (damaged_at, offset) in [(100, 30_000), (12_300, 30_000), (12_300, LARGE)] {
        let env = sim_store(83, &FormatOptions::default());
        let fs = open(&env);
        let ino = fs.mk(ROOT, "file");
        fs.put_at(ino, 0, &[1; LARGE]);
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let view = fs.open_view(&txn).unwrap();
        view.put_at(view.find(ROOT, "file").unwrap().ino, offset as u64, &[2; 1000]);
        view.sync().unwrap();
        let path_suffix = format!("/objects/0/0/{ino}");
        env.fail(FaultRule { path_suffix, op: SimOp::Write, nth: 1, errno: 5, sticky: true });
        let refused = fs.commit_transaction(&txn.name, &view).unwrap_err();
        assert!(refused.committed().is_some(), "{refused:?}");
        drop((view, fs));
        let env = env.process_kill();
        let is_blocks = |path: &std::path::PathBuf| path.ends_with(format!("{ino}.blocks"));
        let blocks = || env.files_raw().into_iter().find(is_blocks);
        env.damage(&blocks().unwrap(), damaged_at, 1).unwrap();
        for read_only in [false, true] {
            let options = MountOptions { read_only, ..MountOptions::default() };
            let dyn_env: Arc<dyn Env> = Arc::<SimEnv>::clone(&env);
            VarveFs::open(dyn_env, Path::new(STORE), options).unwrap().close().unwrap();
        }
        let found = check(&env).findings;
        assert!(found.iter().any(|f| matches!(f, Finding::DamagedInstall { .. })), "{found:?}");
        assert_eq!(repair(&env).left.findings, []);
        assert!(repair(&env).did_nothing() && blocks().is_none());
        let aside = |path: &std::path::PathBuf| path.starts_with(Path::new(STORE).join("aside"));
        assert_eq!(env.files_raw().into_iter().filter(aside).count(), 1);
        let fs = open(&env);
        // What failed may have written a part.
        let mut bytes = fs.contents(fs.find(ROOT, "file").unwrap().ino);
        let changed = offset.min(bytes.len())..bytes.len().min(offset + 1000);
        bytes[changed].fill(1);
        assert!(bytes == [1; LARGE] || (offset == LARGE && bytes.len() > LARGE), "{offset}");
        sound(&fs);
    }
}

/// The files that are in the way of a commit.
#[track_caller]
fn in_use(committed: Result<(), CommitError>) -> Vec<String> {
    match committed {
        Err(CommitError::InUse(paths)) => paths,
        other => panic!("{other:?}"),
    }
}

/// What a transaction had made of a file that it then removed, while programs knew it there and outside, stayed in the store for
/// good: attributes that its row does not know of, and chunks beyond its end.
#[test]
fn nothing_stays_of_what_a_transaction_made_of_a_file_that_it_removed() {
    let env = sim_store(81, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "file");
    fs.put_at(ino, 0, &[1; 5000]);
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    assert_eq!(view.find(ROOT, "file").unwrap().ino, ino);
    view.setxattr(ino, b"user.a", b"1", XattrMode::Set).unwrap();
    view.put_at(ino, 0, &[2; 40_000]);
    view.unlink(ROOT, name("file")).unwrap();
    let reader = fs.open_as(ino, READ);
    fs.commit_transaction(&txn.name, &view).unwrap();
    assert!(fs.find(ROOT, "file").is_err());
    assert_eq!(fs.read(ino, reader, 0, 10_000).unwrap(), [1; 5000][..]);
    fs.release(ino, reader).unwrap();
    drop(view);
    fs.forget(ino, 1);
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
    fs.close().unwrap();
    drop(fs);
    assert_eq!(check(&env).findings, []);
}

/// A commit removed more bytes of small files than one write to the store may have, all of which the kernel knew: it read them all
/// into memory, and was then refused to keep them, with the store.
#[test]
fn a_commit_keeps_any_amount_of_what_is_known_of_files_it_removes() {
    const MIB: usize = 1 << 20;
    const FILES: u8 = 20;
    let format = FormatOptions { large_file_threshold_bytes: 16 << 20, ..FormatOptions::default() };
    let rig = Rig::with(&format, MountOptions::default());
    let name_of = |n: u8| format!("file {n}");
    let files: Vec<InodeId> = (0..FILES).map(|n| rig.mk(ROOT, &name_of(n))).collect();
    for (ino, n) in files.iter().zip(0..) {
        let handle = rig.open_as(*ino, BOTH);
        for at in 0..15 {
            rig.write(*ino, handle, (at * MIB) as u64, &vec![n; MIB], false).unwrap();
        }
        rig.release(*ino, handle).unwrap();
    }
    rig.setxattr(files[1], b"user.kept", b"too", XattrMode::Set).unwrap();
    let reader = rig.open_as(files[0], READ);
    let txn = rig.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = rig.open_view(&txn).unwrap();
    (0..FILES).for_each(|n| view.unlink(ROOT, name(&name_of(n))).unwrap());
    rig.commit_transaction(&txn.name, &view).unwrap();
    drop(view);
    assert_eq!(rig.list(ROOT), Vec::<String>::new());
    let all = |n: u8| vec![n; 15 * MIB];
    assert!(rig.read(files[0], reader, 0, 16 << 20).unwrap() == all(0));
    rig.release(files[0], reader).unwrap();
    for n in [1, 10, FILES - 1] {
        assert!(rig.contents(files[usize::from(n)]) == all(n), "{n}");
    }
    rig.mk(ROOT, "later");
    files.iter().for_each(|ino| rig.forget(*ino, 1));
    let rig = rig.remount();
    assert_eq!(rig.list(ROOT), ["later"]);
    sound(&rig);
}

/// What is kept of files that a commit removes is written in pieces. A crash between two leaves the commit, and nothing of them.
#[test]
fn a_crash_while_files_that_a_commit_removed_are_kept_leaves_nothing_of_them() {
    let format = FormatOptions { large_file_threshold_bytes: 16 << 20, ..FormatOptions::default() };
    let (mut whole, mut absent) = (0, 0);
    for n in 0.. {
        let env = sim_store(n, &format);
        let fs = open(&env);
        let files = ["a", "b", "c"];
        let known = files.map(|text| {
            let ino = fs.mk(ROOT, text);
            fs.put_at(ino, 0, &vec![7; 1_500_000]);
            ino
        });
        fs.sync().unwrap();
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let view = fs.open_view(&txn).unwrap();
        files.iter().for_each(|text| view.unlink(ROOT, name(text)).unwrap());
        let before = env.op_count();
        env.crash_after(before + n);
        let committed = fs.commit_transaction(&txn.name, &view);
        let crashed = env.crashed();
        assert!(crashed || committed.is_ok(), "{committed:?}");
        if !crashed {
            known.iter().for_each(|ino| assert!(fs.contents(*ino) == vec![7; 1_500_000]));
        }
        drop((view, fs));
        for image in
            [env.process_kill_within(n), env.power_cut_keep_nothing(), env.power_cut_keep_all()]
        {
            let fs = open(&image);
            let found = fs.list(ROOT);
            assert!(found.is_empty() || (committed.is_err() && found == files), "{found:?}");
            fs.close().unwrap();
            drop(fs);
            let fs = open(&image);
            assert_eq!(fs.check(&mut |_| ()).unwrap().findings, [], "crash {n}");
            if found.is_empty() { whole += 1 } else { absent += 1 }
        }
        if !crashed {
            break;
        }
    }
    assert!(whole > 20 && absent > 0, "{whole} whole, {absent} absent");
}

/// The mount after a daemon's death put in place what a commit had made of large files before the commit was durable. A power cut
/// then took the commit and left the bytes.
#[test]
fn what_a_commit_made_of_large_files_is_put_in_place_once_it_is_durable() {
    let (mut old, mut new) = (0, 0);
    for n in 0.. {
        let env = sim_store(n, &FormatOptions::default());
        let fs = open(&env);
        let ino = fs.mk(ROOT, "big");
        fs.put_at(ino, 0, &[1; LARGE]);
        fs.sync().unwrap();
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let view = fs.open_view(&txn).unwrap();
        view.mk(ROOT, "made");
        view.put_at(view.find(ROOT, "big").unwrap().ino, 0, &[2; LARGE]);
        env.crash_after(env.op_count() + n);
        let _ = fs.commit_transaction(&txn.name, &view);
        let is_done = !env.crashed();
        drop((view, fs));
        let dead = env.process_kill();
        for m in 1.. {
            let env = dead.process_kill();
            env.crash_after(env.op_count() + m);
            let _ = VarveFs::open(env.clone(), Path::new(STORE), MountOptions::default());
            let is_open = !env.crashed();
            let fs = open(&env.power_cut_keep_nothing());
            let is_committed = fs.list(ROOT).contains(&"made".to_owned());
            let content = fs.contents(fs.find(ROOT, "big").unwrap().ino);
            let expected = if is_committed { 2 } else { 1 };
            assert!(content == [expected; LARGE], "crashes {n}, {m}: {is_committed}");
            if is_committed {
                new += 1
            } else {
                old += 1
            }
            if is_open {
                break;
            }
        }
        if is_done {
            break;
        }
    }
    assert!(old > 20 && new > 20, "{old} as before, {new} as committed");
}

/// The mount after a daemon's death removed the bytes of large files that a rollback had made small again before the rollback was
/// durable. A power cut then took the rollback, and left rows of files without bytes.
#[test]
fn what_a_rollback_made_small_loses_its_bytes_once_it_is_durable() {
    let (mut large, mut small) = (0, 0);
    for n in 0.. {
        let sim = sim_store(n, &FormatOptions::default());
        let env = Arc::new(interposed(&sim));
        let dyn_env: Arc<dyn Env> = Arc::<Interposed>::clone(&env);
        let fs = VarveFs::open(dyn_env, Path::new(STORE), MountOptions::default()).unwrap();
        let fs = Arc::new(fs);
        let [ino, other] = ["file", "other"].map(|text| fs.mk(ROOT, text));
        fs.put_at(ino, 0, b"small");
        fs.put_at(other, 0, &[1; LARGE]);
        fs.create_snapshot("small").unwrap();
        fs.put_at(ino, 0, &[2; LARGE]);
        fs.put_at(other, 0, b"changed");
        fs.sync().unwrap();
        // While the rollback copies the other file somebody makes one beside it: nothing in the log says that its bytes are
        // durable, so a power cut takes all that comes behind.
        let writer = Arc::downgrade(&fs);
        *env.hooks.after_open.lock() = Some(Box::new(move || {
            let Some(fs) = writer.upgrade() else { return };
            if let Ok((entry, opened)) = fs.create(Caller::ROOT, ROOT, name("beside"), 0o600, BOTH)
            {
                let (ino, handle) = (entry.attr.ino, opened.handle);
                let _ = fs.write(ino, handle, 0, &[3; LARGE], false);
                let _ = fs.release(ino, handle);
            }
        }));
        sim.crash_after(sim.op_count() + n);
        let rolled = fs.roll_back("small");
        let is_done = !sim.crashed();
        assert!(rolled.is_ok() || !is_done, "{rolled:?}");
        assert!(!is_done || env.hooks.after_open.lock().is_none(), "nobody wrote beside it");
        drop(fs);
        let dead = sim.process_kill();
        if open(&dead.process_kill()).find(ROOT, "file").unwrap().size > LARGE as u64 - 1 {
            // No rollback is there that a power cut could take.
            continue;
        }
        for m in 1.. {
            let env = dead.process_kill();
            env.crash_after(env.op_count() + m);
            let _ = VarveFs::open(env.clone(), Path::new(STORE), MountOptions::default());
            let is_open = !env.crashed();
            let fs = open(&env.power_cut_keep_nothing());
            let [found, other] = ["file", "other"].map(|text| {
                let ino = fs.find(ROOT, text).unwrap().ino;
                let opened = fs.open(ino, READ).unwrap_or_else(|error| {
                    panic!("crashes {n}, {m}: {text} has no bytes: {error}");
                });
                fs.read(ino, opened.handle, 0, LARGE + 1).unwrap()
            });
            let is_small = other[..] == [1; LARGE];
            let expected: &[u8] = if is_small { b"small" } else { &[2; LARGE] };
            assert!(found == expected, "crashes {n}, {m}: {is_small}, {} bytes", found.len());
            assert!(is_small || other.starts_with(b"changed"), "crashes {n}, {m}");
            *if is_small { &mut small } else { &mut large } += 1;
            if is_open {
                break;
            }
        }
        if is_done {
            break;
        }
    }
    assert!(large > 20 && small > 20, "{large} as before, {small} as rolled back");
}

/// Two make the first large files of a directory at once. One found it when the other had made it and not noted yet that the
/// directory above is to be synced: what that one synced was gone with a power cut.
#[test]
fn a_large_file_is_durable_in_a_directory_that_another_is_making() {
    let sim = sim_store(78, &FormatOptions::default());
    let env = Arc::new(interposed(&sim));
    let dyn_env: Arc<dyn Env> = Arc::<Interposed>::clone(&env);
    let fs = VarveFs::open(dyn_env, Path::new(STORE), MountOptions::default()).unwrap();
    let dirs = ["one", "other"].map(|dir| fs.mk_dir(ROOT, dir));
    let [one, other] = dirs.map(|dir| fs.mk(dir, "file"));
    let handle = fs.open_as(other, BOTH);
    // Or the first sync would cover all that there is.
    fs.sync().unwrap();
    let ((begin, is_begun), (done, is_done)) = (channel::<()>(), channel::<()>());
    *env.hooks.after_create_dir.lock() = Some(Box::new(move || {
        drop(begin);
        // The other waits for this one, or is done before.
        let _ = is_done.recv_timeout(Duration::from_secs(1));
    }));
    let (image, shared, machine) = (Mutex::new(None), &fs, &sim);
    std::thread::scope(|scope| {
        let image = &image;
        scope.spawn(move || {
            let _ = is_begun.recv();
            shared.write(other, handle, 0, &[2; LARGE], false).unwrap();
            shared.fsync(other, handle, false).unwrap();
            *image.lock() = Some(machine.power_cut_keep_nothing());
            drop(done);
        });
        fs.put_at(one, 0, &[1; LARGE]);
    });
    assert!(env.hooks.after_create_dir.lock().is_none(), "no directory was made");
    let fs = open(&image.into_inner().unwrap());
    let dir = fs.find(ROOT, "other").unwrap().ino;
    assert!(fs.contents(fs.find(dir, "file").unwrap().ino) == [2; LARGE]);
    sound(&fs);
}
