//! Clones by paths: finds the file and the directory that the paths mean, and asks the daemon of the mount.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, OFlags};
use varve::{Error, Result};
use varve_fs::{ViewKind, ViewName};
use varve_fuse::MountPoint;

use crate::control::{CloneRequest, ViewRequest};
use crate::mount_source::store_and_view;
use crate::mount_table::find_mount;
use crate::requests::ask_target;
use crate::target::{Target, not_on_mount, open_on_mount};

/// A path on a mount: the directory that has its name, and the name; the root of a mount has none.
struct PathOnMount {
    dir: PathBuf,
    /// The directory's inode number on the mount.
    ino: u64,
    name: Option<Vec<u8>>,
    mount: MountPoint,
}

impl PathOnMount {
    fn new(dir: PathBuf, name: Option<Vec<u8>>) -> Result<PathOnMount> {
        let (opened, mount) = open_on_mount(&dir, OFlags::NOFOLLOW)?;
        let stat = rustix::fs::fstat(&opened);
        let ino = stat.map_err(|error| Error::io("find", &dir, &error.into()))?.st_ino;
        Ok(PathOnMount { dir, ino, name, mount })
    }
}

/// Clones the file or directory `from` to `to`, which must not exist, in a time that does not depend on its size. Both lie on mounts of
/// one store; `from` may lie in a snapshot.
pub fn clone(from: &Path, to: &Path) -> Result<()> {
    let original = original(from)?;
    let target = located(to)?;
    let name = target.name.clone().ok_or_else(|| exists(to))?;
    if to.symlink_metadata().is_ok() {
        return Err(exists(to));
    }
    let failed = |error: std::io::Error| Error::io("clone to", to, &error);
    let may = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::access(&target.dir, may).map_err(|error| failed(error.into()))?;
    if store_and_view(&target.mount.source).1.is_some() {
        let text = format!("{} does not lie in the main view of a Varve mount", to.display());
        return Err(Error::failed(text).hint("clone to a directory of the mount itself"));
    }
    let (store, view) = store_and_view(&original.mount.source);
    let snapshot = match view {
        None => None,
        Some(ViewName { kind: ViewKind::Snapshot, name }) => Some(name),
        Some(ViewName { kind: ViewKind::Transaction, .. }) => {
            let text = format!("{} lies in a transaction", from.display());
            return Err(Error::failed(text).hint("commit it first"));
        }
    };
    if store != target.mount.source {
        let text =
            format!("{} and {} are not on mounts of one store", from.display(), to.display());
        return Err(Error::failed(text).hint("copy it with `cp -a`"));
    }
    let (dir, into) = (original.ino, target.ino);
    let request = CloneRequest { snapshot, dir, name: original.name, into, to: name };
    ask_target(&Target::on(to, &target.mount)?, ViewRequest::Clone(request)).map(drop)
}

/// The original at `path`. Fails if the caller may not read it.
fn original(path: &Path) -> Result<PathOnMount> {
    let failed = |error: std::io::Error| Error::io("clone", path, &error);
    let facts = path.symlink_metadata().map_err(failed)?;
    let wanted = match facts.file_type() {
        kind if kind.is_dir() => Access::READ_OK | Access::EXEC_OK,
        kind if kind.is_symlink() => Access::EXISTS,
        _ => Access::READ_OK,
    };
    if wanted != Access::EXISTS {
        rustix::fs::access(path, wanted).map_err(|error| failed(error.into()))?;
    }
    let located = located(path)?;
    if located.name.is_some() && open_on_mount(path, OFlags::NOFOLLOW)?.1.id != located.mount.id {
        return Err(not_on_mount(path));
    }
    Ok(located)
}

fn located(path: &Path) -> Result<PathOnMount> {
    let failed = |error: std::io::Error| Error::io("find", path, &error);
    if let Ok(whole) = path.canonicalize()
        && find_mount(&whole)?.is_some_and(|mount| mount.dir == whole)
    {
        return PathOnMount::new(whole, None);
    }
    let Some(name) = path.file_name() else {
        let whole = path.canonicalize().map_err(failed)?;
        return located(&whole);
    };
    let above = path.parent().filter(|above| *above != Path::new(""));
    let dir = above.unwrap_or(Path::new(".")).canonicalize().map_err(failed)?;
    PathOnMount::new(dir, Some(name.as_bytes().to_vec()))
}

fn exists(path: &Path) -> Error {
    Error::failed(format!("{} exists already", path.display())).hint("clone to a new name")
}
