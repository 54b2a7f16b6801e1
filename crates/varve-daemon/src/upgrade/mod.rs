//! Replaces the program of a mount that is in use.
//!
//! ```text
//! varve upgrade DIR            daemon                                    successor (same process)
//!   | asks on the control socket |                                           |
//!   |--------------------------->| probes the binary, pauses the session,    |
//!   |                            | syncs, closes the store with its lock held|
//!   |                            |------------- execve, descriptors -------->|
//!   |                            |                                           | opens the store, goes on
//!   |<------------------------------------------------ {"ready": ...} -------|
//! ```
//!
//! 1. [`upgrade`] connects to the daemon ([`crate::control`]) and names a binary, its own unless told otherwise.
//! 2. The daemon runs the binary with its own command line and `--probe`; the binary answers what it can take over ([`Abilities`]). Any
//!    other answer ends the upgrade.
//! 3. The session pauses: programs wait from here on. [`crate::mount`] puts the state of the file system and of the session into a
//!    [handover message](handover_message), and the process becomes the new program ([`successor`]).
//! 4. The new program opens the store, takes the handles over, serves and reports to the client.
//!
//! Failures before step 3 change nothing. If the store cannot be synced, or the program cannot be started, the old daemon continues. If
//! the new program cannot take over, it becomes the old program again, whose file it got as a descriptor. If that fails too, the mount is
//! detached, and programs on it get errors instead of waiting. If the new program crashes before it serves, the mount is dead
//! (ENOTCONN), as after any crash of a daemon; nothing that was acknowledged is lost.

mod abilities;
pub(crate) mod handover_message;
pub(crate) mod probe;
pub(crate) mod successor;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::Duration;

use varve::{Error, Result};

pub use abilities::Abilities;
pub(crate) use abilities::SUCCESSOR;

use crate::control::{Ready, Report, Request, client};
use crate::target::Target;

/// How long the daemon may take before the client gives up waiting for its answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(180);

/// Replaces the daemon of the mount or store at `path` by `binary`, or by this program if `binary` is `None`. Returns when the new
/// daemon serves.
pub fn upgrade(path: &Path, binary: Option<&Path>) -> Result<Ready> {
    let target = Target::at(path)?;
    let store = &target.store;
    let binary = match binary {
        Some(binary) => binary.canonicalize().map_err(|error| Error::io("find", binary, &error))?,
        None => std::env::current_exe()
            .map_err(|error| Error::machine("find this program's file", error))?,
    };
    let lost = |error: std::io::Error| {
        Error::failed(format!("the daemon of {} does not answer: {error}", store.display()))
            .hint("`varve status` shows whether it runs; its log is varve.log in the store")
    };
    let absent = |error: std::io::Error| {
        Error::failed(format!("cannot reach a daemon of {}: {error}", store.display()))
            .hint("`varve status` shows whether the store is mounted, and by which process")
    };
    let mut daemon = target.answered_by(client::connect(store), absent)?;
    daemon.set_read_timeout(Some(ANSWER_WAIT_MAX)).map_err(lost)?;
    let mut request = serde_json::to_string(&Request::Upgrade { binary })
        .map_err(|error| Error::usage(format!("cannot write the path as JSON: {error}")))?;
    request.push('\n');
    // A daemon that refuses the client sends its reason and then closes the connection.
    drop(daemon.write_all(request.as_bytes()));
    let mut line = String::new();
    BufReader::new(daemon).read_line(&mut line).map_err(lost)?;
    match serde_json::from_str::<Report>(&line) {
        Ok(report) => report.into_result(),
        Err(_) => Err(lost(std::io::ErrorKind::UnexpectedEof.into())),
    }
}
