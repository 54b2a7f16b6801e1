//! Makes the tables of an open store what its design says, step by step (`varve_engine::Redesign`).

use varve_engine::Redesign;
use varve_vfs::{FsError, FsResult};

use crate::error;
use crate::fs::VarveFs;

impl VarveFs {
    /// Takes the next step, which copies a few tables' worth of bytes at most, and tells what is left.
    pub fn redesign(&self) -> FsResult<Redesign> {
        let views = self.views.as_ref().ok_or(FsError::NotSupported("tables to write again"))?;
        views.db().redesign().map_err(error::store)
    }
}
