//! Starts programs for tests.
//!
//! A child process is a copy of this process until it executes its program. It has copies of all descriptors, even of
//! the ones that other threads close meanwhile: a mount may seem in use, a closed file may still be open for writing,
//! and a lock may still be held.
//!
//! 1. A lock is taken, so that one program is started at a time.
//! 2. The child executes its program, which closes the copies.
//! 3. Then the lock is released. The effects of the closes, such as the end of a lock, may follow a moment later.
//!
//! Invariant: no two programs that are started here have copies of this process's descriptors at the same time.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Output, Stdio};

use parking_lot::Mutex;

/// Held while a program is being started.
static STARTING: Mutex<()> = Mutex::new(());

/// A [`std::process::Command`], started one at a time.
pub struct Command {
    command: std::process::Command,
    has_stdin: bool,
    has_stdout: bool,
    has_stderr: bool,
}

impl Command {
    /// A program to be started.
    pub fn new(program: impl AsRef<OsStr>) -> Command {
        let command = std::process::Command::new(program);
        Command { command, has_stdin: false, has_stdout: false, has_stderr: false }
    }

    /// Adds an argument.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Command {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(&mut self, args: impl IntoIterator<Item = S>) -> &mut Command {
        self.command.args(args);
        self
    }

    /// Sets a variable of its environment.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Command {
        self.command.env(name, value);
        self
    }

    /// Sets variables of its environment.
    pub fn envs<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        &mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> &mut Command {
        self.command.envs(variables);
        self
    }

    /// Sets its working directory.
    pub fn current_dir(&mut self, dir: impl AsRef<Path>) -> &mut Command {
        self.command.current_dir(dir);
        self
    }

    /// Sets the user that it runs as.
    pub fn uid(&mut self, uid: u32) -> &mut Command {
        self.command.uid(uid);
        self
    }

    /// Sets the group that it runs as.
    pub fn gid(&mut self, gid: u32) -> &mut Command {
        self.command.gid(gid);
        self
    }

    /// Sets its standard input.
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Command {
        self.command.stdin(stdin);
        self.has_stdin = true;
        self
    }

    /// Sets its standard output.
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Command {
        self.command.stdout(stdout);
        self.has_stdout = true;
        self
    }

    /// Sets its standard error output.
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Command {
        self.command.stderr(stderr);
        self.has_stderr = true;
        self
    }

    /// Returns the program.
    pub fn get_program(&self) -> &OsStr {
        self.command.get_program()
    }

    /// Starts it; returns when it is executed.
    pub fn spawn(&mut self) -> io::Result<Child> {
        let _alone = STARTING.lock();
        // Its end is with the child too, and closed there with all other copies when the program is executed, which is a moment after
        // the standard library knows that it will be.
        let (mut executes, copied) = io::pipe()?;
        let child = self.command.spawn();
        drop(copied);
        executes.read_to_end(&mut Vec::new())?;
        child
    }

    /// Runs it to its end.
    pub fn status(&mut self) -> io::Result<ExitStatus> {
        self.spawn()?.wait()
    }

    /// Runs it to its end; gives what it wrote, unless that goes elsewhere.
    pub fn output(&mut self) -> io::Result<Output> {
        if !self.has_stdin {
            self.command.stdin(Stdio::null());
        }
        if !self.has_stdout {
            self.command.stdout(Stdio::piped());
        }
        if !self.has_stderr {
            self.command.stderr(Stdio::piped());
        }
        self.spawn()?.wait_with_output()
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.command.fmt(f)
    }
}

/// Puts a copy of the program `from` at `to`, which does not exist yet. No thread of this process ever has the copy
/// open for writing: a child of another thread would then have it open too, and nobody could execute it.
///
/// # Panics
/// If that fails.
pub fn put_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let mut copy = Command::new("cp");
    let output = copy.arg("--").args([from, to]).output();
    let is_there = output.as_ref().is_ok_and(|output| output.status.success());
    assert!(is_there, "{copy:?}: {output:?}");
}

/// Puts a shell script at `to` in the same way. Anybody may execute it.
///
/// # Panics
/// If that fails.
pub fn put_script(to: impl AsRef<Path>, script: &str) {
    let mut write = Command::new("sh");
    write.args(["-c", "printf '%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\""]);
    let output = write.arg(to.as_ref()).arg(script).output();
    let is_there = output.as_ref().is_ok_and(|output| output.status.success());
    assert!(is_there, "{write:?}: {output:?}");
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Copies of what a thread has open while another one starts programs.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "what is tested are descriptors of the machine")]
    fn a_program_that_was_started_has_no_descriptors_of_ours() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop(File::open(file.path()).unwrap());
                }
            });
            let copies = (0..100).map(|_| {
                let mut child = Command::new("sleep").arg("600").spawn().unwrap();
                let open = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
                let open = open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
                let copies = open.filter(|open| open == file.path()).count();
                child.kill().unwrap();
                child.wait().unwrap();
                copies
            });
            let copies: usize = copies.sum();
            over.store(true, Ordering::Relaxed);
            assert_eq!(copies, 0);
        });
    }

    #[test]
    fn what_a_program_writes_is_given_unless_it_goes_elsewhere() {
        let mut told = Command::new("sh");
        told.args(["-c", "cat; echo out; echo err >&2; exit 3"]);
        let output = told.output().unwrap();
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!(output.status.code(), Some(3));
        let output = told.stdout(Stdio::null()).output().unwrap();
        assert_eq!((output.stdout.len(), output.stderr.len()), (0, 4));
        assert!(Command::new("/no/such/program").spawn().is_err());
    }

    #[test]
    fn scripts_are_put_whole_and_run() {
        let dir = tempfile::tempdir().unwrap();
        let (script, copy) = (dir.path().join("script"), dir.path().join("copy"));
        put_script(&script, "#!/bin/sh\nprintf '%s' \"$1\\n\"");
        put_program(&script, &copy);
        for program in [&script, &copy] {
            let output = Command::new(program).arg("100%").output().unwrap();
            assert_eq!(output.stdout, b"100%\\n");
        }
    }
}
