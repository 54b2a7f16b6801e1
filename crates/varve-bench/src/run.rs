//! Running other programs, with errors that say what was run and what it answered.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Failure;

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

/// One run of another program.
pub(crate) struct Step {
    program: OsString,
    args: Vec<OsString>,
    dir: Option<PathBuf>,
    is_whole: bool,
}

impl Step {
    /// A run of `program` without arguments.
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Step {
        Step { program: program.as_ref().to_owned(), args: Vec::new(), dir: None, is_whole: false }
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

    /// Runs it and returns what it wrote; an exit status other than 0 is an error that repeats the end of
    /// its output.
    pub(crate) fn capture(self) -> Result<String, Failure> {
        let words = std::iter::once(&self.program).chain(&self.args);
        let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null());
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        if self.is_whole {
            command.process_group(0);
        }
        let output = command.output().map_err(|error| format!("cannot run {line}: {error}"))?;
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
