//! Detaches a mount by umount2(2), or by fusermount3 for a user who may not call that.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::fusermount;

/// What to do about programs that still use the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// Fail if a program uses the mount.
    Plain,
    /// Detach the mount now; it ends when the last program is done.
    Lazy,
    /// Detach as `Lazy` does, and abort the requests for which programs wait. For a mount whose server no longer
    /// answers.
    Force,
}

/// Why an unmount failed.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Nothing is mounted on the directory.
    #[error("nothing is mounted on {0}")]
    NotMounted(PathBuf),
    /// Programs have files open or their working directory on the mount.
    #[error("{0} is in use; `fuser -vm {0}` lists who uses it")]
    Busy(PathBuf),
    /// Any other reason.
    #[error("cannot unmount {dir}: {reason}")]
    Failed {
        /// The mount point.
        dir: PathBuf,
        /// The reason, for people.
        reason: String,
    },
}

/// Returns whether a Varve file system is mounted on `dir`.
fn is_there(dir: &Path) -> bool {
    super::find_mounts().is_ok_and(|mounts| mounts.iter().any(|mount| mount.dir == dir))
}

/// Detaches what is mounted on `dir`.
pub fn unmount(dir: &Path, mode: UnmountMode) -> Result<(), UnmountError> {
    let failed = |reason: String| UnmountError::Failed { dir: dir.to_path_buf(), reason };
    match rustix::mount::unmount(dir, flags(mode)) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL | Errno::NOENT) => Err(UnmountError::NotMounted(dir.to_path_buf())),
        Err(Errno::BUSY) => Err(UnmountError::Busy(dir.to_path_buf())),
        Err(Errno::PERM) => {
            fusermount::unmount(dir, mode != UnmountMode::Plain).map_err(|reason| match reason {
                _ if reason.contains("busy") => UnmountError::Busy(dir.to_path_buf()),
                // The helper's table lists mounts of other users under other names.
                _ if reason.contains("not found in") && is_there(dir) => {
                    failed("another user has mounted it".to_owned())
                }
                _ if reason.contains("not found in") => UnmountError::NotMounted(dir.to_path_buf()),
                _ => failed(reason),
            })
        }
        Err(err) => Err(failed(err.to_string())),
    }
}

pub(super) fn flags(mode: UnmountMode) -> UnmountFlags {
    match mode {
        UnmountMode::Plain => UnmountFlags::NOFOLLOW,
        UnmountMode::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        UnmountMode::Force => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH | UnmountFlags::FORCE,
    }
}
