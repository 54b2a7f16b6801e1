//! Transactions that change the same directories as others do, beside them.

use std::collections::BTreeMap;

use varve_fs::{CommitError, FormatOptions, TransactionOptions, VarveFs};
use varve_schema::acl::{ACL_ACCESS, ACL_DEFAULT, Acl, AclEntry, AclTag};
use varve_types::InodeId;
use varve_vfs::{Caller, FsResult, SetAttr, TreeLimits, Vfs, XattrMode};

use crate::bench::check;
use crate::crash::{open, sim_store};
use crate::support::{Calls, ROOT, Rig, name};

/// What a user sees of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    perm: u32,
    attrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Seen {
    fn of(fs: &VarveFs, dir: InodeId) -> Seen {
        let names = fs.listxattr(dir).unwrap();
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let attrs = names.map(|name| (name.to_vec(), fs.getxattr(dir, name).unwrap().to_vec()));
        Seen { attrs: attrs.collect(), perm: fs.getattr(dir).unwrap().perm }
    }

    /// What `theirs` and `ours` come to together; `None` if they exclude each other.
    fn merged(base: &Seen, theirs: &Seen, ours: &Seen) -> Option<Seen> {
        fn one<T: PartialEq>(base: T, theirs: T, ours: T) -> Option<T> {
            match () {
                () if ours == base || ours == theirs => Some(theirs),
                () if theirs == base => Some(ours),
                () => None,
            }
        }
        let mut attrs = BTreeMap::new();
        for name in [base, theirs, ours].iter().flat_map(|seen| seen.attrs.keys()) {
            let [b, t, o] = [base, theirs, ours].map(|seen| seen.attrs.get(name));
            if let Some(value) = one(b, t, o)? {
                attrs.insert(name.clone(), value.clone());
            }
        }
        let perm = one(base.perm, theirs.perm, ours.perm)?;
        let list = attrs.get(ACL_ACCESS).map(|list| Acl::decode(list).unwrap().unwrap());
        list.is_none_or(|list| u32::from(list.mode()) == perm & 0o777)
            .then_some(Seen { perm, attrs })
    }
}

/// A list that says `mode` and something besides.
fn list(mode: u16) -> Vec<u8> {
    let tags = [
        (AclTag::Owner, mode >> 6 & 7),
        (AclTag::User(7), 5),
        (AclTag::OwningGroup, mode >> 3 & 7),
        (AclTag::Mask, mode >> 3 & 7),
        (AclTag::Others, mode & 7),
    ];
    Acl::new(tags.map(|(tag, perm)| AclEntry { tag, perm })).unwrap().encode()
}

type Change = (&'static str, fn(&VarveFs, InodeId) -> FsResult<()>);

fn set(fs: &VarveFs, dir: InodeId, name: &[u8], value: &[u8]) -> FsResult<()> {
    fs.setxattr(dir, name, value, XattrMode::Set)
}

fn chmod(fs: &VarveFs, dir: InodeId, perm: u32) -> FsResult<()> {
    fs.setattr(Caller::ROOT, dir, SetAttr { perm: Some(perm), ..SetAttr::default() }).map(drop)
}

/// Changes of one directory; those that are none where something is missing fail.
const CHANGES: [Change; 11] = [
    ("set a", |fs, dir| set(fs, dir, b"user.a", b"2")),
    ("set b", |fs, dir| set(fs, dir, b"user.b", b"2")),
    ("remove a", |fs, dir| fs.removexattr(dir, b"user.a")),
    ("remove b", |fs, dir| fs.removexattr(dir, b"user.b")),
    ("default list", |fs, dir| set(fs, dir, ACL_DEFAULT, &list(0o755))),
    ("list", |fs, dir| set(fs, dir, ACL_ACCESS, &list(0o755))),
    ("narrow list", |fs, dir| set(fs, dir, ACL_ACCESS, &list(0o750))),
    ("no list", |fs, dir| fs.removexattr(dir, ACL_ACCESS)),
    ("narrow", |fs, dir| chmod(fs, dir, 0o750)),
    ("set group", |fs, dir| chmod(fs, dir, 0o2755)),
    ("new name", |fs, dir| {
        fs.mk_dir(dir, "new");
        fs.rmdir(dir, name("new"))
    }),
];

/// Of two that changed attributes, lists and modes of one directory, each change that is committed is to be seen. A removal
/// hid what the other had set; a mode and a list that contradict each other let in whom nobody had meant.
#[test]
fn what_both_change_about_a_directory_is_all_there_or_a_conflict() {
    let (mut merged, mut refused) = (0, 0);
    let starts: [&[usize]; 4] = [&[], &[0], &[0, 1], &[0, 5]];
    for start in starts {
        let fs = open(&sim_store(91, &FormatOptions::default()));
        for (n, (theirs, ours)) in pairs().enumerate() {
            let dir = fs.mk_dir(ROOT, &format!("dir {n}"));
            chmod(&fs, dir, 0o755).unwrap();
            start.iter().for_each(|change| CHANGES[*change].1(&fs, dir).unwrap());
            let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
            let view = fs.open_view(&txn).unwrap();
            let base = Seen::of(&fs, dir);
            let _ = CHANGES[theirs].1(&fs, dir);
            let _ = CHANGES[ours].1(&view, dir);
            let expected = Seen::merged(&base, &Seen::of(&fs, dir), &Seen::of(&view, dir));
            let committed = fs.commit_transaction(&txn.name, &view);
            let what = format!("{start:?} {} {}", CHANGES[theirs].0, CHANGES[ours].0);
            match committed {
                Ok(_) => {
                    assert_eq!(Some(Seen::of(&fs, dir)), expected, "{what}");
                    merged += 1;
                }
                Err(CommitError::Conflict(_)) => {
                    assert_eq!(expected, None, "{what}");
                    fs.abort_transaction(&txn.name).unwrap();
                    refused += 1;
                }
                Err(other) => panic!("{what}: {other:?}"),
            }
        }
        assert_eq!(fs.check(&mut |_| ()).unwrap().findings, [], "{start:?}");
    }
    assert!(merged > 300 && refused > 20, "{merged} merged, {refused} refused");
}

/// Attributes that each side has room for, and both together have not.
#[test]
fn attributes_for_which_a_directory_has_no_room_are_a_conflict() {
    let fs = open(&sim_store(92, &FormatOptions::default()));
    for (count, fits) in [(7, true), (9, false)] {
        let dir = fs.mk_dir(ROOT, &format!("{count}"));
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let view = fs.open_view(&txn).unwrap();
        for (fs, side) in [(&fs, "theirs"), (&view, "ours")] {
            for i in 0..count {
                set(fs, dir, format!("user.{side}{i}").as_bytes(), &[3; 65_536]).unwrap();
            }
        }
        match fs.commit_transaction(&txn.name, &view) {
            Ok(_) => assert!(fits),
            Err(CommitError::Conflict(_)) => {
                assert!(!fits);
                fs.abort_transaction(&txn.name).unwrap();
            }
            Err(other) => panic!("{other:?}"),
        }
        let names = fs.listxattr(dir).unwrap();
        let names = names.iter().filter(|byte| **byte == 0).count();
        assert_eq!(names, if fits { 2 * count } else { count });
    }
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..CHANGES.len()).flat_map(|theirs| (0..CHANGES.len()).map(move |ours| (theirs, ours)))
}

/// What a transaction removes, or gives another name, others have looked at meanwhile, which sets times.
#[test]
fn who_looks_at_what_a_transaction_removes_is_in_nobodys_way() {
    let env = sim_store(92, &FormatOptions::default());
    let fs = open(&env);
    let dirs = ["empty", "full"].map(|dir| fs.mk_dir(ROOT, dir));
    let [inline, linked, renamed] = ["inline", "linked", "renamed"].map(|file| {
        let ino = fs.mk(dirs[1], file);
        fs.put_at(ino, 0, b"bytes");
        ino
    });
    fs.link(linked, dirs[1], name("linked too")).unwrap();
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    assert_eq!(view.find(dirs[1], "inline").unwrap().ino, inline);
    view.rmdir(ROOT, name("empty")).unwrap();
    view.link(inline, ROOT, name("inline")).unwrap();
    view.unlink(dirs[1], name("linked")).unwrap();
    view.unlink(dirs[1], name("linked too")).unwrap();
    view.mv(dirs[1], "renamed", ROOT, "renamed").unwrap();
    let accessed = |ino| fs.getattr(ino).unwrap().atime;
    let all = [dirs[0], inline, linked, renamed];
    let before = all.map(accessed);
    assert_eq!(fs.list(dirs[0]), [""; 0]);
    for ino in [inline, linked, renamed] {
        assert_eq!(fs.contents(ino), b"bytes");
    }
    assert!(all.iter().zip(before).all(|(ino, before)| accessed(*ino) > before), "they are noted");
    fs.commit_transaction(&txn.name, &view).unwrap();
    drop(view);
    assert_eq!(fs.list(ROOT), ["full", "inline", "renamed"]);
    assert_eq!(fs.list(dirs[1]), ["inline"]);
    assert_eq!(fs.find(ROOT, "inline").unwrap().nlink, 2);
    fs.close().unwrap();
    drop(fs);
    let fs = open(&env);
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
    assert_eq!(fs.contents(fs.find(ROOT, "renamed").unwrap().ino), b"bytes");
    drop(fs);
    assert_eq!(check(&env).findings, []);
}

/// What is in conflict has a path, whichever of the two still has it: a file of several names, one that the transaction has removed,
/// and both beside one that is told by its name. All these were told by the number of the inode, or not at all.
#[test]
fn conflicts_are_told_by_paths() {
    let fs = open(&sim_store(93, &FormatOptions::default()));
    let dir = fs.mk_dir(ROOT, "dir");
    let files = ["both", "gone", "named"].map(|file| fs.mk(dir, file));
    fs.link(files[0], ROOT, name("other")).unwrap();
    fs.link(files[1], ROOT, name("gone too")).unwrap();
    let many: Vec<InodeId> = (0..70).map(|n| fs.mk(ROOT, &format!("{n}"))).collect();
    let begin = || {
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let view = fs.open_view(&txn).unwrap();
        (txn.name, view)
    };
    let told = |id: &str, view: VarveFs| {
        let Err(CommitError::Conflict(told)) = fs.commit_transaction(id, &view) else {
            panic!("others have changed the same");
        };
        fs.abort_transaction(id).unwrap();
        told
    };
    let (id, view) = begin();
    view.put_at(view.find(dir, "both").unwrap().ino, 0, b"ours");
    view.put_at(view.find(dir, "named").unwrap().ino, 0, b"ours");
    view.unlink(dir, name("gone")).unwrap();
    view.unlink(ROOT, name("gone too")).unwrap();
    files.iter().for_each(|ino| fs.put_at(*ino, 0, b"theirs"));
    assert_eq!(told(&id, view), ["/dir/both", "/dir/gone", "/dir/named"]);
    let (id, view) = begin();
    view.put_at(view.find(dir, "both").unwrap().ino, 0, b"ours");
    fs.unlink(dir, name("both")).unwrap();
    fs.unlink(ROOT, name("other")).unwrap();
    assert_eq!(told(&id, view), ["/dir/both"]);
    let (id, view) = begin();
    for (n, ino) in many.iter().enumerate() {
        view.put_at(view.find(ROOT, &format!("{n}")).unwrap().ino, 0, b"ours");
        fs.put_at(*ino, 0, b"theirs");
    }
    let told = told(&id, view);
    assert_eq!(told.last().map(String::as_str), Some("and there may be more"));
    assert!(told.len() > 30 && told[..told.len() - 1].iter().all(|path| path.starts_with('/')));
}

/// A directory gets limits and is removed, one by a transaction and one beside it. The limits stayed for good, of a directory
/// that nobody can name any more.
#[test]
fn limits_go_with_the_directory_that_the_other_removes() {
    let limits = TreeLimits { bytes: Some(10_000), inodes: None };
    for had_limits in [false, true] {
        let rig = Rig::new();
        let [one, two] = ["one", "two"].map(|dir| rig.mk_dir(ROOT, dir));
        if had_limits {
            let others = TreeLimits { bytes: Some(20_000), inodes: None };
            [one, two].iter().for_each(|dir| rig.set_limits(*dir, others).unwrap());
        }
        let begin = || {
            let txn = rig.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
            let view = rig.open_view(&txn).unwrap();
            (txn.name, view)
        };
        let (id, view) = begin();
        rig.set_limits(one, limits).unwrap();
        view.rmdir(ROOT, name("one")).unwrap();
        rig.commit_transaction(&id, &view).unwrap();
        assert!(rig.quotas(ROOT).unwrap().len() == usize::from(had_limits));
        let (id, view) = begin();
        view.set_limits(two, limits).unwrap();
        view.mk(ROOT, "new");
        rig.rmdir(ROOT, name("two")).unwrap();
        match rig.commit_transaction(&id, &view) {
            Err(CommitError::Conflict(paths)) => assert_eq!(paths, ["/two"]),
            other => panic!("{other:?}"),
        }
        rig.abort_transaction(&id).unwrap();
        // A directory of the transaction's own brings its limits along.
        let (id, view) = begin();
        let own = view.mk_dir(ROOT, "own");
        view.set_limits(own, limits).unwrap();
        rig.commit_transaction(&id, &view).unwrap();
        assert_eq!(rig.quotas(ROOT).unwrap().len(), 1);
        drop(view);
        let rig = rig.remount();
        assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
        assert_eq!(rig.list(ROOT), ["own"]);
    }
}
