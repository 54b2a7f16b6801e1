//! What the generator found, a case at a time.

use varve_fs::{CommitError, FormatOptions, Isolation, Original, TransactionOptions, VarveFs};
use varve_types::InodeId;
use varve_vfs::{Caller, FsError, RenameMode, SetAttr, Vfs, XattrMode};

use super::{LARGE, name};
use crate::crash::{open, sim_store};
use crate::support::{Calls, ROOT};
use crate::views::sound;

fn begin(fs: &VarveFs, isolation: Isolation) -> (String, VarveFs) {
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let txn = fs.begin_transaction(ROOT, &options).unwrap();
    let view = fs.open_view(&txn).unwrap();
    (txn.name, view)
}

/// A directory was moved into another in a transaction, and the other into it outside: the commit succeeded, and both trees were
/// gone. The other's row had changed in the transaction too, by the name, so the commit took its parent for what the transaction saw.
#[test]
fn directories_that_are_moved_into_each_other_are_a_conflict() {
    let fs = open(&sim_store(1, &FormatOptions::default()));
    let [a, b] = ["a", "b"].map(|text| fs.mk_dir(ROOT, text));
    let (id, view) = begin(&fs, Isolation::Snapshot);
    view.mv(ROOT, "a", b, "a").unwrap();
    fs.mv(ROOT, "b", a, "b").unwrap();
    let committed = fs.commit_transaction(&id, &view);
    assert!(matches!(committed, Err(CommitError::Conflict(_))), "{committed:?}");
    assert_eq!((fs.list(ROOT), fs.list(a)), (vec!["a".to_owned()], vec!["b".to_owned()]));
    sound(&fs);
    drop(view);
    fs.abort_transaction(&id).unwrap();
}

/// The same ring of as many directories as there are transactions, each of which moves one, as deep in the next as they are given.
#[test]
fn a_ring_of_directories_by_several_transactions_is_a_conflict() {
    for (count, depth) in [(2, 0), (2, 2), (3, 0), (3, 1), (4, 3)] {
        let fs = open(&sim_store(2, &FormatOptions::default()));
        let tops: Vec<(String, InodeId)> =
            (0..count).map(|n| (format!("d{n}"), fs.mk_dir(ROOT, &format!("d{n}")))).collect();
        let deep = |top: InodeId| (0..depth).fold(top, |dir, _| fs.mk_dir(dir, "below"));
        let targets: Vec<InodeId> = tops.iter().map(|(_, top)| deep(*top)).collect();
        let begun: Vec<(String, VarveFs)> =
            (0..count).map(|_| begin(&fs, Isolation::Snapshot)).collect();
        for (n, (_, view)) in begun.iter().enumerate() {
            view.mv(ROOT, &tops[n].0, targets[(n + 1) % count], "moved").unwrap();
        }
        for (n, (id, view)) in begun.iter().enumerate() {
            let committed = fs.commit_transaction(id, view);
            match n + 1 == count {
                false => drop(committed.unwrap()),
                true => assert!(matches!(committed, Err(CommitError::Conflict(_)))),
            }
            sound(&fs);
        }
        assert_eq!(fs.list(ROOT), [tops[count - 1].0.as_str()]);
    }
}

/// What a serializable transaction has walked over to find a directory's ancestors stays where it is until it ends.
#[test]
fn ancestors_of_where_a_serializable_transaction_moves_a_directory_stay() {
    let fs = open(&sim_store(3, &FormatOptions::default()));
    let [a, b] = ["a", "b"].map(|text| fs.mk_dir(ROOT, text));
    let (middle, into) = (fs.mk_dir(b, "middle"), fs.mk_dir(a, "into"));
    let target = fs.mk_dir(middle, "target");
    let (id, view) = begin(&fs, Isolation::Serializable);
    view.mv(ROOT, "a", target, "a").unwrap();
    for (dir, text) in [(ROOT, "b"), (b, "middle"), (middle, "target")] {
        let moved = fs.mv(dir, text, into, "moved");
        assert!(matches!(moved, Err(FsError::Blocked(_))), "{text}: {moved:?}");
        let (other, beside) = begin(&fs, Isolation::Snapshot);
        beside.mv(dir, text, into, "moved").unwrap();
        let committed = fs.commit_transaction(&other, &beside);
        assert!(committed.is_err(), "{text}: {committed:?}");
        drop(beside);
        fs.abort_transaction(&other).unwrap();
    }
    fs.commit_transaction(&id, &view).unwrap();
    assert_eq!(fs.list(target), ["a"]);
    sound(&fs);
}

/// A directory with extended attributes that a commit removed stayed as a file without a name while the main tree knew it, which it
/// cannot be: the check found it to be nowhere, and its parent's counts wrong.
#[test]
fn a_directory_with_attributes_that_a_commit_removes_is_gone() {
    let env = sim_store(4, &FormatOptions::default());
    let fs = open(&env);
    let [gone, other] = ["gone", "other"].map(|text| fs.mk_dir(ROOT, text));
    fs.setxattr(gone, b"user.a", b"1", XattrMode::Set).unwrap();
    let (id, view) = begin(&fs, Isolation::Snapshot);
    view.mv(ROOT, "other", ROOT, "gone").unwrap();
    fs.commit_transaction(&id, &view).unwrap();
    sound(&fs);
    assert_eq!(fs.find(ROOT, "gone").unwrap().ino, other);
    assert_eq!(fs.getattr(gone).unwrap().nlink, 0);
    assert!(matches!(fs.getxattr(gone, b"user.a"), Err(FsError::NoXattr)));
    fs.forget(gone, 1);
    fs.close().unwrap();
    assert_eq!(open(&env).check(&mut |_| ()).unwrap().findings, []);
}

/// A transaction and the main tree exchanged the same two directories: the names were alike, so the commit succeeded, and what lay
/// below was counted as moved twice.
#[test]
fn the_same_exchange_of_directories_twice_is_a_conflict() {
    let fs = open(&sim_store(5, &FormatOptions::default()));
    let [top, full] = ["top", "full"].map(|text| fs.mk_dir(ROOT, text));
    fs.mk_dir(top, "empty");
    fs.mk_dir(full, "below");
    let (id, view) = begin(&fs, Isolation::Snapshot);
    let exchange =
        |fs: &VarveFs| fs.rename(ROOT, name("full"), top, name("empty"), RenameMode::Exchange);
    exchange(&view).unwrap();
    exchange(&fs).unwrap();
    let committed = fs.commit_transaction(&id, &view);
    assert!(matches!(committed, Err(CommitError::Conflict(_))), "{committed:?}");
    sound(&fs);
}

/// A transaction had made a name and removed it again, and outside a file was moved there: the commit took the file for removed, and
/// kept it for those who knew it as one without a name, so that its inode was in two places.
#[test]
fn a_name_that_came_and_went_in_a_transaction_is_no_change_of_what_is_there() {
    let fs = open(&sim_store(6, &FormatOptions::default()));
    for (text, len) in [("small", 9), ("large", LARGE)] {
        let file = fs.mk(ROOT, text);
        fs.put_at(file, 0, &vec![7; len]);
        let (id, view) = begin(&fs, Isolation::Snapshot);
        view.mk(ROOT, "name");
        view.unlink(ROOT, name("name")).unwrap();
        view.mk(ROOT, &format!("beside {text}"));
        fs.mv(ROOT, text, ROOT, "name").unwrap();
        let told = fs.commit_transaction(&id, &view).unwrap();
        sound(&fs);
        assert_eq!(fs.getattr(file).unwrap().nlink, 1, "{text}");
        assert!(!told.inodes.contains(&file), "{told:?}");
        fs.mv(ROOT, "name", ROOT, &format!("moved {text}")).unwrap();
    }
}

/// A serializable transaction that had seen a directory of a clone, whose names the main tree copied then, took it for one that had lost
/// its loan: every call that needed its names failed until the transaction ended.
#[test]
fn a_directory_of_a_clone_that_others_unfold_is_unfolded_for_a_serializable_transaction() {
    let fs = open(&sim_store(7, &FormatOptions::default()));
    let original = fs.mk_dir(ROOT, "original");
    fs.mk(original, "file");
    let from = Original { snapshot: None, dir: ROOT, name: Some(name("original")) };
    // Its source goes once nobody has a loan of it.
    for (n, source_stays) in [(0, true), (1, false)] {
        let text = format!("clone{n}");
        let clone = fs.do_clone(from, ROOT, name(&text)).unwrap();
        let (id, view) = begin(&fs, Isolation::Serializable);
        view.getattr(clone).unwrap();
        assert_eq!(fs.list(clone), ["file"]);
        if !source_stays {
            let (other, _) = begin(&fs, Isolation::Snapshot);
            fs.abort_transaction(&other).unwrap();
        }
        let absent = view.lookup(clone, name("absent"));
        assert!(matches!(absent, Err(FsError::NotFound)), "{absent:?}");
        view.mk(clone, "of the transaction");
        assert_eq!(view.list(clone), ["file", "of the transaction"]);
        fs.commit_transaction(&id, &view).unwrap();
        assert_eq!(fs.list(clone), ["file", "of the transaction"]);
        sound(&fs);
    }
}

/// What was asked for a clone in a transaction was refused, but its directories had told those above what they hold: the commit of what
/// the main tree had changed there meanwhile left a directory that nobody would let tell.
#[test]
fn a_transaction_that_is_asked_for_a_clone_changes_nothing() {
    let fs = open(&sim_store(8, &FormatOptions::default()));
    let above = fs.mk_dir(ROOT, "above");
    let dir = fs.mk_dir(above, "dir");
    // One that has the directory locked keeps it from telling before the other begins.
    let (holder, holding) = begin(&fs, Isolation::Serializable);
    fs.mk(dir, "before");
    let perm = SetAttr { perm: Some(0o700), ..SetAttr::default() };
    holding.setattr(Caller::ROOT, dir, perm).unwrap();
    let (id, view) = begin(&fs, Isolation::Snapshot);
    drop(holding);
    fs.abort_transaction(&holder).unwrap();
    let original = Original { snapshot: None, dir: ROOT, name: Some(name("above")) };
    let refused = view.do_clone(original, ROOT, name("clone"));
    assert!(matches!(refused, Err(FsError::NotSupported(_))), "{refused:?}");
    view.mk(above, "of the transaction");
    fs.mk(dir, "beside");
    fs.commit_transaction(&id, &view).unwrap();
    sound(&fs);
}
