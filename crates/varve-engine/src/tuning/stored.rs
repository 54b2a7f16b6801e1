//! What the model has to know of a store that nobody has open.

use std::path::Path;

use varve_env::Env;

use crate::manifest::load;
use crate::{StoreError, StoreResult};

/// The versions of rows that the tables of the store at `dir` hold, and their bytes, by what its manifest says.
pub fn stored_rows(env: &dyn Env, dir: &Path) -> StoreResult<(u64, u64)> {
    let state = load(env, dir)?.ok_or_else(|| StoreError::NotAStore { path: dir.to_path_buf() })?;
    let tables = || state.keyspaces.iter().flat_map(|space| &space.tables);
    let rows = tables().map(|(_, table)| table.entries).sum();
    Ok((rows, tables().map(|(_, table)| table.size_bytes).sum()))
}
