//! `varve snapshot send` and `receive`: the tree of one store in another.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use varve_testkit::Command;

use super::rollback::{change_files, roll_back};
use super::views::{LARGE, fails, make_files, snapshot, text, write_at};
use super::{Place, names, pattern, semantics};
use crate::harness::{json, run, varve};

semantics!(snapshot_send, snapshot_receive_cut_short);

/// What `varve snapshot send` writes.
fn sent(path: &Path, arguments: &[&str]) -> Vec<u8> {
    run(varve().args(["snapshot", "send"]).arg(path).args(arguments)).stdout
}

/// Has `varve snapshot receive` read `stream`; what it says if that fails.
fn receive(path: &Path, stream: &[u8]) -> Result<(), String> {
    let mut command = varve();
    command.args(["snapshot", "receive"]).arg(path).stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let stream = stream.to_vec();
    let fed = std::thread::spawn(move || std::io::Write::write_all(&mut input, &stream));
    let output = child.wait_with_output().unwrap();
    // One that has had enough does not read the rest.
    let _ = fed.join().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Has `varve snapshot receive` read `stream` and then `more` bytes; how many it took before it failed, and what it said.
fn refused_after(path: &Path, stream: &[u8], more: usize) -> (usize, String) {
    let mut command = varve();
    command.args(["snapshot", "receive"]).arg(path).stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let (stream, piece) = (stream.to_vec(), vec![0; 1 << 20]);
    let fed = std::thread::spawn(move || {
        let mut taken = 0;
        let mut is_fed = std::io::Write::write_all(&mut input, &stream).is_ok();
        while is_fed && taken < more {
            is_fed = std::io::Write::write_all(&mut input, &piece).is_ok();
            taken += piece.len();
        }
        taken
    });
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    (fed.join().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// With what to go on, as a program hears it: `--token` told it as people are told, and `--discard` nothing.
fn told(path: &Path, what: &str) -> serde_json::Value {
    json(varve().args(["snapshot", "receive", what, "--json"]).arg(path))["token"].clone()
}

/// Both directories hold the same, with the same owners, times, links and holes.
fn same_trees(one: &Path, other: &Path) {
    run(Command::new("diff").args(["-r", "--no-dereference"]).arg(one).arg(other));
    let list = |dir: &Path| {
        let format = "%P %y %m %U %G %n %i %s %T@ %l\\n";
        let mut find = Command::new("find");
        let mut lines: Vec<String> =
            text(&run(find.arg(dir).args(["-mindepth", "1", "-printf", format])))
                .lines()
                .map(str::to_owned)
                .collect();
        lines.sort();
        lines
    };
    assert_eq!(list(one), list(other));
}

fn no_store_is_made_for_the_rest_of(whole: &[u8], dir: &Path) {
    let apart = tempfile::tempdir().unwrap();
    let [cut, none] = ["cut", "none"].map(|name| apart.path().join(name));
    receive(&cut, &whole[..whole.len() / 2]).unwrap_err();
    let token = text(&run(varve().args(["snapshot", "receive", "--token"]).arg(&cut)));
    let rest = sent(dir, &["--resume", &token]);
    assert!(receive(&none, &rest).unwrap_err().contains("the rest of one"));
    assert!(!none.exists());
}

fn snapshot_send(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let Place::Mount(mount) = place else { return };
    let dir = place.dir();
    make_files(&dir);
    std::os::unix::fs::symlink("nowhere", dir.join("link")).unwrap();
    File::create(dir.join("sparse")).unwrap().write_all_at(b"far", 40 << 20).unwrap();
    run(varve().args(["kv", "create"]).arg(&dir).arg("pairs"));
    run(varve().args(["kv", "put"]).arg(&dir).args(["pairs", "key", "then"]));
    let one = snapshot(place, "one");
    let whole = sent(&dir, &["one"]);
    assert!(whole.len() < 3 * LARGE, "{} bytes", whole.len());
    no_store_is_made_for_the_rest_of(&whole, &dir);
    let there = crate::harness::Mount::unformatted();
    receive(&there.store(), &whole).unwrap();
    there.mount();
    same_trees(&one, &there.path());
    same_trees(&one, &there.path().join(".varve/snapshots/one"));
    fs::write(dir.join("a/new"), pattern(9, LARGE)).unwrap();
    fs::rename(dir.join("moved"), dir.join("a/moved")).unwrap();
    write_at(&dir.join("large"), b"in place", 200_000);
    fs::remove_dir_all(dir.join("gone")).unwrap();
    fs::remove_file(dir.join("linked")).unwrap();
    run(varve().args(["kv", "put"]).arg(&dir).args(["pairs", "key", "now"]));
    let two = snapshot(place, "two");
    let changes = sent(&dir, &["two", "--since", "one"]);
    assert!(changes.len() < LARGE + 20_000, "{} bytes", changes.len());
    // Into the other mount, with programs that look on.
    names(&there.path().join("a"));
    let mut damaged = changes.clone();
    damaged[changes.len() / 2] ^= 1;
    assert!(receive(&there.path(), &damaged).unwrap_err().contains("damaged at offset"));
    let said = receive(&there.path(), &changes[..changes.len() / 2]).unwrap_err();
    assert!(said.contains("nothing was received yet") && said.contains("--resume"), "{said}");
    same_trees(&one, &there.path());
    let token = text(&run(varve().args(["snapshot", "receive", "--token"]).arg(there.path())));
    let rest = sent(&dir, &["--resume", &token]);
    assert!(rest.len() < changes.len());
    receive(&there.path(), &rest).unwrap();
    same_trees(&two, &there.path());
    same_trees(&two, &there.path().join(".varve/snapshots/two"));
    let pair = run(varve().args(["kv", "get"]).arg(there.path()).args(["pairs", "key"]));
    assert_eq!(text(&pair), "now");
    fails(&["snapshot", "receive", "--token"], &there.path(), &[]);
    assert!(receive(&there.path(), &changes).unwrap_err().contains("already"));
    // It says so at once, however much would come.
    let (taken, said) = refused_after(&there.path(), &changes, 256 << 20);
    assert!(said.contains("already") && taken < 16 << 20, "{said} after {taken} bytes");
    fs::write(there.path().join("stray"), "x").unwrap();
    fs::write(dir.join("later"), "x").unwrap();
    snapshot(place, "three");
    let changes = sent(&dir, &["three", "--since", "two"]);
    let new = there.path().with_file_name("new");
    assert!(receive(&new, &changes).unwrap_err().contains("since snapshot `two`"));
    assert!(fs::metadata(&new).is_err());
    assert!(receive(&there.path(), &changes).unwrap_err().contains("changed since snapshot `two`"));
    roll_back(&there.path(), "two");
    receive(&there.path(), &changes[..changes.len() - 1]).unwrap_err();
    assert!(told(&there.path(), "--token").is_string());
    assert!(told(&there.path(), "--discard").is_null());
    fails(&["snapshot", "receive", "--token"], &there.path(), &[]);
    receive(&there.path(), &changes).unwrap();
    assert!(fails(&["snapshot", "send"], &dir, &["none"]).contains("no snapshot `none`"));
    assert!(receive(&mount.store(), &whole).unwrap_err().contains("already"));
    there.unmount();
    run(varve().arg("fsck").arg(there.store()));
    there.mount();
}

/// A daemon that is killed while it receives goes on where it was, and has all or nothing.
fn snapshot_receive_cut_short(place: &Place) {
    let Place::Mount(_) = place else { return };
    let dir = place.dir();
    make_files(&dir);
    snapshot(place, "one");
    let there = crate::harness::Mount::unformatted();
    receive(&there.store(), &sent(&dir, &["one"])).unwrap();
    there.mount();
    change_files(&dir);
    for n in 0..2000_u32 {
        fs::write(dir.join(format!("a/small {n}")), vec![n as u8; 300]).unwrap();
    }
    let two = snapshot(place, "two");
    let changes = sent(&dir, &["two", "--since", "one"]);
    let one = there.path().join(".varve/snapshots/one");
    let kill = || {
        let killed = rustix::process::kill_process(there.daemon(), rustix::process::Signal::KILL);
        killed.unwrap();
    };
    let token = || varve().args(["snapshot", "receive", "--token"]).arg(there.path()).output();
    // In the middle of what comes.
    let mut command = varve();
    command.args(["snapshot", "receive"]).arg(there.path());
    let piped = std::process::Stdio::piped;
    let mut child = command.stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, &changes[..changes.len() * 3 / 4]).unwrap();
    varve_testkit::eventually("a receipt", || token().unwrap().status.success());
    // Who wanted it dropped meanwhile was told of a transaction that there is not.
    let discard = ["snapshot", "receive", "--discard"];
    let said = crate::harness::fails(varve().args(discard).arg(there.path()), 1);
    assert!(said.contains("being received") && said.contains("end the `varve snapshot"), "{said}");
    kill();
    drop(input);
    assert!(!child.wait_with_output().unwrap().status.success());
    there.mount();
    same_trees(&one, &there.path());
    let token = text(&run(varve().args(["snapshot", "receive", "--token"]).arg(there.path())));
    let rest = sent(&dir, &["--resume", &token]);
    receive(&there.path(), &rest).unwrap();
    same_trees(&two, &there.path());
    run(varve().args(["snapshot", "delete"]).arg(there.path()).arg("two"));
    roll_back(&there.path(), "one");
    // At any time, until all is there.
    for wait_ms in [0, 5, 20, 50, 100] {
        let (path, stream) = (there.path(), changes.clone());
        let receiving = std::thread::spawn(move || receive(&path, &stream));
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        kill();
        let done = receiving.join().unwrap();
        there.mount();
        let has = fs::metadata(there.path().join(".varve/snapshots/two")).is_ok();
        assert!(has || done.is_err());
        same_trees(if has { &two } else { &one }, &there.path());
        if has {
            run(varve().args(["snapshot", "delete"]).arg(there.path()).arg("two"));
            roll_back(&there.path(), "one");
        }
    }
    receive(&there.path(), &changes).unwrap();
    same_trees(&two, &there.path());
    there.unmount();
    run(varve().arg("fsck").arg(there.store()));
    there.mount();
}
