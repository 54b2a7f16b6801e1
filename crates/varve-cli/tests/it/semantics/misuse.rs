//! What bad use of snapshots and transactions gets: an error that says what to do, and nothing else.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use varve_testkit::Command;

use super::views::{begin, checked, commit, fails, id};
use super::{Place, names, refused_io, semantics};
use crate::harness::{run, varve};

semantics!(misused_transactions, misused_snapshots, names_across_views);

fn make(dir: &Path) {
    fs::create_dir(dir.join("d")).unwrap();
    fs::write(dir.join("d/file"), "first").unwrap();
}

/// A mount that is none of ours, unmounted when dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(place: &Place) -> Tmpfs {
        let at = place.dir().parent().unwrap().join("beside");
        fs::create_dir(&at).unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "varve-test"]).arg(&at));
        fs::write(at.join("file"), "x").unwrap();
        Tmpfs(at)
    }

    fn is_there(&self) {
        assert_eq!(names(&self.0), ["file"]);
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn misused_transactions(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    make(&dir);
    let [committed, aborted, open] = [begin(&dir), begin(&dir), begin(&dir)];
    fs::write(committed.join("d/file"), "committed").unwrap();
    fs::write(aborted.join("d/file"), "aborted").unwrap();
    fs::write(open.join("d/file"), "open").unwrap();
    commit(place, &committed);
    run(varve().args(["txn", "abort"]).arg(&dir).arg(id(&aborted)));
    // Paths too, which were unmounted before anybody asked whether there is such a transaction.
    let beside = Tmpfs::new(place);
    let open_file = File::open(open.join("d/file")).unwrap();
    let [beside_path, committed_path] = [&beside.0, &committed].map(|path| path.to_str().unwrap());
    let inside = format!("{}/d", id(&open));
    let paths = [beside_path, committed_path, "../..", "..", ".", &inside];
    for ended in [id(&committed), id(&aborted), "17", "no-number", ""].into_iter().chain(paths) {
        for deed in ["commit", "abort", "status", "diff"] {
            let said = fails(&["txn", deed], &dir, &[ended]);
            assert!(said.contains("no transaction"), "{deed} {ended:?}: {said}");
            assert!(said.contains("varve txn list"), "{deed} {ended:?}: {said}");
        }
    }
    beside.is_there();
    assert_eq!(super::content(&open_file), b"open", "its mount is still there");
    drop(open_file);
    // What `begin` printed is as good as the id.
    let path = begin(&dir);
    fs::write(path.join("by path"), "new").unwrap();
    for deed in ["status", "diff", "commit"] {
        run(varve().args(["txn", deed]).arg(&dir).arg(&path));
    }
    assert_eq!(fs::read(dir.join("by path")).unwrap(), b"new");
    // In a view nothing else begins or ends.
    for args in [["txn", "begin"], ["snapshot", "list"]] {
        let said = fails(&args, &open, &[]);
        assert!(said.contains("lies in a snapshot or a transaction"), "{args:?}: {said}");
    }
    for args in [["txn", "commit"], ["txn", "abort"]] {
        let said = fails(&args, &open, &[id(&open)]);
        assert!(said.contains("name a directory of the mount itself"), "{args:?}: {said}");
    }
    let said = fails(&["txn", "commit"], &dir, &[id(&open)]);
    assert!(said.contains("\n  /d/file\n") && said.contains("varve txn abort"), "{said}");
    assert_eq!(fs::read(open.join("d/file")).unwrap(), b"open", "it goes on");
    assert_eq!(fs::read(dir.join("d/file")).unwrap(), b"committed");
    // Two who end the same one at once: it ends once.
    let both = begin(&dir);
    fs::write(both.join("new"), "new").unwrap();
    let ending = |deed: &'static str| {
        let mut command = varve();
        command.args(["txn", deed]).arg(&dir).arg(id(&both));
        std::thread::spawn(move || command.output().unwrap().status.success())
    };
    let ended = [ending("commit"), ending("abort"), ending("commit")];
    let ended = ended.map(|thread| thread.join().unwrap());
    assert_eq!(ended.iter().filter(|done| **done).count(), 1, "{ended:?}");
    assert_eq!(dir.join("new").exists(), !ended[1]);
    checked(place);
}

fn misused_snapshots(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    make(&dir);
    run(varve().args(["snapshot", "create"]).arg(&dir).arg("one"));
    let seen = dir.join(".varve/snapshots/one");
    fs::write(dir.join("d/file"), "second").unwrap();
    for args in [["snapshot", "rollback"], ["snapshot", "delete"], ["snapshot", "diff"]] {
        let said = fails(&args, &dir, &["two"]);
        assert!(said.contains("no snapshot `two`"), "{said}");
        assert!(said.contains("varve snapshot list"), "{said}");
        let said = fails(&args, &seen, &["one"]);
        assert!(said.contains("name a directory of the mount itself"), "{said}");
    }
    let used = File::open(seen.join("d/file")).unwrap();
    assert!(fails(&["snapshot", "delete"], &dir, &["one"]).contains("in use"));
    let beside = Tmpfs::new(place);
    for wrong in [beside.0.to_str().unwrap(), "../..", "../txn", "..", "", "one/d"] {
        let said = fails(&["snapshot", "delete"], &dir, &[wrong]);
        assert!(said.contains("no snapshot"), "{wrong:?}: {said}");
    }
    beside.is_there();
    // A rollback leaves those alone who read in the snapshot.
    run(varve().args(["snapshot", "rollback"]).arg(&dir).arg("one"));
    assert_eq!(super::content(&used), b"first");
    drop(used);
    assert_eq!(fs::read(dir.join("d/file")).unwrap(), b"first");
    // A transaction over what was undone conflicts, and changes nothing.
    fs::write(dir.join("d/file"), "third").unwrap();
    let view = begin(&dir);
    fs::write(view.join("d/file"), "in the transaction").unwrap();
    run(varve().args(["snapshot", "rollback"]).arg(&dir).arg("one"));
    assert!(fails(&["txn", "commit"], &dir, &[id(&view)]).contains("\n  /d/file\n"));
    assert_eq!(fs::read(dir.join("d/file")).unwrap(), b"first");
    run(varve().args(["txn", "abort"]).arg(&dir).arg(id(&view)));
    // What a clone needs of a snapshot stays when that is deleted.
    run(varve().arg("clone").args([&seen.join("d"), &dir.join("copy")]));
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("one"));
    refused_io(fs::metadata(&seen), Errno::NOENT);
    assert_eq!(fs::read(dir.join("copy/file")).unwrap(), b"first");
    checked(place);
    let Place::Mount(mount) = place else { return };
    run(varve().args(["snapshot", "create"]).arg(&dir).arg("two"));
    mount.unmount();
    mount.mount_with("ro");
    for args in [["snapshot", "rollback"], ["snapshot", "delete"]] {
        let output = varve().args(args).arg(&dir).arg("two").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("read-only"), "{args:?}: {said}");
    }
    mount.remount();
    assert_eq!(fs::read(dir.join("d/file")).unwrap(), b"first");
}

fn names_across_views(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    make(&dir);
    run(varve().args(["snapshot", "create"]).arg(&dir).arg("one"));
    let places = [dir.clone(), dir.join(".varve/snapshots/one"), begin(&dir), begin(&dir)];
    for (at, from) in places.iter().enumerate() {
        for (other, to) in places.iter().enumerate().filter(|(other, _)| *other != at) {
            let (old, new) = (from.join("d/file"), to.join("new"));
            refused_io(fs::rename(&old, &new), Errno::XDEV);
            // Whether anything can be made there at all is asked first.
            let link = if other == 1 { Errno::ROFS } else { Errno::XDEV };
            refused_io(fs::hard_link(&old, &new), link);
            assert_eq!(names(to), ["d"], "{at} to {other}");
            assert_eq!(names(from), ["d"], "{at} to {other}");
        }
    }
}
