//! `varve clone`: a copy of a file or a directory tree, at once.

use std::path::PathBuf;

use clap::Args;
use varve::Result;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A file or directory on a mount, or in a snapshot of it
    #[arg(value_name = "SRC")]
    from: PathBuf,
    /// The path of the clone, on a mount of the same store; it must not exist
    #[arg(value_name = "DST")]
    to: PathBuf,
}

/// Makes the clone.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    varve_daemon::clone::clone(&arguments.from, &arguments.to)
}
