//! `varve load`: make a store of a dump.

use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use varve::{Error, Result, dump};

use crate::cmd::store_path;
use crate::output;

/// The arguments.
#[derive(Args)]
#[command(after_help = "The whole dump is checked before the directory becomes a store.")]
pub(crate) struct Arguments {
    /// The directory for the store; it must be empty, and is created if it is missing
    #[arg(value_parser = store_path())]
    store: PathBuf,
    /// A file that `varve dump` wrote [default: the standard input]
    dump: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result, as JSON.
#[derive(Serialize)]
struct Loaded<'a> {
    #[serde(with = "varve_engine::paths")]
    store: &'a PathBuf,
    inodes: u64,
    names: u64,
}

/// Loads the dump.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let counts = match &arguments.dump {
        Some(path) => {
            let file = std::fs::OpenOptions::new().read(true).open(path);
            let file = file.map_err(|error| Error::io("open", path, &error))?;
            load(&arguments.store, &mut BufReader::new(file))?
        }
        None if std::io::stdin().is_terminal() => {
            return Err(Error::usage("the standard input is a terminal")
                .hint("name a file that `varve dump` wrote, or pipe its output in"));
        }
        None => load(&arguments.store, &mut std::io::stdin().lock())?,
    };
    let dump::Counts { inodes, names, .. } = counts;
    if arguments.json {
        return output::json(&Loaded { store: &arguments.store, inodes, names });
    }
    let dir = arguments.store.display();
    output::line(format!("{dir} is a store now: {inodes} inodes, {names} names"));
    let word = output::word(&arguments.store);
    output::line(format!("mount it with `varve mount {word} DIR`"));
    Ok(())
}

fn load(store: &Path, input: &mut dyn BufRead) -> Result<dump::Counts> {
    output::watched(
        |at| if at.phase == dump::LINES { "loading" } else { "checking" },
        |progress| dump::load(store, input, progress),
    )
}
