//! The demonstration of a server and two mounts: it shows figures, fails if something differs, and leaves nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use varve_testkit::{Command, eventually};

use crate::demo::is_mounted_below;
use crate::harness::{can_mount, fails, json, run, varve, with_namespaces};

/// The demonstration, small, in the directory `dir`.
fn demo(dir: &Path, more: &[&str]) -> Command {
    let mut command = varve();
    command.args(["cluster", "demo", "--dir"]).arg(dir);
    command.args(["--files", "120", "--seconds", "0.5"]).args(more);
    command
}

/// An empty directory, by the path that mounts have.
fn empty() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    (dir, path)
}

/// The processes that have a path below `dir` among their arguments.
fn processes(dir: &Path) -> Vec<Pid> {
    let below = format!("{}/", dir.display());
    let of = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&words).contains(&below).then(|| Pid::from_raw(pid)).flatten()
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| of(entry.ok()?)).collect()
}

fn nothing_is_left(dir: &Path) {
    assert!(!is_mounted_below(dir));
    assert_eq!(processes(dir), []);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
}

/// The directory of a demonstration that runs.
fn place_of(dir: &Path) -> Option<PathBuf> {
    Some(fs::read_dir(dir).unwrap().next()?.ok()?.path())
}

/// Starts a demonstration that does not end soon.
fn start(dir: &Path) -> Child {
    // Whoever runs the tests may ignore a hang-up.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(varve().get_program());
    command.args(["cluster", "demo", "--seconds", "5", "--dir"]).arg(dir);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn it_shows_two_mounts_at_work_and_a_server_that_is_killed() {
    if !can_mount() {
        return;
    }
    let (_dir, path) = empty();
    let figures = json(&mut demo(&path, &["--json"]));
    let steps = figures["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 11);
    for row in steps {
        assert!(row["per_second"].as_f64() > Some(0.0), "{row}");
        assert!(
            row["p50_us"].as_f64() > Some(0.0) && row["max_us"].as_f64() >= row["p99_us"].as_f64()
        );
        assert!(row["requests_per_operation"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(steps[0]["requests"]["create"], 120);
    for work in [&figures["together"], &figures["restart"]["work"]] {
        let number = |at: &str| work.pointer(at).and_then(serde_json::Value::as_u64);
        let rounds = [number("/rounds/0").unwrap(), number("/rounds/1").unwrap()];
        assert!(rounds[0] > 0 && rounds[1] > 0, "{work}");
        assert_eq!(number("/rows/2/operations"), Some(rounds[0] + rounds[1]));
    }
    let together = &figures["together"];
    assert!(together["requests"]["write"].as_u64() > Some(0), "{together}");
    let restart = &figures["restart"];
    let seconds = |of: &serde_json::Value| of.as_f64().unwrap();
    assert!(seconds(&restart["longest_call_s"]) >= 0.3, "programs waited: {restart}");
    assert!(
        seconds(&restart["away_s"]) >= 0.3 && seconds(&restart["back_s"][1]) > 0.0,
        "{restart}"
    );
    assert!(figures["files_compared"].as_u64() > Some(240), "{figures}");
    assert!(figures["lines_compared"].as_u64() > Some(0) && figures["kept"].is_null());
    nothing_is_left(&path);
}

#[test]
fn what_it_keeps_is_a_store_that_works() {
    if !can_mount() {
        return;
    }
    let (_dir, path) = empty();
    let shown = run(&mut demo(&path, &["--keep"])).stdout;
    let shown = String::from_utf8(shown).unwrap();
    assert!(!is_mounted_below(&path));
    assert_eq!(processes(&path), []);
    let kept = place_of(&path).unwrap();
    assert!(shown.contains(&format!("`varve serve {}", kept.join("store").display())), "{shown}");
    assert!(shown.contains("requests for each"), "{shown}");
    run(varve().arg("fsck").arg(kept.join("store")));
    let log = fs::read_to_string(kept.join("server.log")).unwrap();
    assert!(log.contains("the store is closed after "), "{log}");
}

#[test]
fn interrupted_it_leaves_nothing_behind() {
    if !can_mount() {
        return;
    }
    let (_dir, path) = empty();
    for (signal, is_there, millis) in [
        (Signal::INT, None, 0),
        (Signal::TERM, Some("store/VARVE"), 30),
        (Signal::INT, Some("a/dir-000"), 0),
        (Signal::HUP, Some("b/both-work"), 20),
        (Signal::TERM, Some("a/restart-work"), 2700),
    ] {
        let mut demo = start(&path);
        eventually("it works", || {
            assert!(demo.try_wait().unwrap().is_none(), "it has ended");
            let place = place_of(&path);
            place.is_some_and(|place| is_there.is_none_or(|is_there| place.join(is_there).exists()))
        });
        std::thread::sleep(Duration::from_millis(millis));
        kill_process(Pid::from_child(&demo), signal).unwrap();
        let output = demo.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{is_there:?}: {}", said(&output));
        assert_eq!(said(&output), "", "{is_there:?}");
        nothing_is_left(&path);
    }
}

/// Whoever kills it leaves a directory, but no program that waits for what is gone.
#[test]
fn killed_it_leaves_no_process_and_no_mount() {
    if !can_mount() {
        return;
    }
    let (_dir, path) = empty();
    let mut demo = start(&path);
    let is_at_work = || place_of(&path).is_some_and(|place| place.join("b/both-work").exists());
    eventually("it works", is_at_work);
    demo.kill().unwrap();
    demo.wait().unwrap();
    eventually("all have ended", || processes(&path).is_empty() && !is_mounted_below(&path));
}

/// The demonstration says when something is not as it should be: here others change files below it.
#[test]
fn it_fails_when_data_differ() {
    if !can_mount() {
        return;
    }
    let (_dir, path) = empty();
    type Change = fn(&Path);
    let changes: [(&str, Change, &str); 4] = [
        ("b/dir-000/small-000000", |file| fs::write(file, "other").unwrap(), "small-000000"),
        ("a/both-work/b-000001", |file| fs::write(file, vec![0; 4096]).unwrap(), "b-000001"),
        ("b/both-work/a-000002", |file| fs::remove_file(file).unwrap(), "a-000002"),
        ("a/restart-logs/0", |file| fs::write(file, "a 7\n").unwrap(), "restart-logs/0"),
    ];
    for (name, change, expected) in changes {
        let demo = start(&path);
        let file = || place_of(&path).map(|place| place.join(name)).filter(|file| file.exists());
        eventually("the file is there", || file().is_some());
        // What a program looks at is found at once, all else in the end.
        change(&file().unwrap());
        let output = demo.wait_with_output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains(expected), "{name}: {said}");
        assert!(said.contains("\nhint: "), "{said}");
        nothing_is_left(&path);
    }
}

/// A process of it that ends by itself would be waited for without end.
#[test]
fn it_fails_when_one_of_its_processes_ends() {
    if !can_mount() {
        return;
    }
    let (_dir, path) = empty();
    for (word, expected) in
        [("serve", "the server has ended: signal: 9"), ("mount", "has ended: signal: 9")]
    {
        let demo = start(&path);
        let is_at_work = || place_of(&path).is_some_and(|place| place.join("b/both-work").exists());
        eventually("it works", is_at_work);
        let is_it = |pid: &Pid| {
            let words =
                fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
            words.split(|byte| *byte == 0).nth(1) == Some(word.as_bytes())
        };
        let pid = processes(&path).into_iter().find(is_it).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        let output = demo.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(expected), "{}", said(&output));
        nothing_is_left(&path);
    }
}

#[test]
fn without_a_way_to_mount_it_says_what_is_missing() {
    if !can_mount() {
        return;
    }
    let (_dir, path) = empty();
    let _copied = with_namespaces();
    let script = r#"mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh"]);
    command.arg(varve().get_program()).args(["cluster", "demo", "--dir"]).arg(&path);
    let refused = fails(&mut command, 1);
    assert!(refused.contains("mount a: ") && refused.contains("/dev/fuse"), "{refused}");
    nothing_is_left(&path);
    let missing = fails(&mut demo(&path.join("missing"), &[]), 1);
    assert!(missing.contains("missing"), "{missing}");
    let with_comma = path.join("a,b");
    fs::create_dir(&with_comma).unwrap();
    let refused = fails(&mut demo(&with_comma, &[]), 2);
    assert!(refused.contains("comma") && refused.contains("--dir"), "{refused}");
    nothing_is_left(&with_comma);
}
