//! Finds out whether any process has a file open for writing. The only way is a lease for reading (fcntl(2),
//! F_SETLEASE): the kernel grants it if no process has, and it is given back at once.

#![allow(unsafe_code, reason = "fcntl(2) with commands that rustix does not have")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The command that chooses the signal for a process that waits for the end of a lease (fcntl.h). The libc crate has
/// it for few machines only.
const F_SETSIG: libc::c_int = 10;

/// See [`crate::File::has_writers`].
pub(super) fn has_writers(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // Another process may wait for the end of the lease before it is given back. This process ignores the chosen
    // signal; the default one would end it.
    fcntl(fd, F_SETSIG, libc::SIGURG)?;
    match fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN) => Ok(true),
            // The storage has no leases, or refuses them to this process.
            Some(libc::EINVAL | libc::EACCES | libc::ENOLCK | libc::EOPNOTSUPP) => Ok(false),
            _ => Err(error),
        },
    }
}

fn fcntl(fd: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open, and these commands take a number.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{Mode, OFlags, open};

    use super::*;
    use crate::os::OsEnv;
    use crate::{Env, OpenMode};

    #[test]
    fn who_has_it_open_for_writing_is_noticed_until_he_has_not() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let opened = |how| open(&*path, how, Mode::empty()).unwrap();
        let (reader, other) = (opened(OFlags::RDONLY), opened(OFlags::RDONLY));
        let has_writers = || has_writers(reader.as_fd()).unwrap();
        assert!(!has_writers() && !has_writers(), "who reads does not count");
        for how in [OFlags::RDWR, OFlags::WRONLY] {
            let writer = opened(how);
            assert!(has_writers() && has_writers());
            drop(writer);
            assert!(!has_writers());
        }
        drop(other);
    }

    /// An open at the moment of such a question failed (EAGAIN): a commit that could not open one of its large files left a
    /// store that took no more writes.
    #[test]
    fn who_opens_a_file_waits_while_somebody_asks() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let asks = open(&*path, OFlags::RDONLY, Mode::empty()).unwrap();
        for mode in [OpenMode::ReadWrite, OpenMode::CreateOrOpen] {
            fcntl(asks.as_fd(), F_SETSIG, libc::SIGURG).unwrap();
            fcntl(asks.as_fd(), libc::F_SETLEASE, libc::F_RDLCK).unwrap();
            std::thread::scope(|scope| {
                let opened = scope.spawn(|| OsEnv::new().open(&path, mode));
                // SAFETY: the descriptor is open, and this command takes no argument.
                while unsafe { libc::fcntl(asks.as_raw_fd(), libc::F_GETLEASE) } == libc::F_RDLCK {
                    std::thread::yield_now();
                }
                fcntl(asks.as_fd(), libc::F_SETLEASE, libc::F_UNLCK).unwrap();
                assert!(opened.join().unwrap().unwrap().write_all_at(b"x", 0).is_ok());
            });
        }
    }
}
