//! The program `varve`: one module per subcommand under [`cmd`], each a thin wrapper over the library.
//!
//! Run under a name that ends in `mount.varve` or `mount.fuse.varve` it is a mount helper for mount(8).
#![allow(clippy::disallowed_methods, reason = "the command line talks to the machine itself")]

mod cmd;
mod demo;
mod output;

use std::process::ExitCode;

use clap::Parser;

/// The next step for errors that name none.
const LAST_HINT: &str = "`varve COMMAND --help` explains a command; the daemon of a mount writes its messages to varve.log in the store";

fn main() -> ExitCode {
    let outcome = match cmd::helper::arguments() {
        Some(arguments) => cmd::helper::run(&arguments),
        None => cmd::CommandLine::parse().run(),
    };
    let mut status = ExitCode::SUCCESS;
    for error in [output::outcome().err(), outcome.err()].into_iter().flatten() {
        let error = error.or_hint(LAST_HINT);
        output::error(&error);
        status = ExitCode::from(error.status());
    }
    status
}
