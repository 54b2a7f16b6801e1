//! The sockets by which a daemon is asked, in the directory of its store.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Room for a path in a socket's address, with the zero byte at its end.
const ADDRESS_BYTES_MAX: usize = 108;

/// How long to wait before a client that could not be taken is tried again: there is no descriptor for it.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

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

/// Has `take` take one client after the other, for ever.
pub(crate) fn take_clients(listener: &UnixListener, mut take: impl FnMut(UnixStream)) {
    let mut waits = false;
    loop {
        match listener.accept() {
            Ok((client, _)) => {
                waits = false;
                take(client);
            }
            Err(error) => {
                if !waits {
                    log::warn!("clients have to wait: {error}");
                }
                waits = true;
                thread::sleep(AGAIN_AFTER);
            }
        }
    }
}

/// Places for those who are served at once.
#[derive(Clone)]
pub(crate) struct Places {
    free: Arc<AtomicUsize>,
}

/// One of them, free again when dropped.
pub(crate) struct Taken {
    free: Arc<AtomicUsize>,
}

impl Places {
    /// `count` free ones.
    pub(crate) fn new(count: usize) -> Places {
        Places { free: Arc::new(AtomicUsize::new(count)) }
    }

    /// Takes one; `None` if all are taken.
    pub(crate) fn take(&self) -> Option<Taken> {
        let one_less = |free: usize| free.checked_sub(1);
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).ok()?;
        Some(Taken { free: Arc::clone(&self.free) })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.free.fetch_add(1, Ordering::Relaxed);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_served_at_once_than_there_are_places() {
        let places = Places::new(2);
        let taken = [places.take(), places.clone().take()];
        assert!(taken.iter().all(Option::is_some) && places.take().is_none());
        drop(taken);
        assert!(places.take().is_some());
    }
}
