//! Files and directories of the storage below: what is done to them for objects and for their preimages.
//!
//! In: paths. Out: files there. Never: knows what a file is for.

use std::io;
use std::path::Path;

use varve_env::{Env, File, FileKind, OpenMode};

use crate::overlay::copy_bytes;

/// Whether there is something at `path`.
pub(crate) fn exists(env: &dyn Env, path: &Path) -> io::Result<bool> {
    match env.stat(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes the directories between `top`, which exists, and the file `path`.
pub(crate) fn create_dirs_between(
    env: &dyn Env,
    top: Option<&Path>,
    path: &Path,
) -> io::Result<()> {
    let is_below = |dir: &&Path| top.is_none_or(|top| *dir != top && dir.starts_with(top));
    let mut dirs: Vec<&Path> = path.ancestors().skip(1).take_while(is_below).collect();
    dirs.reverse();
    for dir in dirs {
        match env.create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    Ok(())
}

/// Copies all of `original`, with the time of its last change, to `path`, durably but for the name.
pub(crate) fn copy_file(env: &dyn Env, original: &dyn File, path: &Path) -> io::Result<()> {
    let copy = env.open(path, OpenMode::CreateOrOpen)?;
    let stat = original.stat()?;
    copy.set_len(0)?;
    copy_bytes(original, copy.as_ref(), stat.len)?;
    copy.set_len(stat.len)?;
    copy.set_times(None, Some(stat.modified))?;
    copy.sync_all()
}

/// Removes the directory `dir` with all that is in it, if it exists.
pub(crate) fn remove_tree(env: &dyn Env, dir: &Path) -> io::Result<()> {
    let items = match env.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        items => items?,
    };
    for item in items {
        let path = dir.join(&item.name);
        match item.kind {
            FileKind::Dir => remove_tree(env, &path)?,
            FileKind::File | FileKind::Other => env.remove_file(&path)?,
        }
    }
    env.remove_dir(dir)
}
