//! `varve dump`: write a whole store as lines of JSON.

use std::io::BufWriter;
use std::path::PathBuf;

use clap::Args;
use varve::{Result, dump};
use varve_daemon::holder::require_offline;

use crate::cmd::store_path;
use crate::output;

/// The arguments.
#[derive(Args)]
#[command(
    after_help = "A dump has everything, the bytes of files too; `varve load` makes the same tree from it.\n\
    docs/format/dump.md describes the lines."
)]
pub(crate) struct Arguments {
    /// The store; must not be mounted
    #[arg(value_parser = store_path())]
    store: PathBuf,
    /// Write to this file, which must not exist yet; only its owner may read it [default: the standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Writes the dump.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    require_offline(&arguments.store)?;
    let counts = match &arguments.output {
        Some(path) => output::watched(
            |_| "dumping",
            |progress| dump::dump_to_file(&arguments.store, path, progress),
        ),
        None => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            dump::dump(&arguments.store, &mut out, &mut |_| ())
        }
    };
    counts.map(drop)
}
