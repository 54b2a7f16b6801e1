//! What people and programs see.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use serde::Serialize;
use varve::{Error, Result};

/// How often a progress line changes.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Writes a line to the standard output. A reader that has gone away (`varve ... | head`) is no failure.
pub(crate) fn line(text: impl AsRef<str>) {
    drop(writeln!(std::io::stdout(), "{}", text.as_ref()));
}

/// Writes `value` as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::failed(format!("cannot write JSON: {error}")))?;
    line(text);
    Ok(())
}

/// Writes a failure and its hint to the standard error output.
pub(crate) fn error(error: &Error) {
    drop(writeln!(std::io::stderr(), "varve: {error}"));
}

/// One line on a terminal that tells how far long work is; silent when the output is no terminal.
pub(crate) struct Progress {
    shown: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    /// Nothing shown yet.
    pub(crate) fn new() -> Progress {
        Progress { shown: None, is_terminal: std::io::stderr().is_terminal() }
    }

    /// Replaces the line, not more often than a person can read.
    pub(crate) fn show(&mut self, text: &str) {
        if self.is_terminal && self.shown.is_none_or(|shown| shown.elapsed() >= PROGRESS_EVERY) {
            self.shown = Some(Instant::now());
            let mut stderr = std::io::stderr();
            drop(write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush()));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            drop(write!(std::io::stderr(), "\r\x1b[K"));
        }
    }
}
