//! The sockets by which a daemon is asked, in the directory of its store.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Room for a path in a socket's address, with the zero byte at its end.
const ADDRESS_BYTES_MAX: usize = 108;

/// Listens on `name` in the store `store`, which is locked by this process: what another left there is stale. Only
/// the owner of the store gets through.
pub(crate) fn listen(store: &Path, name: &str) -> io::Result<UnixListener> {
    let path = store.join(name);
    let _ = std::fs::remove_file(&path);
    let (address, _dir) = address(store, name)?;
    let listener = UnixListener::bind(address)?;
    std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Connects to the daemon that listens on `name` in the store `store`.
pub(crate) fn connect(store: &Path, name: &str) -> io::Result<UnixStream> {
    let (address, _dir) = address(store, name)?;
    UnixStream::connect(address)
}

/// The socket's address, by a descriptor of its directory if the path is too long for one.
fn address(store: &Path, name: &str) -> io::Result<(PathBuf, Option<File>)> {
    let path = store.join(name);
    if path.as_os_str().as_bytes().len() < ADDRESS_BYTES_MAX {
        return Ok((path, None));
    }
    let dir = File::open(store)?;
    let short = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
    Ok((PathBuf::from(short), Some(dir)))
}
