//! Settings of the machine that are put back, and files that go, whatever happens.
//!
//! A process of its own, the keeper, waits for the end of a pipe whose other end only this process has: when it drops
//! [`Keeper`], or dies however it may, the keeper writes the old value, or removes the file. It lives in a process group of its own, ignores signals
//! that end programs, has a name of its own for those that are sent by name, and is the last one that the kernel kills when memory runs out.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::thread::set_name;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::Failure;

/// A file of the kernel, into which a value is written when this is dropped; or any, which is removed then.
#[derive(Debug)]
pub(crate) struct Keeper {
    process: Child,
    file: PathBuf,
    value: Option<String>,
}

impl Keeper {
    /// Has `value` written to `file` in the end.
    pub(crate) fn writing(file: &Path, value: &str) -> Result<Keeper, Failure> {
        Keeper::start(file, Some(value))
    }

    /// Has `file` removed in the end.
    pub(crate) fn removing(file: &Path) -> Result<Keeper, Failure> {
        Keeper::start(file, None)
    }

    fn start(file: &Path, value: Option<&str>) -> Result<Keeper, Failure> {
        let process = Command::new(std::env::current_exe()?)
            .arg("give-back")
            .arg(file)
            .args(value)
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()?;
        Ok(Keeper { process, file: file.to_path_buf(), value: value.map(str::to_owned) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let is_done = self.process.wait().is_ok_and(|status| status.success());
        // It may have been killed.
        if !is_done && let Err(error) = finish(&self.file, self.value.as_deref()) {
            eprintln!("varve-bench: {} stays as it is: {error}", self.file.display());
        }
    }
}

/// Waits for the end of the standard input, then writes `value` to `file`, or removes it if there is none.
pub(crate) fn give_back(file: &Path, value: Option<&str>) -> Result<(), Failure> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    set_name(c"give-back")?;
    // Only root may; then the kernel kills whom it wants.
    drop(fs::write("/proc/self/oom_score_adj", "-1000"));
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
    finish(file, value)
}

fn finish(file: &Path, value: Option<&str>) -> Result<(), Failure> {
    match value {
        Some(value) => write(file, value),
        None => Ok(fs::remove_file(file)?),
    }
}

/// Writes a value to a file of the kernel.
pub(crate) fn write(file: &Path, value: &str) -> Result<(), Failure> {
    fs::write(file, value).map_err(|error| {
        format!("cannot write `{value}` to {}: {error}\nhint: run as root", file.display()).into()
    })
}
