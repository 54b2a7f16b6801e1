//! Syncing all that is below a directory.
//!
//! The operating system tells of bytes that it could not write once, to who had something open by then: a descriptor that is
//! opened after another was told is told nothing. So a [`Watch`] is opened before anything is written.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use crate::{Env, FileKind, OpenMode};

/// What is told of all that fails below a directory from its opening on: [`Env::watch`].
#[derive(Debug)]
pub struct Watch(pub(crate) Watched);

impl Watch {
    /// One that is told nothing but by each file.
    pub fn of_none() -> Watch {
        Watch(Watched::Nothing)
    }

    /// Whether [`Env::sync_below`] is one sync of the whole storage, instead of one for each file below the directory.
    pub fn is_of_all(&self) -> bool {
        !matches!(self.0, Watched::Nothing)
    }
}

#[derive(Debug)]
pub(crate) enum Watched {
    /// A descriptor of the file system, which writes everything when it is told to, and tells what failed.
    FileSystem(OwnedFd),
    /// Failures of the simulated disk of which this was told.
    Failures(AtomicU64),
    /// Nothing is told but by each file.
    Nothing,
}

/// [`Env::sync_below`] by a sync of each file.
pub(crate) fn sync_each_below<E: Env + ?Sized>(env: &E, dir: &Path) -> io::Result<()> {
    for item in env.list(dir)? {
        let path = dir.join(&item.name);
        match item.kind {
            FileKind::Dir => sync_each_below(env, &path)?,
            FileKind::File => match env.open(&path, OpenMode::ReadWrite) {
                Ok(file) => file.sync_all()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            },
            FileKind::Other => {}
        }
    }
    env.sync_dir(dir)
}
