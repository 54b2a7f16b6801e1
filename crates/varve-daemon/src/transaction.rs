//! Begins a transaction on a directory, and runs a program in one.
//!
//! ```text
//! run: begin --> the same program, `txn enter`: a mount namespace of its own, the view bound over the directory, CMD
//!        ^         | ends with 0: commit --> done
//!        |         |                +-- conflict or deadlock victim: abort, and run again if retries are left
//!        |         |                +-- refused otherwise: the transaction stays open, to be committed later
//!        |         | ends otherwise as a deadlock victim, or after a call met locks of others: as after a conflict
//!        +---------+ ends otherwise: abort
//! ```
//!
//! The error names a transaction that could not be aborted.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{FileType, OFlags};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::UnshareFlags;
use serde::Serialize;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGQUIT};

use varve::{Error, Result, exit_status};
use varve_engine::paths::ReadPaths;
use varve_env::os::signals::is_ignored;
use varve_fs::{TransactionOptions, ViewName};

use crate::control::ViewRequest;
use crate::mount_table::whole_mounts;
use crate::requests::ask_target;
use crate::signals::SignalRelay;
use crate::target::{Target, open_on_mount};

/// What a shell adds to the number of the signal that ended a program.
const SIGNALED: i32 = 128;

/// A transaction that has begun.
#[derive(Clone, Debug, Serialize)]
pub struct BegunTransaction {
    /// Its id.
    pub id: String,
    /// The directory in which to work.
    #[serde(with = "varve_engine::paths")]
    pub path: PathBuf,
}

/// Begins a transaction that shows the directory `dir` of a mount.
pub fn begin(dir: &Path, options: &TransactionOptions) -> Result<BegunTransaction> {
    let failed = |error: std::io::Error| Error::io("begin a transaction on", dir, &error);
    let (opened, mount) = open_on_mount(dir, OFlags::empty())?;
    let stat = rustix::fs::fstat(&opened).map_err(|error| failed(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(failed(rustix::io::Errno::NOTDIR.into()).hint("name a directory on a mount"));
    }
    let roots = whole_mounts(&mount)?;
    let begin = ViewRequest::Begin { root: stat.st_ino, options: *options };
    let begun = ask_target(&Target::on(dir, &mount)?, begin)?;
    let is_id = |id: &&str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    let id = begun["id"].as_str().filter(is_id);
    // Programs, perhaps of root, work there: whatever process answers, only a path on the mount is accepted. A view is mounted at one
    // path alone, and the answer names it.
    let told = PathBuf::read(&begun["path"]).unwrap_or_default();
    let begun = id.and_then(|id| {
        let mut places = roots.iter().map(|root| root.join(ViewName::transaction(id).path()));
        let path = places.clone().find(|place| *place == told).or(places.next_back())?;
        Some(BegunTransaction { id: id.to_owned(), path })
    });
    begun.ok_or_else(|| {
        Error::failed("the daemon does not say which transaction has begun")
            .hint("`varve txn list` shows it; `varve upgrade` gives the daemon this version")
    })
}

/// Runs `command` so that it sees a transaction at `dir`; returns its exit status. Commits the transaction if the status is 0, and aborts
/// it otherwise. Runs the program again, at most `retries` times and with a higher priority each time, if the commit met a conflict or
/// locks, if the transaction was a deadlock victim, or if the program failed after a call of it met locks. If the commit fails for
/// another reason the transaction stays open.
///
/// The program begins in the working directory if that lies in `dir`, else in `dir`. SIGTERM and SIGHUP are forwarded to it; its end
/// decides, and it is not run again.
pub fn run(
    dir: &Path,
    command: &[OsString],
    options: &TransactionOptions,
    retries: u32,
) -> Result<i32> {
    let dir = dir.canonicalize().map_err(|error| Error::io("find", dir, &error))?;
    let store = Target::at(&dir)?;
    // Ctrl-C ends the program, and the end of the program decides.
    for signal in [SIGINT, SIGQUIT].into_iter().filter(|signal| !is_ignored(*signal)) {
        signal_hook::flag::register(signal, Arc::default())
            .map_err(|error| Error::machine("handle signals", error))?;
    }
    let relay = SignalRelay::start()?;
    let (mut left, mut options) = (retries, *options);
    loop {
        if let Some(signal) = relay.came() {
            return Ok(SIGNALED + signal);
        }
        let BegunTransaction { id, path } = begin(&dir, &options)?;
        let abort = || ask_target(&store, ViewRequest::Abort { id: id.clone() }).map(drop);
        // The first failure counts; the hint says that the transaction is left.
        let aborted_as = |error: Error| match abort() {
            Ok(()) => error,
            Err(reason) => still_open(&store, &dir, &id, error, &reason),
        };
        let status = run_in(&path, &dir, command, &relay).map_err(aborted_as)?;
        let error = if status == 0 {
            match ask_target(&store, ViewRequest::Commit { id: id.clone() }) {
                Ok(_) => return Ok(0),
                Err(error) if error.status() == exit_status::CONFLICT => error,
                Err(error) => match interference(&store, &id) {
                    Ok(Some(Interference { gave_way: true, .. })) => {
                        error.with_status(exit_status::CONFLICT)
                    }
                    _ => return Err(not_committed(&store, &dir, &id, error)),
                },
            }
        } else {
            let Some(Interference { why, .. }) = interference(&store, &id).map_err(aborted_as)?
            else {
                abort().map_err(|reason| {
                    let text = format!("the program ended with {status}");
                    still_open(&store, &dir, &id, Error::failed(text), &reason)
                })?;
                return Ok(status);
            };
            let text = format!("the program ended with {status}, and {why}");
            Error::failed(text).with_status(exit_status::CONFLICT)
        };
        if let Err(reason) = abort() {
            return Err(still_open(&store, &dir, &id, error, &reason));
        }
        if left == 0 || relay.came().is_some() {
            return Err(error.hint("nothing has changed; run it again, or use --retry"));
        }
        left -= 1;
        options.priority = options.priority.saturating_add(1);
    }
}

/// The description of the transaction `id`, if it is open.
fn open(store: &Target, id: &str) -> Result<Option<Value>> {
    let open = ask_target(store, ViewRequest::ListTransactions)?;
    let told = open.as_array().into_iter().flatten().find(|txn| txn["id"] == id);
    Ok(told.cloned())
}

/// How other transactions interfered with one.
struct Interference {
    /// It was a deadlock victim and has lost its locks. Otherwise one of its calls has failed.
    gave_way: bool,
    /// The reason, as the second half of a sentence.
    why: String,
}

/// Whether others interfered with an open transaction, so that its program may succeed if it is run again.
fn interference(store: &Target, id: &str) -> Result<Option<Interference>> {
    let told = open(store, id)?.unwrap_or_default();
    Ok(match told["gave_way"].as_str() {
        Some(why) => {
            Some(Interference { gave_way: true, why: format!("its transaction gave way: {why}") })
        }
        None if told["was_refused"] == true => {
            let why =
                "a call of it had failed, as others had locked what it asked for, or wrote to it";
            Some(Interference { gave_way: false, why: why.to_owned() })
        }
        None => None,
    })
}

/// Adds to `error` that the transaction could not be aborted for this `reason`, unless it has ended nevertheless.
fn still_open(store: &Target, dir: &Path, id: &str, error: Error, reason: &Error) -> Error {
    if let Ok(None) = open(store, id) {
        return error;
    }
    let (dir, reason) = (dir.display(), reason.message());
    error.hint(format!(
        "transaction {id} may still be open, as it could not be aborted ({reason}): `varve txn abort {dir} {id}` drops it"
    ))
}

/// Adds to the error of a commit the next step for the transaction.
fn not_committed(store: &Target, dir: &Path, id: &str, error: Error) -> Error {
    let dir = dir.display();
    let next = match open(store, id) {
        Ok(Some(_)) => {
            format!(
                "`varve txn commit {dir} {id}` commits it then, `varve txn abort {dir} {id}` drops it"
            )
        }
        // The commit is durable, or another client has ended the transaction.
        Ok(None) => format!("transaction {id} is not open any more"),
        Err(_) => format!("`varve txn list {dir}` tells whether transaction {id} is still open"),
    };
    let next =
        [error.next_step(), Some(&next)].into_iter().flatten().collect::<Vec<_>>().join("; ");
    error.hint(next)
}

/// Runs `command` in the view at `path`, which it sees at `dir`.
fn run_in(path: &Path, dir: &Path, command: &[OsString], relay: &SignalRelay) -> Result<i32> {
    // Mounts the view before the program has its own mount namespace, and keeps it in use for the daemon.
    let _used = std::fs::File::open(path).map_err(|error| Error::io("enter", path, &error))?;
    let program = std::env::current_exe()
        .map_err(|error| Error::machine("find this program's file", error))?;
    let mut enter = Command::new(program);
    enter.args(["txn", "enter"]).args([path, dir]).arg("--").args(command);
    let status = relay.run(&mut enter)?;
    Ok(status.code().unwrap_or_else(|| SIGNALED + status.signal().unwrap_or_default()))
}

/// Becomes `command` in a mount namespace of its own that shows the view at `path` at `dir`, in the working directory if that lies in
/// `dir`, else in `dir`. Returns only if that fails.
pub fn enter(path: &Path, dir: &Path, command: &[OsString]) -> Error {
    let Some((program, arguments)) = command.split_first() else {
        return Error::usage("the command line names no program to run");
    };
    // Outside of `dir` relative paths would change files that are no part of the transaction.
    let inside = std::env::current_dir().ok().filter(|here| here.starts_with(dir));
    let here = inside.as_deref().unwrap_or(dir);
    #[allow(deprecated, reason = "no descriptors are unshared")]
    let own = rustix::thread::unshare(UnshareFlags::NEWNS);
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    let bound = own
        .and_then(|()| mount_change("/", private))
        .and_then(|()| mount_bind(path, dir))
        .and_then(|()| rustix::process::chdir(here))
        // If the parent is killed no process would commit the transaction.
        .and_then(|()| set_parent_process_death_signal(Some(Signal::TERM)));
    if let Err(error) = bound {
        return Error::io("show a transaction at", dir, &error.into())
            .hint("run it as root, or use `varve txn begin`, which does not need root");
    }
    let error = Command::new(program).args(arguments).exec();
    let is_relative = Path::new(program).is_relative() && program.as_bytes().contains(&b'/');
    Error::io("run", Path::new(program), &error).hint(match is_relative && inside.is_none() {
        true => {
            format!("the program begins in {}: give its path from there, or from /", dir.display())
        }
        false => "is it installed?".to_owned(),
    })
}
