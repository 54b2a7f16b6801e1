//! `varve quota`: limits on what may lie below directories.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand};
use varve::{Result, size};
use varve_daemon::trees::{self, Quota};
use varve_engine::paths::WritePaths;

use crate::cmd::store_path;
use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Set the limits of a directory tree; they replace its earlier limits
    Set(SetArguments),
    /// Show the limits that apply to a directory, and the limits of directories below it
    Show(ShowArguments),
    /// Remove the limits of a directory tree
    Clear(ClearArguments),
}

#[derive(Args)]
#[command(group(ArgGroup::new("limits").args(["bytes", "inodes"]).required(true).multiple(true)))]
struct SetArguments {
    /// A directory of a mount
    #[arg(value_parser = store_path())]
    path: PathBuf,
    /// The most bytes, as the sum of file sizes: 500M, 10G
    #[arg(long, value_name = "SIZE")]
    bytes: Option<String>,
    /// The most files and directories, each file counted once
    #[arg(long, value_name = "N")]
    inodes: Option<u64>,
    /// Print JSON: the limits that apply now, as `show` does
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ShowArguments {
    /// A directory of a mount
    #[arg(default_value = ".")]
    #[arg(value_parser = store_path())]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ClearArguments {
    /// A directory of a mount
    #[arg(value_parser = store_path())]
    path: PathBuf,
}

/// Runs the action.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.action {
        Action::Set(set) => {
            let bytes = set.bytes.as_deref().map(size::parse).transpose()?;
            trees::set_quota(&set.path, bytes, set.inodes)?;
            if set.json {
                return output::json(&trees::quotas(&set.path)?);
            }
            warn_if_full(&set.path)
        }
        Action::Show(show) => {
            let quotas = trees::quotas(&show.path)?;
            if show.json {
                return output::json(&quotas);
            }
            print(&quotas);
            Ok(())
        }
        Action::Clear(clear) => trees::clear_quota(&clear.path),
    }
}

/// Prints a note if more lies below `path` already than its limits allow.
fn warn_if_full(path: &Path) -> Result<()> {
    let usage = trees::usage(path)?;
    let over = |used: u64, limit: Option<u64>| limit.is_some_and(|limit| used > limit);
    let inodes = usage.files + usage.directories;
    let quotas = trees::quotas(path)?;
    let full =
        |quota: &&Quota| over(usage.bytes, quota.bytes_max) || over(inodes, quota.inodes_max);
    if quotas.iter().filter(|quota| quota.usage == usage).any(|quota| full(&quota)) {
        output::line(format!(
            "{} holds more already ({}, {inodes} inodes): it can shrink, not grow",
            path.display(),
            size::show(usage.bytes)
        ));
    }
    Ok(())
}

fn print(quotas: &[Quota]) {
    if quotas.is_empty() {
        output::line("no limits; `varve quota set PATH --bytes SIZE --inodes N` sets some");
        return;
    }
    output::line(row(["BYTES", "LIMIT", "INODES", "LIMIT"], b"PATH"));
    for quota in quotas {
        let usage = quota.usage;
        let none = || "-".to_owned();
        let cells = [
            size::show(usage.bytes),
            quota.bytes_max.map_or_else(none, size::show),
            (usage.files + usage.directories).to_string(),
            quota.inodes_max.map_or_else(none, |limit| limit.to_string()),
        ];
        let cells = cells.each_ref().map(String::as_str);
        output::line(row(cells, &output::printable_path(&quota.path.written())));
    }
}

fn row([bytes, bytes_max, inodes, inodes_max]: [&str; 4], path: &[u8]) -> Vec<u8> {
    let cells = format!("{bytes:>9} {bytes_max:>9} {inodes:>11} {inodes_max:>11}  ");
    [cells.as_bytes(), path].concat()
}
