//! Unmounts a mount of this process, and never another mount to which its path may lead by then.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, fsconfig_create,
    fsmount, fsopen,
};
use rustix::thread::UnshareFlags;

use super::apart::walk_apart;
use super::table::{MountPoint, find_mounts};
use super::target::{MountTarget, unmount_that};
use super::umount::{UnmountError, UnmountMode, unmount};

/// The directory of the kernel's control of FUSE connections, if it is mounted. The files there belong to the user
/// who mounted each connection.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Unmounts one mount, from any thread. The session that serves it then ends.
#[derive(Clone, Debug)]
pub struct StopHandle {
    dir: PathBuf,
    what: What,
    /// The mount as it was when the handle was made, if the mount table could be read.
    made: Option<MountPoint>,
}

#[derive(Clone, Debug)]
enum What {
    /// The mount with this id.
    Mount(u64),
    /// No mount: it was moved or removed.
    Gone,
    /// What is mounted on the directory, because the mount table cannot be read.
    Any,
    /// What is mounted on a target of another mount of this process.
    Within(MountTarget),
}

impl StopHandle {
    /// A handle for the last mount on `dir`, an absolute path without symbolic links.
    pub fn on(dir: PathBuf) -> StopHandle {
        let (what, made) = match find_mounts() {
            Ok(mounts) => match mounts.into_iter().rfind(|mount| mount.dir == dir) {
                Some(mount) => (What::Mount(mount.id), Some(mount)),
                None => (What::Gone, None),
            },
            Err(_) => (What::Any, None),
        };
        StopHandle { dir, what, made }
    }

    /// A handle for what is mounted on `target`.
    pub(super) fn within(target: &MountTarget) -> StopHandle {
        let made = find_mounts().ok().and_then(|mounts| target.mount_among(&mounts).cloned());
        StopHandle { dir: target.path(), what: What::Within(target.clone()), made }
    }

    /// Returns the mount point.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts. Then [`crate::Session::run`] returns; with `Lazy` it returns when the last program is done.
    pub fn stop(&self, mode: UnmountMode) -> Result<(), UnmountError> {
        match &self.what {
            What::Mount(mount) => unmount_that(*mount, &self.dir, mode),
            What::Gone => Err(UnmountError::NotMounted(self.dir.clone())),
            What::Any => unmount(&self.dir, mode),
            What::Within(target) => target.unmount(mode),
        }
    }

    /// Ends by force a mount that cannot or must not be served any more, even if it is detached already and programs
    /// still use it. Only logs it if the mount stays.
    pub fn give_up(&self) {
        // Without CAP_SYS_ADMIN the process can at most detach the mount. Then the mount and its threads would last
        // as long as a program waits for an answer, so the connection is aborted.
        if let Some(connection) = self.connection() {
            abort(connection);
        }
        match self.stop(UnmountMode::Force) {
            Ok(()) | Err(UnmountError::NotMounted(_)) => {}
            Err(error) => log::warn!("{error}"),
        }
    }

    /// Opens the control file that ends the connection when a byte is written to it; `None` if this process may not
    /// open it.
    pub(crate) fn control(&self) -> Option<OwnedFd> {
        let name = format!("{}/abort", self.made.as_ref()?.connection);
        let open = |dir: BorrowedFd<'_>, name: &str| {
            openat(dir, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        };
        let mounted = open(CWD, &format!("{CONNECTIONS}/{name}"));
        mounted.or_else(|_| open(unseen_control()?.as_fd(), &name)).ok()
    }

    /// Returns the number of the connection ([`MountPoint::connection`]), even if the mount is detached by now;
    /// `None` if another mount has this number.
    fn connection(&self) -> Option<u32> {
        connection_of(self.made.as_ref()?, &find_mounts().unwrap_or_default())
    }
}

/// Returns the number of the connection of a mount that was `made`, given the current `mounts`. A mount with all of
/// its numbers counts as the same mount, on any directory.
fn connection_of(made: &MountPoint, mounts: &[MountPoint]) -> Option<u32> {
    let has_it: Vec<_> =
        mounts.iter().filter(|mount| mount.connection == made.connection).collect();
    let is_it = |mount: &&MountPoint| mount.id == made.id && mount.source == made.source;
    (has_it.is_empty() || has_it.iter().any(is_it)).then_some(made.connection)
}

/// Ends a connection: programs that wait for an answer get an error, and the session ends.
fn abort(connection: u32) {
    let aborted = match write_abort(connection) {
        // The control may not be mounted, as in most containers.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            walk_apart(None, || (mount_control().and_then(|()| write_abort(connection)), ()))
        }
        aborted => aborted,
    };
    if let Err(error) = aborted {
        log::warn!(
            "cannot end connection {connection} through {CONNECTIONS}/{connection}/abort: {error}"
        );
    }
}

#[allow(clippy::disallowed_methods, reason = "connections belong to the machine")]
fn write_abort(connection: u32) -> io::Result<()> {
    std::fs::write(format!("{CONNECTIONS}/{connection}/abort"), "1")
}

/// Mounts the control without a directory, so that no other process sees it. Needs CAP_SYS_ADMIN.
fn unseen_control() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// Mounts the control for the calling process alone, which must have a single thread. Needs CAP_SYS_ADMIN.
#[allow(deprecated, reason = "no descriptors are unshared")]
fn mount_control() -> io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", private)?;
    Ok(rustix::mount::mount("fusectl", CONNECTIONS, "fusectl", MountFlags::empty(), c"")?)
}

#[cfg(test)]
mod tests {
    use super::super::table::parse;
    use super::*;

    /// All mounts of one store have that as their source: the connection of another one that had got the number was ended.
    #[test]
    fn a_mount_that_is_gone_ends_no_other_of_the_same_store() {
        let table = |lines: &[[&str; 3]]| {
            let line = |[id, number, source]: &[&str; 3]| {
                format!(
                    "{id} 29 0:{number} / /mnt/a rw - fuse.varve {source} rw,user_id=0,group_id=0"
                )
            };
            parse(lines.iter().map(line).collect::<Vec<_>>().join("\n").as_bytes())
        };
        let made = table(&[["98", "47", "/store"]]).remove(0);
        for (mounts, ends) in [
            (table(&[]), true),
            (table(&[["99", "48", "/store"]]), true),
            (table(&[["98", "47", "/store"]]), true),
            (table(&[["98", "47", "/store"], ["99", "47", "/store"]]), true),
            (table(&[["99", "47", "/store"]]), false),
            (table(&[["98", "48", "/store"], ["99", "47", "/store"]]), false),
            (table(&[["98", "47", "/other"]]), false),
        ] {
            assert_eq!(connection_of(&made, &mounts), ends.then_some(47), "{mounts:?}");
        }
    }
}
