//! mount(2) by this process.

use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

use super::{Connection, FS_TYPE, MountOptions, alone};

const DEVICE: &str = "/dev/fuse";

/// Opens the FUSE device and mounts it on `dir`. The reason, if it cannot.
pub(super) fn mount(dir: &Path, options: &MountOptions) -> Result<Connection, String> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|err| format!("open {DEVICE}: {err}"))?;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw()
    );
    let root_alone = alone::is_for_root(options);
    if !root_alone {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|err| err.to_string())?;
    rustix::mount::mount(options.source.as_os_str(), dir, FS_TYPE, flags(options), data.as_c_str())
        .map_err(|err| format!("mount: {err}"))?;
    Ok(Connection { device, root_alone })
}

/// Gives the mount on `dir` other flags; the connection stays. The reason, if it cannot.
pub(super) fn remount(dir: &Path, options: &MountOptions) -> Result<(), String> {
    rustix::mount::mount_remount(dir, flags(options), c"").map_err(|err| err.to_string())
}

fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.no_suid);
    flags.set(MountFlags::NODEV, options.no_dev);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    flags.set(MountFlags::SYNCHRONOUS, options.synchronous);
    flags
}
