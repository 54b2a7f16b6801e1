//! `varve dump`: write a whole store as lines of JSON.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use varve::{Error, Result, dump};

/// What to write, and where to.
#[derive(Args)]
#[command(
    after_help = "Everything is in it, the bytes of files too; `varve load` makes the same tree of it.\n\
    docs/format/dump.md describes the lines."
)]
pub(crate) struct Arguments {
    /// The store; must not be mounted
    store: PathBuf,
    /// Write to this file, which must not exist yet [default: the standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Writes the dump.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Some(path) = &arguments.output else {
        let mut out = BufWriter::new(std::io::stdout().lock());
        dump::dump(&arguments.store, &mut out)?;
        return Ok(());
    };
    let fail = |action: &'static str| move |error| Error::io(action, path, &error);
    // Before the file is made, so that a mistyped store leaves nothing behind.
    varve::store::superblock(&arguments.store)?;
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    let mut out = BufWriter::new(file.map_err(fail("create"))?);
    dump::dump(&arguments.store, &mut out)?;
    out.flush().and_then(|()| out.get_ref().sync_all()).map_err(fail("write"))
}
