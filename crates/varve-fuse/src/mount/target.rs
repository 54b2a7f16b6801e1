//! Names on a mount of this process, on which the process mounts others and unmounts them.
//!
//! The path to the mount may lead elsewhere by now. The owner of a directory above can rename it and put a link
//! there, and this process may mount and unmount where that owner may not. So no step relies on the path alone:
//!
//! 1. The directory of the target is opened without following links.
//! 2. The directory must lie on the mount, by the kernel's number of the mount. So its entries are the ones that this
//!    process serves.
//! 3. All further steps use its descriptor and the last name.
//!
//! A separate process does all this ([`walk_apart`]), because the steps send requests to the mount.
//!
//! Invariant: no mount is made or removed outside of the mount with the given id.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use varve_types::InodeId;

use super::apart::walk_apart;
use super::table::MountPoint;
use super::umount::{UnmountError, UnmountMode, flags, unmount};

/// A name in a directory of a mount that this process serves, on which it mounts another file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountTarget {
    mount: u64,
    dir: PathBuf,
    name: OsString,
}

impl MountTarget {
    /// `name` in the directory `dir`, an absolute path without symbolic links, which lies on the mount with this id
    /// ([`super::MountPoint::id`]).
    pub fn new(mount: u64, dir: impl Into<PathBuf>, name: impl Into<OsString>) -> MountTarget {
        MountTarget { mount, dir: dir.into(), name: name.into() }
    }

    /// Returns the path, for messages.
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Finds in `mounts` what is mounted on the target; `None` if the mount of the target is elsewhere by now.
    pub(super) fn mount_among<'a>(&self, mounts: &'a [MountPoint]) -> Option<&'a MountPoint> {
        let is_there =
            |mount: &MountPoint| mount.id == self.mount && self.dir.starts_with(&mount.dir);
        mounts.iter().find(|mount| is_there(mount))?;
        mounts.iter().rfind(|mount| mount.dir == self.path())
    }

    /// Runs `work` under the rules of [`walk_apart`], with a path that leads to the target even if directories are
    /// renamed meanwhile. The path also leads to what is mounted on the target.
    ///
    /// Fails if the directory of the target is not on the mount.
    pub fn walk<Left>(
        &self,
        kept: Option<BorrowedFd<'_>>,
        work: impl FnOnce(&Path) -> (io::Result<()>, Left),
    ) -> io::Result<()> {
        walk_apart(kept, || match open_on(self.mount, &self.dir) {
            Ok(dir) => {
                let (done, left) = work(&within(&dir, &self.name));
                (done, Some(left))
            }
            Err(error) => (Err(error), None),
        })
    }

    /// Detaches what is mounted on the target.
    pub fn unmount(&self, mode: UnmountMode) -> Result<(), UnmountError> {
        let walk = move |at: &Path| {
            // What the kernel has in memory of it, it drops when its root is closed: that takes its time after many files.
            let path = OFlags::PATH | OFlags::CLOEXEC;
            let root =
                (mode == UnmountMode::Force).then(|| rustix::fs::open(at, path, Mode::empty()));
            (rustix::mount::unmount(at, flags(mode)).map_err(io::Error::from), root)
        };
        let Err(error) = self.walk(None, walk) else { return Ok(()) };
        match Errno::from_io_error(&error) {
            Some(Errno::INVAL | Errno::NOENT) => Err(UnmountError::NotMounted(self.path())),
            Some(Errno::BUSY) => Err(UnmountError::Busy(self.path())),
            _ => Err(UnmountError::Failed { dir: self.path(), reason: error.to_string() }),
        }
    }

    /// Returns whether programs have files or their working directory on what is mounted on the target, as far as the
    /// kernel knows. REQUIRES: no other thread calls this at the same time; two calls would unmount the file system.
    pub fn is_in_use(&self) -> io::Result<bool> {
        // The first request to expire an unused mount only marks it, and says so. A walk through the mount removes
        // the mark, so this does one.
        let asks = UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW;
        let path = OFlags::PATH | OFlags::CLOEXEC;
        let walk = move |at: &Path| {
            let asked = rustix::mount::unmount(at, asks);
            // The descriptor is closed before the next call.
            drop(rustix::fs::open(at, path, Mode::empty()));
            (if asked == Err(Errno::BUSY) { Err(Errno::BUSY.into()) } else { Ok(()) }, ())
        };
        match self.walk(None, walk) {
            Ok(()) => Ok(false),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Writes what programs have changed of `files` in mapped memory to the file system that is mounted on the
    /// target. Each file comes as its inode and its path from the target, and must be a regular file.
    ///
    /// `NotFound` if a file is not at its path. Another error if a file could not be written; this error comes first,
    /// because the kernel reports it only once. All other files are written in any case.
    pub fn write_back(&self, files: &[(InodeId, PathBuf)]) -> io::Result<()> {
        self.walk(None, |at| (write_back_below(at, files), ()))
    }
}

fn write_back_below(root: &Path, files: &[(InodeId, PathBuf)]) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags, Mode::empty())?;
    let (mut found, mut written) = (Ok(()), Ok(()));
    for (ino, path) in files {
        match write_back(root.as_fd(), *ino, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => found = Err(error),
            other => written = written.and(other),
        }
    }
    written.and(found)
}

/// Writes what the file `ino` at `path` below `root` has in memory alone. `NotFound` if it is not there.
fn write_back(root: BorrowedFd<'_>, ino: InodeId, path: &Path) -> io::Result<()> {
    let links = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    // Another file may be there by now: these flags keep a pipe from waiting for a writer and a terminal from
    // becoming this process's own.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |access| rustix::fs::openat2(root, path, flags | access, Mode::empty(), links);
    let file = match open(OFlags::RDONLY) {
        // A user without the right to read may have the right to write.
        Err(Errno::ACCESS) => open(OFlags::WRONLY),
        opened => opened,
    };
    let said = |error: Errno| match error {
        Errno::LOOP | Errno::NOTDIR | Errno::XDEV | Errno::ISDIR | Errno::NXIO => {
            Errno::NOENT.into()
        }
        error => io::Error::from(error),
    };
    let file = file.map_err(said)?;
    if rustix::fs::fstat(&file)?.st_ino != ino.get() {
        return Err(Errno::NOENT.into());
    }
    // Not syncfs(2): over FUSE it neither waits for pages that are being written nor writes all pages.
    Ok(rustix::fs::fsync(&file)?)
}

/// Detaches the mount with the id `mount` from `dir`, an absolute path without symbolic links. Leaves any other mount
/// to which the path may lead by now.
pub fn unmount_that(mount: u64, dir: &Path, mode: UnmountMode) -> Result<(), UnmountError> {
    let (Some(above), Some(name)) = (dir.parent(), dir.file_name()) else {
        return unmount(dir, mode);
    };
    let gone = || UnmountError::NotMounted(dir.to_path_buf());
    let above = open_there(above).map_err(|_| gone())?;
    let at = within(&above, name);
    let path = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(&at, path, Mode::empty()).map_err(|_| gone())?;
    if !mount_of(root.as_fd()).is_ok_and(|id| id == mount) {
        return Err(gone());
    }
    // An open descriptor would keep the mount in use. The mount itself keeps the name from standing for something
    // else.
    drop(root);
    match rustix::mount::unmount(&at, flags(mode)) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(UnmountError::Busy(dir.to_path_buf())),
        // Another process has just unmounted it.
        Err(Errno::INVAL | Errno::NOENT) => Err(gone()),
        // Without the right to unmount, the helper checks that the mount is the user's.
        Err(Errno::PERM) => unmount(dir, mode),
        Err(error) => {
            Err(UnmountError::Failed { dir: dir.to_path_buf(), reason: error.to_string() })
        }
    }
}

/// Opens the directory `dir` if it lies on the mount with the id `mount`.
pub(super) fn open_on(mount: u64, dir: &Path) -> io::Result<OwnedFd> {
    match open_there(dir) {
        Ok(opened) if mount_of(opened.as_fd())? == mount => Ok(opened),
        Ok(_) | Err(Errno::LOOP | Errno::NOENT | Errno::NOTDIR) => {
            let text = format!("{} does not lead to the mount any more", dir.display());
            Err(io::Error::other(text))
        }
        Err(error) => Err(error.into()),
    }
}

/// Opens the directory `dir` without following a symbolic link on the way.
pub(super) fn open_there(dir: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, dir, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Returns a path to the opened directory `dir`, which renames do not change.
pub(super) fn path_to(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/thread-self/fd/{}", dir.as_raw_fd()))
}

/// Returns the path to `name` in the opened directory `dir`.
fn within(dir: &OwnedFd, name: &OsStr) -> PathBuf {
    path_to(dir).join(name)
}

/// Returns the id of the mount on which a file lies ([`MountPoint::id`]), from proc_pid_fdinfo(5). This sends no
/// request to the file system.
#[allow(clippy::disallowed_methods, reason = "descriptors belong to the machine")]
pub fn mount_of(file: BorrowedFd<'_>) -> io::Result<u64> {
    let told = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", file.as_raw_fd()))?;
    let id = told.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id = id.and_then(|id| id.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("the kernel does not say on which mount a file lies"))
}
