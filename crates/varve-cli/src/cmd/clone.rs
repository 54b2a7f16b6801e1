//! `varve clone`: a copy of a file or a directory tree, at once.

use std::path::PathBuf;

use clap::Args;
use varve::Result;

/// What to copy.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A file or directory on a mount, or in a snapshot of it
    #[arg(value_name = "SRC")]
    from: PathBuf,
    /// What the copy is to be called, on the same mount; it must not exist
    #[arg(value_name = "DST")]
    to: PathBuf,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    varve_daemon::clone::clone(&arguments.from, &arguments.to)
}
