//! `varve version`: show the version.

use clap::Args;
use serde::Serialize;
use varve::Result;

use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    format_version: u32,
}

/// Shows the version.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        format_version: varve_fs::superblock::FORMAT_VERSION,
    };
    if arguments.json {
        return output::json(&version);
    }
    output::line(format!("varve {}", version.version));
    output::line(format!("reads and writes stores of format version {}", version.format_version));
    Ok(())
}
