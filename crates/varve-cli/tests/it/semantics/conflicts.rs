//! Transactions that have changed what others have changed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::views::{begin, checked, commit, fails, id};
use super::{Place, names, semantics};
use crate::harness::{run, varve};

semantics!(transaction_conflicts, transaction_rings);

/// Directories that are moved into each other, in a transaction and outside, in two and in three: each move is right, and all of them
/// together would cut them off the tree.
fn transaction_rings(place: &Place) {
    if !place.is_varve() {
        return;
    }
    fn files_below(dir: &Path) -> usize {
        let below = |path: PathBuf| if path.is_dir() { files_below(&path) } else { 1 };
        names(dir).iter().map(|name| below(dir.join(name))).sum()
    }
    for (count, outside) in [(2, true), (2, false), (3, false)] {
        let dir = place.dir();
        let rings = format!("rings of {count}, {outside}");
        let top = |n: usize| Path::new(&rings).join((n % count).to_string());
        for n in 0..count {
            fs::create_dir_all(dir.join(top(n))).unwrap();
            fs::write(dir.join(top(n)).join("file"), "kept").unwrap();
        }
        let into_next = |view: &Path, n: usize| {
            fs::rename(view.join(top(n)), view.join(top(n + 1)).join("moved")).unwrap();
        };
        let views: Vec<PathBuf> = (usize::from(outside)..count).map(|_| begin(&dir)).collect();
        views.iter().enumerate().for_each(|(n, view)| into_next(view, n));
        let (last, others) = views.split_last().unwrap();
        others.iter().for_each(|view| commit(place, view));
        if outside {
            into_next(&dir, count - 1);
        }
        let refused = varve().args(["txn", "commit"]).arg(&dir).arg(id(last)).output().unwrap();
        assert_eq!(refused.status.code(), Some(5), "{}", String::from_utf8_lossy(&refused.stderr));
        run(varve().args(["txn", "abort"]).arg(&dir).arg(id(last)));
        assert_eq!(names(&dir.join(&rings)).len(), 1);
        assert_eq!(files_below(&dir.join(&rings)), count);
    }
}

fn transaction_conflicts(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    fs::create_dir_all(dir.join("d/e")).unwrap();
    for dir_read in ["listed/empty", "listed/full"] {
        fs::create_dir_all(dir.join(dir_read)).unwrap();
    }
    fs::write(dir.join("d/file"), "first").unwrap();
    for file in ["read", "listed/full/linked", "listed/full/linked too", "listed/full/file"] {
        fs::write(dir.join(file), "only read").unwrap();
    }
    let [one, two, three] = [begin(&dir), begin(&dir), begin(&dir)];
    for (view, name) in [(&one, "one"), (&two, "two"), (&three, "three")] {
        fs::write(view.join("d").join(name), name).unwrap();
        fs::create_dir(view.join("d").join(format!("{name}.d"))).unwrap();
    }
    fs::write(dir.join("d/main"), "main").unwrap();
    fs::read(dir.join("read")).unwrap();
    fs::write(two.join("read"), "changed").unwrap();
    fs::write(one.join("d/file"), "one").unwrap();
    fs::write(three.join("d/file"), "three").unwrap();
    commit(place, &one);
    commit(place, &two);
    let said = fails(&["txn", "commit"], &dir, &[id(&three)]);
    assert!(said.contains("\n  /d/file\n") && !said.contains("inode"), "{said}");
    assert_eq!(fs::read(three.join("d/file")).unwrap(), b"three", "it goes on");
    let all = ["e", "file", "main", "one", "one.d", "two", "two.d"];
    assert_eq!(names(&dir.join("d")), all);
    assert_eq!(fs::metadata(dir.join("d")).unwrap().nlink(), 5);
    assert_eq!(fs::read(dir.join("read")).unwrap(), b"changed");
    let readers = begin(&dir);
    let full = "listed/full";
    fs::hard_link(readers.join(full).join("linked"), readers.join("listed/link")).unwrap();
    fs::remove_file(readers.join(full).join("file")).unwrap();
    fs::remove_dir(readers.join("listed/empty")).unwrap();
    names(&dir.join("listed/empty"));
    assert_eq!(names(&dir.join(full)).len(), 3);
    for file in ["linked", "linked too", "file"] {
        assert_eq!(fs::read(dir.join(full).join(file)).unwrap(), b"only read");
    }
    commit(place, &readers);
    assert_eq!(names(&dir.join("listed")), ["full", "link"]);
    let removed_whole = begin(&dir);
    fs::remove_dir_all(removed_whole.join("listed")).unwrap();
    names(&dir.join("listed"));
    assert_eq!(fs::read(dir.join(full).join("linked")).unwrap(), b"only read");
    commit(place, &removed_whole);
    assert!(!dir.join("listed").exists());
    let [first, again] = [begin(&dir), begin(&dir)];
    fs::remove_file(first.join("read")).unwrap();
    fs::remove_file(again.join("read")).unwrap();
    commit(place, &first);
    assert!(fails(&["txn", "commit"], &dir, &[id(&again)]).contains("/read\n"), "removed once");
    run(varve().args(["txn", "abort"]).arg(&dir).arg(id(&three)));
    let removed = begin(&dir);
    fs::write(removed.join("d/e/new"), "x").unwrap();
    fs::remove_dir(dir.join("d/e")).unwrap();
    assert!(fails(&["txn", "commit"], &dir, &[id(&removed)]).contains("others have changed"));
    let [inner, outer] = ["inner", "outer"].map(|name| dir.join(name));
    fs::create_dir_all(inner.join("x")).unwrap();
    fs::create_dir(&outer).unwrap();
    let looping = begin(&dir);
    fs::rename(looping.join("outer"), looping.join("inner/x/outer")).unwrap();
    fs::rename(&inner, outer.join("inner")).unwrap();
    fails(&["txn", "commit"], &dir, &[id(&looping)]);
    checked(place);
    assert_eq!(names(&dir.join("d")), all[1..]);
}
