//! Watches for failed writes, for a sync of everything below a directory.
//!
//! The operating system reports a failed write only once to each descriptor that is open by then. A descriptor that
//! is opened later, after another one has got the report, gets none. So a [`Watch`] is opened before anything is
//! written.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use crate::{Env, FileKind, OpenMode};

/// Collects the failures below a directory from its opening on: [`Env::watch`].
#[derive(Debug)]
pub struct Watch(pub(crate) Watched);

impl Watch {
    /// A watch that learns of failures only from each file.
    pub fn of_none() -> Watch {
        Watch(Watched::Nothing)
    }

    /// Returns whether [`Env::sync_below`] is one sync of the whole storage, instead of one for each file below the
    /// directory.
    pub fn is_of_all(&self) -> bool {
        !matches!(self.0, Watched::Nothing)
    }
}

#[derive(Debug)]
pub(crate) enum Watched {
    /// A descriptor of the file system; one sync of it writes everything and reports failures.
    FileSystem(OwnedFd),
    /// The failures of the simulated disk that this watch has reported.
    Failures(AtomicU64),
    /// Only each file reports its failures.
    Nothing,
}

/// Does [`Env::sync_below`] by a sync of each file.
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
