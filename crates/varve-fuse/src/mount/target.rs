//! Places on a mount that this process serves, where it mounts others and takes them away.
//!
//! The path to the mount may lead elsewhere by now: whoever owns a directory above can rename that and put a link in its place, and
//! this process may mount and unmount where he may not. So nothing is done by the path alone:
//!
//! 1. The directory of the place is opened without following links.
//! 2. It must lie on the mount, as the kernel numbers mounts: so what is in it is what this process says.
//! 3. The rest is done by its descriptor and the last name.
//!
//! All in a process apart ([`walk_apart`]), since it takes requests to the mount.

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

/// A name in a directory of a mount that this process serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    mount: u64,
    dir: PathBuf,
    name: OsString,
}

impl Place {
    /// `name` in the directory `dir`, an absolute path without symbolic links, which lies on the mount with this id
    /// ([`super::MountPoint::id`]).
    pub fn new(mount: u64, dir: impl Into<PathBuf>, name: impl Into<OsString>) -> Place {
        Place { mount, dir: dir.into(), name: name.into() }
    }

    /// Where it is, for people.
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// What is mounted on it, of `mounts`; nothing if the mount it lies on is elsewhere by now.
    pub(super) fn mount_among<'a>(&self, mounts: &'a [MountPoint]) -> Option<&'a MountPoint> {
        let is_there =
            |mount: &MountPoint| mount.id == self.mount && self.dir.starts_with(&mount.dir);
        mounts.iter().find(|mount| is_there(mount))?;
        mounts.iter().rfind(|mount| mount.dir == self.path())
    }

    /// Does `work` with a path that leads to the place whatever is renamed meanwhile; on the terms of [`walk_apart`]. What is mounted
    /// there is found by it as well.
    ///
    /// An error if its directory is not to be found on the mount.
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

    /// Detaches what is mounted on it.
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

    /// Whether programs have files or their working directory on what is mounted on it, as far as the kernel knows. Nobody else may
    /// ask at the same time: two who do would take it away.
    pub fn is_in_use(&self) -> io::Result<bool> {
        // Asked to take an unused mount away the kernel marks it first, and that it says. Whoever walks through it then
        // takes the mark off, as is done here.
        let asks = UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW;
        let path = OFlags::PATH | OFlags::CLOEXEC;
        let walk = move |at: &Path| {
            let asked = rustix::mount::unmount(at, asks);
            // Closed before anybody asks again.
            drop(rustix::fs::open(at, path, Mode::empty()));
            (if asked == Err(Errno::BUSY) { Err(Errno::BUSY.into()) } else { Ok(()) }, ())
        };
        match self.walk(None, walk) {
            Ok(()) => Ok(false),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Has what programs have changed of `files` in mapped memory written to the file system that is mounted on it: of each its path
    /// from there and its number, which must be a regular file's.
    ///
    /// `NotFound` if some are not where they are said to be, and another error if some could not be written, which counts first: that
    /// is said once only. The others are written all the same.
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

/// Has what is in memory alone of the file `ino` at `path` below `root` written. `NotFound` if it is not there.
fn write_back(root: BorrowedFd<'_>, ino: InodeId, path: &Path) -> io::Result<()> {
    let links = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    // What it may be instead by now neither waits for a writer nor becomes a terminal.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |access| rustix::fs::openat2(root, path, flags | access, Mode::empty(), links);
    let file = match open(OFlags::RDONLY) {
        // Who may not read it may write to it.
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
    // No syncfs(2) of it all: that neither waits for what is being written to a server of files nor writes all of it.
    Ok(rustix::fs::fsync(&file)?)
}

/// Detaches the mount with the id `mount` from `dir`, an absolute path without symbolic links; no other that the path may lead to by
/// now.
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
    // It would be in use by that. What is mounted on it keeps the name from becoming another's.
    drop(root);
    match rustix::mount::unmount(&at, flags(mode)) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(UnmountError::Busy(dir.to_path_buf())),
        // Somebody else has just taken it away.
        Err(Errno::INVAL | Errno::NOENT) => Err(gone()),
        // Without the right to, the helper sees to it that it is the user's.
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

/// Opens the directory `dir`, on the way to which no symbolic link is followed.
pub(super) fn open_there(dir: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, dir, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// A path to the opened directory `dir`, whatever is renamed meanwhile.
pub(super) fn path_to(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/thread-self/fd/{}", dir.as_raw_fd()))
}

/// The path to `name` in the opened directory `dir`.
fn within(dir: &OwnedFd, name: &OsStr) -> PathBuf {
    path_to(dir).join(name)
}

/// The id of the mount on which a file lies ([`MountPoint::id`]), from proc_pid_fdinfo(5): no question to who serves it.
#[allow(clippy::disallowed_methods, reason = "descriptors belong to the machine")]
pub fn mount_of(file: BorrowedFd<'_>) -> io::Result<u64> {
    let told = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", file.as_raw_fd()))?;
    let id = told.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id = id.and_then(|id| id.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("the kernel does not tell on which mount a file lies"))
}
