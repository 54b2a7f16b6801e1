//! Snapshots and transactions: what is seen in them, and what they leave alone.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Output;

use rustix::io::Errno;

use super::{Place, names, pattern, refused_io, semantics};
use crate::harness::{run, varve};

semantics!(snapshots, snapshot_of_large_files, snapshot_names, view_places);

/// Larger than any file that is kept in the store.
const LARGE: usize = 300_000;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Makes a snapshot; gives the directory where it is seen.
fn snapshot(place: &Place, name: &str) -> PathBuf {
    PathBuf::from(text(&run(varve().args(["snapshot", "create"]).arg(place.dir()).arg(name))))
}

/// What a command says that fails, with a hint.
fn fails(args: &[&str], dir: &Path, last: &[&str]) -> String {
    let output = varve().args(args).arg(dir).args(last).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("\nhint: "), "{args:?}: {said}");
    said
}

fn write_at(path: &Path, bytes: &[u8], offset: u64) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

fn snapshots(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    fs::create_dir_all(dir.join("d/e")).unwrap();
    fs::write(dir.join("d/kept"), "first").unwrap();
    fs::write(dir.join("d/e/gone"), pattern(1, 40_000)).unwrap();
    fs::hard_link(dir.join("d/kept"), dir.join("second")).unwrap();
    let seen = snapshot(place, "before");
    assert_eq!(seen, dir.join(".varve/snapshots/before"));
    fs::write(dir.join("d/kept"), "changed").unwrap();
    fs::remove_dir_all(dir.join("d/e")).unwrap();
    fs::rename(dir.join("d"), dir.join("moved")).unwrap();
    let check = || {
        assert_eq!(names(&seen), ["d", "second"]);
        assert_eq!(fs::read(seen.join("d/kept")).unwrap(), b"first");
        assert_eq!(fs::read(seen.join("d/e/gone")).unwrap(), pattern(1, 40_000));
        assert_eq!(fs::metadata(seen.join("second")).unwrap().nlink(), 2);
        assert_ne!(fs::metadata(&seen).unwrap().dev(), fs::metadata(&dir).unwrap().dev());
        refused_io(fs::write(seen.join("new"), "x"), Errno::ROFS);
        refused_io(fs::remove_file(seen.join("second")), Errno::ROFS);
        refused_io(fs::rename(seen.join("second"), dir.join("third")), Errno::XDEV);
    };
    check();
    assert_eq!(fs::read(dir.join("moved/kept")).unwrap(), b"changed");
    place.remount();
    check();
    place.kill_daemon();
    place.mount_again();
    check();
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("before"));
    refused_io(fs::metadata(&seen), Errno::NOENT);
    assert_eq!(fs::read(dir.join("second")).unwrap(), b"changed");
}

fn snapshot_of_large_files(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    let [written, cut, removed, open] = ["written", "cut", "removed", "open"].map(|n| dir.join(n));
    for path in [&written, &cut, &removed, &open] {
        fs::write(path, pattern(7, LARGE)).unwrap();
    }
    let during = OpenOptions::new().write(true).open(&open).unwrap();
    let first = snapshot(place, "first");
    during.write_all_at(b"through the snapshot", 0).unwrap();
    write_at(&written, b"after the first", 1000);
    let reader = File::open(first.join("written")).unwrap();
    let second = snapshot(place, "second");
    write_at(&written, b"after the second", 5000);
    File::options().write(true).open(&cut).unwrap().set_len(10).unwrap();
    fs::remove_file(&removed).unwrap();
    drop(during);
    let unchanged = |path: PathBuf| assert!(fs::read(path).unwrap() == pattern(7, LARGE));
    let check = |first: &Path| {
        for name in ["written", "cut", "removed", "open"] {
            unchanged(first.join(name));
        }
    };
    check(&first);
    for name in ["cut", "removed"] {
        unchanged(second.join(name));
    }
    let mut between = pattern(7, LARGE);
    between[1000..1015].copy_from_slice(b"after the first");
    assert!(fs::read(second.join("written")).unwrap() == between);
    let mut bytes = [0; 100];
    reader.read_exact_at(&mut bytes, 990).unwrap();
    assert_eq!(bytes, pattern(7, LARGE)[990..1090]);
    drop(reader);
    place.remount();
    check(&first);
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("second"));
    check(&first);
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("first"));
    assert_eq!(fs::metadata(&cut).unwrap().len(), 10);
    refused_io(fs::metadata(&removed), Errno::NOENT);
}

fn snapshot_names(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    refused_io(fs::metadata(dir.join(".varve/snapshots/one")), Errno::NOENT);
    let one = snapshot(place, "one");
    snapshot(place, "zwei und drei");
    assert_eq!(names(&dir.join(".varve/snapshots")), ["one", "zwei und drei"]);
    assert_eq!(names(&one), Vec::<&str>::new());
    assert!(fails(&["snapshot", "create"], &dir, &["one"]).contains("already"));
    for wrong in ["", ".", "..", "a/b", "a\nb", &"x".repeat(201)] {
        assert!(fails(&["snapshot", "create"], &dir, &[wrong]).contains("name"), "{wrong:?}");
    }
    assert!(fails(&["snapshot", "delete"], &dir, &["two"]).contains("no snapshot"));
    fails(&["snapshot", "create"], &one, &["nested"]);
    let used = File::open(&one).unwrap();
    assert!(fails(&["snapshot", "delete"], &dir, &["one"]).contains("in use"));
    drop(used);
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("one"));
    let listed = run(varve().args(["snapshot", "list", "--json"]).arg(&dir));
    assert!(text(&listed).contains("zwei und drei") && !text(&listed).contains("one"));
    let again = snapshot(place, "one");
    assert_eq!(names(&again), Vec::<&str>::new());
}

fn view_places(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let (dir, top) = (place.dir(), place.dir().join(".varve"));
    assert_eq!(names(&dir), Vec::<&str>::new());
    assert_eq!(names(&top), ["snapshots", "txn"]);
    for path in [top.join("x"), top.join("snapshots/x"), top.join("txn/x")] {
        refused_io(fs::write(&path, "x"), Errno::PERM);
        refused_io(fs::create_dir(&path), Errno::PERM);
    }
    refused_io(fs::create_dir(&top), Errno::EXIST);
    refused_io(fs::remove_dir(&top), Errno::PERM);
    fs::create_dir(dir.join("d")).unwrap();
    refused_io(fs::rename(dir.join("d"), top.join("d")), Errno::PERM);
    refused_io(fs::rename(top.join("txn"), dir.join("txn")), Errno::PERM);
    fs::create_dir(dir.join("d/.varve")).unwrap();
    assert_eq!(names(&dir.join("d/.varve")), Vec::<&str>::new());
}
