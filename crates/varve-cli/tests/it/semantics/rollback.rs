//! `varve snapshot rollback`: the tree as it was, whatever programs have open.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::io::Errno;

use super::views::{LARGE, fails, make_files, snapshot, text, write_at};
use super::{Place, pattern, refused_io, semantics};
use crate::harness::{run, varve};

semantics!(snapshot_rollback, snapshot_rollback_of_open_files, snapshot_rollback_cut_short);

/// Takes the file system back to a snapshot.
pub(super) fn roll_back(path: &Path, name: &str) {
    run(varve().args(["snapshot", "rollback"]).arg(path).arg(name));
}

/// Changes what [`make_files`] made.
pub(super) fn change_files(dir: &Path) {
    fs::write(dir.join("a/new"), pattern(9, LARGE)).unwrap();
    fs::rename(dir.join("moved"), dir.join("a/moved")).unwrap();
    write_at(&dir.join("large"), b"in place", 200_000);
    fs::remove_dir_all(dir.join("gone")).unwrap();
    fs::write(dir.join("f"), pattern(8, LARGE)).unwrap();
    fs::set_permissions(dir.join("mode"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::remove_file(dir.join("linked")).unwrap();
}

/// All is as [`make_files`] made it.
fn is_first(dir: &Path) {
    assert_eq!(fs::read(dir.join("gone/deep/x")).unwrap(), b"gone/deep/x");
    assert!(fs::read(dir.join("large")).unwrap() == pattern(4, LARGE));
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"f");
    refused_io(fs::metadata(dir.join("a/new")), Errno::NOENT);
    assert_eq!(fs::read(dir.join("moved/deep/x")).unwrap(), b"moved/deep/x");
    assert_eq!(fs::metadata(dir.join("mode")).unwrap().mode() & 0o777, 0o755);
    assert_eq!(fs::metadata(dir.join("linked.d/second")).unwrap().nlink(), 2);
}

fn snapshot_rollback(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    make_files(&dir);
    snapshot(place, "one");
    let inode = |name: &str| fs::metadata(dir.join(name)).unwrap().ino();
    let inodes = || ["gone/deep/x", "large", "f"].map(inode);
    let before = inodes();
    change_files(&dir);
    let second = snapshot(place, "two");
    let output = run(varve().args(["snapshot", "rollback", "--dry-run"]).arg(&dir).arg("one"));
    assert!(text(&output).lines().any(|line| line == "A  /gone/deep/x"), "{}", text(&output));
    assert!(text(&output).lines().any(|line| line == "R  /a/moved -> /moved"), "{}", text(&output));
    assert!(fs::metadata(dir.join("a/new")).is_ok());
    roll_back(&dir, "one");
    is_first(&dir);
    assert_eq!(inodes(), before);
    assert!(fs::read(second.join("a/new")).unwrap() == pattern(9, LARGE));
    roll_back(&dir, "two");
    assert!(fs::read(dir.join("a/new")).unwrap() == pattern(9, LARGE));
    refused_io(fs::metadata(dir.join("gone")), Errno::NOENT);
    assert_eq!(fs::metadata(dir.join("linked.d/second")).unwrap().nlink(), 1);
    assert!(fails(&["snapshot", "rollback"], &dir, &["three"]).contains("no snapshot `three`"));
    place.remount();
    roll_back(&dir, "one");
    is_first(&dir);
    let Place::Mount(mount) = place else { return };
    mount.unmount();
    roll_back(&mount.store(), "two");
    roll_back(&mount.store(), "one");
    mount.mount();
    is_first(&dir);
    assert_eq!(inodes(), before);
}

/// Files that are open while their tree goes back.
fn snapshot_rollback_of_open_files(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    make_files(&dir);
    snapshot(place, "one");
    change_files(&dir);
    snapshot(place, "two");
    let removed = File::open(dir.join("a/new")).unwrap();
    roll_back(&dir, "one");
    is_first(&dir);
    let mut bytes = vec![0; LARGE];
    removed.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == pattern(9, LARGE));
    drop(removed);
    roll_back(&dir, "two");
    // Large now, and small again. The kernel may have it open straight, and then opens it in no other way.
    let reader = File::open(dir.join("f")).unwrap();
    let rolled = varve().args(["snapshot", "rollback"]).arg(&dir).arg("one").output().unwrap();
    if rolled.status.success() {
        assert_eq!(fs::read(dir.join("f")).unwrap(), b"f");
    } else {
        let told = String::from_utf8_lossy(&rolled.stderr).into_owned();
        assert!(told.lines().any(|line| line.trim() == "/f"), "{told}");
        assert!(fs::read(dir.join("f")).unwrap() == pattern(8, LARGE));
    }
    drop(reader);
    roll_back(&dir, "one");
    is_first(&dir);
    roll_back(&dir, "two");
    let writer = OpenOptions::new().write(true).open(dir.join("large")).unwrap();
    assert!(fails(&["snapshot", "rollback"], &dir, &["one"]).contains("/large"));
    drop(writer);
    // Somebody is in a directory that was removed and is to come back.
    roll_back(&dir, "one");
    let inside = File::open(dir.join("gone/deep")).unwrap();
    fs::remove_dir_all(dir.join("gone")).unwrap();
    assert!(fails(&["snapshot", "rollback"], &dir, &["one"]).contains("\n  /gone/deep\n"));
    drop(inside);
    roll_back(&dir, "one");
    fs::write(dir.join("gone/deep/new"), "x").unwrap();
    roll_back(&dir, "two");
    let reader = File::open(dir.join("a/b/written")).unwrap();
    fs::remove_file(dir.join("a/b/written")).unwrap();
    roll_back(&dir, "two");
    let path = dir.join("a/b/written");
    assert_eq!(reader.metadata().unwrap().ino(), fs::metadata(&path).unwrap().ino());
    assert_eq!(fs::read(&path).unwrap(), b"a/b/written");
    let mut bytes = [0; 11];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"a/b/written");
    drop(reader);
    assert_eq!(fs::read(&path).unwrap(), b"a/b/written");
}

/// A daemon that is killed meanwhile leaves one of the two states.
fn snapshot_rollback_cut_short(place: &Place) {
    let Place::Mount(mount) = place else { return };
    let dir = place.dir();
    make_files(&dir);
    snapshot(place, "one");
    for wait_ms in [0, 2, 5, 10, 20, 40] {
        change_files(&dir);
        fs::write(dir.join("a/more"), pattern(3, 4 * LARGE)).unwrap();
        let (store, daemon) = (mount.store(), mount.daemon());
        let rolling = std::thread::spawn(move || {
            let _ = varve().args(["snapshot", "rollback"]).arg(store).arg("one").output();
        });
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
        rolling.join().unwrap();
        mount.mount();
        if fs::metadata(dir.join("a/more")).is_ok() {
            assert!(fs::read(dir.join("a/new")).unwrap() == pattern(9, LARGE));
            assert!(fs::metadata(dir.join("gone")).is_err());
            roll_back(&dir, "one");
        }
        is_first(&dir);
    }
    mount.unmount();
    run(varve().arg("fsck").arg(mount.store()));
    mount.mount();
}
