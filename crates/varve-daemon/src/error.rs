//! Failures of mounts as errors for people.

use std::fs::File;
use std::io;

use varve::Error;
use varve_fuse::{MountError, NoUring, SessionError, UnmountError};

/// The device by which every mount is served.
const FUSE_DEVICE: &str = "/dev/fuse";

/// The error for a failed mount.
pub(crate) fn not_mounted(error: MountError) -> Error {
    let text = error.to_string();
    match error {
        MountError::BadDirectory { .. } => Error::split_hint(&text)
            .or_hint("name a directory that exists, or create it with `mkdir`"),
        MountError::Remount { .. } => {
            Error::split_hint(&text).or_hint("run it as root: only root may change a mount")
        }
        MountError::Refused { .. } => {
            let device = File::options().read(true).write(true).open(FUSE_DEVICE);
            let hint = match device {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    "run as root, or have root open /dev/fuse to others: `chmod 666 /dev/fuse`"
                }
                _ => {
                    "run as root, or install fuse3 (`apt-get install fuse3`) and check that /dev/fuse exists"
                }
            };
            Error::failed(text).hint(hint)
        }
    }
}

/// The error for a failed unmount.
pub fn not_unmounted(error: UnmountError) -> Error {
    let text = error.to_string();
    match error {
        UnmountError::NotMounted(_) => {
            Error::failed(text).hint("`findmnt -t fuse.varve` lists the mounts")
        }
        UnmountError::Busy(_) => {
            let busy = Error::split_hint(&text);
            let who = busy.next_step().unwrap_or_default().to_owned();
            busy.hint(format!("{who}; `varve umount --lazy` unmounts when they are done"))
        }
        UnmountError::Failed { .. } => {
            Error::failed(text).hint("unmount as the user who mounted, or as root")
        }
    }
}

/// The error for a session that failed.
pub(crate) fn not_served(error: &SessionError) -> Error {
    let hint = match error {
        SessionError::NoUring { source: NoUring::NotOffered, .. } => {
            "Linux 6.14 and newer offer it after `echo Y > /sys/module/fuse/parameters/enable_uring` as \
             root; without `transport=uring` the mount takes /dev/fuse"
        }
        SessionError::NoUring { source: NoUring::Refused(_), .. } => {
            "`sysctl kernel.io_uring_disabled` says who may use io_uring; without `transport=uring` the \
             mount takes /dev/fuse"
        }
        _ => "the kernel's log (`dmesg`) may say more",
    };
    Error::failed(error.to_string()).hint(hint)
}
