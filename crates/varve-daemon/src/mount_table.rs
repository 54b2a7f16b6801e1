//! The mount that a path lies on.
//!
//! The kernel tells the mount of an opened file. A name alone would count as part of a mount what is mounted within or over it, where
//! inode numbers mean something else.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use varve_fuse::{MountPoint, find_mounts, mount_of};

use varve::{Error, Result};

/// The Varve mount that `path` is on: mounted there or above. `None` if there is none.
pub(crate) fn find_mount(path: &Path) -> Result<Option<MountPoint>> {
    mount_of_path(path, open(path, OFlags::empty()))
}

/// Like [`find_mount`], without a request to the daemon, which may not answer: mounts nothing that is not mounted yet.
pub(crate) fn present_mount(path: &Path) -> Result<Option<MountPoint>> {
    mount_of_path(path, open_as_it_is(path, OFlags::empty()))
}

fn mount_of_path(path: &Path, opened: std::io::Result<OwnedFd>) -> Result<Option<MountPoint>> {
    match opened {
        Ok(opened) => mount_of_opened(path, &opened),
        Err(_) => named_mount(path),
    }
}

/// The directories where the whole file system is mounted of which `mount` shows a part. Fails if there are none.
pub(crate) fn whole_mounts(mount: &MountPoint) -> Result<Vec<PathBuf>> {
    let is_whole = |other: &MountPoint| other.is_whole && other.connection == mount.connection;
    let whole: Vec<PathBuf> =
        mounts()?.into_iter().filter(is_whole).map(|other| other.dir).collect();
    if whole.is_empty() {
        let dir = mount.dir.display();
        return Err(Error::failed(format!("only a part of the mount on {dir} is visible here"))
            .hint("run the command where the whole mount is visible"));
    }
    Ok(whole)
}

/// The error for a `path` on a file system that is mounted within a Varve mount; `None` for other paths.
pub(crate) fn within_mount(path: &Path) -> Option<Error> {
    let mount = named_mount(path).ok().flatten()?;
    let text = "is not on a Varve mount, but on a file system mounted within one";
    Some(
        Error::failed(format!("{} {text}", path.display()))
            .hint(format!("name a directory of the mount on {} itself", mount.dir.display())),
    )
}

/// Opens `path` to be looked at.
pub(crate) fn open(path: &Path, flags: OFlags) -> std::io::Result<OwnedFd> {
    // This lookup mounts a view that is not mounted yet.
    drop(std::fs::metadata(path.join(".")));
    open_as_it_is(path, flags)
}

fn open_as_it_is(path: &Path, flags: OFlags) -> std::io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, flags | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// The Varve mount that `opened` is on, which was opened as `path`.
pub(crate) fn mount_of_opened(path: &Path, opened: &OwnedFd) -> Result<Option<MountPoint>> {
    let id = mount_of(opened.as_fd()).map_err(|error| Error::io("find", path, &error))?;
    // The table is read after the path was opened, which may have mounted a view.
    Ok(mounts()?.into_iter().find(|mount| mount.id == id))
}

/// The mount that `path` is on by its name alone: for a dead daemon's mount, and for a path that does not exist.
fn named_mount(path: &Path) -> Result<Option<MountPoint>> {
    let path = path
        .canonicalize()
        .or_else(|_| std::path::absolute(path))
        .map_err(|error| Error::io("find", path, &error))?;
    // Of several mounts on one directory the last covers the others.
    Ok(mounts()?
        .into_iter()
        .filter(|mount| path.starts_with(&mount.dir))
        .max_by_key(|mount| mount.dir.as_os_str().len()))
}

fn mounts() -> Result<Vec<MountPoint>> {
    find_mounts().map_err(|error| Error::io("read", Path::new("/proc/self/mountinfo"), &error))
}
