//! Every fuzz target, one after the other, each for its share of the time.
//!
//! 1. All of them are built as `cargo +nightly fuzz` builds one: with counters of what an input reaches, and with checks of
//!    memory. It takes a nightly toolchain and a compiler of C++, for libFuzzer.
//! 2. Each begins with what earlier runs of it have found, in `fuzz/corpus`.
//! 3. What ends one is left in `fuzz/artifacts`; the program of the target repeats it.

use std::fs;
use std::path::{Path, PathBuf};

use super::Task;
use crate::run::{Failure, Outcome, Step, workspace_root};

/// Checks of memory take the machine to be named, so that they are not built into what runs at compile time.
const MACHINE: &str = "x86_64-unknown-linux-gnu";
/// What a target is compiled with.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
    "-Zsanitizer=address",
    "--cfg=fuzzing",
];

/// Runs all targets.
pub(super) fn run(task: &Task) -> Outcome {
    let dir = workspace_root().join("fuzz");
    let targets = targets(&dir)?;
    let programs = build(&dir)?;
    let seconds = (task.time().as_secs() / targets.len() as u64).max(1);
    println!("{} targets, {seconds} s each", targets.len());
    for target in targets {
        println!("{target}");
        let made = |kind: &str| {
            let made = dir.join(kind).join(&target);
            fs::create_dir_all(&made).map(|()| made)
        };
        let (corpus, artifacts) = (made("corpus")?, made("artifacts")?);
        Step::new(programs.join(&target))
            .arg(format!("-seed={}", task.how.seed))
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg(corpus)
            .quiet()?;
    }
    Ok(())
}

/// Their names.
fn targets(dir: &Path) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for item in fs::read_dir(dir.join("fuzz_targets"))? {
        let path = item?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Builds them; returns where their programs are.
fn build(dir: &Path) -> Result<PathBuf, Failure> {
    let built = std::env::var_os("CARGO_TARGET_DIR").map_or(dir.join("target"), PathBuf::from);
    Step::new("cargo")
        .args(["+nightly", "build", "--release", "--locked", "--quiet", "--target", MACHINE])
        .env("CARGO_TARGET_DIR", &built)
        .env("RUSTFLAGS", FLAGS.join(" "))
        .dir(dir)
        .show()?;
    Ok(built.join(MACHINE).join("release"))
}
