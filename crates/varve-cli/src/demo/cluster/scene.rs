//! The directory, the server and the mounts of the demonstration, each a process as a person starts it, and their end.
//!
//! ```text
//! new -> serve -> mount, mount -> (work; kill_server, serve) -> unmount, unmount -> stop_server -> remove
//! ```
//!
//! Wherever this way ends, by a failure, an interrupt or the end of one of the processes ([`watch`]), all processes are ended, the
//! mounts are taken away by force, so that no program waits for a server that is gone, and the directory is removed. If this process
//! is killed, the kernel tells the others to end.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use varve::{Error, Result, store};
use varve_daemon::stats::{self, Stats};
use varve_daemon::{mount, serve};
use varve_env::Env;
use varve_env::os::{OsEnv, ends_with_its_starter, nothing_inherited};
use varve_fs::FormatOptions;
use varve_fuse::{StopHandle, UnmountMode};

use crate::demo::stage::{self, Interrupts};

/// How often it is looked whether a process has ended.
const END_POLL: Duration = Duration::from_millis(5);
/// How often it is looked whether a process has ended that should not.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// How long a program that met a failure is ahead of the look that finds the reason: that a process has ended.
const REASON_WAIT_MAX: Duration = Duration::from_secs(1);

/// The names of the mounts, and of their directories.
pub(super) const MOUNTS: [&str; 2] = ["a", "b"];
const SERVER: &str = "server";

/// A store, its server, and its mounts.
pub(super) struct Cluster {
    dir: Option<TempDir>,
    path: PathBuf,
    interrupts: Interrupts,
    processes: Arc<Mutex<Processes>>,
}

#[derive(Default)]
struct Processes {
    running: Vec<Process>,
    /// All are ended, and none is started any more.
    is_over: bool,
    /// Why, if a process has ended by itself.
    failed: Option<Error>,
}

struct Process {
    name: &'static str,
    child: Child,
    /// Where its messages are.
    log: PathBuf,
    /// What it mounts on.
    dir: Option<PathBuf>,
    /// It was told to end.
    may_end: bool,
}

impl Cluster {
    /// Makes a temporary directory in `parent`, with a new store and the secret of its server.
    pub(super) fn new(parent: &Path) -> Result<Cluster> {
        let interrupts = Interrupts::new()?;
        let (dir, path) = stage::temporary_dir(parent)?;
        let processes = Arc::<Mutex<Processes>>::default();
        let mut cluster = Cluster { dir: Some(dir), path, interrupts, processes };
        if cluster.path.as_os_str().as_encoded_bytes().contains(&b',') {
            let text = format!("{} has a comma, which separates mount options", parent.display());
            return Err(Error::usage(text).hint("name another directory with --dir"));
        }
        let (ending, path) = (Arc::clone(&cluster.processes), cluster.path.clone());
        cluster.interrupts.end_by(move || {
            let mut processes = ending.lock();
            processes.end();
            stage::remove_all(&path, || unmount_all(&path));
            // Still locked, so that nothing is started any more.
            std::mem::forget(processes);
        })?;
        let watched = Arc::clone(&cluster.processes);
        thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || watch(&watched))
            .map_err(|error| Error::machine("start a thread", error))?;
        for name in MOUNTS {
            let dir = cluster.mount_point(name);
            std::fs::create_dir(&dir).map_err(|error| Error::io("create", &dir, &error))?;
        }
        let root_owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        store::format(&cluster.store(), &FormatOptions { root_owner, ..FormatOptions::default() })?;
        let (token, env) = (cluster.token(), OsEnv::new());
        let secret = format!("{:016x}{:016x}\n", env.random(), env.random());
        let opened = File::options().write(true).create_new(true).mode(0o600).open(&token);
        opened
            .and_then(|mut file| file.write_all(secret.as_bytes()))
            .map_err(|error| Error::io("write", &token, &error))?;
        Ok(cluster)
    }

    pub(super) fn store(&self) -> PathBuf {
        self.path.join("store")
    }

    pub(super) fn mount_point(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn token(&self) -> PathBuf {
        self.path.join("token")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.log"))
    }

    /// This program, which keeps what it has to say of mounts in the directory of the demonstration.
    fn varve(&self) -> Result<Command> {
        let program = std::env::current_exe()
            .map_err(|error| Error::machine("find this program's file", error))?;
        let mut command = Command::new(program);
        command.env("VARVE_ANCHORS", self.path.join("messages")).stdin(Stdio::null());
        Ok(command)
    }

    /// Starts `command`. Returns what it says when it is ready.
    fn start<Ready: DeserializeOwned>(
        &self,
        name: &'static str,
        dir: Option<PathBuf>,
        command: &mut Command,
    ) -> Result<Ready> {
        let log = self.log(name);
        let messages = File::options().create(true).append(true).open(&log);
        let messages = messages.map_err(|error| Error::io("create", &log, &error))?;
        // A Ctrl-C is for this process, which ends the others in order.
        command.process_group(0).stdout(Stdio::piped()).stderr(messages);
        let output = {
            let mut processes = self.processes.lock();
            if processes.is_over {
                return Err(Error::failed(format!("{name} is not started: the end has begun")));
            }
            let child = ends_with_its_starter(nothing_inherited(command)).spawn();
            let mut child = child.map_err(|error| Error::machine("start a process", error))?;
            let output = child.stdout.take();
            processes.running.push(Process { name, child, log: log.clone(), dir, may_end: false });
            output
        };
        let said = output.map(|output| serde_json::Deserializer::from_reader(output).into_iter());
        match said.and_then(|mut said| said.next()) {
            Some(Ok(ready)) => Ok(ready),
            _ => Err(last_words(name, &log, None)),
        }
    }

    /// Starts the server of the store.
    pub(super) fn serve(&self, listen: SocketAddr) -> Result<serve::Ready> {
        let mut command = self.varve()?;
        command.args(["serve", "--json", "--listen", &listen.to_string(), "--token-file"]);
        self.start(SERVER, None, command.arg(self.token()).arg(self.store()))
    }

    /// Mounts what the server at `address` serves.
    pub(super) fn mount(&self, name: &'static str, address: SocketAddr) -> Result<mount::Ready> {
        let dir = self.mount_point(name);
        let mut command = self.varve()?;
        // Not for its own process alone: the programs are in this one.
        let options = format!("noprivate,token_file={}", self.token().display());
        command.args(["mount", "--foreground", "--json", "-o", &options]);
        command.arg(format!("varve://{address}/")).arg(&dir);
        self.start(name, Some(dir), &mut command)
    }

    /// What the server at `address` has done, as `varve stats` has it.
    pub(super) fn stats(&self, address: SocketAddr) -> Result<Stats> {
        stats::take(Path::new(&format!("varve://{address}/")), Some(&self.token()))
    }

    /// Kills the server, as a power cut of its machine does.
    pub(super) fn kill_server(&self) -> Result<()> {
        self.tell_to_end(SERVER, Signal::KILL)?;
        self.wait_for(SERVER).map(drop)
    }

    /// Tells the server to end, and waits until the store is closed.
    pub(super) fn stop_server(&self) -> Result<()> {
        self.tell_to_end(SERVER, Signal::TERM)?;
        self.wait_for_success(SERVER)
    }

    /// Unmounts, and waits for the end of the mount's process.
    pub(super) fn unmount(&self, name: &'static str) -> Result<()> {
        if let Some(process) = self.processes.lock().of(name) {
            process.may_end = true;
        }
        let unmounted = self.varve()?.arg("umount").arg(self.mount_point(name)).output();
        let unmounted = unmounted.map_err(|error| Error::machine("start a process", error))?;
        if !unmounted.status.success() {
            let said = String::from_utf8_lossy(&unmounted.stderr);
            let failed =
                || Error::failed(format!("`varve umount` has ended: {}", unmounted.status));
            return Err(said_by("`varve umount`", &said).unwrap_or_else(failed));
        }
        self.wait_for_success(name)
    }

    fn tell_to_end(&self, name: &str, signal: Signal) -> Result<()> {
        let mut processes = self.processes.lock();
        let Some(process) = processes.of(name) else { return Ok(()) };
        process.may_end = true;
        kill_process(Pid::from_child(&process.child), signal)
            .map_err(|error| Error::machine("end a process", error))
    }

    fn wait_for_success(&self, name: &'static str) -> Result<()> {
        match self.wait_for(name)? {
            Some(status) if !status.success() => {
                Err(last_words(name, &self.log(name), Some(status)))
            }
            _ => Ok(()),
        }
    }

    /// Waits for the end of a process; `None` if it does not run.
    fn wait_for(&self, name: &str) -> Result<Option<ExitStatus>> {
        loop {
            let mut processes = self.processes.lock();
            let Some(process) = processes.of(name) else { return Ok(None) };
            let ended = process.child.try_wait();
            let ended = ended.map_err(|error| Error::machine("wait for a process", error))?;
            if ended.is_some() {
                processes.running.retain(|process| process.name != name);
                return Ok(ended);
            }
            drop(processes);
            thread::sleep(END_POLL);
        }
    }

    /// Ends everything by force. Calls on the mounts fail from now on, which waited for the server.
    pub(super) fn end(&self) {
        self.processes.lock().end();
    }

    /// The reason why `error` was met: a process that has ended by itself, if there is one.
    ///
    /// A mount whose process is killed fails its calls before the process can be waited for: so this waits a little.
    pub(super) fn reason_of(&self, error: Error) -> Error {
        let begin = Instant::now();
        loop {
            let mut processes = self.processes.lock();
            processes.look();
            if let Some(reason) = processes.failed.take() {
                return reason;
            }
            if processes.is_over || begin.elapsed() > REASON_WAIT_MAX {
                return error;
            }
            drop(processes);
            thread::sleep(END_POLL);
        }
    }

    /// Removes the directory, or keeps the store and the messages in it and returns where they are.
    pub(super) fn remove(&mut self, is_kept: bool) -> Result<Option<PathBuf>> {
        let Some(dir) = self.dir.take() else { return Ok(None) };
        if is_kept {
            let kept = dir.keep();
            for name in MOUNTS {
                // Empty again.
                drop(std::fs::remove_dir(kept.join(name)));
            }
            return Ok(Some(kept));
        }
        dir.close().map_err(|error| Error::io("remove", &self.path, &error))?;
        Ok(None)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.interrupts.leave_it_to_them();
        self.end();
        if let Some(dir) = self.dir.take() {
            stage::remove_all(&dir.keep(), || unmount_all(&self.path));
        }
    }
}

impl Processes {
    fn of(&mut self, name: &str) -> Option<&mut Process> {
        self.running.iter_mut().find(|process| process.name == name)
    }

    /// Ends all if one has ended that should not, and keeps why.
    fn look(&mut self) {
        let ended = self.running.iter_mut().filter(|process| !process.may_end).find_map(
            |Process { name, child, log, .. }| {
                let status = child.try_wait().ok().flatten()?;
                Some(last_words(name, log, Some(status)))
            },
        );
        if let Some(error) = ended {
            self.failed = Some(error);
            self.end();
        }
    }

    /// Ends all, the mounts first, whose last work would wait for the server.
    fn end(&mut self) {
        self.is_over = true;
        self.running.sort_by_key(|process| process.dir.is_none());
        for process in &mut self.running {
            if let Some(dir) = &process.dir {
                StopHandle::on(dir.clone()).give_up();
            }
            drop(process.child.kill());
            drop(process.child.wait());
            if let Some(dir) = &process.dir {
                // It may have been mounted just now.
                drop(StopHandle::on(dir.clone()).stop(UnmountMode::Lazy));
            }
        }
        self.running.clear();
    }
}

/// Takes away what is mounted in the directory at `path`.
fn unmount_all(path: &Path) {
    for name in MOUNTS {
        drop(StopHandle::on(path.join(name)).stop(UnmountMode::Force));
    }
}

/// Ends everything when a process ends that should not: programs would wait for it without end.
fn watch(processes: &Mutex<Processes>) {
    loop {
        thread::sleep(WATCH_EVERY);
        let mut processes = processes.lock();
        if processes.is_over {
            return;
        }
        processes.look();
    }
}

/// The failure of the process `name`, as it has told it.
fn last_words(name: &str, log: &Path, status: Option<ExitStatus>) -> Error {
    let said = std::fs::read_to_string(log).unwrap_or_default();
    let who = if name == SERVER { "the server".to_owned() } else { format!("mount {name}") };
    match (said_by(&who, &said), status) {
        (Some(error), _) => error,
        (None, status) => {
            let ended = status.map(|status| format!(": {status}")).unwrap_or_default();
            let last = said.lines().last().map(|line| format!("; its last message: {line}"));
            Error::failed(format!("{who} has ended{ended}{}", last.unwrap_or_default()))
                .hint("if nobody has ended it, please report it: --keep keeps its messages")
        }
    }
}

/// The error that a command has printed last: it has a next step, unlike its messages.
fn said_by(who: &str, said: &str) -> Option<Error> {
    let (said, hint) = said.trim_end().rsplit_once("\nhint: ")?;
    let message = match said.rsplit_once("\nvarve: ") {
        Some((_, message)) => message,
        None => said.strip_prefix("varve: ")?,
    };
    Some(Error::failed(format!("{who}: {message}")).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_a_program_is_found_among_its_messages() {
        let said = "varve: it is served\nvarve: cannot mount\n  on a\nhint: see b\n";
        let error = said_by("mount a", said).unwrap();
        assert_eq!(error.message(), "mount a: cannot mount\n  on a");
        assert_eq!(error.next_step(), Some("see b"));
        assert!(said_by("mount a", "varve: cannot mount\nhint: see b").is_some());
        for said in ["", "varve: it is served\n", "hint: see b\n"] {
            assert!(said_by("mount a", said).is_none(), "{said}");
        }
    }
}
