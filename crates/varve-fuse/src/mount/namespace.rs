//! Mounts in a user and mount namespace of this process.
//!
//! unshare(2) gives the process every right within a new user namespace, where it may mount a FUSE file system. The
//! user and the group of the caller keep their numbers. Only this process and the processes that it starts see the
//! mount, which ends with the last of them. Mounts made outside still appear inside.

use std::io::Write;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::thread::UnshareFlags;

use super::{Connection, MountOptions, direct};

/// Enters new namespaces and mounts there. The error is the reason why it cannot.
pub(super) fn mount(dir: &Path, options: &MountOptions) -> Result<Connection, String> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    enter().map_err(|err| match err {
        rustix::io::Errno::INVAL => "unshare: the process has several threads already".to_owned(),
        err => format!("unshare: {err}"),
    })?;
    // The kernel takes a group map only after the process has given up the right to change groups.
    write_map("/proc/self/setgroups", "deny")?;
    write_map("/proc/self/uid_map", &format!("{uid} {uid} 1"))?;
    write_map("/proc/self/gid_map", &format!("{gid} {gid} 1"))?;
    direct::mount(dir, options)
}

#[allow(
    deprecated,
    reason = "safe here: CLONE_FILES, for which the replacement is unsafe, is not asked for"
)]
fn enter() -> rustix::io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
}

fn write_map(path: &str, text: &str) -> Result<(), String> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|err| format!("open {path}: {err}"))?;
    std::fs::File::from(file)
        .write_all(text.as_bytes())
        .map_err(|err| format!("write {path}: {err}"))
}
