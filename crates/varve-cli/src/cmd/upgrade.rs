//! `varve upgrade`: replace the program that serves a mount, while it is in use.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use varve::Result;
use varve_daemon::upgrade;

use crate::cmd::store_path;
use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory on which a store is mounted, or the store
    #[arg(value_name = "DIR|STORE")]
    #[arg(value_parser = store_path())]
    path: PathBuf,
    /// The program that takes over [default: this one]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Upgrades the mount.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let begin = Instant::now();
    let ready = upgrade::upgrade(&arguments.path, arguments.binary.as_deref())?;
    if arguments.json {
        return output::json(&ready);
    }
    output::line(format!(
        "{} is served by the new program (process {}), after {} ms",
        ready.dir.display(),
        ready.pid,
        begin.elapsed().as_millis()
    ));
    Ok(())
}
