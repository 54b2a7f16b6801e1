//! `varve umount`: unmount and wait until the store is closed.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use varve::Result;
use varve_daemon::logging;
use varve_daemon::mount::{self, Unmounted};
use varve_fuse::UnmountMode;

use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory on which a store is mounted
    dir: PathBuf,
    /// Detach the mount now and let programs that use it finish; does not wait for them
    #[arg(short, long)]
    lazy: bool,
    /// Also abort the calls that programs wait for
    #[arg(short, long, conflicts_with = "lazy")]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Told {
    #[serde(with = "varve_engine::paths")]
    store: PathBuf,
    #[serde(with = "varve_engine::paths")]
    dir: PathBuf,
    is_closed: Option<bool>,
    #[serde(with = "varve_engine::paths")]
    elsewhere: Option<PathBuf>,
}

/// Unmounts the directory.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    logging::to_stderr(log::LevelFilter::Warn);
    let mode = match arguments {
        Arguments { lazy: true, .. } => UnmountMode::Lazy,
        Arguments { force: true, .. } => UnmountMode::Force,
        _ => UnmountMode::Plain,
    };
    let Unmounted { mount, elsewhere, is_closed } = mount::unmount_and_wait(&arguments.dir, mode)?;
    let store = PathBuf::from(&mount.source);
    if arguments.json {
        return output::json(&Told { store, dir: mount.dir, is_closed, elsewhere });
    }
    let end = match &elsewhere {
        _ if arguments.lazy => "closes when the last program is done".to_owned(),
        Some(dir) => format!("stays open: it is mounted on {} too", dir.display()),
        None if is_closed.is_none() => {
            "is not to be seen any more, and may not be closed yet".to_owned()
        }
        None => "is closed".to_owned(),
    };
    output::line(format!("{} is unmounted, {} {end}", mount.dir.display(), store.display()));
    Ok(())
}
