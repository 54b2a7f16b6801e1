//! What programs have open, and what the kernel knows, when a commit or a rollback changes it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{OFlags, fcntl_setfl};
use varve_testkit::eventually;

use super::rollback::roll_back;
use super::views::{begin, commit, snapshot, text};
use super::{Place, pattern, semantics};
use crate::harness::{run, varve};

semantics!(appends_behind_commits);

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
