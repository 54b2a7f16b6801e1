//! Programs that the suites need: found, or for crates installed at a pinned version.

use std::path::PathBuf;

use crate::machine::target_dir;
use crate::run::{Failure, Step};

/// The path of `program`, from the search path.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    find_in(program, &[])
}

/// The path of `program`, from one of `dirs` or from the search path.
pub(super) fn find_in(program: &str, dirs: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = dirs.iter().cloned().chain(std::env::split_paths(&path));
    places.find_map(|dir| Some(dir.join(program)).filter(|path| path.is_file()))
}

/// Why a suite does not run: its program is missing.
pub(super) fn missing(program: &str) -> String {
    format!("{program} is not installed; .ci/run installs it where packages can be had")
}

/// The program of the same name of a crate, installed into the target directory unless it is there.
pub(super) fn installed_crate(name: &str, version: &str) -> Result<PathBuf, Failure> {
    let root = target_dir()?.join("suites").join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.is_file() {
        eprintln!("installing {name} {version}");
        Step::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["install", "--quiet", "--locked", name, "--version", &format!("={version}")])
            .arg("--root")
            .arg(&root)
            .show()?;
    }
    Ok(program)
}
