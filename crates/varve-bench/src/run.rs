//! Running other programs, with errors that say what was run and what it answered.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::meter::wait_for;
use crate::{Failure, machine};

/// How many bytes of a program's output an error repeats.
const REPEATED_OUTPUT_BYTES: usize = 2000;

/// Runs a program unless the parent has died before its death became a signal.
const RUN_FOR_PARENT: &str = "[ \"$PPID\" = \"$0\" ] && exec \"$@\"";

/// A command that runs `program` and sends it `signal` when the thread that starts it ends, however that ends.
pub(crate) fn while_this_one_lives(signal: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal, "sh", "-c", RUN_FOR_PARENT]);
    command.arg(std::process::id().to_string()).arg(program);
    command
}

/// A command that runs `program`, which ends with the thread that starts it; where this process has mounts of its own all that it has
/// started ends with it, so that nobody stays on them.
pub(crate) fn bound(program: impl AsRef<OsStr>) -> Command {
    if !machine::is_namespace_private() {
        return while_this_one_lives("KILL", program);
    }
    let mut command = while_this_one_lives("KILL", "unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(program);
    command
}

/// A program that runs; killed if this is dropped before it has ended.
pub(crate) struct Running {
    pub(crate) child: Child,
}

impl Running {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> Result<Running, Failure> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| format!("cannot run {program}: {error}"))?;
        Ok(Running { child })
    }

    /// Waits for its end; an error once a signal has asked for that of this process.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus, Failure> {
        wait_for(&pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?)?;
        Ok(self.child.wait()?)
    }

    /// What has become of `command`, and what it has written by then. What it leaves behind may write on, and is not waited for.
    fn output_of(command: &mut Command) -> Result<Output, Failure> {
        let file = || Ok::<_, Errno>(File::from(memfd_create("output", MemfdFlags::CLOEXEC)?));
        let (mut stdout, mut stderr) = (file()?, file()?);
        command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        let status = Running::start(command)?.wait()?;
        let mut output = Output { status, stdout: Vec::new(), stderr: Vec::new() };
        for (file, text) in [(&mut stdout, &mut output.stdout), (&mut stderr, &mut output.stderr)] {
            file.rewind()?;
            file.read_to_end(text)?;
        }
        Ok(output)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if it has ended, which is what is wanted.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// One run of another program.
pub(crate) struct Step {
    program: OsString,
    args: Vec<OsString>,
    dir: Option<PathBuf>,
    is_whole: bool,
    is_bound: bool,
}

impl Step {
    /// A run of `program` without arguments.
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Step {
        let program = program.as_ref().to_owned();
        Step { program, args: Vec::new(), dir: None, is_whole: false, is_bound: false }
    }

    /// Adds an argument.
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Step {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Step {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets the working directory.
    pub(crate) fn dir(mut self, dir: impl AsRef<Path>) -> Step {
        self.dir = Some(dir.as_ref().to_path_buf());
        self
    }

    /// Lets it run to its end whatever the terminal sends: Ctrl-C is for this process, which then cleans up in order.
    pub(crate) fn whole(mut self) -> Step {
        self.is_whole = true;
        self
    }

    /// Ends it with this process ([`bound`]).
    pub(crate) fn bound(mut self) -> Step {
        self.is_bound = true;
        self
    }

    /// Runs it and returns what it wrote; an exit status other than 0 is an error that repeats the end of
    /// its output. Unless it is to be whole, it is killed once a signal has asked for the end.
    pub(crate) fn capture(self) -> Result<String, Failure> {
        let words = std::iter::once(&self.program).chain(&self.args);
        let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let mut command = match self.is_bound {
            true => bound(&self.program),
            false => Command::new(&self.program),
        };
        command.args(&self.args).stdin(Stdio::null());
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        let output = match self.is_whole {
            true => command.process_group(0).output().map_err(Failure::from),
            false => Running::output_of(&mut command),
        };
        let output = output.map_err(|error| format!("{line}: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let (said, complained) = (tail(&output.stdout), tail(&output.stderr));
        Err(format!("{line}: {}\n{said}\n{complained}", output.status).into())
    }

    /// Runs it and drops its output.
    pub(crate) fn quiet(self) -> Result<(), Failure> {
        self.capture().map(drop)
    }
}

/// The end of a program's output.
fn tail(output: &[u8]) -> String {
    let from = output.len().saturating_sub(REPEATED_OUTPUT_BYTES);
    String::from_utf8_lossy(output.get(from..).unwrap_or_default()).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_repeats_command_and_error_output() {
        let error = Step::new("sh").args(["-c", "echo broken >&2; exit 3"]).quiet();
        let text = error.expect_err("exit status 3").to_string();
        assert!(text.contains("sh -c") && text.contains("broken") && text.contains('3'), "{text}");
    }
}
