//! Transactions, snapshots and copies of whole trees. The tests say so and pass where the machine cannot make a target.

use std::fs;
use std::path::Path;

use crate::support::{bench, report};
use crate::targets::possible;

/// A small run on `targets`.
fn run<'a>(targets: &[&'a str]) -> Vec<&'a str> {
    let run =
        ["versions", "--files", "300", "--changes", "10", "--rounds", "1", "--image-size", "400M"];
    let targets = targets.iter().flat_map(|target| ["-t", target]);
    run.into_iter().chain(targets).collect()
}

#[test]
fn acts_are_measured_on_each_target() {
    let targets = possible(&["varve", "ext4", "xfs", "btrfs"]);
    if targets.is_empty() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let found = report(dir.path(), &[&run(&targets)[..], &["--json"]].concat());
    let acts = found["acts"].as_array().expect("acts");
    for target in targets {
        let of_target: Vec<_> = acts.iter().filter(|act| act["target"] == target).collect();
        assert!(
            of_target.iter().any(|act| act["act"] == "change" && act["changes"] == 10),
            "{found}"
        );
        assert!(of_target.iter().all(|act| act["files"] == 300), "{found}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("the directory").count(), 0);
}

/// Only the first of the changed files was looked at.
#[test]
fn a_commit_that_loses_a_change_is_found() {
    if possible(&["varve"]).is_empty() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let varve = Path::new(env!("CARGO_BIN_EXE_varve-bench")).with_file_name("varve");
    // Of 10 changes to 300 files the fifth one is to file 120.
    let script = format!(
        "#!/bin/sh\nVARVE='{}'\n[ \"$1 $2\" = 'txn commit' ] || exec \"$VARVE\" \"$@\"\n\
         \"$VARVE\" \"$@\" && find \"$3\" -name f120 -exec sh -c 'echo other bytes >\"$0\"' {{}} ';'",
        varve.display()
    );
    let wrapper = dir.path().join("wrapper");
    varve_testkit::put_script(&wrapper, &script);
    let wrapper = wrapper.to_str().expect("a path of text");
    let output = bench(dir.path(), &[&run(&["varve"])[..], &["--varve", wrapper]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
    assert!(said.contains("/f120 is not as it should be after commit"), "{said}");
}
