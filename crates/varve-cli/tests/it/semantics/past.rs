//! `.varve/snapshots` of directories below the root.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use varve_testkit::{Command, at_end, eventually};

use super::views::{begin, checked, commit, snapshot};
use super::{Place, as_user, names, refused, refused_io, semantics};
use crate::harness::{run, varve, without_namespaces};

semantics!(
    snapshots_of_directories,
    snapshots_of_moved_directories,
    synthetic_and_real_names,
    snapshots_of_directories_of_clones,
    snapshots_of_directories_meanwhile
);

fn delete(place: &Place, name: &str) {
    run(varve().args(["snapshot", "delete"]).arg(place.dir()).arg(name));
}

/// What `dir` was in a snapshot.
fn past(dir: &Path, name: &str) -> PathBuf {
    dir.join(".varve/snapshots").join(name)
}

fn listed(dir: &Path) -> Vec<OsString> {
    names(&dir.join(".varve/snapshots"))
}

fn snapshots_of_directories(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let _apart = without_namespaces();
    let dir = place.dir();
    let (d, e) = (dir.join("d"), dir.join("d/e"));
    fs::create_dir_all(&e).unwrap();
    fs::write(e.join("file"), "monday").unwrap();
    // Who looks before there are snapshots finds them later.
    refused_io(fs::metadata(e.join(".varve")), Errno::NOENT);
    snapshot(place, "monday");
    fs::write(e.join("file"), "changed").unwrap();
    fs::create_dir(d.join("new")).unwrap();
    assert_eq!(fs::read(past(&e, "monday").join("file")).unwrap(), b"monday");
    assert_eq!(names(&past(&d, "monday")), ["e"]);
    run(Command::new("sh").args(["-c", "cp .varve/snapshots/monday/file back"]).current_dir(&e));
    assert_eq!(fs::read(e.join("back")).unwrap(), b"monday");
    assert_eq!(names(&d), ["e", "new"], "no listing shows it");
    assert_eq!(names(&e.join(".varve")), ["snapshots"]);
    assert_eq!(listed(&e), ["monday"]);
    assert_eq!(listed(&d.join("new")), Vec::<&str>::new());
    refused_io(fs::read_link(past(&d.join("new"), "monday")), Errno::NOENT);
    refused_io(fs::metadata(past(&e, "tuesday")), Errno::NOENT);
    let target = Path::new("../../../../.varve/snapshots/monday/d/e");
    assert_eq!(fs::read_link(past(&e, "monday")).unwrap(), target);
    snapshot(place, "tuesday");
    assert_eq!(listed(&e), ["monday", "tuesday"]);
    assert_eq!(listed(&d.join("new")), ["tuesday"]);
    assert_eq!(fs::read(past(&e, "tuesday").join("file")).unwrap(), b"changed");
    one_number_each(&dir, &[&d, &e, &d.join("new")]);
    let link = fs::symlink_metadata(past(&e, "monday")).unwrap();
    assert_eq!(link.len(), target.as_os_str().len() as u64);
    fs::set_permissions(dir.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    as_user(1000, &[1000], || {
        assert_eq!(fs::read(past(&e, "monday").join("file")).unwrap(), b"monday");
    });
    // As soon as one is gone, and another of its name there.
    delete(place, "monday");
    refused_io(fs::read_link(past(&e, "monday")), Errno::NOENT);
    assert_eq!(listed(&e), ["tuesday"]);
    fs::write(e.join("file"), "another monday").unwrap();
    snapshot(place, "monday");
    assert_eq!(fs::read(past(&e, "monday").join("file")).unwrap(), b"another monday");
    place.remount();
    assert_eq!(fs::read(past(&e, "monday").join("file")).unwrap(), b"another monday");
    place.kill_daemon();
    place.mount_again();
    assert_eq!(fs::read(past(&e, "tuesday").join("file")).unwrap(), b"changed");
    // The next process knows no links, but the kernel does.
    let kept = rustix::fs::open(past(&e, "monday"), LINK, rustix::fs::Mode::empty()).unwrap();
    place.upgrade();
    assert_eq!(fs::read(past(&e, "tuesday").join("file")).unwrap(), b"changed");
    assert_eq!(fs::read(past(&e, "monday").join("file")).unwrap(), b"another monday");
    drop(kept);
    for name in ["monday", "tuesday"] {
        delete(place, name);
    }
    refused_io(fs::metadata(e.join(".varve")), Errno::NOENT);
    checked(place);
}

/// Nothing that is made up has the inode number of anything else.
fn one_number_each(root: &Path, dirs: &[&Path]) {
    let mut numbers = BTreeSet::new();
    let mut paths = vec![root.to_owned(), root.join(".varve"), root.join(".varve/snapshots")];
    let mut links = Vec::new();
    for dir in dirs {
        paths.extend(["", ".varve", ".varve/snapshots"].map(|name| dir.join(name)));
        links.extend(listed(dir).iter().map(|name| past(dir, name.to_str().unwrap())));
    }
    for path in paths.iter().chain(&links) {
        let facts = fs::symlink_metadata(path).unwrap();
        assert!(numbers.insert(facts.ino()), "{path:?}");
        assert_eq!(facts.dev(), fs::metadata(root).unwrap().dev());
        assert_eq!(facts.is_symlink(), links.contains(path), "{path:?}");
    }
}

/// Opens a link itself.
const LINK: rustix::fs::OFlags = rustix::fs::OFlags::PATH.union(rustix::fs::OFlags::NOFOLLOW);

fn snapshots_of_moved_directories(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    let first = dir.join("a/first");
    fs::create_dir_all(&first).unwrap();
    fs::create_dir_all(dir.join("b/c/d")).unwrap();
    fs::write(first.join("file"), "one").unwrap();
    snapshot(place, "one");
    let open = File::open(&first).unwrap();
    let through = |name: &str| {
        let at = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        fs::read(past(&at, name).join("file"))
    };
    assert_eq!(through("one").unwrap(), b"one");
    // By itself, and with the directory it is in; what takes its place is another one.
    let second = dir.join("b/c/d/second");
    fs::rename(&first, &second).unwrap();
    fs::create_dir(&first).unwrap();
    assert_eq!(through("one").unwrap(), b"one");
    assert_eq!(fs::read(past(&second, "one").join("file")).unwrap(), b"one");
    assert_eq!(listed(&first), Vec::<&str>::new());
    fs::write(second.join("file"), "two").unwrap();
    snapshot(place, "two");
    fs::rename(dir.join("b/c"), dir.join("c")).unwrap();
    let third = dir.join("c/d/second");
    for at in [&second, &third] {
        let expected = if at == &third { Ok(&b"one"[..]) } else { Err(Some(2)) };
        let found = fs::read(past(at, "one").join("file"));
        let found = found.map_err(|error| error.raw_os_error());
        assert_eq!(found.as_deref().map_err(|error| *error), expected);
    }
    assert_eq!(fs::read(past(&third, "two").join("file")).unwrap(), b"two");
    let steps = |path: PathBuf| {
        let target = fs::read_link(path).unwrap();
        target.components().filter(|part| part.as_os_str() == "..").count()
    };
    assert_eq!([steps(past(&third, "one")), steps(past(&dir.join("c"), "two"))], [5, 3]);
    assert_eq!(through("two").unwrap(), b"two");
    // Removed with all that was looked up in it.
    fs::remove_file(third.join("file")).unwrap();
    let inside = File::open(third.join(".varve/snapshots")).unwrap();
    fs::remove_dir(&third).unwrap();
    through("two").unwrap_err();
    let gone = format!("/proc/self/fd/{}", inside.as_raw_fd());
    assert!(fs::read_dir(&gone).is_err() || names(Path::new(&gone)).is_empty());
    refused_io(fs::metadata(third.join(".varve")), Errno::NOENT);
    drop((open, inside));
    // More of them than links are known at a time.
    let many: Vec<PathBuf> = (0..1100).map(|n| dir.join("c").join(n.to_string())).collect();
    many.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    snapshot(place, "many");
    for _ in 0..2 {
        for (n, of) in many.iter().enumerate() {
            let target = format!("../../../../.varve/snapshots/many/c/{n}");
            assert_eq!(fs::read_link(past(of, "many")).unwrap(), Path::new(&target));
        }
    }
    checked(place);
}

fn synthetic_and_real_names(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    for name in ["real/.varve", "d", "with"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    fs::write(dir.join("with/file"), "x").unwrap();
    snapshot(place, "one");
    let (synthetic, real) = (dir.join("d/.varve"), dir.join("real/.varve"));
    assert_eq!(names(&real), Vec::<&str>::new());
    assert_eq!(names(&dir.join("real")), [".varve"]);
    fs::write(real.join("file"), "in it").unwrap();
    assert_eq!(names(&synthetic), ["snapshots"]);
    refused_io(fs::create_dir(&synthetic), Errno::EXIST);
    refused_io(fs::write(&synthetic, "x"), Errno::ISDIR);
    refused_io(symlink("x", &synthetic), Errno::EXIST);
    refused_io(fs::remove_dir(&synthetic), Errno::PERM);
    refused_io(fs::remove_file(&synthetic), Errno::ISDIR);
    refused_io(fs::rename(&synthetic, dir.join("x")), Errno::PERM);
    let exchanged = renameat_with(CWD, dir.join("with"), CWD, &synthetic, RenameFlags::EXCHANGE);
    refused(exchanged, Errno::PERM);
    for inside in ["x", "snapshots/x"].map(|name| synthetic.join(name)) {
        refused_io(fs::metadata(&inside), Errno::NOENT);
        refused_io(fs::write(&inside, "x"), Errno::PERM);
        refused_io(fs::create_dir(&inside), Errno::PERM);
        refused_io(symlink("x", &inside), Errno::PERM);
    }
    refused_io(fs::remove_file(past(&dir.join("d"), "one")), Errno::PERM);
    refused_io(fs::rename(past(&dir.join("d"), "one"), dir.join("x")), Errno::PERM);
    refused_io(fs::set_permissions(&synthetic, fs::Permissions::from_mode(0o700)), Errno::PERM);
    // Views have none; what is made there comes first once it is committed.
    refused_io(fs::metadata(past(&dir, "one").join("d/.varve")), Errno::NOENT);
    let view = begin(&dir);
    refused_io(fs::metadata(view.join("d/.varve")), Errno::NOENT);
    fs::create_dir(view.join("d/.varve")).unwrap();
    fs::write(view.join("d/.varve/file"), "committed").unwrap();
    commit(place, &view);
    assert_eq!(names(&synthetic), ["file"]);
    fs::remove_dir_all(&synthetic).unwrap();
    assert_eq!(names(&synthetic), ["snapshots"]);
    // A directory that is moved there comes first too, and what is moved away or removed does no more.
    fs::rename(dir.join("with"), &synthetic).unwrap();
    assert_eq!(names(&synthetic), ["file"]);
    assert_eq!(names(&dir.join("d")), [".varve"]);
    fs::rename(&synthetic, dir.join("with")).unwrap();
    assert_eq!(names(&synthetic), ["snapshots"]);
    fs::remove_dir_all(&real).unwrap();
    assert_eq!(listed(&dir.join("real")), ["one"]);
    assert_eq!(names(&past(&dir.join("real"), "one")), [".varve"]);
    fs::remove_dir(dir.join("d")).unwrap();
    checked(place);
}

fn snapshots_of_directories_of_clones(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    for name in ["original/a/b/c", "original/gone/d", "elsewhere"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    for name in ["a/b/file", "a/b/c/file", "gone/d/file"] {
        fs::write(dir.join("original").join(name), name).unwrap();
    }
    let clone = dir.join("clone");
    run(varve().arg("clone").args([&dir.join("original"), &clone]));
    // Nobody has looked into it by then.
    snapshot(place, "then");
    let (b, c) = (clone.join("a/b"), clone.join("a/b/c"));
    fs::write(b.join("file"), "changed").unwrap();
    fs::write(c.join("file"), "changed").unwrap();
    assert_eq!(fs::read(past(&c, "then").join("file")).unwrap(), b"a/b/c/file");
    assert_eq!(fs::read(past(&b, "then").join("file")).unwrap(), b"a/b/file");
    assert_eq!(names(&past(&clone, "then")), ["a", "gone"]);
    let ino = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_eq!(ino(&past(&c, "then")), ino(&c));
    // Under another name, and in another directory of which the snapshot knows by now.
    fs::rename(&b, clone.join("a/renamed")).unwrap();
    let file = past(&clone.join("a/renamed"), "then").join("file");
    assert_eq!(fs::read(file).unwrap(), b"a/b/file");
    fs::rename(clone.join("a/renamed/c"), dir.join("elsewhere/c")).unwrap();
    let file = past(&dir.join("elsewhere/c"), "then").join("file");
    assert_eq!(fs::read(file).unwrap(), b"a/b/c/file");
    // The clone is older than what is made in it.
    fs::create_dir(clone.join("a/made")).unwrap();
    assert_eq!(listed(&clone.join("a/made")), Vec::<&str>::new());
    // Of this one the snapshot does not know yet, and would not look there.
    fs::rename(clone.join("gone/d"), dir.join("elsewhere/d")).unwrap();
    assert_eq!(listed(&dir.join("elsewhere/d")), Vec::<&str>::new());
    place.remount();
    assert_eq!(names(&past(&clone.join("a"), "then")), ["b"]);
    delete(place, "then");
    refused_io(fs::metadata(clone.join("a/.varve")), Errno::NOENT);
    checked(place);
}

fn snapshots_of_directories_meanwhile(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    fs::create_dir_all(dir.join("original/d")).unwrap();
    fs::create_dir(dir.join("deeper")).unwrap();
    fs::write(dir.join("original/d/file"), "always").unwrap();
    run(varve().arg("clone").args([dir.join("original"), dir.join("clone")]));
    snapshot(place, "stays");
    let (shallow, deep) = (dir.join("clone"), dir.join("deeper/clone"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = at_end(|| over.store(true, Ordering::Relaxed));
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                fs::rename(&shallow, &deep).unwrap();
                fs::rename(&deep, &shallow).unwrap();
            }
        });
        let readers =
            [("stays", &shallow), ("comes", &shallow), ("stays", &deep), ("comes", &deep)];
        let readers = readers.map(|(name, at)| {
            let over = &over;
            scope.spawn(move || {
                let mut read = 0;
                while !over.load(Ordering::Relaxed) {
                    match fs::read(past(&at.join("d"), name).join("file")) {
                        Ok(bytes) => {
                            assert_eq!(bytes, b"always");
                            read += 1;
                        }
                        Err(error) => {
                            // Moved between two steps, or its snapshot was deleted.
                            let errno = error.raw_os_error().unwrap();
                            let known = [Errno::NOENT, Errno::STALE, Errno::NOTCONN];
                            assert!(known.map(Errno::raw_os_error).contains(&errno), "{error}");
                        }
                    }
                }
                read
            })
        });
        for _ in 0..10 {
            snapshot(place, "comes");
            eventually("nobody is in it", || {
                let output = varve().args(["snapshot", "delete"]).arg(&dir).arg("comes").output();
                output.unwrap().status.success()
            });
        }
        drop(end);
        let read: Vec<u32> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        assert!(read.iter().sum::<u32>() > 0, "{read:?}");
    });
    assert_eq!(fs::read(past(&dir.join("clone/d"), "stays").join("file")).unwrap(), b"always");
    delete(place, "stays");
    checked(place);
}
