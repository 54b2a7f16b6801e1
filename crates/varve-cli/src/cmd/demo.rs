//! `varve demo`: show what Varve does.

use clap::Args;
use varve::Result;
use varve_daemon::logging;

use crate::demo::{self, Plan};
use crate::output;

/// Bytes of the large file.
const LARGE_BYTES: usize = 64 << 20;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Files to create
    #[arg(long, default_value_t = 20_000)]
    files: u32,
    /// Directories to spread the files over
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    dirs: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the demonstration.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    logging::to_stderr(log::LevelFilter::Warn);
    let plan = Plan { files: arguments.files, dirs: arguments.dirs, large_bytes: LARGE_BYTES };
    let is_quiet = arguments.json;
    let figures = demo::run(plan, &mut |line| {
        if !is_quiet {
            output::line(line);
        }
    })?;
    if arguments.json { output::json(&figures) } else { Ok(()) }
}
