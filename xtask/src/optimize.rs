//! Programs laid out for the work they do (profile-guided optimisation), run as `cargo xtask optimize`.
//!
//! 1. Builds them so that they count what they execute.
//! 2. Has these do a bit of everything, each in turn ([`TRAINING`]).
//! 3. Builds them again, in a directory of their own, with what runs often side by side and inlined.
//!
//! The compiler's own flags do it; why, and what it gains: docs/adr/2026-11-25-programs-built-by-what-they-do.md.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::machine::target_dir;
use crate::run::{Failure, Outcome, Step, timed, workspace_root};

/// What is built: the arguments of one `cargo build` each.
const PROGRAMS: &[&[&str]] = &[
    &["-p", "varve-cli", "-p", "varve-bench", "--bins"],
    &["-p", "varve-fuse", "--example", "null"],
];

/// What the counting programs do: lines of arguments of `varve-bench`. The targets of `compare` are [`TARGETS`].
const TRAINING: &[&str] = &[
    "compare mdtest --files 20000 --dirs 100",
    "compare --workers 2 mdtest --files 10000 --dirs 20 --size-max 16K --sync",
    "compare --workers 2 postmark --files 5000",
    "compare mix file --files 1000 --turns 2000",
    "compare mix mail --files 500 --turns 1000",
    "compare streams --size 64M",
    "versions -t varve --files 2000 --changes 200",
];

/// On what: both ways of requests, if this kernel has both, mounts that check and mounts that do not, and the library.
const TARGETS: &[&str] =
    &["varve", "varve:noallow_other", "varve:dev", "null", "null:dev", "library"];

/// Builds the programs, and says where they are.
pub(crate) fn run() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err("the programs are watched on mounts with empty caches, which takes root\n\
                    hint: run it as root, or go without: `cargo build --release` makes the same programs, only slower"
            .into());
    }
    let merger = profile_merger()?;
    let target = target_dir()?;
    let counts = target.join("counts");
    let profile = target.join("counts.profdata");
    remove(&counts)?;
    tell("programs that count what they execute", || {
        build(&target.join("counting"), &format!("-Cprofile-generate={}", counts.display()))
    })?;
    let counting = programs_in(&target.join("counting"))?;
    for line in TRAINING {
        tell(line, || train(&counting, line))?;
    }
    Step::new(&merger).args(["merge", "--output"]).arg(&profile).arg(&counts).quiet()?;
    tell("programs laid out by these counts", || {
        build(&target.join("optimized"), &format!("-Cprofile-use={}", profile.display()))
    })?;
    println!("{}", programs_in(&target.join("optimized"))?.join("varve").display());
    Ok(())
}

/// The program that adds up counts. It must be of the compiler's own LLVM.
fn profile_merger() -> Result<PathBuf, Failure> {
    let libraries = Step::new("rustc").args(["--print", "target-libdir"]).capture()?;
    let merger = Path::new(libraries.trim()).with_file_name("bin").join("llvm-profdata");
    if !merger.is_file() {
        let missing = merger.display();
        return Err(format!("{missing} is missing\nhint: rustup component add llvm-tools").into());
    }
    Ok(merger)
}

/// Builds into a directory of its own. Named as a target, this machine is built for without the flag reaching build scripts.
fn build(dir: &Path, flag: &str) -> Outcome {
    let given = std::env::var("RUSTFLAGS").unwrap_or_default();
    let flags: Vec<&str> = given.split_whitespace().chain([flag]).collect();
    for what in PROGRAMS {
        Step::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--release", "--quiet", "--target", &host()?])
            .args(*what)
            .arg("--target-dir")
            .arg(dir)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .dir(workspace_root())
            .show()?;
    }
    Ok(())
}

fn host() -> Result<String, Failure> {
    Ok(Step::new("rustc").args(["--print", "host-tuple"]).capture()?.trim().to_owned())
}

fn programs_in(dir: &Path) -> Result<PathBuf, Failure> {
    Ok(dir.join(host()?).join("release"))
}

/// Has the programs do what a line of [`TRAINING`] says. How fast they were says nothing.
fn train(counting: &Path, line: &str) -> Outcome {
    let mut words = line.split(' ');
    let mut step = Step::new(counting.join("varve-bench")).args(words.next()).args([
        "--rounds",
        "1",
        "--image-size",
        "8G",
    ]);
    if line.starts_with("compare") {
        step = step.arg("--no-fsck").args(TARGETS.iter().flat_map(|target| ["-t", target]));
    }
    step.args(words).quiet()
}

fn tell(what: &str, body: impl FnOnce() -> Outcome) -> Outcome {
    let (time, ()) = timed(body)?;
    eprintln!("{:>5.0} s  {what}", time.as_secs_f64());
    Ok(())
}

fn remove(dir: &Path) -> Outcome {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("{}: {error}", dir.display()).into())
        }
        _ => Ok(()),
    }
}
