//! File flags: what they forbid, and that they go where their files go.

use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::dump::{dump_store, load_store};
use varve_fs::{
    ChangeKind, CommitError, FormatOptions, MountOptions, TransactionOptions, VarveFs, format,
};
use varve_testkit::fsops::{Lockstep, Times, Universe, tree};
use varve_types::{FileFlags, InodeId};
use varve_vfs::{Caller, FsError, FsResult, OpenFlags, RenameMode, SetAttr, Vfs, XattrMode};

use crate::against_model::run_rounds;
use crate::crash::{STORE, open, sim_store};
use crate::sent::{receive, sent, target};
use crate::support::{BOTH, Calls, READ, ROOT, Rig, WRITE, name};
use crate::views::sound;

const IMMUTABLE: FileFlags = FileFlags::IMMUTABLE;
const APPEND_ONLY: FileFlags = FileFlags::APPEND_ONLY;
const NONE: FileFlags = FileFlags::IMMUTABLE.and(FileFlags::APPEND_ONLY);
const APPEND: OpenFlags = OpenFlags { appends: true, ..BOTH };

#[track_caller]
fn refused<T: std::fmt::Debug>(result: FsResult<T>) {
    assert!(matches!(result, Err(FsError::NotPermitted)), "{result:?}");
}

/// Random operations, flags set and cleared among them, answer as the model does, and flags are there after remounts.
fn lockstep(seeds: std::ops::Range<u64>, format_options: &FormatOptions, clones_percent: u64) {
    for seed in seeds {
        let env = SimEnv::new(seed);
        let dyn_env: Arc<dyn Env> = env.clone();
        format(&dyn_env, Path::new(STORE), format_options).unwrap();
        let universe = Universe { flags_percent: 8, clones_percent, ..Universe::default() };
        let lockstep = Lockstep::with_universe(seed, universe);
        run_rounds(lockstep, &|| open(&env), 4, &|lockstep, fs| lockstep.run(fs, 300));
    }
}

#[test]
fn random_operations_with_flags_answer_as_the_model_does() {
    lockstep(700..712, &FormatOptions::default(), 0);
}

#[test]
fn random_operations_with_flags_on_large_files_answer_as_the_model_does() {
    let low = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
    lockstep(720..728, &low, 0);
}

#[test]
fn random_operations_with_flags_and_clones_answer_as_the_model_does() {
    lockstep(740..748, &FormatOptions::default(), 6);
}

/// Files of every representation, a directory with names, and what has no flags.
#[test]
fn what_is_immutable_does_not_change() {
    let rig = Rig::new();
    let dir = rig.mk_dir(ROOT, "dir");
    for (text, len) in [("empty", 0), ("inline", 100), ("chunks", 30_000), ("large", 300_000)] {
        let ino = rig.mk(dir, text);
        if len > 0 {
            rig.put_at(ino, 0, &vec![7; len]);
        }
        rig.setxattr(ino, b"user.is", b"there", XattrMode::Set).unwrap();
        let before = rig.open_as(ino, BOTH);
        if len <= 65_536 {
            rig.set_file_flags(ino, IMMUTABLE).unwrap();
            refused(rig.write(ino, before, 0, b"x", false));
            refused(rig.fallocate(ino, before, varve_vfs::AllocateMode::KeepSize, 0, 10));
        }
        rig.release(ino, before).unwrap();
        rig.set_file_flags(ino, IMMUTABLE).unwrap();
        let attr = rig.getattr(ino).unwrap();
        refused(rig.open(ino, WRITE));
        refused(rig.open(ino, APPEND));
        refused(rig.open(ino, OpenFlags { truncate: true, ..READ }));
        for set in [
            SetAttr { size: Some(3), ..SetAttr::default() },
            SetAttr { perm: Some(0o600), ..SetAttr::default() },
            SetAttr { uid: Some(5), ..SetAttr::default() },
            SetAttr { mtime: Some(varve_vfs::SetTime::Now), ..SetAttr::default() },
            SetAttr { kill_set_id: true, ..SetAttr::default() },
        ] {
            refused(rig.setattr(Caller::ROOT, ino, set));
        }
        refused(rig.setxattr(ino, b"user.more", b"", XattrMode::Set));
        refused(rig.removexattr(ino, b"user.is"));
        refused(rig.link(ino, ROOT, name("link")));
        refused(rig.unlink(dir, name(text)));
        refused(rig.mv(dir, text, ROOT, "moved"));
        let other = rig.mk(ROOT, "other");
        refused(rig.mv(ROOT, "other", dir, text));
        refused(rig.rename(ROOT, name("other"), dir, name(text), RenameMode::Exchange));
        rig.unlink(ROOT, name("other")).unwrap();
        rig.forget(other, 1);
        assert_eq!(rig.contents(ino), vec![7; len]);
        let read = varve_vfs::Attr { atime: attr.atime, ..rig.getattr(ino).unwrap() };
        assert_eq!(read, attr);
    }
    rig.set_file_flags(dir, IMMUTABLE).unwrap();
    refused(rig.mkdir(Caller::ROOT, dir, name("more"), 0o755));
    refused(rig.tmpfile(Caller::ROOT, dir, 0o600, BOTH));
    refused(rig.clone_tree(ROOT, name("dir"), dir, name("clone")));
    let free = rig.mk(ROOT, "free");
    refused(rig.link(free, dir, name("more")));
    refused(rig.mv(ROOT, "free", dir, "more"));
    let link = rig.symlink(Caller::ROOT, ROOT, name("symlink"), b"t").unwrap().attr.ino;
    assert!(matches!(rig.set_file_flags(link, IMMUTABLE), Err(FsError::NotSupported(_))));
    rig.set_file_flags(dir, NONE).unwrap();
    let empty = rig.find(dir, "empty").unwrap().ino;
    rig.set_file_flags(empty, NONE).unwrap();
    rig.unlink(dir, name("empty")).unwrap();
    sound(&rig);
}

#[test]
fn what_is_append_only_grows_alone() {
    let rig = Rig::new();
    for (text, len) in [("small", 1000), ("large", 300_000)] {
        let ino = rig.mk(ROOT, text);
        rig.put_at(ino, 0, &vec![7; len]);
        let before = rig.open_as(ino, BOTH);
        rig.set_file_flags(ino, APPEND_ONLY).unwrap();
        if len < 65_536 {
            rig.write(ino, before, 0, b"as it did", false).unwrap();
        }
        rig.release(ino, before).unwrap();
        refused(rig.open(ino, WRITE));
        refused(rig.open(ino, OpenFlags { truncate: true, ..APPEND }));
        let opened = rig.open(ino, APPEND).unwrap();
        assert!(!opened.passthrough, "memory that is mapped could change anywhere");
        let handle = opened.handle;
        assert_eq!(rig.append(ino, handle, len as u64, b"more", false).unwrap().bytes, 4);
        refused(rig.write(ino, handle, 0, b"x", false));
        refused(rig.write(ino, handle, len as u64 + 3, b"x", false));
        assert_eq!(rig.getattr(ino).unwrap().size, len as u64 + 4);
        rig.release(ino, handle).unwrap();
        refused(rig.setattr(Caller::ROOT, ino, SetAttr { size: Some(0), ..SetAttr::default() }));
        let now = Some(varve_vfs::SetTime::Now);
        let touch = SetAttr { mtime: now, atime: now, ..SetAttr::default() };
        rig.setattr(Caller::ROOT, ino, touch).unwrap();
        refused(rig.unlink(ROOT, name(text)));
    }
    let dir = rig.mk_dir(ROOT, "dir");
    rig.set_file_flags(dir, APPEND_ONLY.with(FileFlags::NO_DUMP)).unwrap();
    let made = rig.mk(dir, "made");
    assert_eq!(rig.file_flags(made).unwrap(), FileFlags::NO_DUMP, "no dump is inherited");
    refused(rig.unlink(dir, name("made")));
    refused(rig.mv(dir, "made", dir, "moved"));
    refused(rig.mv(dir, "made", ROOT, "moved"));
    sound(&rig);
}

/// What is written to past the file system cannot be stopped.
#[test]
fn a_large_file_that_is_open_straight_does_not_become_immutable() {
    let rig = Rig::new();
    let ino = rig.mk(ROOT, "large");
    rig.put_at(ino, 0, &[7; 300_000]);
    let opened = rig.open(ino, BOTH).unwrap();
    assert!(opened.passthrough);
    assert!(matches!(rig.set_file_flags(ino, IMMUTABLE), Err(FsError::TextBusy)));
    rig.set_file_flags(ino, FileFlags::NO_DUMP).unwrap();
    let mut mapped = None;
    rig.with_passthrough(opened.handle, &mut |fd| {
        mapped = Some(crate::support::opened_straight(fd));
    })
    .unwrap();
    rig.release(ino, opened.handle).unwrap();
    assert!(matches!(rig.set_file_flags(ino, IMMUTABLE), Err(FsError::TextBusy)), "it is mapped");
    drop(mapped);
    rig.set_file_flags(ino, IMMUTABLE).unwrap();
    let reader = rig.open(ino, READ).unwrap();
    assert!(reader.passthrough);
    rig.set_file_flags(ino, APPEND_ONLY).unwrap();
    assert!(matches!(rig.open(ino, APPEND), Err(FsError::TextBusy)), "it could be mapped straight");
    let appending = OpenFlags { appends: true, ..WRITE };
    rig.release(ino, rig.open_as(ino, appending)).unwrap();
    rig.release(ino, reader.handle).unwrap();
    rig.release(ino, rig.open_as(ino, APPEND)).unwrap();
}

fn dumped(env: &Arc<SimEnv>, dir: &str) -> Vec<u8> {
    let env: Arc<dyn Env> = env.clone();
    let mut out = Vec::new();
    dump_store(env, Path::new(dir), 16 << 20, &mut out, &mut |_| ()).unwrap();
    out
}

#[test]
fn flags_go_with_dumps_sent_snapshots_clones_and_rollbacks() {
    let env = sim_store(31, &FormatOptions::default());
    let fs = open(&env);
    let dir = fs.mk_dir(ROOT, "dir");
    let flags = [IMMUTABLE, APPEND_ONLY, FileFlags::NO_DUMP, IMMUTABLE.with(APPEND_ONLY)];
    for (at, flags) in flags.into_iter().enumerate() {
        for (text, len) in [("small", 1000), ("large", 100_000)] {
            let ino = fs.mk(dir, &format!("{text}{at}"));
            fs.put_at(ino, 0, &vec![7; len]);
            fs.set_file_flags(ino, flags).unwrap();
        }
    }
    fs.set_file_flags(dir, IMMUTABLE).unwrap();
    let other = target(32, &fs);
    let there = VarveFs::open(other, Path::new(STORE), MountOptions::default()).unwrap();
    fs.create_snapshot("one").unwrap();
    receive(&there, &sent(&fs, "one", None)).unwrap();
    let same = |one: &dyn Vfs, two: &dyn Vfs| {
        let differences = tree(one).unwrap().differences(&tree(two).unwrap(), Times::Compare);
        assert_eq!(differences, [""; 0]);
    };
    same(&fs, &there);
    // Flags alone are a change, which is told, sent and rolled back.
    let small = fs.find(dir, "small0").unwrap().ino;
    fs.set_file_flags(small, NONE).unwrap();
    fs.set_file_flags(dir, APPEND_ONLY).unwrap();
    fs.create_snapshot("two").unwrap();
    let told = fs.snapshot_diff("one", Some("two")).unwrap().changes;
    let paths: Vec<&Path> = told.iter().map(|change| change.path.as_path()).collect();
    assert_eq!(paths, [Path::new("/dir"), Path::new("/dir/small0")]);
    assert!(told.iter().all(|change| change.change == ChangeKind::Changed));
    receive(&there, &sent(&fs, "two", Some("one"))).unwrap();
    same(&fs, &there);
    sound(&there);
    fs.roll_back("one").unwrap();
    assert_eq!(fs.file_flags(dir).unwrap(), IMMUTABLE);
    assert_eq!(fs.file_flags(small).unwrap(), IMMUTABLE);
    let clone = fs.clone_tree(ROOT, name("dir"), ROOT, name("clone")).unwrap().attr.ino;
    assert_eq!(fs.file_flags(clone).unwrap(), IMMUTABLE);
    refused(fs.unlink(clone, name("small2")));
    let copy = fs.find(clone, "large1").unwrap().ino;
    assert_eq!(fs.file_flags(copy).unwrap(), APPEND_ONLY);
    fs.set_file_flags(clone, NONE).unwrap();
    fs.unlink(clone, name("small2")).unwrap();
    refused(fs.unlink(clone, name("large1")));
    sound(&fs);
    fs.close().unwrap();
    let bytes = dumped(&env, STORE);
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(text.contains(r#""flags":"ia""#), "{text}");
    let (dyn_env, mut read): (Arc<dyn Env>, &[u8]) = (env.clone(), &bytes);
    load_store(dyn_env, Path::new("/loaded"), 16 << 20, &mut read, &mut |_| ()).unwrap();
    assert!(dumped(&env, "/loaded") == bytes);
}

fn begin(fs: &VarveFs) -> (String, VarveFs) {
    let view = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let opened = fs.open_view(&view).unwrap();
    (view.name, opened)
}

/// What somebody made immutable meanwhile a commit does not change; what the transaction made so others may have changed before.
#[test]
fn commits_keep_to_flags() {
    type Change = fn(&VarveFs, InodeId, InodeId);
    let changes: [(&str, Change); 9] = [
        ("a name is made", |fs, dir, _| {
            fs.mk(dir, "made");
        }),
        ("a name goes", |fs, dir, _| fs.unlink(dir, name("other")).unwrap()),
        ("the file goes", |fs, dir, _| fs.unlink(dir, name("file")).unwrap()),
        ("the file moves", |fs, dir, _| fs.mv(dir, "file", ROOT, "moved").unwrap()),
        ("the directory moves", |fs, _, _| fs.mv(ROOT, "dir", ROOT, "moved").unwrap()),
        ("the file is written to", |fs, _, file| fs.put_at(file, 0, b"written")),
        ("the file gets a name", |fs, dir, file| {
            fs.link(file, dir, name("link")).unwrap();
        }),
        ("the directory is another's", |fs, dir, _| {
            fs.setattr(Caller::ROOT, dir, SetAttr { uid: Some(7), ..SetAttr::default() }).unwrap();
        }),
        ("the directory has attributes", |fs, dir, _| {
            fs.setxattr(dir, b"user.a", b"", XattrMode::Set).unwrap();
        }),
    ];
    for len in [10, 30_000, 300_000] {
        for (what, change) in changes {
            for flags in [IMMUTABLE, APPEND_ONLY] {
                let rig = Rig::new();
                let dir = rig.mk_dir(ROOT, "dir");
                let file = rig.mk(dir, "file");
                rig.put_at(file, 0, &vec![7; len]);
                rig.mk(dir, "other");
                let (id, view) = begin(&rig);
                assert_eq!(view.find(dir, "file").unwrap().ino, file);
                change(&view, dir, file);
                rig.set_file_flags(dir, flags).unwrap();
                rig.set_file_flags(file, flags).unwrap();
                let committed = rig.commit_transaction(&id, &view);
                let is_conflict = matches!(committed, Err(CommitError::Conflict(_)));
                assert!(is_conflict, "{what} of {len} bytes: {committed:?}");
                drop(view);
                rig.abort_transaction(&id).unwrap();
                let (id, view) = begin(&rig);
                assert_eq!(view.find(dir, "file").unwrap().ino, file);
                refused(view.unlink(dir, name("file")));
                view.set_file_flags(file, NONE).unwrap();
                view.set_file_flags(dir, NONE).unwrap();
                change(&view, dir, file);
                refused(rig.unlink(dir, name("file")));
                rig.commit_transaction(&id, &view).unwrap();
                assert_eq!(rig.file_flags(dir).unwrap(), NONE, "{what} of {len} bytes");
                sound(&rig);
            }
        }
    }
    let rig = Rig::new();
    let dir = rig.mk_dir(ROOT, "dir");
    let (id, view) = begin(&rig);
    view.mk(dir, "theirs");
    view.set_file_flags(dir, IMMUTABLE).unwrap();
    rig.mk(dir, "mine");
    rig.commit_transaction(&id, &view).unwrap();
    assert_eq!(rig.list(dir), ["mine", "theirs"]);
    refused(rig.mkdir(Caller::ROOT, dir, name("more"), 0o755));
}

/// A daemon that takes over knows who has opened a file to append.
#[test]
fn flags_hold_over_an_upgrade() {
    let rig = Rig::new();
    let ino = rig.mk(ROOT, "log");
    rig.put_at(ino, 0, b"line\n");
    rig.set_file_flags(ino, APPEND_ONLY).unwrap();
    let handle = rig.open_as(ino, APPEND);
    let rig = rig.after_upgrade();
    refused(rig.write(ino, handle, 0, b"x", false));
    rig.append(ino, handle, 5, b"more\n", false).unwrap();
    assert_eq!(rig.contents(ino), b"line\nmore\n");
    refused(rig.unlink(ROOT, name("log")));
}
