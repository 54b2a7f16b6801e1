//! A whole store as a stream of JSON lines, and back.

use std::io::{BufRead, Write};
use std::path::Path;

use varve_env::os::OsEnv;
pub use varve_fs::dump::Counts;
use varve_fs::dump::{dump_store, load_store};

use crate::{Result, store};

/// Memory that a dump or a load takes, about, in bytes.
const MEMORY_BYTES: usize = 256 << 20;

/// Writes the store in `dir`, which must not be in use, to `out`.
pub fn dump(dir: &Path, out: &mut dyn Write) -> Result<Counts> {
    store::superblock(dir)?;
    store::require_free(dir)?;
    Ok(dump_store(OsEnv::new(), dir, MEMORY_BYTES, out)?)
}

/// Makes a store in `dir`, which must be empty or missing, of what [`dump`] wrote.
pub fn load(dir: &Path, input: &mut dyn BufRead) -> Result<Counts> {
    Ok(load_store(OsEnv::new(), dir, MEMORY_BYTES, input)?)
}
