//! Running the program.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the program with these arguments and a directory for temporary files.
pub(crate) fn bench(temporary: &Path, args: &[&str]) -> Output {
    program(temporary, args).output().expect("the program starts")
}

/// The program with these arguments and a directory for temporary files.
pub(crate) fn program(temporary: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_varve-bench"));
    command.args(args).env("TMPDIR", temporary);
    command
}

/// Its report as JSON; it must succeed.
pub(crate) fn report(temporary: &Path, args: &[&str]) -> Value {
    let output = bench(temporary, args);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {complaint}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Runs a workload on a directory and on the library, warm, and returns the report.
pub(crate) fn compare(workload: &[&str]) -> Value {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().to_str().expect("a path of text").to_owned();
    let library = format!("library@{path}");
    let mut args =
        vec!["compare", "--rounds", "1", "--warm", "--json", "-t", &path, "-t", &library];
    args.extend(workload);
    let report = report(dir.path(), &args);
    let left = std::fs::read_dir(&path).expect("the directory").count();
    assert_eq!(left, 0, "nothing stays behind");
    report
}

/// The phases of a report, each with its name, its operations on the first target, and how many targets it has.
pub(crate) fn phases(report: &Value) -> Vec<(String, u64, usize)> {
    let phases = report["phases"].as_array().expect("phases");
    let phase = |phase: &Value| {
        let targets = phase["targets"].as_array().expect("targets");
        let counts: Vec<u64> = targets
            .iter()
            .map(|target| target["rounds"][0]["count"].as_u64().expect("a count"))
            .collect();
        assert!(counts.iter().all(|count| *count == counts[0]), "all do the same: {phase}");
        (phase["phase"].as_str().expect("a name").to_owned(), counts[0], counts.len())
    };
    phases.iter().map(phase).collect()
}
