//! `varve clone`: copies that are made at once and filled when somebody looks.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::io::Errno;

use super::views::begin;
use super::{Place, names, pattern, refused_io, semantics};
use crate::harness::{run, varve};

semantics!(
    clones,
    clones_of_snapshots,
    clone_refusals,
    clones_of_linked_files,
    snapshot_rollback_of_clones
);

fn clone(from: &Path, to: &Path) {
    run(varve().arg("clone").args([from, to]));
}

/// What `varve clone` says when it fails, with a hint.
fn fails(from: &Path, to: &Path) -> String {
    super::views::fails(&["clone"], from, &[to.to_str().unwrap()])
}

/// A directory with a file of each size, a symbolic link, a fifo and another directory.
fn tree(top: &Path) {
    fs::create_dir_all(top.join("sub/deeper")).unwrap();
    for (name, len) in [("empty", 0), ("tiny", 100), ("small", 40_000), ("large", 300_000)] {
        fs::write(top.join(name), pattern(len as u64, len)).unwrap();
    }
    fs::write(top.join("sub/deeper/file"), "deep").unwrap();
    symlink("tiny", top.join("link")).unwrap();
    fs::set_permissions(top.join("tiny"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(top.join("sub"), fs::Permissions::from_mode(0o2750)).unwrap();
}

/// Asserts that `copy` is as [`tree`] made it.
#[track_caller]
fn is_tree(copy: &Path) {
    assert_eq!(names(copy), ["empty", "large", "link", "small", "sub", "tiny"]);
    for (name, len) in [("empty", 0), ("tiny", 100), ("small", 40_000), ("large", 300_000)] {
        assert_eq!(fs::read(copy.join(name)).unwrap(), pattern(len as u64, len), "{name}");
    }
    assert_eq!(fs::read(copy.join("sub/deeper/file")).unwrap(), b"deep");
    assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("tiny"));
    assert_eq!(fs::metadata(copy.join("tiny")).unwrap().mode() & 0o7777, 0o4711);
    assert_eq!(fs::metadata(copy.join("sub")).unwrap().mode() & 0o7777, 0o2750);
}

fn clones(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    let (top, copy, second) = (dir.join("top"), dir.join("copy"), dir.join("second"));
    tree(&top);
    let before = fs::metadata(top.join("small")).unwrap();
    clone(&top, &copy);
    clone(&copy, &second);
    // Both go their own way, also before anybody has looked.
    fs::write(top.join("tiny"), "changed").unwrap();
    fs::remove_dir_all(top.join("sub")).unwrap();
    refused_io(fs::remove_dir(&copy), Errno::NOTEMPTY);
    fs::rename(&copy, dir.join("moved")).unwrap();
    let copy = dir.join("moved");
    is_tree(&copy);
    let after = fs::metadata(copy.join("small")).unwrap();
    assert_eq!((after.dev(), after.mtime_nsec()), (before.dev(), before.mtime_nsec()));
    assert_ne!(after.ino(), before.ino());
    assert_eq!((after.ctime(), after.ctime_nsec()), {
        let link = fs::symlink_metadata(copy.join("link")).unwrap();
        (link.ctime(), link.ctime_nsec())
    });
    for (name, len) in [("small", 40_000), ("large", 300_000)] {
        let file = fs::OpenOptions::new().write(true).open(copy.join(name)).unwrap();
        file.write_all_at(b"other", 5).unwrap();
        let mut expected = pattern(len as u64, len);
        expected[5..10].copy_from_slice(b"other");
        assert!(fs::read(copy.join(name)).unwrap() == expected, "{name}");
    }
    let ino = fs::metadata(second.join("sub/deeper/file")).unwrap().ino();
    place.remount();
    assert_eq!(fs::metadata(second.join("sub/deeper/file")).unwrap().ino(), ino);
    is_tree(&second);
    place.kill_daemon();
    place.mount_again();
    is_tree(&second);
    fs::remove_dir_all(&top).unwrap();
    fs::remove_dir_all(&copy).unwrap();
    is_tree(&second);
    // A single file, and a directory into itself.
    clone(&second.join("large"), &dir.join("large"));
    clone(&second, &second.join("inner"));
    assert_eq!(fs::read(dir.join("large")).unwrap(), pattern(300_000, 300_000));
    is_tree(&second.join("inner"));
    assert!(!second.join("inner/inner").exists());
}

fn clones_of_snapshots(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    tree(&dir.join("top"));
    clone(&dir.join("top"), &dir.join("copy"));
    run(varve().args(["snapshot", "create"]).arg(&dir).arg("then"));
    fs::remove_dir_all(dir.join("top")).unwrap();
    fs::remove_dir_all(dir.join("copy")).unwrap();
    let seen = dir.join(".varve/snapshots/then");
    is_tree(&seen.join("copy"));
    refused_io(fs::write(seen.join("copy/new"), "x"), Errno::ROFS);
    clone(&seen.join("top"), &dir.join("back"));
    clone(&seen, &dir.join("all"));
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("then"));
    let left = run(varve().args(["snapshot", "list", "--json"]).arg(&dir)).stdout;
    assert_eq!(String::from_utf8_lossy(&left).trim(), "[]");
    for copy in [dir.join("back"), dir.join("all/top"), dir.join("all/copy")] {
        is_tree(&copy);
    }
}

fn clone_refusals(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    tree(&dir.join("top"));
    fs::create_dir(dir.join("taken")).unwrap();
    assert!(fails(&dir.join("top"), &dir.join("taken")).contains("exists already"));
    assert!(fails(&dir.join("none"), &dir.join("new")).contains("none"));
    let outside = tempfile::tempdir().unwrap();
    assert!(fails(&dir.join("top"), &outside.path().join("new")).contains("not on a Varve mount"));
    assert!(fails(outside.path(), &dir.join("new")).contains("not on a Varve mount"));
    fs::create_dir(dir.join("limited")).unwrap();
    run(varve().args(["quota", "set", "--bytes", "100K"]).arg(dir.join("limited")));
    assert!(fails(&dir.join("top"), &dir.join("limited/copy")).contains("limits"));
    assert!(names(&dir.join("limited")).is_empty());
    let view = begin(&dir);
    assert!(fails(&view.join("top"), &view.join("copy")).contains("main view"));
    assert!(fails(&view.join("top"), &dir.join("copy")).contains("transaction"));
}

fn clones_of_linked_files(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    fs::create_dir_all(dir.join("top/a")).unwrap();
    fs::create_dir_all(dir.join("top/b")).unwrap();
    fs::write(dir.join("top/a/one"), "both").unwrap();
    fs::hard_link(dir.join("top/a/one"), dir.join("top/b/two")).unwrap();
    fs::hard_link(dir.join("top/a/one"), dir.join("outside")).unwrap();
    clone(&dir.join("top"), &dir.join("copy"));
    let one = fs::metadata(dir.join("copy/a/one")).unwrap();
    assert_eq!(one.nlink(), 2, "the name outside of the clone is none of it");
    fs::write(dir.join("copy/a/one"), "changed").unwrap();
    fs::remove_file(dir.join("copy/a/one")).unwrap();
    assert_eq!(fs::read(dir.join("copy/b/two")).unwrap(), b"changed");
    assert_eq!(fs::metadata(dir.join("copy/b/two")).unwrap().ino(), one.ino());
    assert_eq!(fs::read(dir.join("outside")).unwrap(), b"both");
}

/// Clones that were looked at, changed, removed or made since a snapshot go back with all else.
fn snapshot_rollback_of_clones(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    let [top, copy, second] = ["top", "copy", "second"].map(|name| dir.join(name));
    tree(&top);
    clone(&top, &copy);
    clone(&top, &second);
    let snapshot = |deed: &str| run(varve().args(["snapshot", deed]).arg(&dir).arg("one"));
    snapshot("create");
    is_tree(&copy);
    let before = fs::metadata(copy.join("small")).unwrap().ino();
    snapshot("rollback");
    is_tree(&copy);
    let reader = fs::File::open(copy.join("small")).unwrap();
    fs::write(copy.join("small"), "changed").unwrap();
    fs::write(copy.join("large"), pattern(1, 400_000)).unwrap();
    fs::remove_file(copy.join("tiny")).unwrap();
    refused_io(fs::metadata(copy.join("tiny")), Errno::NOENT);
    fs::remove_dir_all(&second).unwrap();
    clone(&copy, &dir.join("third"));
    fs::remove_file(dir.join("third/tiny")).unwrap_err();
    fs::write(dir.join("third/small"), "changed").unwrap();
    snapshot("rollback");
    is_tree(&copy);
    is_tree(&second);
    refused_io(fs::metadata(dir.join("third")), Errno::NOENT);
    assert_eq!(fs::metadata(copy.join("small")).unwrap().ino(), before);
    let mut bytes = [0; 7];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes[..], pattern(40_000, 40_000)[..7]);
    drop(reader);
    place.remount();
    is_tree(&copy);
    is_tree(&second);
    is_tree(&top);
}
