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
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use log::LevelFilter;
use varve::{Error, Result};
use varve_env::os::nothing_inherited;

use super::options::Choices;
use super::succession::serve;
use crate::control::{Ready, Report};
use crate::server_address::{is_server, state_dir};
use crate::{holder, logging};

/// How long a daemon that has closed its output may take to end.
const END_WAIT_MAX: Duration = Duration::from_secs(10);
const END_POLL: Duration = Duration::from_millis(5);

/// Mounts `store` on `dir` with the options text `options`, in a process of its own, and returns when the mount answers. `verbose` puts
/// more messages into the log.
pub fn start_in_background(
    store: &Path,
    dir: &Path,
    options: &str,
    verbose: bool,
) -> Result<Ready> {
    let of_server = is_server(store.as_os_str());
    let (store, dir) =
        (if of_server { store.to_path_buf() } else { absolute(store)? }, absolute(dir)?);
    if !of_server {
        // First, so that no log is created in a directory that is no store.
        holder::superblock(&store)?;
    }
    let log_dir = log_dir(&store, &dir)?;
    let program = std::env::current_exe()
        .map_err(|error| Error::machine("find this program's file", error))?;
    let log = logging::open_log(&log_dir);
    // The daemon does not inherit what the caller has open: a lock or a pipe would stay open as long as the mount.
    let mut child = nothing_inherited(&mut Command::new(program))
        .args(["mount", "--daemon", "-o", options])
        .args(verbose.then_some("--verbose"))
        .arg(&store)
        .arg(&dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.map_or_else(|_| Stdio::null(), Stdio::from))
        .spawn()
        .map_err(|error| Error::machine("start the daemon", error))?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output)
            .read_line(&mut line)
            .map_err(|error| Error::machine("hear the daemon", error))?;
    }
    match serde_json::from_str::<Report>(&line) {
        Ok(report) => report.into_result(),
        Err(_) => Err(silent(&mut child, END_WAIT_MAX)
            .hint(format!("{} may say why", log_dir.join(logging::LOG_NAME).display()))),
    }
}

/// The error for a daemon that closed its output without a report.
fn silent(child: &mut Child, wait_max: Duration) -> Error {
    let begin = Instant::now();
    loop {
        let ended = match child.try_wait() {
            Ok(None) if begin.elapsed() < wait_max => {
                thread::sleep(END_POLL);
                continue;
            }
            Ok(None) => {
                return Error::failed(format!(
                    "the daemon (process {}) runs, but does not say whether the mount answers",
                    child.id()
                ));
            }
            Ok(Some(status)) => status.to_string(),
            Err(error) => error.to_string(),
        };
        return Error::failed(format!("the daemon ended before the mount answered: {ended}"));
    }
}

/// Serves a mount as the process in the background, and reports once on the standard output.
pub fn daemon(store: &Path, dir: &Path, choices: &Choices, level: LevelFilter) -> Result<()> {
    rustix::process::setsid().map_err(|error| Error::machine("start a session", error))?;
    // A store on read-only storage has no log.
    drop(log_dir(store, dir).and_then(|log_dir| logging::to_store(&log_dir, level)));
    let served = std::env::set_current_dir("/")
        .map_err(|error| Error::io("change to", Path::new("/"), &error))
        .and_then(|()| serve(store, dir, choices, |ready| report(&Report::Ready(ready.clone()))));
    if let Err(error) = &served {
        log::error!("{}", error.message());
        // If the mount was ready, no process reads the report any more.
        report(&Report::of(error));
    }
    served
}

/// Writes one line and closes the pipe, so that no later output goes to a process that is gone.
fn report(report: &Report) {
    let mut output = std::io::stdout();
    drop(output.write_all(report.line().as_bytes()).and_then(|()| output.flush()));
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        // The pipe then stays open, which only costs a descriptor.
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

/// The directory with the log of a mount.
fn log_dir(store: &Path, dir: &Path) -> Result<PathBuf> {
    if is_server(store.as_os_str()) { state_dir(store, dir) } else { Ok(store.to_path_buf()) }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::io("find", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who said nothing and lives is not waited for without end.
    #[test]
    fn a_daemon_that_says_nothing_is_told_of() {
        let start = |script: &str| Command::new("sh").args(["-c", script]).spawn().unwrap();
        let mut ended = start("exit 3");
        let said = silent(&mut ended, varve_testkit::PATIENCE);
        assert!(said.message().contains("exit status: 3"), "{said}");
        let mut living = start("exec sleep 600");
        let said = silent(&mut living, Duration::from_millis(20));
        assert!(said.message().contains(&format!("process {}) runs", living.id())), "{said}");
        living.kill().unwrap();
        living.wait().unwrap();
    }
}
