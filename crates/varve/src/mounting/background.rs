//! A mount in a process of its own.
//!
//! ```text
//! varve mount STORE DIR ----spawns----> varve mount --daemon STORE DIR
//!         |                                     | its own session (setsid), log in STORE/varve.log
//!         | reads one line of its output        | serves
//!         |<------- {"ready": ...} -------------|   when the mount answers
//!      exits 0                                  |
//!         |<------- {"failed": ...} ------------|   when it could not start
//!      prints the error, exits with its status
//! ```
//!
//! The program runs itself again instead of forking, so that no thread and no lock is half copied.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use log::LevelFilter;

use super::{Choices, Ready, Report, serve};
use crate::logging;
use crate::store;
use crate::{Error, Result};

/// Mounts `store` on `dir` with the options text `options` and returns when the mount answers.
pub fn start_in_background(store: &Path, dir: &Path, options: &str) -> Result<Ready> {
    // Early, so that no log appears in a directory that is no store.
    store::superblock(store)?;
    let program = std::env::current_exe()
        .map_err(|error| Error::failed(format!("cannot find this program's file: {error}")))?;
    let log = logging::open_log(&store.join(logging::LOG_NAME));
    let mut child = Command::new(program)
        .args(["mount", "--daemon", "-o", options])
        .arg(absolute(store)?)
        .arg(absolute(dir)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.map_or_else(|_| Stdio::null(), Stdio::from))
        .spawn()
        .map_err(|error| Error::failed(format!("cannot start the daemon: {error}")))?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output)
            .read_line(&mut line)
            .map_err(|error| Error::failed(format!("cannot hear the daemon: {error}")))?;
    }
    match serde_json::from_str::<Report>(&line) {
        Ok(report) => report.into_result(),
        Err(_) => {
            let status =
                child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            Err(Error::failed(format!("the daemon ended before the mount answered: {status}"))
                .hint(format!("{} may say why", store.join(logging::LOG_NAME).display())))
        }
    }
}

/// The daemon's side: serves, and reports once on the standard output.
pub fn daemon(store: &Path, dir: &Path, choices: &Choices, level: LevelFilter) -> Result<()> {
    rustix::process::setsid()
        .map_err(|error| Error::failed(format!("cannot start a session: {error}")))?;
    // A store on read-only storage has no log.
    drop(logging::to_store(store, level));
    let served = std::env::set_current_dir("/")
        .map_err(|error| Error::io("change to", Path::new("/"), &error))
        .and_then(|()| serve(store, dir, choices, |ready| report(&Report::Ready(ready.clone()))));
    if let Err(error) = &served {
        log::error!("{}", error.message());
        // Nobody listens any more if the mount was ready.
        report(&Report::of(error));
    }
    served
}

/// Writes one line and closes the pipe, so that no later output goes to a process that is gone.
fn report(report: &Report) {
    if let Ok(mut line) = serde_json::to_string(report) {
        line.push('\n');
        let mut output = std::io::stdout();
        drop(output.write_all(line.as_bytes()).and_then(|()| output.flush()));
    }
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        // The pipe then stays open, which only costs a descriptor.
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

fn absolute(path: &Path) -> Result<std::path::PathBuf> {
    std::path::absolute(path).map_err(|error| Error::io("find", path, &error))
}
