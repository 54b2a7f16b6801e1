//! Snapshots of a store that this process has open.
//!
//! [`FileSystem`] has the calls for programs. The functions do the same to a file system that somebody else holds open, such as
//! a daemon.

use std::sync::Arc;

use varve_fs::{VarveFs, ViewKind, ViewName};
use varve_vfs::{FsError, Vfs};

use crate::store::FileSystem;
use crate::{Error, Result};

impl FileSystem {
    /// Gives the present state a name, under which it stays until it is deleted. Costs the same however many files
    /// there are.
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        create(&self.inner(), name).map(drop)
    }

    /// The state with a name, to read.
    pub fn snapshot(&self, name: &str) -> Result<Arc<dyn Vfs>> {
        let view = ViewName { kind: ViewKind::Snapshot, name: name.to_owned() };
        let opened = self.inner().open_view(&view);
        Ok(Arc::new(opened.map_err(|error| not_found(name, error))?))
    }

    /// The names of the snapshots.
    pub fn snapshots(&self) -> Result<Vec<String>> {
        let names = self.inner().view_names(ViewKind::Snapshot)?;
        Ok(names.into_iter().map(|view| view.name).collect())
    }

    /// Deletes a snapshot. What only it held is freed. REQUIRES: nobody uses what [`FileSystem::snapshot`] gave.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        delete(&self.inner(), name)
    }
}

/// Gives the present state of `fs` a name.
pub fn create(fs: &VarveFs, name: &str) -> Result<ViewName> {
    fs.create_snapshot(name).map_err(|error| match error {
        FsError::Exists => Error::failed(format!("there is a snapshot `{name}` already"))
            .hint("choose another name, or delete it with `varve snapshot delete`"),
        FsError::Invalid(rule) => Error::failed(format!("{name:?} cannot be a name")).hint(rule),
        other => Error::from(other),
    })?;
    Ok(ViewName { kind: ViewKind::Snapshot, name: name.to_owned() })
}

/// Deletes a snapshot of `fs`. REQUIRES: nobody uses it.
pub fn delete(fs: &VarveFs, name: &str) -> Result<()> {
    fs.delete_snapshot(name).map_err(|error| not_found(name, error))
}

/// The error for people if `error` came of the snapshot `name`.
pub fn not_found(name: &str, error: FsError) -> Error {
    match error {
        FsError::NotFound => Error::failed(format!("there is no snapshot `{name}`"))
            .hint("`varve snapshot list` tells their names"),
        other => Error::from(other),
    }
}
