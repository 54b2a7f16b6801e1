//! Builds in transactions. The test says so and passes where the machine cannot make or mount a store.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{bench, report};
use crate::targets::possible;

/// A source tree of two files, one of which says what is to be made.
fn tarball(dir: &Path) -> String {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("src")).expect("directories");
    fs::write(tree.join("src/one"), "one").expect("a file");
    fs::write(tree.join("build.sh"), "mkdir out && cat src/* > out/all").expect("a script");
    let path = dir.join("tree.tar").to_str().expect("a path of text").to_owned();
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(&path).arg("-C").arg(dir).arg("tree");
    assert!(tar.status().expect("tar").success());
    path
}

#[test]
fn builds_are_measured_in_each_way_and_checked() {
    if possible(&["varve"]).is_empty() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let tarball = tarball(dir.path());
    let args = |makes| {
        let once = ["--rounds", "1", "--at-once", "1", "--at-once", "2", "--image-size", "400M"];
        let what = ["--json", "--make", "sh build.sh", "--makes", makes, &tarball];
        [&["transactions"], &once[..], &what].concat().into_iter().map(str::to_owned)
    };
    let run = |makes| args(makes).collect::<Vec<_>>();
    let good = run("out/all");
    let found = report(dir.path(), &good.iter().map(String::as_str).collect::<Vec<_>>());
    let found = found["builds"].as_array().expect("builds");
    let ways: Vec<_> =
        found.iter().map(|it| (it["way"].as_str(), it["at_once"].as_u64())).collect();
    let expected = [1, 2]
        .map(|at_once| ["plain", "snapshot", "serializable"].map(|way| (Some(way), Some(at_once))));
    assert_eq!(ways, expected.concat());
    for it in found {
        assert!(it["seconds"]["median"].as_f64() > Some(0.0), "{it}");
        assert!(it["way"] != "plain" || it["ratio"] == 1.0, "{it}");
    }
    let bad = run("out/none");
    let output = bench(dir.path(), &bad.iter().map(String::as_str).collect::<Vec<_>>());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && complaint.contains("out/none was not made"), "{complaint}");
}
