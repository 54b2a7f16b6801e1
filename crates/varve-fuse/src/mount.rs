//! Attaches a FUSE connection to a directory.
//!
//! [`mount`] tries the methods of [`MountOptions::methods`] in order:
//!
//! 1. `direct`: mount(2), for which the process needs CAP_SYS_ADMIN.
//! 2. `fusermount`: the setuid helper of libfuse, which mounts on behalf of an ordinary user.
//! 3. `namespace`: a private user and mount namespace, where the process has every right; only it and its
//!    children then see the mount.
//!
//! A method that fails leaves a [`Refusal`] with its reason. If all methods fail, the error lists every reason. The
//! kernel checks permissions (`default_permissions`), except on mounts of root alone (`alone`), where nothing checks
//! them.
//!
//! Invariant: a method is tried only after all methods before it have failed, so at most one mounts.

mod alone;
mod apart;
mod direct;
mod elsewhere;
mod fusermount;
mod namespace;
mod stop;
mod table;
mod target;
mod umount;
mod watch;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

pub use apart::walk_apart;
pub(crate) use apart::walks_apart;
pub use elsewhere::{Elsewhere, bound_elsewhere, copies_of, seen_elsewhere};
use rustix::io::Errno;
pub use stop::StopHandle;
pub use table::{MountPoint, find_mounts, find_mounts_of};
pub use target::{MountTarget, mount_of, unmount_that};
pub use umount::{UnmountError, UnmountMode, unmount};
pub use watch::MountWatch;

/// The file system type that mount tables show.
pub const FS_TYPE: &str = "fuse.varve";

/// A way to attach a FUSE connection to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountMethod {
    /// mount(2) by this process.
    Direct,
    /// The setuid program fusermount3 (or fusermount).
    Fusermount,
    /// mount(2) in a private user and mount namespace. The process must have a single thread. It stays in the
    /// namespace even if the mount fails.
    Namespace,
}

impl MountMethod {
    /// Every method, in the order of preference.
    pub const ALL: [MountMethod; 3] =
        [MountMethod::Direct, MountMethod::Fusermount, MountMethod::Namespace];
}

impl fmt::Display for MountMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MountMethod::Direct => "mount(2)",
            MountMethod::Fusermount => "fusermount",
            MountMethod::Namespace => "private namespace",
        })
    }
}

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// The source that mount tables show: the store.
    pub source: OsString,
    /// Refuse every change.
    pub read_only: bool,
    /// Let all users in, not only the one who mounts. fusermount needs `user_allow_other` in /etc/fuse.conf for this.
    pub allow_other: bool,
    /// Have the kernel check permissions on every mount. Without this it checks none on a mount by root, with all of
    /// root's rights, that lets nobody else in ([`Mounted::is_for_root_alone`]), because permissions do not bind
    /// root.
    pub default_permissions: bool,
    /// Ignore set-user-id and set-group-id bits. fusermount always does this.
    pub no_suid: bool,
    /// Ignore device nodes. fusermount always does this.
    pub no_dev: bool,
    /// Refuse to execute programs.
    pub no_exec: bool,
    /// Follow no symbolic links. fusermount has no such option.
    pub no_symfollow: bool,
    /// Show `sync` in mount tables. The server does the rest: [`crate::SessionOptions::sync_writes`] and
    /// [`crate::SessionOptions::sync_dirs`].
    pub synchronous: bool,
    /// The methods to try, in this order.
    pub methods: Vec<MountMethod>,
}

impl MountOptions {
    /// Returns the options of a mount of `source` for reading and writing. Other users get in exactly if root mounts
    /// it, as with any file system.
    pub fn new(source: impl Into<OsString>) -> MountOptions {
        MountOptions {
            source: source.into(),
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            default_permissions: true,
            no_suid: false,
            no_dev: false,
            no_exec: false,
            no_symfollow: false,
            synchronous: false,
            methods: MountMethod::ALL.to_vec(),
        }
    }
}

/// Why one method did not mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The method.
    pub method: MountMethod,
    /// The reason, as a message.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.method, self.reason)
    }
}

/// An attached connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) device: OwnedFd,
    /// The kernel lets only root in and checks no permissions.
    pub(crate) root_alone: bool,
}

/// A directory with an attached FUSE connection that no session serves yet.
#[derive(Debug)]
pub struct Mounted {
    pub(crate) connection: Connection,
    pub(crate) stop: StopHandle,
    method: MountMethod,
    refusals: Vec<Refusal>,
}

impl Mounted {
    /// Returns the mount point, an absolute path without symbolic links.
    pub fn dir(&self) -> &Path {
        self.stop.dir()
    }

    /// Returns the handle that unmounts it, even if no session ever serves it.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Returns the method that worked.
    pub fn method(&self) -> MountMethod {
        self.method
    }

    /// Returns whether the kernel checks no permissions, because it lets only root in.
    pub fn is_for_root_alone(&self) -> bool {
        self.connection.root_alone
    }

    /// Returns the methods that were tried before, with the reasons why they failed.
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }
}

/// Why nothing was mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("cannot mount on {dir}: {reason}")]
    BadDirectory {
        /// The directory as it was given.
        dir: PathBuf,
        /// What is wrong with the directory and what to do.
        reason: String,
    },
    /// The flags of a mount cannot change.
    #[error("cannot remount {dir}: {reason}")]
    Remount {
        /// The mount point.
        dir: PathBuf,
        /// The reason, as a message.
        reason: String,
    },
    /// Every method failed.
    #[error("cannot mount on {dir}: {}", list(.refusals))]
    Refused {
        /// The mount point.
        dir: PathBuf,
        /// Each method's reason.
        refusals: Vec<Refusal>,
    },
}

fn list(refusals: &[Refusal]) -> String {
    refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join("; ")
}

/// Gives a mount in use the flags of `options` (read-only, no set-id bits, no devices, no programs, `sync` in mount
/// tables). Everything else stays as it is, and so does any other mount to which the path may lead by now.
pub fn remount(mount: &MountPoint, options: &MountOptions) -> Result<(), MountError> {
    direct::remount(mount, options)
        .map_err(|reason| MountError::Remount { dir: mount.dir.clone(), reason })
}

/// Attaches a new FUSE connection to the directory `dir`. First removes a mount of the same source whose server has
/// died.
pub fn mount(dir: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let bad = |reason: String| MountError::BadDirectory { dir: dir.to_path_buf(), reason };
    remove_dead(dir, &options.source).map_err(bad)?;
    let dir = match dir.canonicalize() {
        Ok(dir) if dir.is_dir() => dir,
        Ok(_) => return Err(bad("it is not a directory".into())),
        Err(err) => return Err(bad(err.to_string())),
    };
    let mut refusals = Vec::new();
    for &method in &options.methods {
        let attempt = match method {
            MountMethod::Direct => direct::mount(&dir, options),
            MountMethod::Fusermount => fusermount::mount(&dir, options),
            MountMethod::Namespace => namespace::mount(&dir, options),
        };
        match attempt {
            Ok(connection) => {
                let stop = StopHandle::on(dir);
                return Ok(Mounted { connection, stop, method, refusals });
            }
            Err(reason) => refusals.push(Refusal { method, reason }),
        }
    }
    Err(MountError::Refused { dir, refusals })
}

/// Attaches a new FUSE connection to a target on a mount that this process serves. Sends no request about the target,
/// because the session may answer one only when this mount is there. Needs CAP_SYS_ADMIN.
pub fn mount_within(target: &MountTarget, options: &MountOptions) -> Result<Mounted, MountError> {
    let method = MountMethod::Direct;
    match direct::mount_within(target, options) {
        Ok(connection) => {
            let stop = StopHandle::within(target);
            Ok(Mounted { connection, stop, method, refusals: Vec::new() })
        }
        Err(reason) => Err(MountError::Refused {
            dir: target.path(),
            refusals: vec![Refusal { method, reason }],
        }),
    }
}

/// The errors of calls on a mount whose server is gone: of a call made afterwards, of a call that waited when the
/// connection ended, and (io_uring) of a call on its way to a thread that ended.
pub const DEAD: [Errno; 3] = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];

/// Returns whether the server of the mount on `dir` is gone.
pub fn is_dead(dir: &Path) -> bool {
    // Attributes may come from the kernel's cache; the free space never does.
    let error = || rustix::fs::statfs(dir).err();
    // A request that the server was reading from /dev/fuse when it was killed fails with EIO, as on a broken storage.
    // A second request then fails as on a dead mount.
    let error = error().and_then(|first| if first == Errno::IO { error() } else { Some(first) });
    error.is_some_and(|error| DEAD.contains(&error))
}

/// The most dead mounts on one directory that are removed, one after the other.
const DEAD_MOUNTS_MAX: usize = 64;

/// Removes dead mounts of `source` on `dir`. Programs that still use one get the same errors as before.
fn remove_dead(dir: &Path, source: &OsStr) -> Result<(), String> {
    for _ in 0..DEAD_MOUNTS_MAX {
        let at = dir.canonicalize().or_else(|_| std::path::absolute(dir));
        let at = at.map_err(|err| err.to_string())?;
        let mounts = find_mounts().map_err(|err| format!("/proc/self/mountinfo: {err}"))?;
        // The last of several mounts on one directory covers the others.
        let Some(mount) = mounts.iter().rfind(|mount| mount.dir == at) else { return Ok(()) };
        if !is_dead(&at) {
            return Ok(());
        }
        if mount.source != source {
            let (dir, other) = (dir.display(), mount.source.display());
            return Err(format!(
                "a mount of {other} is there whose server has died; `varve umount {dir}` removes it"
            ));
        }
        log::warn!("replacing a mount whose server has died");
        unmount_that(mount.id, &at, UnmountMode::Lazy).map_err(|err| err.to_string())?;
    }
    Ok(())
}
