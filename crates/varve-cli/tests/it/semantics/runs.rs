//! `varve txn run`, when the commit fails for another reason than what others have changed, and when it is stopped.

use std::fs;
use std::path::Path;
use std::process::Output;

use rustix::process::{Pid, Signal, kill_process};
use varve_testkit::{Command, eventually};

use super::views::{LARGE, text};
use super::{Place, semantics};
use crate::harness::{fails, run, varve, with_namespaces};

semantics!(
    transaction_run_refused,
    transaction_run_unfinished,
    transaction_run_stopped,
    transaction_run_from_outside
);

/// Runs `script` in a transaction, with retries; gives what became of it, and how often it ran.
fn in_txn(place: &Place, script: &str) -> (Output, usize) {
    let (dir, runs) = (place.dir(), place.dir().parent().unwrap().join("runs"));
    let script = format!("echo x >> {}; {script}", runs.display());
    let _copied = with_namespaces();
    let mut command = varve();
    command.args(["txn", "run", "--retry", "3"]).arg(&dir).args(["--", "sh", "-c", &script]);
    let output = command.current_dir(&dir).output().unwrap();
    (output, fs::read_to_string(&runs).unwrap().lines().count())
}

/// The open transactions.
fn listed(place: &Place) -> Vec<String> {
    let said = text(&run(varve().args(["txn", "list"]).arg(place.dir())));
    said.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// Every failure was taken for a conflict: what the program had done was thrown away, and it was run again.
fn transaction_run_refused(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let (dir, beside) = (place.dir(), place.dir().parent().unwrap().to_path_buf());
    let below = dir.join("below");
    fs::create_dir(&below).unwrap();
    run(varve().args(["quota", "set", "--inodes", "2"]).arg(&below));
    // Others fill the directory meanwhile.
    let others = std::thread::spawn({
        let (below, beside) = (below.clone(), beside.clone());
        move || {
            eventually("the program runs", || beside.join("runs").exists());
            for name in ["two", "three"] {
                fs::write(below.join(name), name).unwrap();
            }
            fs::write(beside.join("filled"), "").unwrap();
        }
    });
    let filled = beside.join("filled");
    let wait = format!("until [ -e {} ]; do sleep 0.02; done", filled.display());
    let (refused, runs) = in_txn(place, &format!("echo 1 > below/one; timeout 60 sh -c '{wait}'"));
    others.join().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!((refused.status.code(), runs), (Some(1), 1), "{said}");
    let open = listed(place);
    assert_eq!(open.len(), 1, "{said}");
    let next = format!("varve txn commit {} {}", dir.display(), open[0]);
    assert!(said.contains("limits") && said.contains(&next), "{said}");
    fs::remove_file(below.join("two")).unwrap();
    run(varve().args(["txn", "commit"]).arg(&dir).arg(&open[0]));
    assert_eq!(fs::read(below.join("one")).unwrap(), b"1\n");
    assert_eq!(fs::read(below.join("three")).unwrap(), b"three");
}

/// The error of the abort hid that there was nothing to abort.
fn transaction_run_unfinished(place: &Place) {
    let Place::Mount(mount) = place else { return };
    let (dir, objects) = (place.dir(), mount.store().join("objects"));
    // In the way of the large file that is to be put in place.
    let way = objects.join("0");
    assert!(!way.exists());
    let script = format!("head -c {LARGE} /dev/zero > large; echo > {}", way.display());
    let (failed, runs) = in_txn(place, &script);
    let said = String::from_utf8(failed.stderr).unwrap();
    assert_eq!((failed.status.code(), runs), (Some(1), 1), "{said}");
    assert!(said.contains("is committed, but not all of its large files are in place"), "{said}");
    assert!(
        said.contains("mount the store again") && said.contains("is not open any more"),
        "{said}"
    );
    eventually("nobody uses the mount", || {
        let output = varve().arg("umount").arg(&dir).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let in_use = said.contains(" is in use");
        assert!(in_use || said.contains("is unmounted, but its daemon failed"), "{said}");
        !in_use
    });
    fs::remove_file(way).unwrap();
    mount.mount();
    assert_eq!(fs::read(dir.join("large")).unwrap(), vec![0; LARGE]);
    assert_eq!(listed(place), [""; 0]);
}

/// The program went on for ever, and the transaction stayed open.
fn transaction_run_stopped(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let _copied = with_namespaces();
    let (dir, pid) = (place.dir(), place.dir().parent().unwrap().join("pid"));
    let script =
        format!("echo 1 > file; echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", pid.display());
    let start = |ignored: &str| {
        let mut command = Command::new("sh");
        let run = format!("trap '' {ignored}; exec \"$@\"");
        command.args(["-c", &run, "sh"]).arg(varve().get_program());
        command.args(["txn", "run", "--retry", "3"]).arg(&dir).args(["--", "sh", "-c", &script]);
        let running = command.current_dir(&dir).spawn().unwrap();
        eventually("the program runs", || pid.exists());
        let program = Path::new("/proc").join(fs::read_to_string(&pid).unwrap().trim());
        fs::remove_file(&pid).unwrap();
        (running, program)
    };
    for signal in [Signal::TERM, Signal::HUP, Signal::KILL] {
        let (mut running, program) = start("USR1");
        kill_process(Pid::from_child(&running), signal).unwrap();
        let status = running.wait().unwrap();
        eventually("the program is gone", || !program.exists());
        let open = listed(place);
        if signal == Signal::KILL {
            assert_eq!(open.len(), 1, "nobody was left to abort it");
            run(varve().args(["txn", "abort"]).arg(&dir).arg(&open[0]));
        } else {
            assert_eq!((status.code(), open), (Some(128 + signal.as_raw()), Vec::new()));
        }
        assert!(!dir.join("file").exists());
    }
    // As under nohup.
    let (mut running, program) = start("HUP");
    kill_process(Pid::from_child(&running), Signal::HUP).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(program.exists() && listed(place).len() == 1);
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(128 + Signal::TERM.as_raw()));
    // As a script starts what it does not wait for: Ctrl-C for another ended the program.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' INT QUIT; exec \"$@\"", "sh"]).arg(varve().get_program());
    command.args(["txn", "run"]).arg(&dir);
    command.args(["--", "sh", "-c", "kill -INT $$; kill -QUIT $$; echo 1 > file"]);
    run(command.current_dir(&dir));
    assert!(dir.join("file").exists());
}

/// A program run from a working directory outside of the transaction began there: what it made by relative paths was done at once,
/// and stayed when it failed.
fn transaction_run_from_outside(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let _copied = with_namespaces();
    let shown = place.dir().join("shown");
    let below = shown.join("below");
    let outside = place.dir().join("outside");
    [&below, &outside].iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    let run_from = |here: &Path, program: &[&str]| {
        let mut command = varve();
        command.args(["txn", "run"]).arg(&shown).arg("--").args(program).current_dir(here);
        command
    };
    for (here, begins) in [
        (place.dir().parent().unwrap(), &shown),
        (&outside, &shown),
        (place.dir().as_path(), &shown),
        (&shown, &shown),
        (&below, &below),
    ] {
        let output = run_from(here, &["sh", "-c", "pwd; echo x > made; exit 7"]).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{here:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), begins.to_str().unwrap());
        run(&mut run_from(here, &["sh", "-c", "echo x > made"]));
        assert!(!here.join("made").exists() || here == begins, "{here:?}");
        fs::remove_file(begins.join("made")).unwrap();
    }
    // A program that lies where one is, and not where it begins.
    fs::write(outside.join("program"), "#!/bin/sh\n").unwrap();
    let said = fails(&mut run_from(&outside, &["./program"]), 1);
    assert!(said.contains(&format!("the program begins in {}", shown.display())), "{said}");
}
