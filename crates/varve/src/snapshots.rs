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
    /// Creates a snapshot: the present state stays readable under `name` until the snapshot is deleted. The cost does not depend on the
    /// number of files.
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        create(&self.inner(), name).map(drop)
    }

    /// The snapshot `name`, to read.
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

    /// Deletes a snapshot and frees what only it held. REQUIRES: what [`FileSystem::snapshot`] returned is not in use.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        delete(&self.inner(), name)
    }
}

/// Creates a snapshot of `fs`.
pub fn create(fs: &VarveFs, name: &str) -> Result<ViewName> {
    fs.create_snapshot(name).map_err(|error| match error {
        FsError::Exists => Error::failed(format!("a snapshot `{name}` exists already"))
            .hint("choose another name, or delete it with `varve snapshot delete`"),
        FsError::Invalid(rule) => Error::failed(format!("{name:?} cannot be a name")).hint(rule),
        other => Error::from(other),
    })?;
    Ok(ViewName { kind: ViewKind::Snapshot, name: name.to_owned() })
}

/// Deletes a snapshot of `fs`. REQUIRES: it is not in use.
pub fn delete(fs: &VarveFs, name: &str) -> Result<()> {
    fs.delete_snapshot(name).map_err(|error| not_found(name, error))
}

/// The error for people if `error` came of the snapshot `name`.
pub fn not_found(name: &str, error: FsError) -> Error {
    match error {
        FsError::NotFound => Error::failed(format!("there is no snapshot `{name}`"))
            .hint("`varve snapshot list` lists the snapshots"),
        other => Error::from(other),
    }
}
