//! `varve cluster`: stores that servers serve to mounts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use varve::Result;
use varve_daemon::logging;

use crate::demo::Plan;
use crate::demo::cluster::{self, Choices};
use crate::output;

/// Files for each directory.
const FILES_IN_DIR: u32 = 100;
/// Bytes of the large file.
const LARGE_BYTES: usize = 16 << 20;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Show what a server and two mounts of it do, with figures, and leave nothing behind
    Demo(Demo),
}

const ABOUT_DEMO: &str = "\
It formats a store in a temporary directory, serves it on a free port of this machine, and mounts it twice. One mount changes files and the
other looks at them; then programs work on both at once, and the server is killed and started again meanwhile. All that came out is compared,
and the store checked: data that differ, are lost or are there twice make it fail with status 1. In the end, after a failure, and on Ctrl-C
it unmounts, ends all its processes and removes the directory.

\"requests\" are the requests that the server had for each operation, as `varve stats` counts them.

It needs /dev/fuse, and root or fusermount3.";

/// The arguments of `varve cluster demo`.
#[derive(Args)]
#[command(after_help = ABOUT_DEMO)]
struct Demo {
    /// Files to create
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// How long programs work on both mounts at once, in seconds, 0.1 to 600; and as long again while the server is killed
    #[arg(long, default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// Where to make the temporary directory [default: $TMPDIR or /tmp]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Keep the store, and the messages of the server and the mounts
    #[arg(long)]
    keep: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reads a time.
fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or("a number of seconds from 0.1 to 600 is wanted".to_owned())
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.verb {
        Verb::Demo(demo) => run_demo(demo),
    }
}

fn run_demo(arguments: &Demo) -> Result<()> {
    logging::to_stderr(log::LevelFilter::Warn);
    let choices = Choices {
        plan: Plan {
            files: arguments.files,
            dirs: arguments.files.div_ceil(FILES_IN_DIR),
            large_bytes: LARGE_BYTES,
        },
        time: arguments.seconds,
        parent: arguments.dir.clone().unwrap_or_else(std::env::temp_dir),
        is_kept: arguments.keep,
    };
    let figures = cluster::run(&choices, &mut |line| {
        if !arguments.json {
            output::line(line);
        }
    })?;
    if arguments.json { output::json(&figures) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_neither_too_short_nor_endless() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "0", "-1", "NaN", "inf", "601", "x"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
