//! `varve completions`: a completion script for a shell.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use varve::Result;

use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The shell that reads the script
    shell: Shell,
}

/// Writes the script to the standard output.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(
        arguments.shell,
        &mut super::CommandLine::command(),
        "varve",
        &mut script,
    );
    output::bytes(&script);
    Ok(())
}
