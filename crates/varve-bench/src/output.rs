//! The standard output, where figures go.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

use crate::Failure;

/// The first failure to write to it.
static FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Writes a line. What becomes of that is told in the end, by [`outcome`].
pub(crate) fn line(text: impl Display) {
    if FAILURE.get().is_none() {
        let written = writeln!(io::stdout(), "{text}");
        let _ = written.map_err(|error| FAILURE.set(error));
    }
}

/// Whether all lines were written. A reader that has gone away (`varve-bench ... | head`) has what it wanted.
pub(crate) fn outcome() -> Result<(), Failure> {
    match FAILURE.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("cannot write to the standard output: {error}").into())
        }
        _ => Ok(()),
    }
}
