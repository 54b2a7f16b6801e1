//! Beginning a transaction on a directory, how it is to be, and running a program in one.
//!
//! ```text
//! run: begin --> the same program, `txn enter`: a mount namespace of its own, the view bound over the directory, CMD
//!        ^         | ends with 0: commit --> done
//!        |         |                +-- it met others, or had lost its locks: abort, and again if there are retries left
//!        |         |                +-- refused otherwise: it stays open, for whoever makes room to commit it
//!        |         | ends otherwise, after it gave way to others, or a call of it failed as they were in its way: as if it met others
//!        +---------+ ends otherwise: abort
//! ```
//!
//! What could not be aborted is named.

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
use crate::signals::Passing;
use crate::target::{Target, open_on_mount};

/// What a shell adds to the number of the signal that ended a program.
const SIGNALED: i32 = 128;

/// A transaction that has begun.
#[derive(Clone, Debug, Serialize)]
pub struct Begun {
    /// Its id.
    pub id: String,
    /// The directory in which to work.
    #[serde(with = "varve_engine::paths")]
    pub path: PathBuf,
}

/// Begins a transaction that shows the directory `dir` of a mount.
pub fn begin(dir: &Path, options: &TransactionOptions) -> Result<Begun> {
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
    // Programs work there, perhaps as root: whoever answers, it is a place of the mount. Views are mounted in one place alone, which
    // is told.
    let told = PathBuf::read(&begun["path"]).unwrap_or_default();
    let begun = id.and_then(|id| {
        let mut places = roots.iter().map(|root| root.join(ViewName::transaction(id).path()));
        let path = places.clone().find(|place| *place == told).or(places.next_back())?;
        Some(Begun { id: id.to_owned(), path })
    });
    begun.ok_or_else(|| {
        Error::failed("the daemon does not say which transaction has begun")
            .hint("`varve txn list` tells it; `varve upgrade` has the daemon be of this version")
    })
}

/// Runs `command` so that it sees a transaction at `dir`; gives its exit status. The transaction is committed if that is
/// 0, and aborted otherwise. If others have changed what it changed, or are in the way of its commit, or it gave way to them, or
/// they were in the way of a call of the program, which then failed, it is run again, `retries` times at most, with a higher
/// priority each time. If its commit fails for another reason the transaction stays open.
///
/// The program begins in the working directory if that lies in `dir`, else in `dir`. SIGTERM and SIGHUP go to it, too, and what becomes of it decides; but it is not run again.
pub fn run(
    dir: &Path,
    command: &[OsString],
    options: &TransactionOptions,
    retries: u32,
) -> Result<i32> {
    let dir = dir.canonicalize().map_err(|error| Error::io("find", dir, &error))?;
    let store = Target::at(&dir)?;
    // Ctrl-C is for the program, and what becomes of it decides.
    for signal in [SIGINT, SIGQUIT].into_iter().filter(|signal| !is_ignored(*signal)) {
        signal_hook::flag::register(signal, Arc::default())
            .map_err(|error| Error::machine("handle signals", error))?;
    }
    let passing = Passing::begin()?;
    let (mut left, mut options) = (retries, *options);
    loop {
        if let Some(signal) = passing.came() {
            return Ok(SIGNALED + signal);
        }
        let Begun { id, path } = begin(&dir, &options)?;
        let abort = || ask_target(&store, ViewRequest::Abort { id: id.clone() }).map(drop);
        // What went wrong before counts, and that the transaction is left.
        let aborted_as = |error: Error| match abort() {
            Ok(()) => error,
            Err(reason) => still_open(&store, &dir, &id, error, &reason),
        };
        let status = run_in(&path, &dir, command, &passing).map_err(aborted_as)?;
        let error = if status == 0 {
            match ask_target(&store, ViewRequest::Commit { id: id.clone() }) {
                Ok(_) => return Ok(0),
                Err(error) if error.status() == exit_status::CONFLICT => error,
                Err(error) => match met_others(&store, &id) {
                    Ok(Some(Met { gave_way: true, .. })) => {
                        error.with_status(exit_status::CONFLICT)
                    }
                    _ => return Err(not_committed(&store, &dir, &id, error)),
                },
            }
        } else {
            let Some(Met { why, .. }) = met_others(&store, &id).map_err(aborted_as)? else {
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
        if left == 0 || passing.came().is_some() {
            return Err(error.hint("nothing has changed; run it again, or use --retry"));
        }
        left -= 1;
        options.priority = options.priority.saturating_add(1);
    }
}

/// What is told of the transaction `id`, if it is open.
fn open(store: &Target, id: &str) -> Result<Option<Value>> {
    let open = ask_target(store, ViewRequest::ListTransactions)?;
    let told = open.as_array().into_iter().flatten().find(|txn| txn["id"] == id);
    Ok(told.cloned())
}

/// Others were in the way of a transaction.
struct Met {
    /// So it has lost its locks. Else a call of it has failed.
    gave_way: bool,
    /// How, as the second half of a sentence.
    why: String,
}

/// Whether others were in the way of an open transaction, so that a program in it may end otherwise if it is run again.
fn met_others(store: &Target, id: &str) -> Result<Option<Met>> {
    let told = open(store, id)?.unwrap_or_default();
    Ok(match told["gave_way"].as_str() {
        Some(why) => Some(Met { gave_way: true, why: format!("its transaction gave way: {why}") }),
        None if told["was_refused"] == true => {
            let why = "a call of it had failed, as others had locked what it asked for, or were writing to it";
            Some(Met { gave_way: false, why: why.to_owned() })
        }
        None => None,
    })
}

/// Adds to `error` that the transaction could not be aborted for this `reason`, unless it is gone all the same.
fn still_open(store: &Target, dir: &Path, id: &str, error: Error, reason: &Error) -> Error {
    if let Ok(None) = open(store, id) {
        return error;
    }
    let (dir, reason) = (dir.display(), reason.message());
    error.hint(format!(
        "transaction {id} may still be open, as it could not be aborted ({reason}): `varve txn abort {dir} {id}` drops it"
    ))
}

/// Adds to why a commit failed how to go on with the transaction, if there still is one.
fn not_committed(store: &Target, dir: &Path, id: &str, error: Error) -> Error {
    let dir = dir.display();
    let next = match open(store, id) {
        Ok(Some(_)) => {
            format!(
                "`varve txn commit {dir} {id}` commits it then, `varve txn abort {dir} {id}` drops it"
            )
        }
        // It is durable, or another has ended it.
        Ok(None) => format!("transaction {id} is not open any more"),
        Err(_) => format!("`varve txn list {dir}` tells whether transaction {id} is still open"),
    };
    let next =
        [error.next_step(), Some(&next)].into_iter().flatten().collect::<Vec<_>>().join("; ");
    error.hint(next)
}

/// Runs `command` in the view at `path`, which it sees at `dir`.
fn run_in(path: &Path, dir: &Path, command: &[OsString], passing: &Passing) -> Result<i32> {
    // Has it mounted before the mounts of the program are its own, and in use where the daemon looks.
    let _used = std::fs::File::open(path).map_err(|error| Error::io("enter", path, &error))?;
    let program = std::env::current_exe()
        .map_err(|error| Error::machine("find this program's file", error))?;
    let mut enter = Command::new(program);
    enter.args(["txn", "enter"]).args([path, dir]).arg("--").args(command);
    let status = passing.run(&mut enter)?;
    Ok(status.code().unwrap_or_else(|| SIGNALED + status.signal().unwrap_or_default()))
}

/// Becomes `command` in a mount namespace of its own in which the view at `path` is seen at `dir`; in the working directory if that
/// lies there, else in `dir`. Returns only if that does not go.
pub fn enter(path: &Path, dir: &Path, command: &[OsString]) -> Error {
    let Some((program, arguments)) = command.split_first() else {
        return Error::usage("there is no program to run");
    };
    // Outside of `dir` it would change by relative paths what is no part of the transaction.
    let inside = std::env::current_dir().ok().filter(|here| here.starts_with(dir));
    let here = inside.as_deref().unwrap_or(dir);
    #[allow(deprecated, reason = "no descriptors are unshared")]
    let own = rustix::thread::unshare(UnshareFlags::NEWNS);
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    let bound = own
        .and_then(|()| mount_change("/", private))
        .and_then(|()| mount_bind(path, dir))
        .and_then(|()| rustix::process::chdir(here))
        // Nobody would commit what it does once whoever runs it was killed.
        .and_then(|()| set_parent_process_death_signal(Some(Signal::TERM)));
    if let Err(error) = bound {
        return Error::io("show a transaction at", dir, &error.into())
            .hint("that takes root; `varve txn begin` takes none");
    }
    let error = Command::new(program).args(arguments).exec();
    let is_relative = Path::new(program).is_relative() && program.as_bytes().contains(&b'/');
    Error::io("run", Path::new(program), &error).hint(match is_relative && inside.is_none() {
        true => format!("it begins in {}: give its path from there, or from /", dir.display()),
        false => "is it installed?".to_owned(),
    })
}
