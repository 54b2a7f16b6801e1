//! What a test leaves out because of the machine it runs on, said so that somebody sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::process::Stdio;

use parking_lot::Mutex;

use crate::Command;

/// The reasons that this process has given, with the tests that gave them.
static SAID: Mutex<BTreeMap<String, BTreeSet<String>>> = Mutex::new(BTreeMap::new());

/// The environment variable with the path of the file that reasons are appended to.
const RECORD: &str = "VARVE_SKIPS";

/// Says, once for each reason, why something is not tested here. It goes to the standard error output itself: what a test prints by
/// macros is shown only if it fails. Where the environment variable `VARVE_SKIPS` names a file, each test adds a line of reason, tab and
/// test to it, so that a run of all tests can count what was left out and compare it with what it expected.
pub fn skipped(why: &str) {
    // Libtest names the thread of a test after the test.
    let test = std::thread::current().name().unwrap_or("another thread").to_owned();
    let mut said = SAID.lock();
    if !said.contains_key(why) {
        // In one piece, between the lines of other tests.
        let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
    }
    if said.entry(why.to_owned()).or_default().insert(test.clone())
        && let Some(path) = std::env::var_os(RECORD)
    {
        let record = OpenOptions::new().append(true).create(true).open(&path);
        record
            .and_then(|mut file| file.write_all(format!("{why}\t{test}\n").as_bytes()))
            .unwrap_or_else(|error| panic!("{}, named by {RECORD}: {error}", path.display()));
    }
}

/// Returns whether there is such a program on this machine; says if not.
pub fn there_is(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let found = command.status().is_ok();
    if !found {
        skipped(&format!("there is no {program} on this machine"));
    }
    found
}

/// Returns whether the kernel offers FUSE over io_uring; says if not.
pub fn there_are_rings() -> bool {
    let offered = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let offered = offered.is_ok_and(|value| value.trim() == "Y");
    if !offered {
        skipped("this kernel does not offer FUSE over io_uring");
    }
    offered
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passing tests that left something out looked like passing tests: libtest keeps what they print.
    #[test]
    fn what_is_left_out_is_seen_once() {
        if std::env::var_os("VARVE_TESTKIT_SKIPS").is_some() {
            skipped("the first reason");
            skipped("the first reason");
            assert!(there_is("sh") && !there_is("no-such-program"));
            return;
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "skip::tests::what_is_left_out_is_seen_once"]);
        let record = tempfile::NamedTempFile::new().unwrap();
        command.env("VARVE_TESTKIT_SKIPS", "1").env(RECORD, record.path());
        let output = command.output().unwrap();
        assert!(output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        let reasons: Vec<&str> = said.lines().filter(|line| line.contains("skipped: ")).collect();
        assert_eq!(
            reasons,
            ["skipped: the first reason", "skipped: there is no no-such-program on this machine"]
        );
        let recorded = std::fs::read_to_string(record.path()).unwrap();
        let recorded: Vec<&str> = recorded.lines().collect();
        let test = "skip::tests::what_is_left_out_is_seen_once";
        let expected = ["the first reason", "there is no no-such-program on this machine"];
        assert_eq!(recorded, expected.map(|why| format!("{why}\t{test}")));
    }
}
