//! The sockets of a daemon, in the directory of its store.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Uid;
use varve_env::is_no_space;
use varve_env::os::peer::peer_of;

use varve::{Error, Result};

/// The name of the control socket.
pub(crate) const CONTROL: &str = "control";

/// The name of the socket for dictionaries.
pub(crate) const DICTIONARIES: &str = "kv";

/// Room for a path in a socket's address, with the zero byte at its end.
const ADDRESS_BYTES_MAX: usize = 108;

/// Clients that may wait until they are accepted, if the machine allows so many.
const WAITING_MAX: i32 = 4096;

/// The most bytes of one write: within a call the kernel restarts its time limit for each piece of about this size.
const PIECE_BYTES: usize = 32 << 10;

/// How long to wait before the next attempt to accept a client, after there was no descriptor for it.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The name of a socket in the directory of a store. Dropping it removes the name.
pub(crate) struct SocketName {
    dir: OwnedFd,
    name: &'static str,
}

impl Drop for SocketName {
    fn drop(&mut self) {
        // The store may be gone, with the name.
        let _ = rustix::fs::unlinkat(&self.dir, self.name, AtFlags::empty());
    }
}

/// Listens on `name` in `dir`, the directory of a store that this process has locked: a socket that is there is stale. Only the owner
/// of the store can connect. Where the device has no inode for the name, `lend_inode` is asked for one.
pub(crate) fn listen(
    dir: OwnedFd,
    name: &'static str,
    lend_inode: &dyn Fn() -> bool,
) -> io::Result<(UnixListener, SocketName)> {
    let _ = rustix::fs::unlinkat(&dir, name, AtFlags::empty());
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    // The name gets the mode of the socket (net/unix/af_unix.c, unix_bind_bsd). Changing the mode by the name would change the target of
    // a link that another user put there.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    let address = SocketAddrUnix::new(address_in(&dir, name))?;
    while let Err(error) = rustix::net::bind(&socket, &address).map_err(io::Error::from) {
        if !is_no_space(&error) || !lend_inode() {
            return Err(error);
        }
    }
    let name = SocketName { dir, name };
    rustix::net::listen(&socket, WAITING_MAX)?;
    Ok((socket.into(), name))
}

/// The error for a failed connection to the daemon of `store`: missing permission if that is the cause, else `otherwise`.
pub(crate) fn unreached(
    store: &Path,
    error: io::Error,
    otherwise: impl FnOnce(io::Error) -> Error,
) -> Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return otherwise(error);
    }
    Error::failed(format!("this user may not ask the daemon of {}: {error}", store.display()))
        .hint("only root and the user who mounted the store may: ask as one of them")
}

/// Accepts clients for ever, and passes each to `take`.
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
                    log::warn!("clients have to wait, as no connection can be accepted: {error}");
                }
                waits = true;
                thread::sleep(AGAIN_AFTER);
            }
        }
    }
}

/// A connection with one deadline for all that is read or written, in pieces of any size.
pub(crate) struct InTime<'a> {
    client: &'a UnixStream,
    end: Instant,
}

impl InTime<'_> {
    /// The deadline is `patience` from now.
    pub(crate) fn new(client: &UnixStream, patience: Duration) -> InTime<'_> {
        InTime { client, end: Instant::now() + patience }
    }

    /// The time that is left; `TimedOut` if none is.
    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for InTime<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.client.set_read_timeout(Some(self.left()?))?;
        self.client.read(buffer)
    }
}

impl Write for InTime<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.client.set_write_timeout(Some(self.left()?))?;
        self.client.write(&bytes[..bytes.len().min(PIECE_BYTES)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a daemon listens on `name` in the store `store`. REQUIRES: a process has the store open; a daemon stops listening before it
/// releases the store.
pub(crate) fn is_in(store: &Path, name: &str) -> bool {
    std::fs::symlink_metadata(store.join(name)).is_ok()
}

/// Connects to the daemon that listens on `name` in the store `store`.
pub(crate) fn connect(store: &Path, name: &str) -> io::Result<UnixStream> {
    let (address, _dir) = address(store, name)?;
    UnixStream::connect(address)
}

/// Fails unless the listening process belongs to root, to this process's user or to `user`, who mounted `store`. A user who may write to
/// the directory of the store can replace the daemon's socket.
pub(crate) fn check_listener(daemon: &UnixStream, store: &Path, user: Uid) -> Result<()> {
    let peer = peer_of(daemon).map_err(|error| Error::machine("learn who listens", error))?;
    if peer.uid.is_root() || [user, rustix::process::geteuid()].contains(&peer.uid) {
        return Ok(());
    }
    let (store, uid) = (store.display(), peer.uid.as_raw());
    let process = peer.pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
    Err(Error::failed(format!(
        "{process} of user {uid} listens in {store}, but another user mounted the store"
    ))
    .hint(format!(
        "`ls -ld {store}` shows who may write there: let nobody else do so, and mount again"
    )))
}

/// The socket's address, by a descriptor of its directory if the path is too long for one.
fn address(store: &Path, name: &str) -> io::Result<(PathBuf, Option<OwnedFd>)> {
    let path = store.join(name);
    if path.as_os_str().as_bytes().len() < ADDRESS_BYTES_MAX {
        return Ok((path, None));
    }
    let dir = OwnedFd::from(File::open(store)?);
    Ok((address_in(&dir, name), Some(dir)))
}

fn address_in(dir: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Who put a link in the place of a socket that had just been made had the mode of any file changed.
    #[test]
    fn nothing_but_the_socket_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let (store, outside) = (dir.path().join("store"), dir.path().join("outside"));
        fs::create_dir(&store).unwrap();
        fs::write(&outside, "").unwrap();
        fs::set_permissions(&outside, Permissions::from_mode(0o644)).unwrap();
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        let (link, done) = (store.join("link"), AtomicBool::new(false));
        let dir = || OwnedFd::from(File::open(&store).unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let _ = symlink(&outside, &link);
                    let _ = fs::rename(&link, store.join("control"));
                }
            });
            // A link that is there too early is in the way.
            (0..20_000).for_each(|_| drop(listen(dir(), "control", &|| false)));
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(mode(&outside), 0o644);
        let _listener = listen(dir(), "control", &|| false).unwrap();
        assert_eq!(mode(&store.join("control")), 0o600);
    }

    /// Who took a byte of an answer now and then kept its place for as long as he did.
    #[test]
    fn what_is_said_is_heard_in_time() {
        let (served, mut slow) = UnixStream::pair().unwrap();
        let drip = thread::spawn(move || {
            // Some of it is taken before each wait is over.
            while slow.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
                thread::sleep(Duration::from_millis(1));
            }
        });
        let mut in_time = InTime::new(&served, Duration::from_millis(100));
        let error = in_time.write_all(&vec![0; 4 << 20]).unwrap_err();
        drop(served);
        drip.join().unwrap();
        assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
    }
}
