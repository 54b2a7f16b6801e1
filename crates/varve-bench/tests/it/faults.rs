//! A run with errors prints no figure and fails.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Waits until a path that ends so is below `dir`.
fn wait_for(dir: &Path, name: &str) -> PathBuf {
    let begin = Instant::now();
    loop {
        let scratch = std::fs::read_dir(dir).expect("the directory").flatten().next();
        let found = scratch.map(|scratch| scratch.path().join("work").join(name));
        if let Some(found) = found.filter(|found| found.exists()) {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{name} does not come up");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs mdtest slowly, two seconds for each phase, and calls `meddle` with the directory while it runs, mostly while files are
/// created; returns what it complains.
fn with_fault(meddle: impl FnOnce(&Path)) -> String {
    with_fault_in("30", &[], meddle)
}

/// A run of mdtest that does so many operations a second.
fn slow_mdtest(program: &mut Command, dir: &Path, rate: &str, more: &[&str]) -> Child {
    program
        .args(["compare", "--rounds", "1", "--warm", "--until", "readdir", "--rate", rate])
        .args(more)
        .arg("-t")
        .arg(dir)
        .args(["mdtest", "--files", "60", "--dirs", "1", "--size-min", "100"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

fn with_fault_in(rate: &str, more: &[&str], meddle: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().expect("temporary directory");
    let program = &mut Command::new(env!("CARGO_BIN_EXE_varve-bench"));
    let mut child = slow_mdtest(program, dir.path(), rate, more);
    meddle(dir.path());
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("the program ends");
    assert!(!output.status.success());
    assert!(output.stdout.is_empty(), "no figures");
    assert_eq!(std::fs::read_dir(dir.path()).expect("the directory").count(), 0);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_missing_file_is_found() {
    let said = with_fault(|dir| {
        let file = wait_for(dir, "d00000/file-000000001");
        std::fs::remove_file(file).expect("the file goes");
    });
    assert!(said.contains("check failed: d00000 has names 59 instead of 60"), "{said}");
}

#[test]
fn a_missing_file_of_a_phase_that_was_ended_early_is_found() {
    let said = with_fault_in("12", &["--for", "3s"], |dir| {
        let file = wait_for(dir, "d00000/file-000000001");
        std::fs::remove_file(file).expect("the file goes");
    });
    assert!(said.contains("file-000000001 does not exist"), "{said}");
}

#[test]
fn other_bytes_are_found() {
    let said = with_fault(|dir| {
        // The file after it is there, so this one is written.
        wait_for(dir, "d00000/file-000000002");
        let file = wait_for(dir, "d00000/file-000000001");
        std::fs::write(file, [0; 100]).expect("the file is written");
    });
    assert!(said.contains("file-000000001 has other bytes"), "{said}");
}

#[test]
fn a_name_that_should_not_be_there_is_found() {
    let said = with_fault(|dir| {
        let file = wait_for(dir, "d00000/file-000000001");
        std::fs::copy(&file, file.with_file_name("planted")).expect("the file is copied");
    });
    assert!(said.contains("d00000 has names 61 instead of 60"), "{said}");
}

/// What was looked at had only to exist.
#[test]
fn other_attributes_are_found_as_they_are_seen() {
    let said = with_fault_in("12", &[], |dir| {
        let last = wait_for(dir, "d00000/file-000000059");
        // Files are checked and the phase `stat cold` begins; it takes five seconds.
        std::thread::sleep(Duration::from_millis(1500));
        // Once the program has looked at one of them it removes them all.
        for file in std::fs::read_dir(last.parent().expect("a directory")).expect("files").flatten()
        {
            let there = std::fs::OpenOptions::new().write(true).open(file.path());
            there.into_iter().for_each(|file| file.set_len(0).expect("the file is cut off"));
        }
    });
    assert!(said.contains("stat cold: check failed"), "{said}");
    assert!(said.contains("has size 0 instead of 100"), "{said}");
}

/// Worker processes that had not got it themselves went on, and so did who waited for them.
#[test]
fn a_signal_ends_a_run_and_nothing_stays() {
    for more in [&[][..], &["--processes"]] {
        a_signal_ends_a_run_with(more);
    }
}

fn a_signal_ends_a_run_with(more: &[&str]) {
    let begin = Instant::now();
    // A phase of two minutes.
    let said = with_fault_in("0.5", more, |dir| {
        let file = wait_for(dir, "d00000/file-000000000");
        let name =
            file.ancestors().nth(3).and_then(Path::file_name).expect("the scratch directory");
        let name = name.to_str().expect("a name of text");
        // varve-bench-PID-NUMBER
        let pid = name.split('-').nth(2).and_then(|pid| pid.parse().ok()).expect("its process");
        let pid = Pid::from_raw(pid).expect("its process");
        kill_process(pid, Signal::TERM).expect("it is told");
    });
    assert!(said.contains("interrupted"), "{said}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

/// Who had told the run alone waited for the end of its script.
#[test]
fn a_signal_ends_a_script() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let child = Command::new(env!("CARGO_BIN_EXE_varve-bench"))
        .args(["compare", "--rounds", "1", "--warm", "-t"])
        .arg(dir.path())
        .args(["script", "x=touch up; exec sleep 60"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let begin = Instant::now();
    wait_for(dir.path(), "up");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it is told");
    let output = child.wait_with_output().expect("the program ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("interrupted"), "{said}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

/// nohup(1) kept no run from the end of its terminal, and all its figures were lost.
#[test]
fn a_hang_up_that_is_ignored_ends_no_run() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_varve-bench")]);
    let child = slow_mdtest(&mut nohup, dir.path(), "60", &[]);
    wait_for(dir.path(), "d00000");
    kill_process(Pid::from_child(&child), Signal::HUP).expect("it is told");
    let output = child.wait_with_output().expect("the program ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !output.stdout.is_empty(), "{said}");
}
