//! Running other programs, with errors that say what was run and what it answered.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Why a chore failed, in words for the person who ran it.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The result of a chore.
pub(crate) type Outcome = Result<(), Failure>;

/// How many bytes of a program's output an error repeats.
const REPEATED_OUTPUT_BYTES: usize = 2000;

/// The directory that holds the workspace's Cargo.toml.
pub(crate) fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// One run of another program.
pub(crate) struct Step {
    program: OsString,
    args: Vec<OsString>,
    dir: Option<PathBuf>,
    env: Vec<(OsString, OsString)>,
    input: Option<String>,
}

impl Step {
    /// A run of `program` without arguments.
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Step {
        Step {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            dir: None,
            env: Vec::new(),
            input: None,
        }
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

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Step {
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Sets what the program reads from its standard input.
    pub(crate) fn input(mut self, text: String) -> Step {
        self.input = Some(text);
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
    }

    /// The command line, for people.
    pub(crate) fn line(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.args);
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    /// Runs it with this process' input and output; an exit status other than 0 is an error.
    pub(crate) fn show(self) -> Outcome {
        let status = self.command().status().map_err(|error| self.cannot_start(&error))?;
        if status.success() { Ok(()) } else { Err(format!("{}: {status}", self.line()).into()) }
    }

    /// Runs it and returns what it wrote and how it ended, whatever that is.
    pub(crate) fn output(self) -> Result<Output, Failure> {
        let mut command = self.command();
        command.stdin(Stdio::null());
        command.output().map_err(|error| self.cannot_start(&error))
    }

    /// Starts it with `output` as its standard output and error, and does not wait.
    pub(crate) fn start(self, output: std::fs::File) -> Result<Child, Failure> {
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        command.spawn().map_err(|error| self.cannot_start(&error))
    }

    /// Runs it and returns what it wrote; an exit status other than 0 is an error that repeats the end of
    /// its output.
    pub(crate) fn capture(self) -> Result<String, Failure> {
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| self.cannot_start(&error))?;
        let stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            let feeder = self.input.as_deref().zip(stdin).map(|(text, mut stdin)| {
                // A program that stops reading early says why through its exit status.
                scope.spawn(move || drop(stdin.write_all(text.as_bytes())))
            });
            let output = child.wait_with_output();
            drop(feeder);
            output
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let (said, complained) = (tail(&output.stdout), tail(&output.stderr));
        Err(format!("{}: {}\n{said}\n{complained}", self.line(), output.status).into())
    }

    /// Runs it and drops its output.
    pub(crate) fn quiet(self) -> Outcome {
        self.capture().map(drop)
    }

    fn cannot_start(&self, error: &std::io::Error) -> Failure {
        let program = self.program.to_string_lossy();
        format!("cannot run {program}: {error}\nhint: .ci/run lists the packages that are needed")
            .into()
    }
}

/// The end of a program's output.
fn tail(output: &[u8]) -> String {
    let from = output.len().saturating_sub(REPEATED_OUTPUT_BYTES);
    String::from_utf8_lossy(output.get(from..).unwrap_or_default()).trim().to_owned()
}

/// Whether there is such a program on this machine.
pub(crate) fn there_is(program: &str) -> bool {
    Step::new(program).arg("--version").output().is_ok()
}

/// Runs `body` and tells how long it took.
pub(crate) fn timed<T>(
    body: impl FnOnce() -> Result<T, Failure>,
) -> Result<(Duration, T), Failure> {
    let begin = Instant::now();
    let value = body()?;
    Ok((begin.elapsed(), value))
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

    #[test]
    fn input_reaches_the_program() {
        let text = "line\n".repeat(100_000);
        let output = Step::new("wc").arg("-l").input(text).capture().expect("wc runs");
        assert_eq!(output.trim(), "100000");
    }
}
