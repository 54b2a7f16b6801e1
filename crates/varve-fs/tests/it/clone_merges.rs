//! Transactions that work in a clone beside others: that its names are still to be copied is nothing that anybody sees.

use std::collections::BTreeMap;

use varve_fs::{CommitError, FormatOptions, TransactionOptions, VarveFs};
use varve_types::InodeId;
use varve_vfs::{Caller, FileType, FsResult, OpenFlags, SetAttr, Vfs, XattrMode};

use crate::crash::{open, sim_store};
use crate::support::{Calls, ROOT, Rig, name};

/// Something that is done in a directory; it fails where what it is about is not there.
type Act = (&'static str, fn(&VarveFs, InodeId) -> FsResult<()>);

const ACTS: &[Act] = &[
    ("look", |fs, c| fs.getattr(c).map(|_| drop(fs.list(c)))),
    ("look at all", |fs, c| seen(fs, c).map(drop)),
    ("unlink a", |fs, c| fs.unlink(c, name("a"))),
    ("mv a z", |fs, c| fs.mv(c, "a", c, "z")),
    ("mv a y", |fs, c| fs.mv(c, "a", c, "y")),
    ("mv a e/a", |fs, c| with(fs, c, "e", |e| fs.mv(c, "a", e, "a"))),
    ("mv a b", |fs, c| fs.mv(c, "a", c, "b")),
    ("write a", |fs, c| write(fs, c, "a")),
    ("chmod a", |fs, c| with(fs, c, "a", |a| chmod(fs, a))),
    ("link a", |fs, c| with(fs, c, "a", |a| link(fs, a, c, "a2"))),
    ("set an attribute of a", |fs, c| {
        with(fs, c, "a", |a| fs.setxattr(a, b"user.x", b"1", XattrMode::Set))
    }),
    ("unlink t1", |fs, c| fs.unlink(c, name("t1"))),
    ("unlink t2", |fs, c| fs.unlink(c, name("t2"))),
    ("mv t1 e/t1", |fs, c| with(fs, c, "e", |e| fs.mv(c, "t1", e, "t1"))),
    ("write t1", |fs, c| write(fs, c, "t1")),
    ("write large", |fs, c| write(fs, c, "large")),
    ("unlink large", |fs, c| fs.unlink(c, name("large"))),
    ("cut large", |fs, c| with(fs, c, "large", |large| cut(fs, large))),
    ("mv e f", |fs, c| fs.mv(c, "e", c, "f")),
    ("rm e", |fs, c| {
        with(fs, c, "e", |e| remove_all(fs, e))?;
        fs.rmdir(c, name("e"))
    }),
    ("mk new", make),
    ("mk e/new", |fs, c| with(fs, c, "e", |e| make(fs, e))),
    ("unlink e/deep", |fs, c| with(fs, c, "e", |e| fs.unlink(e, name("deep")))),
    ("chmod c", chmod),
    ("chmod e", |fs, c| with(fs, c, "e", |e| chmod(fs, e))),
    ("rmdir empty", |fs, c| fs.rmdir(c, name("empty"))),
    ("mk empty/new", |fs, c| with(fs, c, "empty", |empty| make(fs, empty))),
    ("remove all", remove_all),
    ("mv e/deep a", |fs, c| with(fs, c, "e", |e| fs.mv(e, "deep", c, "a"))),
];

/// Calls `act` with what is called `text` in `dir`.
fn with(
    fs: &VarveFs,
    dir: InodeId,
    text: &str,
    act: impl FnOnce(InodeId) -> FsResult<()>,
) -> FsResult<()> {
    let ino = fs.find(dir, text)?.ino;
    let done = act(ino);
    fs.forget(ino, 1);
    done
}

fn write(fs: &VarveFs, dir: InodeId, text: &str) -> FsResult<()> {
    with(fs, dir, text, |file| {
        fs.put_at(file, 0, b"changed");
        Ok(())
    })
}

fn cut(fs: &VarveFs, ino: InodeId) -> FsResult<()> {
    fs.setattr(Caller::ROOT, ino, SetAttr { size: Some(100), ..SetAttr::default() }).map(drop)
}

fn make(fs: &VarveFs, dir: InodeId) -> FsResult<()> {
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let (entry, opened) = fs.create(Caller::ROOT, dir, name("new"), 0o644, flags)?;
    fs.release(entry.attr.ino, opened.handle)?;
    fs.forget(entry.attr.ino, 1);
    Ok(())
}

fn chmod(fs: &VarveFs, ino: InodeId) -> FsResult<()> {
    fs.setattr(Caller::ROOT, ino, SetAttr { perm: Some(0o700), ..SetAttr::default() }).map(drop)
}

fn link(fs: &VarveFs, ino: InodeId, dir: InodeId, text: &str) -> FsResult<()> {
    fs.link(ino, dir, name(text)).map(|entry| fs.forget(entry.attr.ino, 1))
}

fn remove_all(fs: &VarveFs, dir: InodeId) -> FsResult<()> {
    for text in fs.list(dir) {
        let attr = fs.find(dir, &text)?;
        let is_dir = attr.kind == FileType::Directory;
        let emptied = if is_dir { remove_all(fs, attr.ino) } else { Ok(()) };
        fs.forget(attr.ino, 1);
        emptied?;
        if is_dir { fs.rmdir(dir, name(&text))? } else { fs.unlink(dir, name(&text))? }
    }
    Ok(())
}

/// What a user sees, by path: kind, links, mode, bytes or how many, and names of attributes.
type Seen = BTreeMap<String, (FileType, u32, u32, Vec<u8>, Vec<u8>)>;

fn seen(fs: &VarveFs, top: InodeId) -> FsResult<Seen> {
    let (mut all, mut left) = (Seen::new(), vec![(String::new(), top)]);
    while let Some((above, dir)) = left.pop() {
        let attr = fs.getattr(dir)?;
        let count = attr.size.to_be_bytes().to_vec();
        all.insert(above.clone(), (attr.kind, attr.nlink, attr.perm, count, Vec::new()));
        for text in fs.list(dir) {
            let (attr, path) = (fs.find(dir, &text)?, format!("{above}/{text}"));
            if attr.kind == FileType::Directory {
                left.push((path, attr.ino));
                continue;
            }
            let attrs = fs.listxattr(attr.ino)?;
            all.insert(path, (attr.kind, attr.nlink, attr.perm, fs.contents(attr.ino), attrs));
            fs.forget(attr.ino, 1);
        }
        if dir != top {
            fs.forget(dir, 1);
        }
    }
    Ok(all)
}

fn sound(fs: &VarveFs, what: &str) {
    fs.sync().unwrap();
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, [], "{what}");
}

/// `/d` with files and directories, two clones of it, and whether one of its files has two names.
fn cloned(is_linked: bool) -> (VarveFs, [InodeId; 2]) {
    let options = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
    let fs = open(&sim_store(17, &options));
    let d = fs.mk_dir(ROOT, "d");
    for (text, len) in [("a", 50), ("b", 60), ("large", 5000), ("t1", 70)] {
        let ino = fs.mk(d, text);
        fs.put_at(ino, 0, &vec![b'x'; len]);
        fs.forget(ino, 1);
    }
    if is_linked {
        with(&fs, d, "t1", |t1| link(&fs, t1, d, "t2")).unwrap();
    }
    fs.mk_dir(d, "empty");
    let e = fs.mk_dir(d, "e");
    let deep = fs.mk(e, "deep");
    fs.put_at(deep, 0, b"deep");
    let clone = |to| fs.clone_tree(ROOT, name("d"), ROOT, name(to)).unwrap().attr.ino;
    let clones = ["one", "two"].map(clone);
    (fs, clones)
}

/// What `c` is when a transaction has done `ours` and been committed after `theirs` was done beside it; `None` if that is a
/// conflict.
fn outcome(fs: &VarveFs, c: InodeId, (theirs, ours): (Act, Act), what: &str) -> Option<Seen> {
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    let _ = theirs.1(fs, c);
    let _ = ours.1(&view, c);
    let done = fs.commit_transaction(&txn.name, &view);
    drop(view);
    let found = match done {
        Ok(_) => Some(seen(fs, c).unwrap()),
        Err(CommitError::Conflict(_)) => {
            fs.abort_transaction(&txn.name).unwrap();
            None
        }
        Err(other) => panic!("{what}: {other:?}"),
    };
    sound(fs, what);
    found
}

/// What two do in a clone comes to the same whether its names were copied before or by either of them, but for some conflicts more.
/// A name that the transaction had removed, moved or replaced came back where the other had only looked, and went twice where
/// both had removed it: with wrong counts, one file in two places, and directories that read from what was gone.
#[test]
fn what_two_do_in_a_clone_comes_to_the_same_as_in_a_copy() {
    let (mut committed, mut stricter) = (0, 0);
    let pairs = || ACTS.iter().flat_map(|theirs| ACTS.iter().map(move |ours| (*theirs, *ours)));
    for ((theirs, ours), is_linked) in pairs().zip([false; 2000]).chain(pairs().zip([true; 2000])) {
        let what = format!("{} beside {}, linked: {is_linked}", ours.0, theirs.0);
        let (fs, [copied, folded]) = cloned(is_linked);
        seen(&fs, copied).unwrap();
        let [copied, folded] = [copied, folded].map(|c| outcome(&fs, c, (theirs, ours), &what));
        match folded {
            Some(folded) => {
                assert_eq!(Some(folded), copied, "{what}");
                committed += 1;
            }
            None => stricter += u32::from(copied.is_some()),
        }
        fs.close().unwrap();
    }
    assert!(committed > 600, "{committed} are committed, {stricter} only in a copy");
}

/// Who only looks is in nobody's way.
#[test]
fn looking_into_a_clone_is_no_conflict_with_what_others_do_to_its_files() {
    let look = ACTS[1];
    for act in
        ACTS.iter().filter(|act| !["mv e f", "rm e", "rmdir empty", "remove all"].contains(&act.0))
    {
        for pair in [(look, *act), (*act, look)] {
            let what = format!("{} beside {}", pair.1.0, pair.0.0);
            let (fs, [c, _]) = cloned(false);
            assert!(outcome(&fs, c, pair, &what).is_some(), "{what}");
        }
    }
}

/// A file that the main tree had removed and still had open was not found any more, if the transaction had looked at it.
#[test]
fn what_is_removed_from_a_clone_stays_for_who_has_it_open() {
    let (fs, [c, _]) = cloned(false);
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    seen(&view, c).unwrap();
    let held = ["a", "large"].map(|text| {
        let ino = fs.find(c, text).unwrap().ino;
        let handle = fs.open_as(ino, OpenFlags { read: true, ..OpenFlags::default() });
        fs.unlink(c, name(text)).unwrap();
        (ino, handle)
    });
    fs.commit_transaction(&txn.name, &view).unwrap();
    drop(view);
    for ((ino, handle), len) in held.iter().zip([50, 5000]) {
        assert!(fs.read(*ino, *handle, 0, 1 << 20).unwrap() == vec![b'x'; len]);
    }
    for (ino, handle) in held {
        fs.release(ino, handle).unwrap();
        fs.forget(ino, 1);
    }
    sound(&fs, "when they are closed");
}

/// What a large file had grown by when it was cloned was counted once by each of two that looked.
#[test]
fn a_file_that_grows_when_it_is_cloned_counts_once() {
    let rig = Rig::new();
    let d = rig.mk_dir(ROOT, "d");
    let large = rig.mk(d, "large");
    let handle = rig.open_as(large, OpenFlags { read: true, write: true, ..OpenFlags::default() });
    for offset in [0, 200_000] {
        rig.write(large, handle, offset, &vec![1; 200_000], false).unwrap();
    }
    let c = rig.clone_tree(ROOT, name("d"), ROOT, name("c")).unwrap().attr.ino;
    let txn = rig.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = rig.open_view(&txn).unwrap();
    assert_eq!((view.list(c).len(), rig.list(c).len()), (1, 1));
    rig.commit_transaction(&txn.name, &view).unwrap();
    drop(view);
    rig.release(large, handle).unwrap();
    assert_eq!(rig.usage(c).unwrap().bytes, 400_000);
    sound(&rig.fs, "a clone of a file that grows");
}

/// A file that another transaction had made, which began earlier, went with a file of that name that this one had made and removed.
#[test]
fn what_another_has_made_is_nothing_that_came_by_looking() {
    let (fs, [c, _]) = cloned(false);
    for dir in [fs.mk_dir(ROOT, "plain"), c] {
        for begins_by_making in [false, true] {
            let begin = || fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
            let [one, two] = [begin(), begin()];
            let [first, second] = [&one, &two].map(|txn| fs.open_view(txn).unwrap());
            first.mk(dir, "made");
            second.mk(dir, "made");
            if !begins_by_making {
                second.unlink(dir, name("made")).unwrap();
            }
            fs.commit_transaction(&one.name, &first).unwrap();
            let done = fs.commit_transaction(&two.name, &second);
            drop((first, second));
            if begins_by_making || done.is_err() {
                assert!(matches!(done, Err(CommitError::Conflict(_))), "{done:?}");
                fs.abort_transaction(&two.name).unwrap();
            }
            fs.unlink(dir, name("made")).unwrap();
            sound(&fs, "files of one name");
        }
    }
}
