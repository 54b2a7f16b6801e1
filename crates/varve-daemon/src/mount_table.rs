//! On which mount a path lies. The kernel tells of what is opened: names alone would take for a part of a mount what is mounted within
//! it or over it, whose inode numbers mean nothing there.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use varve_fuse::{MountPoint, find_mounts, mount_of};

use varve::{Error, Result};

/// The Varve mount that `path` is on: mounted there or above. `None` if there is none.
pub(crate) fn find_mount(path: &Path) -> Result<Option<MountPoint>> {
    mount_of_path(path, open(path, OFlags::empty()))
}

/// The same, of the mounts that are there by now: nothing is asked of who serves them, and may not answer.
pub(crate) fn present_mount(path: &Path) -> Result<Option<MountPoint>> {
    mount_of_path(path, open_as_it_is(path, OFlags::empty()))
}

fn mount_of_path(path: &Path, opened: std::io::Result<OwnedFd>) -> Result<Option<MountPoint>> {
    match opened {
        Ok(opened) => mount_of_opened(path, &opened),
        Err(_) => named_mount(path),
    }
}

/// Where all of the file system is mounted of which `mount` shows all or a part; not nowhere.
pub(crate) fn whole_mounts(mount: &MountPoint) -> Result<Vec<PathBuf>> {
    let is_whole = |other: &MountPoint| other.is_whole && other.connection == mount.connection;
    let whole: Vec<PathBuf> =
        mounts()?.into_iter().filter(is_whole).map(|other| other.dir).collect();
    if whole.is_empty() {
        let dir = mount.dir.display();
        return Err(Error::failed(format!("of the mount on {dir} only a part can be seen"))
            .hint("do it where the whole of it is mounted"));
    }
    Ok(whole)
}

/// That `path`, which is not on a Varve mount, is on what is mounted within one, if so.
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
    // The mount of a view is made when somebody comes by.
    drop(std::fs::metadata(path.join(".")));
    open_as_it_is(path, flags)
}

fn open_as_it_is(path: &Path, flags: OFlags) -> std::io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, flags | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// The Varve mount that `opened` is on, which was opened as `path`.
pub(crate) fn mount_of_opened(path: &Path, opened: &OwnedFd) -> Result<Option<MountPoint>> {
    let id = mount_of(opened.as_fd()).map_err(|error| Error::io("find", path, &error))?;
    // After it was opened, which may have mounted a view.
    Ok(mounts()?.into_iter().find(|mount| mount.id == id))
}

/// The one that `path` is on by its name: all there is to go by if its daemon has died, or there is nothing of that name.
fn named_mount(path: &Path) -> Result<Option<MountPoint>> {
    let path = path
        .canonicalize()
        .or_else(|_| std::path::absolute(path))
        .map_err(|error| Error::io("find", path, &error))?;
    // Of several on one directory the last one covers the others.
    Ok(mounts()?
        .into_iter()
        .filter(|mount| path.starts_with(&mount.dir))
        .max_by_key(|mount| mount.dir.as_os_str().len()))
}

fn mounts() -> Result<Vec<MountPoint>> {
    find_mounts().map_err(|error| Error::io("read", Path::new("/proc/self/mountinfo"), &error))
}
