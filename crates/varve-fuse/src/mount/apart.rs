//! Walks of a server over mounts of its own, on threads that end when the process is killed.
//!
//! A thread that waits for an answer to a request that was read cannot be killed. It is let go when its connection ends, which
//! is when the device is closed: a killed process has that done once no thread with its descriptors is left. One that waits
//! for its own process would be left for ever, and keep what the process has open and locked. So whoever walks over a mount of
//! its own process has a table of descriptors of its own, without the device.
#![allow(unsafe_code, reason = "close_range(2), which rustix has not")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::mpsc;
use std::thread;

use parking_lot::Mutex;
use rustix::thread::gettid;

/// The first descriptor behind the standard ones.
const FIRST: u32 = 3;

/// Does `walk` on a new thread, which has no descriptors but the standard ones and `kept`: `walk` may own none, nor log. What it
/// opens is open on that thread alone. Gives the first part of what `walk` returns; the second is dropped on that thread, later.
///
/// An error if there can be no such thread.
pub fn walk_apart<T: Send + 'static, Left>(
    kept: Option<BorrowedFd<'_>>,
    walk: impl FnOnce() -> (T, Left) + Send + 'static,
) -> io::Result<T> {
    let kept = kept.map(|kept| kept.as_raw_fd().unsigned_abs());
    let (tell, told) = mpsc::sync_channel(1);
    thread::Builder::new().name("varve-walk".to_owned()).spawn(move || {
        let _walking = Walking::begin();
        let (walked, _left) = match leave_descriptors(kept) {
            Ok(()) => {
                let (walked, left) = walk();
                (Ok(walked), Some(left))
            }
            Err(error) => (Err(error), None),
        };
        // Whoever asked waits for it.
        let _ = tell.send(walked);
    })?;
    told.recv().map_err(|_| io::Error::other("the thread that walked has panicked"))?
}

/// The threads that walk now, as the kernel calls them.
static WALKING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// One of them, until dropped.
struct Walking(u32);

impl Walking {
    fn begin() -> Walking {
        let thread = gettid().as_raw_nonzero().get().cast_unsigned();
        WALKING.lock().push(thread);
        Walking(thread)
    }
}

impl Drop for Walking {
    fn drop(&mut self) {
        WALKING.lock().retain(|thread| *thread != self.0);
    }
}

/// Whether the thread that made a request walks over mounts of this process: what it asks must not wait for what it does.
pub(crate) fn walks_apart(thread: u32) -> bool {
    WALKING.lock().contains(&thread)
}

/// Gives the calling thread a table of descriptors of its own, with the standard ones and `kept`.
fn leave_descriptors(kept: Option<u32>) -> io::Result<()> {
    let behind = kept.map_or(FIRST, |kept| kept + 1);
    close_range(behind, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if behind > FIRST + 1 {
        close_range(FIRST, behind - 2, 0)?;
    }
    Ok(())
}

fn close_range(first: u32, last: u32, flags: u32) -> io::Result<()> {
    // SAFETY: the descriptors are closed in a table that only this thread has, which owns none of them.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd, RawFd};

    use super::*;

    /// Those of `descriptors` that the calling thread has open.
    fn open_among(descriptors: &[RawFd]) -> Vec<RawFd> {
        let is_open = |fd: &RawFd| {
            // SAFETY: it is only asked about, in the course of the call.
            rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*fd) }).is_ok()
        };
        descriptors.iter().copied().filter(is_open).collect()
    }

    #[test]
    fn a_walk_has_none_of_the_descriptors_of_others() {
        let pipes: Vec<(OwnedFd, OwnedFd)> =
            (0..4).map(|_| std::io::pipe().unwrap()).map(|(r, w)| (r.into(), w.into())).collect();
        let all: Vec<RawFd> =
            pipes.iter().flat_map(|(r, w)| [r.as_raw_fd(), w.as_raw_fd()]).collect();
        for kept in [None, Some(&pipes[0].0), Some(&pipes[2].1), Some(&pipes[3].1)] {
            let (asked, left) = (all.clone(), kept.map(|kept| kept.as_raw_fd()));
            let open = walk_apart(kept.map(|kept| kept.as_fd()), move || (open_among(&asked), ()));
            assert_eq!(open.unwrap(), left.into_iter().collect::<Vec<_>>());
        }
        assert_eq!(open_among(&all), all, "whoever asked has them still");
    }
}
