//! Identifies the process at the other end of a Unix socket.

#![allow(
    unsafe_code,
    reason = "rustix has no process without an id, which is one that is not to be seen from here"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::process::{Pid, Uid};

/// A process, as it was when it connected or began to listen.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its id; `None` if it is outside of this process's PID namespace, as a daemon is for a process in a container.
    pub pid: Option<Pid>,
    /// Its user.
    pub uid: Uid,
}

/// Returns the process at the other end of `socket` (unix(7), SO_PEERCRED).
pub fn peer_of(socket: impl AsFd) -> io::Result<Peer> {
    let socket = socket.as_fd().as_raw_fd();
    let mut told = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut bytes = size_of_val(&told) as libc::socklen_t;
    let room = std::ptr::from_mut(&mut told).cast();
    // SAFETY: the descriptor is open, and `room` has `bytes` bytes, of which any are numbers.
    match unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, room, &raw mut bytes)
    } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Peer { pid: Pid::from_raw(told.pid), uid: Uid::from_raw(told.uid) }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn this_process_is_told() {
        let (one, _other) = UnixStream::pair().expect("a pair of sockets");
        let peer = peer_of(&one).expect("it is told");
        assert_eq!(peer.pid, Some(rustix::process::getpid()));
        assert_eq!(peer.uid, rustix::process::geteuid());
    }
}
