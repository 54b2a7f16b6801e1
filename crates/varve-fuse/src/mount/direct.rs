//! Mounts by mount(2) in this process.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::target::{open_on, open_there, path_to};
use super::{Connection, FS_TYPE, MountOptions, MountPoint, MountTarget, alone};

const DEVICE: &str = "/dev/fuse";

/// Opens the FUSE device and mounts it on `dir`, an absolute path without symbolic links. The error is the reason why
/// it cannot.
pub(super) fn mount(dir: &Path, options: &MountOptions) -> Result<Connection, String> {
    let connection = open(options)?;
    // The owner of a directory above may have replaced it by a link.
    let dir = open_there(dir).map_err(|err| format!("open the directory: {err}"))?;
    attachment(&connection, options)?(&path_to(&dir)).map(|()| connection)
}

/// Mounts a new connection on a target on a mount that this process serves.
pub(super) fn mount_within(
    target: &MountTarget,
    options: &MountOptions,
) -> Result<Connection, String> {
    let connection = open(options)?;
    let attach = attachment(&connection, options)?;
    let attach = |at: &Path| (attach(at).map_err(std::io::Error::other), ());
    let attached = target.walk(Some(connection.device.as_fd()), attach);
    attached.map(|()| connection).map_err(|err| err.to_string())
}

fn open(options: &MountOptions) -> Result<Connection, String> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|err| format!("open {DEVICE}: {err}"))?;
    Ok(Connection { device, root_alone: alone::is_for_root(options) })
}

/// Returns a function that mounts `connection` on a directory.
fn attachment(
    connection: &Connection,
    options: &MountOptions,
) -> Result<impl FnOnce(&Path) -> Result<(), String> + use<>, String> {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        connection.device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw()
    );
    if !connection.root_alone {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|err| err.to_string())?;
    let (source, flags) = (options.source.clone(), flags(options));
    Ok(move |dir: &Path| {
        rustix::mount::mount(source.as_os_str(), dir, FS_TYPE, flags, data.as_c_str())
            .map_err(|err| format!("mount: {err}"))
    })
}

/// Changes the flags of a mount; the connection stays. The error is the reason why it cannot.
pub(super) fn remount(mount: &MountPoint, options: &MountOptions) -> Result<(), String> {
    let root = open_on(mount.id, &mount.dir).map_err(|err| err.to_string())?;
    rustix::mount::mount_remount(path_to(&root), flags(options), c"").map_err(|err| match err {
        Errno::BUSY => {
            let dir = mount.dir.display();
            format!("it is busy, as files are open for writing; `fuser -vm {dir}` lists who has some open")
        }
        err => err.to_string(),
    })
}

fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.no_suid);
    flags.set(MountFlags::NODEV, options.no_dev);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    flags.set(MountFlags::NOSYMFOLLOW, options.no_symfollow);
    flags.set(MountFlags::SYNCHRONOUS, options.synchronous);
    flags
}
