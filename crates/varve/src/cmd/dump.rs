//! `varve dump`: write a whole store as lines of JSON.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

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
    // Before the file is made, so that a mistyped store leaves nothing behind.
    varve::store::superblock(&arguments.store)?;
    varve::store::require_free(&arguments.store)?;
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    let file = file.map_err(|error| Error::io("create", path, &error))?;
    write(&arguments.store, path, file).inspect_err(|_| {
        // Nor does a dump that is not whole. What made it fail is told, whatever becomes of this.
        let _ = std::fs::remove_file(path);
    })
}

/// Writes the dump of `store` to `file`, which is called `path`, durably.
fn write(store: &Path, path: &Path, file: File) -> Result<()> {
    let mut out = BufWriter::new(file);
    dump::dump(store, &mut out)?;
    let written = out.flush().and_then(|()| out.get_ref().sync_all());
    written.map_err(|error| Error::io("write", path, &error))
}
