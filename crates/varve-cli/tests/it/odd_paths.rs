//! Stores and mounts in directories whose names are no text: a path is bytes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use varve_testkit::Command;

use crate::harness::{Mount, can_mount, run, varve, without_namespaces};

/// What nobody waits for any longer, in seconds.
const PATIENCE_S: &str = "60";

/// Like [`varve`], for a while.
fn varve_in_time() -> Command {
    let mut command = Command::new("timeout");
    command.args([PATIENCE_S, env!("CARGO_BIN_EXE_varve")]);
    command
}

fn told(command: &mut Command) -> Value {
    serde_json::from_slice(&run(command).stdout).unwrap()
}

/// The line that `command` prints.
fn line(command: &mut Command) -> Vec<u8> {
    let mut line = run(command).stdout;
    assert_eq!(line.pop(), Some(b'\n'));
    line
}

fn bytes(path: &Path) -> Value {
    json!(path.as_os_str().as_bytes())
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        drop(varve().args(["umount", "--lazy"]).arg(self.0).output());
    }
}

/// Paths went through JSON as text: the mount was served, and whoever had asked for it waited without end; transactions began,
/// and nobody learned their ids.
#[test]
fn paths_that_are_no_text_are_paths() {
    if !can_mount() {
        return;
    }
    let _apart = without_namespaces();
    let dir = tempfile::tempdir().unwrap();
    let [store, mnt] =
        [&b"st\xffre"[..], b"m\xfe\nt"].map(|name| dir.path().join(OsStr::from_bytes(name)));
    fs::create_dir(&mnt).unwrap();
    assert_eq!(told(varve().args(["format", "--json"]).arg(&store))["store"], bytes(&store));
    let _unmount = Unmount(&mnt);
    let ready = told(varve_in_time().args(["mount", "--json"]).arg(&store).arg(&mnt));
    assert_eq!((&ready["store"], &ready["dir"]), (&bytes(&store), &bytes(&mnt)));

    let view = line(varve_in_time().args(["txn", "begin"]).arg(&mnt));
    let view = PathBuf::from(OsStr::from_bytes(&view));
    assert!(view.starts_with(&mnt));
    fs::write(view.join("file"), "x").unwrap();
    let id = view.file_name().unwrap();
    let listed = line(varve_in_time().args(["txn", "list"]).arg(&mnt));
    assert_eq!(listed, [id.as_bytes(), b"  ", view.as_os_str().as_bytes()].concat());
    let status = told(varve_in_time().args(["txn", "status", "--json"]).arg(&mnt).arg(id));
    assert_eq!((&status["path"], &status["added"]), (&bytes(&view), &json!(1)));
    run(varve_in_time().args(["txn", "commit"]).arg(&mnt).arg(id));
    assert_eq!(fs::read(mnt.join("file")).unwrap(), b"x");
    let mut command = varve_in_time();
    command.args(["txn", "run"]).arg(&mnt).args(["--", "sh", "-c", "echo y > file"]);
    run(command.current_dir(&mnt));
    assert_eq!(fs::read(mnt.join("file")).unwrap(), b"y\n");

    let kept = line(varve_in_time().args(["snapshot", "create"]).arg(&mnt).arg("one"));
    let kept = PathBuf::from(OsStr::from_bytes(&kept));
    assert_eq!(fs::read(kept.join("file")).unwrap(), b"y\n");
    let listed = told(varve_in_time().args(["snapshot", "list", "--json"]).arg(&mnt));
    assert_eq!(listed, json!([{ "name": "one", "path": bytes(&kept) }]));

    let below = mnt.join("below");
    fs::create_dir(&below).unwrap();
    run(varve().args(["quota", "set", "--inodes", "9"]).arg(&below));
    assert_eq!(told(varve().args(["quota", "show", "--json"]).arg(&mnt))[0]["path"], bytes(&below));
    assert_eq!(told(varve().args(["du", "--json"]).arg(&mnt))[0]["path"], bytes(&mnt));
    let status = told(varve().args(["status", "--json"]).arg(&store));
    assert_eq!((&status["store"], &status["mount_point"]), (&bytes(&store), &bytes(&mnt)));
    assert_eq!(status["holder"]["mount_point"], bytes(&mnt));
    assert_eq!(status["daemon"]["store"], bytes(&store));

    let upgraded = varve_in_time().args(["upgrade", "--json"]).arg(&mnt).output().unwrap();
    let refused = String::from_utf8_lossy(&upgraded.stderr).contains("io_uring");
    assert!(refused || upgraded.status.success(), "{upgraded:?}");
    let unmounted = told(varve_in_time().args(["umount", "--json"]).arg(&mnt));
    let closed =
        json!({ "store": bytes(&store), "dir": bytes(&mnt), "is_closed": true, "elsewhere": null });
    assert_eq!(unmounted, closed);
    // Waited for, as the mount point that the daemon told is the one that was unmounted.
    run(varve().arg("fsck").arg(&store));

    let manifest = fs::read_dir(store.join("engine")).unwrap().map(|entry| entry.unwrap().path());
    let manifest = manifest.filter(|path| path.to_string_lossy().contains("MANIFEST"));
    manifest.for_each(|path| fs::write(path, "damaged").unwrap());
    let repair = ["fsck", "--repair", "--yes", "--json"];
    let output = varve().args(repair).arg(&store).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(told["repair"]["engine"]["aside"][0].is_array(), "{told}");
}

/// Whoever might make a directory could have lines of his own in what root is told.
#[test]
fn names_of_directories_stay_on_their_lines() {
    let Some(mount) = Mount::new() else { return };
    let odd = mount.path().join(OsStr::from_bytes(b"a\n9.99 TiB\x1b[2J\xff"));
    fs::create_dir(&odd).unwrap();
    run(varve().args(["quota", "set", "--inodes", "9"]).arg(&odd));
    let commands: [&[&str]; 2] = [&["du", "--depth", "1"], &["quota", "show"]];
    for words in commands {
        let told = run(varve().args(words).arg(mount.path())).stdout;
        let mut lines = told.split(|byte| *byte == b'\n');
        let is_told = lines.any(|line| line.ends_with(b"/a\\n9.99 TiB\\u{1b}[2J\xff"));
        assert!(is_told, "{}", told.escape_ascii());
    }
}

/// Of names that differ in bytes that are no text, the paths that changed were one and the same, which named no file.
#[test]
fn changes_are_told_by_the_bytes_of_their_paths() {
    let Some(mount) = Mount::new() else { return };
    let at = |name: &'static [u8]| mount.path().join(OsStr::from_bytes(name));
    fs::write(at(b"a\xff"), "x").unwrap();
    run(varve().args(["snapshot", "create"]).arg(mount.path()).arg("one"));
    fs::rename(at(b"a\xff"), at(b"b\xff")).unwrap();
    fs::write(at(b"a\xfe"), "y").unwrap();
    fs::write(at(b"c\xfe\nd"), "z").unwrap();
    let change = |change: &str, path: &[u8]| json!({ "path": path, "change": change });
    let renamed = |path: &[u8], from: &[u8]| {
        let mut told = change("renamed", path);
        told["from"] = json!(from);
        told
    };
    let diff =
        [change("added", b"/a\xfe"), renamed(b"/b\xff", b"/a\xff"), change("added", b"/c\xfe\nd")];
    let is_told = |action: &[&str], expected: &[Value], lines: &[u8]| {
        let mut action = action.to_vec();
        let command = |action: &[&str]| {
            let mut command = varve();
            command.args(&action[..2]).arg(mount.path()).args(&action[2..]);
            command
        };
        assert_eq!(run(&mut command(&action)).stdout, lines);
        action.push("--json");
        assert_eq!(told(&mut command(&action)), json!({ "changes": expected, "complete": true }));
    };
    let lines = b"A  /a\xfe\nR  /a\xff -> /b\xff\nA  /c\xfe\\nd\n";
    is_told(&["snapshot", "diff", "one"], &diff, lines);
    let back = [
        change("removed", b"/a\xfe"),
        renamed(b"/a\xff", b"/b\xff"),
        change("removed", b"/c\xfe\nd"),
    ];
    let lines = b"D  /a\xfe\nR  /b\xff -> /a\xff\nD  /c\xfe\\nd\n";
    is_told(&["snapshot", "rollback", "one", "--dry-run"], &back, lines);

    let view =
        PathBuf::from(OsStr::from_bytes(&line(varve().args(["txn", "begin"]).arg(mount.path()))));
    fs::write(view.join(OsStr::from_bytes(b"a\xfe")), "other").unwrap();
    fs::remove_file(view.join(OsStr::from_bytes(b"b\xff"))).unwrap();
    let id = view.file_name().unwrap().to_str().unwrap();
    let diff = [change("changed", b"/a\xfe"), change("removed", b"/b\xff")];
    is_told(&["txn", "diff", id], &diff, b"M  /a\xfe\nD  /b\xff\n");
    run(varve().args(["txn", "abort"]).arg(mount.path()).arg(id));
}
