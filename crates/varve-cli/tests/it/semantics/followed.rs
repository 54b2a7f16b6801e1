//! What programs have open, and what the kernel knows, when a commit or a rollback changes it.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use rustix::fs::{FallocateFlags, OFlags, XattrFlags, fcntl_setfl};
use rustix::io::Errno;
use varve_testkit::{eventually, there_is};

use super::rollback::roll_back;
use super::views::{begin, commit, id, snapshot, text, write_at};
use super::{NamedChange, Place, as_user, pattern, refused, refused_io, semantics};
use crate::harness::{run, varve};

semantics!(
    appends_behind_commits,
    mapped_behind_commits,
    capabilities_behind_commits,
    listings_of_views,
    commits_told_beside_waits
);

fn open_to_append(path: &Path) -> File {
    OpenOptions::new().append(true).open(path).unwrap()
}

/// Begins a serializable transaction on a directory; gives its view.
fn begin_serializable(dir: &Path) -> PathBuf {
    let mut command = varve();
    PathBuf::from(text(&run(command
        .args(["txn", "begin", "--isolation", "serializable"])
        .arg(dir))))
}

/// Does what is done beside many other things on the mount.
fn meanwhile(dir: &Path) {
    for n in 0..100 {
        fs::write(dir.join("beside"), n.to_string()).unwrap();
        assert_eq!(fs::read(dir.join("beside")).unwrap(), n.to_string().into_bytes());
    }
}

/// What was appended to a file whose end a commit or a rollback had moved was written where the end had been: over what was
/// committed, or behind a hole.
fn appends_behind_commits(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let (dir, path) = (place.dir(), place.dir().join("log"));
    fs::write(&path, "a\n").unwrap();
    let mut log = open_to_append(&path);
    let mut wanted = b"a\n".to_vec();
    let is = |wanted: &[u8]| eventually("it is as appended", || fs::read(&path).unwrap() == wanted);
    let view = begin(&dir);
    open_to_append(&view.join("log")).write_all(&pattern(5, 100)).unwrap();
    wanted.extend_from_slice(&pattern(5, 100));
    commit(place, &view);
    for line in [&b"b\n"[..], b"c\n", &pattern(8, 20_000)] {
        log.write_all(line).unwrap();
        wanted.extend_from_slice(line);
    }
    is(&wanted);
    snapshot(place, "short");
    log.write_all(&pattern(6, 900)).unwrap();
    roll_back(&dir, "short");
    log.write_all(b"d\n").unwrap();
    wanted.extend_from_slice(b"d\n");
    is(&wanted);
    // What waits for a transaction is written behind what that has appended.
    let view = begin_serializable(&dir);
    open_to_append(&view.join("log")).write_all(b"by it\n").unwrap();
    wanted.extend_from_slice(b"by it\n");
    let mut other = open_to_append(&path);
    let waits = thread::spawn(move || other.write_all(b"e\n").unwrap());
    meanwhile(&dir);
    assert!(!waits.is_finished());
    commit(place, &view);
    waits.join().unwrap();
    wanted.extend_from_slice(b"e\n");
    is(&wanted);
    // Nor do appends grow a file to a large one elsewhere than behind what it holds.
    let view = begin(&dir);
    open_to_append(&view.join("log")).write_all(b"again\n").unwrap();
    wanted.extend_from_slice(b"again\n");
    commit(place, &view);
    log.write_all(&pattern(7, 2_000_000)).unwrap();
    wanted.extend_from_slice(&pattern(7, 2_000_000));
    is(&wanted);
    fcntl_setfl(&log, OFlags::empty()).unwrap();
    log.write_all_at(b"A", 0).unwrap();
    wanted[0] = b'A';
    drop(log);
    is(&wanted);
    place.remount();
    is(&wanted);
}

/// A file kept the capabilities that a transaction had given it when a program wrote over it that had it open: once there was nothing to
/// be taken from a file the kernel does not ask again, and no commit makes it.
fn capabilities_behind_commits(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    // Version 2, CAP_NET_RAW permitted and effective.
    let mut value = 0x0200_0001_u32.to_le_bytes().to_vec();
    value.extend((1u32 << 13).to_le_bytes());
    value.extend([0; 12]);
    let name = "security.capability";
    let from = dir.join("from");
    fs::write(&from, pattern(1, 300)).unwrap();
    let changes: [NamedChange; 4] = [
        ("write", &|file| file.write_all_at(b"other", 0).unwrap()),
        ("write that makes it large", &|file| file.write_all_at(b"other", 200_000).unwrap()),
        ("reserve", &|file| {
            rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, 5).unwrap();
        }),
        ("copy", &|file| {
            let from = File::open(&from).unwrap();
            assert_eq!(rustix::fs::copy_file_range(from, None, file, None, 300), Ok(300));
        }),
    ];
    for (what, change) in changes {
        let path = dir.join(what);
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let file = as_user(1000, &[1000], || {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(b"y", 0).unwrap();
            file
        });
        let view = begin_serializable(&dir);
        rustix::fs::setxattr(view.join(what), name, &value, XattrFlags::empty()).unwrap();
        commit(place, &view);
        as_user(1000, &[1000], || change(&file));
        refused(rustix::fs::getxattr(&path, name, &mut [0; 64][..]), Errno::NODATA);
    }
}

/// A listing of views that was read while one came or went could stay with those who list as before, as its directory's times told
/// nothing.
fn listings_of_views(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    let mtimes = |names: &[&str]| -> Vec<(i64, i64)> {
        let of = |name: &&str| fs::metadata(dir.join(".varve").join(name)).unwrap();
        names.iter().map(of).map(|meta| (meta.mtime(), meta.mtime_nsec())).collect()
    };
    let differs = |names: &[&str], change: &dyn Fn()| {
        let before = mtimes(names);
        change();
        let after = mtimes(names);
        assert!(before.iter().zip(&after).all(|(before, after)| before != after), "{after:?}");
    };
    differs(&["snapshots"], &|| drop(snapshot(place, "one")));
    differs(&["snapshots"], &|| drop(snapshot(place, "two")));
    differs(&["snapshots"], &|| {
        run(varve().args(["snapshot", "delete"]).arg(&dir).arg("one"));
    });
    let views = ["txn", "control"];
    differs(&views, &|| drop(begin(&dir)));
    let view = begin_serializable(&dir);
    differs(&views, &|| commit(place, &view));
}

/// Has a file mapped, and changes its first byte whenever it is told to.
const MAPPER: &str = r#"
import mmap, os, sys
fd = os.open("f", os.O_RDWR)
shared = mmap.mmap(fd, 0)
print("mapped", flush=True)
for line in sys.stdin:
    shared[0:1] = line[0:1].encode()
    print("changed", flush=True)
"#;

/// The kernel wrote the whole of a page that a program had changed in mapped memory over what was committed or rolled back beside
/// that.
fn mapped_behind_commits(place: &Place) {
    if !place.is_varve() || !there_is("python3") {
        return;
    }
    let (dir, path) = (place.dir(), place.dir().join("f"));
    let mut wanted = pattern(1, 4096);
    fs::write(&path, &wanted).unwrap();
    let mut mapper = Command::new("python3");
    mapper.args(["-c", MAPPER]).current_dir(&dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut mapper = mapper.spawn().unwrap();
    let mut order = mapper.stdin.take().unwrap();
    let mut said = BufReader::new(mapper.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(said.next().unwrap(), "mapped");
    let mut change = |to: &str| {
        writeln!(order, "{to}").unwrap();
        assert_eq!(said.next().unwrap(), "changed");
    };
    // Who has mapped it and changed nothing is in nobody's way.
    let view = begin(&dir);
    write_at(&view.join("f"), b"in place", 100);
    wanted[100..108].copy_from_slice(b"in place");
    commit(place, &view);
    assert!(fs::read(&path).unwrap() == wanted);
    let view = begin(&dir);
    write_at(&view.join("f"), b"too late", 100);
    change("P");
    wanted[0] = b'P';
    let refused = varve().args(["txn", "commit"]).arg(&dir).arg(id(&view)).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(5) && told.contains("/f\n"), "{told}");
    assert!(fs::read(&path).unwrap() == wanted);
    run(varve().args(["txn", "abort"]).arg(&dir).arg(id(&view)));
    snapshot(place, "one");
    write_at(&path, b"undone", 200);
    change("Q");
    roll_back(&dir, "one");
    assert!(fs::read(&path).unwrap() == wanted);
    change("R");
    wanted[0] = b'R';
    drop(order);
    assert!(mapper.wait().unwrap().success());
    assert!(fs::read(&path).unwrap() == wanted);
    place.remount();
    assert!(fs::read(&path).unwrap() == wanted);
}

/// While a request waited in a directory of which a commit had changed a name, nothing else of that commit was told to the kernel.
fn commits_told_beside_waits(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    for name in ["a", "b"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    for name in ["b/f", "b/gone"] {
        fs::write(dir.join(name), "old").unwrap();
        assert_eq!(fs::read(dir.join(name)).unwrap(), b"old");
    }
    refused_io(fs::metadata(dir.join("b/made")), Errno::NOENT);
    let keeps = begin_serializable(&dir);
    refused_io(fs::metadata(keeps.join("a/n")), Errno::NOENT);
    let waited_for = dir.join("a/n");
    let waits = thread::spawn(move || fs::write(waited_for, "made"));
    meanwhile(&dir);
    assert!(!waits.is_finished());
    let view = begin(&dir);
    for name in ["a/m", "b/made", "b/f"] {
        fs::write(view.join(name), "new").unwrap();
    }
    fs::remove_file(view.join("b/gone")).unwrap();
    thread::scope(|scope| {
        let commits = scope.spawn(|| commit(place, &view));
        eventually("all but one directory is new", || {
            let is_new = |name: &str| fs::read(dir.join(name)).is_ok_and(|bytes| bytes == b"new");
            is_new("b/f") && is_new("b/made") && !dir.join("b/gone").exists()
        });
        assert!(!waits.is_finished(), "it is told what is new while others wait");
        run(varve().args(["txn", "abort"]).arg(&dir).arg(id(&keeps)));
        commits.join().unwrap();
    });
    waits.join().unwrap().unwrap();
    assert_eq!(fs::read(dir.join("a/m")).unwrap(), b"new");
    assert_eq!(fs::read(dir.join("a/n")).unwrap(), b"made");
}
