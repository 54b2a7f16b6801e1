//! `varve umount`: unmount and wait until the store is closed.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use varve::{Result, mounting};
use varve_fuse::UnmountMode;

use crate::output;

/// What to unmount.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory a store is mounted on
    dir: PathBuf,
    /// Take the mount away now and let programs that use it finish; does not wait
    #[arg(short, long)]
    lazy: bool,
    /// Also abort what programs are waiting for
    #[arg(short, long, conflicts_with = "lazy")]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Unmounted {
    #[serde(with = "varve_engine::paths")]
    store: PathBuf,
    #[serde(with = "varve_engine::paths")]
    dir: PathBuf,
    is_closed: bool,
}

/// Unmounts.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mode = match arguments {
        Arguments { lazy: true, .. } => UnmountMode::Lazy,
        Arguments { force: true, .. } => UnmountMode::Force,
        _ => UnmountMode::Plain,
    };
    let mount = mounting::unmount_and_wait(&arguments.dir, mode)?;
    let store = PathBuf::from(&mount.source);
    if arguments.json {
        return output::json(&Unmounted { store, dir: mount.dir, is_closed: !arguments.lazy });
    }
    let end = if arguments.lazy { "closes when the last program is done" } else { "is closed" };
    output::line(format!("{} is unmounted, {} {end}", mount.dir.display(), store.display()));
    Ok(())
}
