//! Output that cannot be written, or that nobody reads any more, and what is told of long work.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;
use varve_testkit::Command;

use crate::harness::{Mount, can_mount, run, told_a_terminal, varve};

fn with(path: &Path, arguments: &[&str]) -> Command {
    let mut command = varve();
    let (verbs, rest) =
        arguments.split_at(arguments.iter().position(|word| *word == "STORE").unwrap());
    command.args(verbs).arg(path).args(&rest[1..]);
    command
}

/// Runs `command` with nowhere to write to.
fn on_full_disk(command: &mut Command) -> Output {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    command.stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

fn store_with_pairs(store: &Path, pairs: usize, bytes: usize) {
    run(varve().arg("format").arg(store));
    run(&mut with(store, &["kv", "create", "STORE", "tags"]));
    for n in 0..pairs {
        let (key, value) = (format!("key{n:03}"), "v".repeat(bytes));
        run(&mut with(store, &["kv", "put", "STORE", "tags", &key, &value]));
    }
    run(&mut with(store, &["snapshot", "create", "STORE", "one"]));
}

/// What was not written was said to be.
#[test]
fn output_that_is_not_written_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    store_with_pairs(&store, 3, 10);
    for told in [
        &["kv", "get", "STORE", "tags", "key001"][..],
        &["kv", "scan", "STORE", "tags"],
        &["kv", "scan", "STORE", "tags", "--json"],
        &["kv", "list", "STORE"],
        &["snapshot", "list", "STORE"],
        &["snapshot", "send", "STORE", "one"],
        &["dump", "STORE"],
        &["fsck", "STORE", "--json"],
        &["status", "STORE"],
    ] {
        let output = on_full_disk(&mut with(&store, told));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told:?}: {said}");
        assert!(said.contains("No space left") && said.contains("hint: "), "{told:?}: {said}");
        run(&mut with(&store, told));
    }
    let output = on_full_disk(varve().args(["completions", "bash"]));
    assert_eq!(output.status.code(), Some(1));
    // What the command found is in its status.
    std::fs::write(store.join("engine/CURRENT"), "damaged").unwrap();
    let output = on_full_disk(&mut with(&store, &["fsck", "STORE"]));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("No space left") && said.contains("problems"), "{said}");
}

/// Who has seen enough ends it, which is no failure: nothing more is asked for.
#[test]
fn a_reader_that_has_gone_ends_a_scan() {
    if !can_mount() {
        return;
    }
    let mount = Mount::unformatted();
    store_with_pairs(&mount.store(), 24, 100_000);
    mount.mount();
    let pages = |lines: usize| {
        let scans = || {
            let told = run(varve().args(["status", "--json"]).arg(mount.path())).stdout;
            let told: Value = serde_json::from_slice(&told).unwrap();
            told["daemon"]["engine"]["counters"]["scans"].as_u64().unwrap()
        };
        let before = scans();
        let mut command = with(&mount.path(), &["kv", "scan", "STORE", "tags"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        assert_eq!(out.lines().take(lines).count(), lines);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        scans() - before
    };
    let all = pages(24);
    let few = pages(1);
    assert!(all >= 8 && few <= 2, "{few} of {all} pages");
}

/// A large rollback said nothing until it was done.
#[test]
fn a_rollback_tells_a_terminal_how_far_it_is() {
    let Some(mount) = Mount::new() else { return };
    let (dir, store) = (mount.path(), mount.store());
    fs::write(dir.join("large"), vec![1; 100_000]).unwrap();
    run(varve().args(["snapshot", "create"]).arg(&dir).arg("before"));
    let change = || {
        fs::write(dir.join("large"), vec![2; 100_000]).unwrap();
        fs::write(dir.join("new"), "new").unwrap();
    };
    let rolls_back = |path: &Path| {
        let path = path.to_str().unwrap();
        let told = told_a_terminal(Path::new("/"), &["snapshot", "rollback", path, "before"], 0)?;
        assert!(told.contains("comparing rows: 0"), "{told:?}");
        assert!(told.ends_with("\r\x1b[K"), "{told:?}");
        Some(())
    };
    change();
    if rolls_back(&dir).is_none() {
        return;
    }
    assert!(!dir.join("new").exists());
    change();
    mount.unmount();
    rolls_back(&store).unwrap();
    mount.mount();
    assert!(!dir.join("new").exists());
    assert_eq!(fs::read(dir.join("large")).unwrap(), vec![1; 100_000]);
}
