//! A walk over a tree of files that exists, for what is measured of trees.
//!
//! Directories come before what they hold, their entries as the file system lists them. Other file systems mounted below are
//! left out. Memory: the paths of directories still to visit.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Failure;

/// What a walk is told of.
pub(crate) trait Visitor {
    /// What is known of a directory while its subdirectories wait.
    type Dir: Clone;

    /// A subdirectory of `parent`, or the root. It gives what its own entries are told with.
    fn dir(&mut self, parent: Option<&Self::Dir>) -> Self::Dir;
    /// An entry of `dir` that is no directory.
    fn file(&mut self, dir: &Self::Dir, data: &Metadata);
    /// All entries of `dir` have come, so many.
    fn end(&mut self, dir: &Self::Dir, entries: u64);
}

/// Walks over the tree at `root`. Errors name the path.
pub(crate) fn walk<V: Visitor>(root: &Path, visitor: &mut V) -> Result<(), Failure> {
    let wrong = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let device = fs::metadata(root).map_err(|error| wrong(root, error))?.dev();
    let mut waiting: Vec<(PathBuf, V::Dir)> = vec![(root.to_path_buf(), visitor.dir(None))];
    while let Some((path, dir)) = waiting.pop() {
        let mut entries = 0;
        for entry in fs::read_dir(&path).map_err(|error| wrong(&path, error))? {
            let entry = entry.map_err(|error| wrong(&path, error))?;
            let data = entry.metadata().map_err(|error| wrong(&entry.path(), error))?;
            entries += 1;
            if !data.is_dir() {
                visitor.file(&dir, &data);
            } else if data.dev() == device {
                waiting.push((entry.path(), visitor.dir(Some(&dir))));
            }
        }
        visitor.end(&dir, entries);
    }
    Ok(())
}
