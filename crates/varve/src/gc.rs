//! Gives back room that a store does not need, while it is not mounted. A mounted store does so in the background.

use std::path::Path;

use serde::Serialize;
use varve_engine::{Db, Defragmented, Fit, Store, StoreResult};
use varve_fs::open_engine;
pub use varve_storage::{Collected, Unneeded};

use crate::{Result, machine, store};

/// What was given back, and how.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GivenBack {
    /// Tables, segments and zones that were written again without what nobody sees.
    pub reclaimed: u64,
    /// The files before and after it all, and what was emptied besides.
    #[serde(flatten)]
    pub defragmented: Defragmented,
}

/// Drops what nobody sees from tables of the store in `dir` and empties files of which little is needed, with at most
/// about `memory_bytes` of memory.
pub fn gc(dir: &Path, memory_bytes: usize, fit: Fit) -> Result<GivenBack> {
    store::superblock(dir)?;
    store::require_free(dir)?;
    store::changing(dir, |env| {
        let db = open_engine(env, dir, memory_bytes)?;
        let done = give_back(&db, fit);
        db.close()?;
        done
    })
}

/// The objects of the store in `dir` that nobody needs, if it is on shared storage: `None` for a local store. With `remove` they are
/// removed, once the oldest reader has moved on.
pub fn objects(dir: &Path, remove: bool) -> Result<Option<Collected>> {
    store::require_free(dir)?;
    machine::collect(dir, remove)
}

fn give_back(db: &Db, fit: Fit) -> StoreResult<GivenBack> {
    let before = db.fragmentation();
    let reclaimed = db.reclaim()?;
    let defragmented = Defragmented { before, ..db.defragment(fit)? };
    Ok(GivenBack { reclaimed, defragmented })
}
