//! Calls of the main tree that wait for a serializable transaction, which then removes, replaces, moves, grows or cuts the file that
//! they are about: each ends as if it had come before that, or after it, or finds that the file is gone.
//!
//! All calls of the trait that are about a file or its names are tried beside all changes, of small and large files, with
//! handles that were there before. What each may end with is found out without transactions, in directories beside.

use std::collections::BTreeMap;

use varve_fs::{CommitError, FormatOptions, Isolation, TransactionOptions, VarveFs};
use varve_types::{Errno, InodeId};
use varve_vfs::{
    AccessMode, AllocateMode, Caller, FsError, FsResult, Handle, OpenFlags, Position, RenameMode,
    SeekFrom, SetAttr, TreeLimits, Vfs, XattrMode,
};

use crate::concurrent::assert_sound;
use crate::crash::{open, sim_store};
use crate::support::{BOTH, Calls, READ, ROOT, WRITE, name};

const LARGE: usize = 70_000;
const SMALL: usize = 100;

/// What a transaction does to the file `f`.
#[derive(Clone, Copy, Debug)]
enum Change {
    Remove,
    Replace,
    MoveAway,
    Grow,
    Cut,
}

const CHANGES: [Change; 5] =
    [Change::Remove, Change::Replace, Change::MoveAway, Change::Grow, Change::Cut];

impl Change {
    fn make(self, fs: &VarveFs, dir: InodeId) -> FsResult<()> {
        let file = || fs.find(dir, "f").map(|attr| attr.ino);
        match self {
            Change::Remove => fs.unlink(dir, name("f")),
            Change::Replace => fs.mv(dir, "new", dir, "f"),
            Change::MoveAway => fs.mv(dir, "f", dir, "away"),
            Change::Grow => {
                let ino = file()?;
                let handle = fs.open(ino, WRITE)?.handle;
                let written = fs.write(ino, handle, SMALL as u64, &[2; LARGE], false);
                fs.release(ino, handle)?;
                written.map(drop)
            }
            Change::Cut => {
                let set = SetAttr { size: Some(10), ..SetAttr::default() };
                fs.setattr(Caller::ROOT, file()?, set).map(drop)
            }
        }
    }
}

/// The size of a file, and whether it has an extended attribute.
type Kind = (usize, bool);

/// Of what is small and has none nothing but the inode itself is left when it is removed.
const KINDS: [Kind; 3] = [(SMALL, false), (SMALL, true), (LARGE, true)];

/// How a file is open meanwhile. If it is not, the kernel only knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IsOpen {
    No,
    Read,
    Written,
}

/// What a call is about.
struct Scene {
    dir: InodeId,
    file: InodeId,
    other: InodeId,
    read: Option<Handle>,
    write: Option<Handle>,
    of_other: Handle,
}

impl Scene {
    /// A directory of its own with the file, which is of this kind and open like that.
    fn make(fs: &VarveFs, text: &str, (size, has_xattr): Kind, is_open: IsOpen) -> Scene {
        let dir = fs.mk_dir(ROOT, text);
        let [file, other, new] = ["f", "other", "new"].map(|text| fs.mk(dir, text));
        fs.put_at(file, 0, &vec![1; size]);
        fs.put_at(other, 0, &[3; LARGE]);
        fs.put_at(new, 0, &[4; LARGE]);
        if has_xattr {
            fs.setxattr(file, b"user.there", b"1", XattrMode::Set).unwrap();
        }
        let read = (is_open != IsOpen::No).then(|| fs.open_as(file, READ));
        let write = (is_open == IsOpen::Written).then(|| fs.open_as(file, WRITE));
        // The kernel knows it.
        fs.find(dir, "f").unwrap();
        Scene { dir, file, other, read, write, of_other: fs.open_as(other, BOTH) }
    }
}

type Call = (&'static str, fn(&VarveFs, &Scene) -> FsResult<()>);

const TRUNCATES: OpenFlags = OpenFlags { truncate: true, ..WRITE };

fn set(fs: &VarveFs, scene: &Scene, set: SetAttr) -> FsResult<()> {
    fs.setattr(Caller::ROOT, scene.file, set).map(drop)
}

fn opened(fs: &VarveFs, ino: InodeId, flags: OpenFlags) -> FsResult<()> {
    let opened = fs.open(ino, flags)?;
    fs.release(ino, opened.handle)
}

/// Does `call` with a handle, if there is one.
fn by(handle: Option<Handle>, call: impl FnOnce(Handle) -> FsResult<()>) -> FsResult<()> {
    handle.map_or(Ok(()), call)
}

fn position(ino: InodeId, handle: Handle) -> Position {
    Position { ino, handle, offset: 0 }
}

/// All calls about files, their names and their directories.
const CALLS: &[Call] = &[
    ("lookup", |fs, at| fs.lookup(at.dir, name("f")).map(drop)),
    ("lookup_parent", |fs, at| fs.lookup_parent(at.dir).map(drop)),
    ("lookup_inode", |fs, at| fs.lookup_inode(at.file).map(drop)),
    ("lookup_at", |fs, at| fs.lookup_at(at.file, fs.place(at.file)?, false).map(drop)),
    ("getattr", |fs, at| fs.getattr(at.file).map(drop)),
    ("chmod", |fs, at| set(fs, at, SetAttr { perm: Some(0o600), ..SetAttr::default() })),
    ("chown", |fs, at| set(fs, at, SetAttr { uid: Some(7), ..SetAttr::default() })),
    ("cut", |fs, at| set(fs, at, SetAttr { size: Some(5), ..SetAttr::default() })),
    ("extend", |fs, at| set(fs, at, SetAttr { size: Some(100_000), ..SetAttr::default() })),
    ("chmod of the directory", |fs, at| {
        let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
        fs.setattr(Caller::ROOT, at.dir, set).map(drop)
    }),
    ("readlink", |fs, at| fs.readlink(at.file).map(drop)),
    ("mknod", |fs, at| fs.mknod(Caller::ROOT, at.dir, name("f"), 0o100_644, 0).map(drop)),
    ("mknod beside", |fs, at| fs.mknod(Caller::ROOT, at.dir, name("n"), 0o100_644, 0).map(drop)),
    ("mkdir", |fs, at| fs.mkdir(Caller::ROOT, at.dir, name("f"), 0o755).map(drop)),
    ("symlink", |fs, at| fs.symlink(Caller::ROOT, at.dir, name("f"), b"to").map(drop)),
    ("link", |fs, at| fs.link(at.file, at.dir, name("linked")).map(drop)),
    ("link to it", |fs, at| fs.link(at.other, at.dir, name("f")).map(drop)),
    ("unlink", |fs, at| fs.unlink(at.dir, name("f"))),
    ("rmdir", |fs, at| fs.rmdir(at.dir, name("f"))),
    ("rmdir of the directory", |fs, at| fs.rmdir(ROOT, name(&text_of(fs, at.dir)))),
    ("rename", |fs, at| fs.mv(at.dir, "f", at.dir, "renamed")),
    ("rename to it", |fs, at| fs.mv(at.dir, "other", at.dir, "f")),
    ("rename to it if it is not there", |fs, at| {
        fs.rename(at.dir, name("other"), at.dir, name("f"), RenameMode::NoReplace)
    }),
    ("exchange", |fs, at| {
        fs.rename(at.dir, name("other"), at.dir, name("f"), RenameMode::Exchange)
    }),
    ("whiteout", |fs, at| {
        let mode = RenameMode::Whiteout { caller: Caller::ROOT, replaces: true };
        fs.rename(at.dir, name("f"), at.dir, name("renamed"), mode)
    }),
    ("create", |fs, at| {
        let (entry, opened) = fs.create(Caller::ROOT, at.dir, name("f"), 0o644, WRITE)?;
        fs.release(entry.attr.ino, opened.handle)
    }),
    ("create anew", |fs, at| {
        let flags = OpenFlags { exclusive: true, ..WRITE };
        let (entry, opened) = fs.create(Caller::ROOT, at.dir, name("f"), 0o644, flags)?;
        fs.release(entry.attr.ino, opened.handle)
    }),
    ("tmpfile", |fs, at| {
        let (entry, opened) = fs.tmpfile(Caller::ROOT, at.dir, 0o644, WRITE)?;
        fs.release(entry.attr.ino, opened.handle)
    }),
    ("open to read", |fs, at| opened(fs, at.file, READ)),
    ("open to write", |fs, at| opened(fs, at.file, WRITE)),
    ("open to cut", |fs, at| opened(fs, at.file, TRUNCATES)),
    ("read", |fs, at| by(at.read, |handle| fs.read(at.file, handle, 0, 1 << 20).map(drop))),
    ("write", |fs, at| {
        by(at.write, |handle| fs.write(at.file, handle, 0, &[5; 50], false).map(drop))
    }),
    ("write much", |fs, at| {
        by(at.write, |handle| fs.write(at.file, handle, 0, &[5; LARGE], false).map(drop))
    }),
    ("append", |fs, at| {
        by(at.write, |handle| fs.append(at.file, handle, 0, &[5; 50], false).map(drop))
    }),
    ("fsync", |fs, at| by(at.read, |handle| fs.fsync(at.file, handle, false))),
    ("fsync of the directory", |fs, at| fs.fsync_dir(at.dir)),
    ("sync", |fs, _| fs.sync()),
    ("readdir", |fs, at| fs.readdir(at.dir, 0, true, &mut |_| true)),
    ("statfs", |fs, _| fs.statfs().map(drop)),
    ("access", |fs, at| {
        let mode = AccessMode { read: true, write: true, execute: false };
        fs.access(Caller::ROOT, &[], at.file, mode)
    }),
    ("fallocate", |fs, at| {
        by(at.write, |handle| fs.fallocate(at.file, handle, AllocateMode::Extend, 0, 100_000))
    }),
    ("punch", |fs, at| {
        by(at.write, |handle| fs.fallocate(at.file, handle, AllocateMode::PunchHole, 0, 50))
    }),
    ("copy from it", |fs, at| {
        by(at.read, |handle| {
            let (from, to) = (position(at.file, handle), position(at.other, at.of_other));
            fs.copy_range(from, to, 1 << 20).map(drop)
        })
    }),
    ("copy to it", |fs, at| {
        by(at.write, |handle| {
            let (from, to) = (position(at.other, at.of_other), position(at.file, handle));
            fs.copy_range(from, to, 1 << 20).map(drop)
        })
    }),
    ("lseek", |fs, at| {
        by(at.read, |handle| fs.lseek(at.file, handle, 0, SeekFrom::Data).map(drop))
    }),
    ("getxattr", |fs, at| fs.getxattr(at.file, b"user.there").map(drop)),
    ("setxattr", |fs, at| fs.setxattr(at.file, b"user.set", b"1", XattrMode::Set)),
    ("setxattr in place", |fs, at| fs.setxattr(at.file, b"user.there", b"2", XattrMode::Replace)),
    ("listxattr", |fs, at| fs.listxattr(at.file).map(drop)),
    ("removexattr", |fs, at| fs.removexattr(at.file, b"user.there")),
    ("clone_tree", |fs, at| fs.clone_tree(at.dir, name("f"), at.dir, name("cloned")).map(drop)),
    ("usage", |fs, at| fs.usage(at.dir).map(drop)),
    ("set_limits", |fs, at| {
        let limits = TreeLimits { bytes: None, inodes: Some(1000) };
        fs.set_limits(at.dir, limits)
    }),
    ("quotas", |fs, at| fs.quotas(at.dir).map(drop)),
    ("quotas_of", |fs, at| fs.quotas_of(at.dir).map(drop)),
    ("release", |fs, at| by(at.read, |handle| fs.release(at.file, handle))),
];

/// What the directory is called in the root.
fn text_of(fs: &VarveFs, dir: InodeId) -> String {
    let mut found = None;
    fs.readdir(ROOT, 0, false, &mut |entry| {
        if entry.ino == dir {
            found = Some(String::from_utf8_lossy(entry.name).into_owned());
        }
        true
    })
    .unwrap();
    found.unwrap()
}

/// What a call ends with.
fn ends(result: &FsResult<()>) -> Option<Errno> {
    result.as_ref().err().map(FsError::errno)
}

/// setfattr(1) that waited for a transaction that removed the file got EOPNOTSUPP.
#[test]
fn each_call_that_waits_ends_as_one_before_the_transaction_or_after_it() {
    let (mut waited, mut gone) = (BTreeMap::new(), 0);
    for (number, change) in CHANGES.into_iter().enumerate() {
        let ways = [IsOpen::No, IsOpen::Read, IsOpen::Written];
        for (kind, is_open) in ways.into_iter().flat_map(|way| KINDS.map(|kind| (kind, way))) {
            let is_written = is_open == IsOpen::Written;
            let env = sim_store(number as u64, &FormatOptions::default());
            let fs = open(&env);
            for (n, (what, call)) in CALLS.iter().enumerate() {
                let told = format!("{what}, {change:?} of {kind:?}, open {is_open:?}");
                let make = |text: &str| Scene::make(&fs, &format!("{text}{n}"), kind, is_open);
                let before = ends(&call(&fs, &make("before")));
                let scene = make("after");
                change.make(&fs, scene.dir).unwrap();
                let after = ends(&call(&fs, &scene));
                let scene = make("txn");
                let isolation = Isolation::Serializable;
                let options = TransactionOptions { isolation, ..TransactionOptions::default() };
                let txn = fs.begin_transaction(ROOT, &options).unwrap();
                let view = fs.open_view(&txn).unwrap();
                match change.make(&view, scene.dir) {
                    Ok(()) => {}
                    Err(FsError::Busy) if is_written => {
                        drop(view);
                        fs.abort_transaction(&txn.name).unwrap();
                        continue;
                    }
                    Err(error) => panic!("{told}: {error}"),
                }
                let mut result = call(&fs, &scene);
                let blocked = matches!(result, Err(FsError::Blocked(_)));
                let committed = fs.commit_transaction(&txn.name, &view);
                drop(view);
                match committed {
                    Ok(_) => {}
                    Err(CommitError::InUse(_)) if is_written => {
                        fs.abort_transaction(&txn.name).unwrap();
                        continue;
                    }
                    Err(error) => panic!("{told}: {error:?}"),
                }
                if blocked {
                    *waited.entry(*what).or_insert(0) += 1;
                    result = call(&fs, &scene);
                }
                let found = ends(&result);
                let is_gone = matches!(found, Some(Errno::NotFound | Errno::Stale));
                gone += u64::from(is_gone && found != after);
                let is_fault = matches!(found, Some(Errno::Io | Errno::NotSupported));
                let is_right = (found == before || found == after || is_gone) && !is_fault;
                assert!(is_right, "{told}: {result:?}, before {before:?}, after {after:?}");
            }
            assert_sound(&fs, &format!("{change:?}, {kind:?}, {is_open:?}"));
            fs.close().unwrap();
        }
    }
    println!("{waited:?}, {gone} gone");
    assert!(waited.len() > 20, "{waited:?}");
}

/// A removal that was not done left its mark on the open file, which was taken for one without a name: what was written to it was not
/// counted when it was closed.
#[test]
fn a_file_whose_removal_met_locks_is_closed_as_one_with_a_name() {
    let removals: [Call; 3] = [
        ("none", |_, _| Ok(())),
        ("unlink", |fs, at| fs.unlink(at.dir, name("f"))),
        ("rename to it", |fs, at| fs.mv(at.dir, "other", at.dir, "f")),
    ];
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let mut used = Vec::new();
    for (what, remove) in removals {
        let scene = Scene::make(&fs, what, (LARGE, true), IsOpen::Written);
        let isolation = Isolation::Serializable;
        let options = TransactionOptions { isolation, ..TransactionOptions::default() };
        let txn = fs.begin_transaction(ROOT, &options).unwrap();
        let view = fs.open_view(&txn).unwrap();
        view.find(scene.dir, "other").unwrap();
        view.readdir(scene.dir, 0, false, &mut |_| true).unwrap();
        let removed = remove(&fs, &scene);
        let is_blocked = matches!(removed, Err(FsError::Blocked(_)));
        assert!(is_blocked || what == "none", "{what}: {removed:?}");
        drop(view);
        fs.abort_transaction(&txn.name).unwrap();
        let (write, read) = (scene.write.unwrap(), scene.read.unwrap());
        fs.write(scene.file, write, LARGE as u64, &[1; 1000], false).unwrap();
        fs.release(scene.file, read).unwrap();
        fs.forget(scene.file, u64::MAX);
        fs.release(scene.file, write).unwrap();
        used.push(fs.usage(scene.dir).unwrap().bytes);
        let found = fs.find(scene.dir, "f").unwrap();
        assert_eq!((found.ino, found.size), (scene.file, LARGE as u64 + 1000), "{what}");
    }
    assert_eq!(used, [used[0]; 3]);
    assert_sound(&fs, "removals that met locks");
    fs.close().unwrap();
}
