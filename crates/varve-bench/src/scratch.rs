//! Directories that go away with their owner.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Failure;

/// A new directory, removed with all that is in it when this is dropped.
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes one in `base`, or where temporary files go.
    pub(crate) fn new(base: Option<&Path>) -> Result<Scratch, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let base = &base.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Programs that are run in other directories are told of it, too.
        let made = std::path::absolute(base).and_then(|base| {
            let path = base.join(format!("varve-bench-{}-{number}", std::process::id()));
            std::fs::create_dir(&path).map(|()| path)
        });
        let path = made
            .map_err(|error| format!("cannot make a directory in {}: {error}", base.display()))?;
        Ok(Scratch { path })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A directory in it, made if it is missing.
    pub(crate) fn dir(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.path.join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("varve-bench: {} stays: {error}", self.path.display());
        }
    }
}
