//! Beginning a transaction on a directory, and running a program in one.
//!
//! ```text
//! run: begin --> the same program, `txn enter`: a mount namespace of its own, the view bound over the directory, CMD
//!        ^         | ends with 0: commit --> done
//!        |         |                +-- conflict: abort, and again if there are retries left
//!        +---------+ ends otherwise: abort
//! ```

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::thread::UnshareFlags;
use signal_hook::consts::{SIGINT, SIGQUIT};

use crate::views::{ViewRequest, ask, store_at};
use crate::{Error, Result};

/// What a shell adds to the number of the signal that ended a program.
const SIGNALED: i32 = 128;

/// A transaction that has begun.
#[derive(Clone, Debug)]
pub struct Begun {
    /// Its id.
    pub id: String,
    /// The directory in which to work.
    pub path: PathBuf,
}

/// Begins a transaction that shows the directory `dir` of a mount.
pub fn begin(dir: &Path) -> Result<Begun> {
    let failed = |error: std::io::Error| Error::io("begin a transaction on", dir, &error);
    let facts = std::fs::metadata(dir).map_err(failed)?;
    if !facts.is_dir() {
        return Err(failed(rustix::io::Errno::NOTDIR.into()).hint("name a directory on a mount"));
    }
    let begun = ask(dir, ViewRequest::Begin { root: facts.ino() })?;
    let text = |name: &str| begun[name].as_str().unwrap_or_default().to_owned();
    Ok(Begun { id: text("id"), path: PathBuf::from(text("path")) })
}

/// Runs `command` so that it sees a transaction at `dir`; gives its exit status. The transaction is committed if that is
/// 0, and aborted otherwise. If others have changed what it changed it is run again, `retries` times at most.
pub fn run(dir: &Path, command: &[OsString], retries: u32) -> Result<i32> {
    let dir = dir.canonicalize().map_err(|error| Error::io("find", dir, &error))?;
    let store = store_at(&dir)?;
    // Ctrl-C is for the program, and what becomes of it decides.
    for signal in [SIGINT, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::default())
            .map_err(|error| Error::failed(format!("cannot handle signals: {error}")))?;
    }
    let mut left = retries;
    loop {
        let Begun { id, path } = begin(&dir)?;
        let abort = || ask(&store, ViewRequest::Abort { id: id.clone() }).map(drop);
        let status = run_in(&path, &dir, command).inspect_err(|_| drop(abort()))?;
        if status != 0 {
            abort()?;
            return Ok(status);
        }
        let Err(error) = ask(&store, ViewRequest::Commit { id: id.clone() }) else { return Ok(0) };
        abort()?;
        if left == 0 {
            return Err(error.hint("nothing has changed; run it again, or use --retry"));
        }
        left -= 1;
    }
}

/// Runs `command` in the view at `path`, which it sees at `dir`.
fn run_in(path: &Path, dir: &Path, command: &[OsString]) -> Result<i32> {
    // Has it mounted before the mounts of the program are its own.
    std::fs::metadata(path).map_err(|error| Error::io("enter", path, &error))?;
    let program = std::env::current_exe()
        .map_err(|error| Error::failed(format!("cannot find this program's file: {error}")))?;
    let status = Command::new(program)
        .args(["txn", "enter"])
        .args([path, dir])
        .arg("--")
        .args(command)
        .status()
        .map_err(|error| Error::failed(format!("cannot start a process: {error}")))?;
    Ok(status.code().unwrap_or_else(|| SIGNALED + status.signal().unwrap_or_default()))
}

/// Becomes `command` in a mount namespace of its own in which the view at `path` is seen at `dir`. Returns only if that does
/// not go.
pub fn enter(path: &Path, dir: &Path, command: &[OsString]) -> Error {
    let Some((program, arguments)) = command.split_first() else {
        return Error::usage("there is no program to run");
    };
    let here = std::env::current_dir().unwrap_or_else(|_| dir.to_path_buf());
    #[allow(deprecated, reason = "no descriptors are unshared")]
    let own = rustix::thread::unshare(UnshareFlags::NEWNS);
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    let bound = own
        .and_then(|()| mount_change("/", private))
        .and_then(|()| mount_bind(path, dir))
        .and_then(|()| rustix::process::chdir(&here));
    if let Err(error) = bound {
        return Error::io("show a transaction at", dir, &error.into())
            .hint("that takes root; `varve txn begin` takes none");
    }
    let error = Command::new(program).args(arguments).exec();
    Error::io("run", Path::new(program), &error).hint("is it installed?")
}
