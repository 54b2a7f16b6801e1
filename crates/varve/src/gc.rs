//! Giving back room that nobody needs, in a store that is not mounted. A mounted one does it in the background.

use std::path::Path;

use varve_engine::{Defragmented, Fit, Store};

use crate::check::open_engine;
use crate::{Result, store};

/// Empties files of the store in `dir` of which little is needed, with at most about `memory_bytes` of memory.
pub fn gc(dir: &Path, memory_bytes: usize, fit: Fit) -> Result<Defragmented> {
    store::superblock(dir)?;
    store::require_free(dir)?;
    let db = open_engine(dir, memory_bytes)?;
    let done = db.defragment(fit);
    db.close()?;
    Ok(done?)
}
