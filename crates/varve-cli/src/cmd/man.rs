//! `varve man`: manual pages, one for the program and one for each subcommand.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use serde::Serialize;
use varve::{Error, Result};

use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory for varve.1, varve-mount.1 and the others; created if it is missing
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result, as JSON.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(with = "varve_engine::paths")]
    dir: &'a PathBuf,
}

/// Writes the pages.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let dir = &arguments.dir;
    std::fs::create_dir_all(dir).map_err(|error| Error::io("create", dir, &error))?;
    clap_mangen::generate_to(super::CommandLine::command(), dir)
        .map_err(|error| Error::io("write manual pages to", dir, &error))?;
    if arguments.json {
        return output::json(&Written { dir });
    }
    output::line(format!(
        "manual pages are in {}; read with `man -l {}/varve.1`",
        dir.display(),
        dir.display()
    ));
    Ok(())
}
