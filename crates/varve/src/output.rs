//! What people and programs see.

use std::io::Write;

use serde::Serialize;
use varve::{Error, Result};

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
