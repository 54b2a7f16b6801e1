//! A whole store as a stream of JSON lines, and back.

use std::io::{BufRead, BufWriter, Write};
use std::path::Path;

pub use varve_fs::dump::{Counts, LINES};
use varve_fs::dump::{dump_store, load_store};

use crate::check::Progress;
use crate::machine::{self, Machine};
use crate::whole_file::WholeFile;
use crate::{Error, Result, store};

/// Memory that a dump or a load takes, about, in bytes.
const MEMORY_BYTES: usize = 256 << 20;

/// Writes the store in `dir`, which must not be in use, to `out`.
pub fn dump(dir: &Path, out: &mut dyn Write, progress: &mut dyn FnMut(Progress)) -> Result<Counts> {
    store::superblock(dir)?;
    store::require_free(dir)?;
    let machine = Machine::to_read(dir)?;
    Ok(dump_store(machine.env(), dir, MEMORY_BYTES, out, progress)?)
}

/// Writes the same to the file `path`, which must not exist yet: it is there once it is whole and durable, and for its owner alone,
/// as what nobody else may read is in it.
pub fn dump_to_file(dir: &Path, path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Counts> {
    let failed = |action| move |error: std::io::Error| Error::io(action, path, &error);
    let file = WholeFile::begin(path).map_err(failed("create"))?;
    let mut out = BufWriter::new(file.file());
    let counts = dump(dir, &mut out, progress)?;
    let flushed = out.flush();
    drop(out);
    flushed.and_then(|()| file.finish()).map_err(failed("write"))?;
    Ok(counts)
}

/// Makes a store in `dir`, which must be empty or missing, of what [`dump`] wrote.
pub fn load(
    dir: &Path,
    input: &mut dyn BufRead,
    progress: &mut dyn FnMut(Progress),
) -> Result<Counts> {
    machine::format(dir)?;
    store::changing(dir, |env| load_store(env, dir, MEMORY_BYTES, input, progress))
}
