//! What a test leaves out because of the machine it runs on, said so that somebody sees it.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;

use parking_lot::Mutex;

use crate::Command;

/// The reasons that this process has given.
static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Says, once for each reason, why something is not tested here. It goes to the standard error output itself: what a test prints by
/// macros is shown only if it fails.
pub fn skipped(why: &str) {
    if SAID.lock().insert(why.to_owned()) {
        // In one piece, between the lines of other tests.
        let line = format!("skipped: {why}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Whether there is such a program on this machine; says if not.
pub fn there_is(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let found = command.status().is_ok();
    if !found {
        skipped(&format!("there is no {program} on this machine"));
    }
    found
}

/// Whether the kernel offers FUSE over io_uring; says if not.
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
        let output = command.env("VARVE_TESTKIT_SKIPS", "1").output().unwrap();
        assert!(output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        let reasons: Vec<&str> = said.lines().filter(|line| line.contains("skipped: ")).collect();
        assert_eq!(
            reasons,
            ["skipped: the first reason", "skipped: there is no no-such-program on this machine"]
        );
    }
}
