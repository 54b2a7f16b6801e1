//! `varve du`: what lies below directories, without a walk.

use std::path::PathBuf;

use clap::Args;
use varve::{Result, size};
use varve_daemon::trees::{self, PathUsage};
use varve_engine::paths::WritePaths;

use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Directories of a mount
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,
    /// Also show each directory at most N levels below
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    depth: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows the usage.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut found = Vec::new();
    for path in &arguments.paths {
        found.extend(trees::usage_by_directory(path, arguments.depth)?);
    }
    if arguments.json {
        return output::json(&found);
    }
    output::line(row(["SIZE", "BYTES", "FILES", "DIRECTORIES"], b"PATH"));
    for PathUsage { path, usage } in &found {
        let counts = [usage.bytes, usage.files, usage.directories].map(|count| count.to_string());
        let [bytes, files, directories] = counts.each_ref().map(String::as_str);
        let size = size::show(usage.bytes);
        output::line(row(
            [&size, bytes, files, directories],
            &output::printable_path(&path.written()),
        ));
    }
    Ok(())
}

fn row([size, bytes, files, directories]: [&str; 4], path: &[u8]) -> Vec<u8> {
    [format!("{size:>9} {bytes:>16} {files:>11} {directories:>11}  ").as_bytes(), path].concat()
}
