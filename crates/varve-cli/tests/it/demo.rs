//! The demonstration: it shows figures on any machine, and leaves nothing behind.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use varve_testkit::{Command, eventually};

use crate::harness::{can_mount, json, varve, with_namespaces};

#[test]
fn the_demonstration_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let figures = json(
        varve().args(["demo", "--files", "300", "--dirs", "3", "--json"]).env("TMPDIR", dir.path()),
    );
    assert_eq!(figures["rows"].as_array().unwrap().len(), 11);
    assert!(figures["files_compared"].as_u64().unwrap() > 150);
    if can_mount() {
        assert!(figures["method"].is_string(), "{figures}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Without /dev/fuse nothing can be mounted, and the library does all of it.
#[test]
fn the_demonstration_needs_no_mount() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let _copied = with_namespaces();
    let script = r#"mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh"]);
    command.arg(varve().get_program()).args(["demo", "--files", "300", "--dirs", "3", "--json"]);
    let figures = json(command.env("TMPDIR", dir.path()));
    assert!(figures["method"].is_null() && figures["rows"][0]["mount_s"].is_null(), "{figures}");
    assert!(figures["refusals"][0].as_str().unwrap().contains("/dev/fuse"), "{figures}");
    assert!(figures["files_compared"].as_u64().unwrap() > 150);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Whether something is mounted below `dir`.
pub(crate) fn is_mounted_below(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.contains(&format!(" {}/", dir.display()))
}

/// Also where the work meets its end before whoever ends it, and while it is being mounted.
#[test]
fn an_interrupted_demonstration_leaves_nothing_behind() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    for (signal, millis) in
        [(Signal::INT, 0), (Signal::TERM, 20), (Signal::HUP, 20), (Signal::INT, 300)]
    {
        // Whoever runs the tests may ignore a hang-up.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP").arg(varve().get_program());
        command.args(["demo", "--files", "100000"]).env("TMPDIR", &path);
        let demo = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        eventually("it is mounted", || is_mounted_below(&path));
        std::thread::sleep(Duration::from_millis(millis));
        kill_process(Pid::from_child(&demo), signal).unwrap();
        let output = demo.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.is_empty(), "{said}");
        assert!(!is_mounted_below(&path));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    }
}
