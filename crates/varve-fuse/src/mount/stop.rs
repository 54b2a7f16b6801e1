//! How a mount of this process is taken away again: that one, and no other to which its path leads by then.

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

/// Where the kernel's control of FUSE connections is, if it is mounted. What is there belongs to whoever has mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Takes one mount away, from any thread. Whoever serves it then ends.
#[derive(Clone, Debug)]
pub struct StopHandle {
    dir: PathBuf,
    what: What,
    /// The mount as it was at first, if the mount table could be read.
    made: Option<MountPoint>,
}

#[derive(Clone, Debug)]
enum What {
    /// The mount with this id.
    Mount(u64),
    /// None: somebody has moved it or taken it away.
    Gone,
    /// What is mounted on the directory, as the mount table cannot be read.
    Any,
    /// What is mounted on a target of another mount of this process.
    Within(MountTarget),
}

impl StopHandle {
    /// For what is mounted last on `dir`, an absolute path without symbolic links.
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

    /// For what is mounted on `target`.
    pub(super) fn within(target: &MountTarget) -> StopHandle {
        let made = find_mounts().ok().and_then(|mounts| target.mount_among(&mounts).cloned());
        StopHandle { dir: target.path(), what: What::Within(target.clone()), made }
    }

    /// The mount point.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts; [`crate::Session::run`] then returns, with `Lazy` as soon as the last program is done.
    pub fn stop(&self, mode: UnmountMode) -> Result<(), UnmountError> {
        match &self.what {
            What::Mount(mount) => unmount_that(*mount, &self.dir, mode),
            What::Gone => Err(UnmountError::NotMounted(self.dir.clone())),
            What::Any => unmount(&self.dir, mode),
            What::Within(target) => target.unmount(mode),
        }
    }

    /// Takes away by force what cannot be served, or is not to be any more, also what is detached already and lasts as long as programs have
    /// it. That it stays is only logged.
    pub fn give_up(&self) {
        // A mount that this process may only have taken out of the tree, if that, would last as long as somebody waits for an answer,
        // and so would the threads that serve it.
        if let Some(connection) = self.connection() {
            abort(connection);
        }
        match self.stop(UnmountMode::Force) {
            Ok(()) | Err(UnmountError::NotMounted(_)) => {}
            Err(error) => log::warn!("{error}"),
        }
    }

    /// What ends the connection when a byte is written to it; `None` where this process may not have that.
    pub(crate) fn control(&self) -> Option<OwnedFd> {
        let name = format!("{}/abort", self.made.as_ref()?.connection);
        let open = |dir: BorrowedFd<'_>, name: &str| {
            openat(dir, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        };
        let mounted = open(CWD, &format!("{CONNECTIONS}/{name}"));
        mounted.or_else(|_| open(unseen_control()?.as_fd(), &name)).ok()
    }

    /// The number of its connection ([`MountPoint::connection`]), also if it is detached by now; `None` if another mount is known
    /// to have that.
    fn connection(&self) -> Option<u32> {
        connection_of(self.made.as_ref()?, &find_mounts().unwrap_or_default())
    }
}

/// The same of a mount that was `made`, where there are these `mounts` by now. One that has all of its numbers is taken for it,
/// wherever it is.
fn connection_of(made: &MountPoint, mounts: &[MountPoint]) -> Option<u32> {
    let has_it: Vec<_> =
        mounts.iter().filter(|mount| mount.connection == made.connection).collect();
    let is_it = |mount: &&MountPoint| mount.id == made.id && mount.source == made.source;
    (has_it.is_empty() || has_it.iter().any(is_it)).then_some(made.connection)
}

/// Ends a connection: whoever waits for an answer gets an error, and whoever serves it ends.
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
            "connection {connection} is not ended by {CONNECTIONS}/{connection}/abort: {error}"
        );
    }
}

#[allow(clippy::disallowed_methods, reason = "connections belong to the machine")]
fn write_abort(connection: u32) -> io::Result<()> {
    std::fs::write(format!("{CONNECTIONS}/{connection}/abort"), "1")
}

/// The control, mounted where nobody sees it. Takes CAP_SYS_ADMIN.
fn unseen_control() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// Mounts the control for the calling process alone, which must have a single thread. Takes CAP_SYS_ADMIN.
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
