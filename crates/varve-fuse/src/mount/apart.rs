//! Walks of a server over its own mounts, in separate processes.
//!
//! A thread that waits for the answer to a request cannot be killed once the request was read. It returns when the
//! connection ends, which is when the device is closed. A killed process closes the device when no thread has its
//! descriptors left, or its memory, which holds the rings. A thread that waits for its own process would therefore
//! stay for ever, and keep what the process has open and locked. So a walk over a mount of the same process runs in a
//! child process, which has neither the device nor rings.
//!
//! 1. [`walk_apart`] forks a child, which closes the device and unmaps the rings.
//! 2. The child walks, writes the outcome to a pipe and ends.
//! 3. The parent reads the outcome and reaps the child.
//!
//! Invariant: the child uses nothing that another thread of the parent may have locked.
#![allow(unsafe_code, reason = "fork(2), and what its child may not keep")]

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use parking_lot::Mutex;
use rustix::process::{Pid, WaitOptions, waitpid};

/// The first descriptor behind the standard ones.
const FIRST: u32 = 3;
/// The kernel's name for the memory of rings in proc_pid_maps(5).
const RING: &str = "anon_inode:[io_uring]";

/// Runs `walk` in a child process that has only the standard descriptors and `kept`. Returns the first part of what
/// `walk` returns; the second part is dropped later. REQUIRES: `walk` owns no descriptor, writes no log and takes no
/// lock, because the child has no other thread.
///
/// Fails with the error of the walk, or if the process cannot be started.
pub fn walk_apart<Left>(
    kept: Option<BorrowedFd<'_>>,
    walk: impl FnOnce() -> (io::Result<()>, Left),
) -> io::Result<()> {
    let (told, tell) = io::pipe()?;
    let mut walking = WALKING.lock();
    // SAFETY: the child uses its own copy of memory, and nothing that another thread may have locked: the allocator is made for
    // that (fork(3) of the GNU C library), and `walk` keeps to what is said above. It never returns from here.
    let child = match unsafe { libc::fork() } {
        // As the number of a process it would stand for all children.
        -1 => return Err(io::Error::last_os_error()),
        0 => be_child(kept, &tell, walk),
        child => child,
    };
    let child = Pid::from_raw(child).ok_or_else(io::Error::last_os_error)?;
    let number = child.as_raw_nonzero().get().cast_unsigned();
    walking.push(number);
    drop((walking, tell));
    let walked = read_outcome(told);
    let ended = move || {
        // What is left ends with the child.
        let _ = waitpid(Some(child), WaitOptions::empty());
        WALKING.lock().retain(|walking| *walking != number);
    };
    if let Err(error) = thread::Builder::new().name("varve-walked".to_owned()).spawn(ended) {
        log::warn!("process {number} has ended and stays listed: {error}");
    }
    walked
}

/// The processes that walk now. The lock is held while one starts, so that it makes no request before it is listed.
static WALKING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Returns whether the process that made a request is such a child. Its requests must not wait for the end of its
/// walk.
pub(crate) fn walks_apart(process: u32) -> bool {
    WALKING.lock().contains(&process)
}

/// Walks, writes the outcome and ends.
fn be_child<Left>(
    kept: Option<BorrowedFd<'_>>,
    tell: &PipeWriter,
    walk: impl FnOnce() -> (io::Result<()>, Left),
) -> ! {
    let kept = kept.map(|kept| kept.as_raw_fd()).into_iter().chain([tell.as_raw_fd()]);
    let kept = kept.map(i32::unsigned_abs).collect();
    let walked = catch_unwind(AssertUnwindSafe(|| {
        let left = leave_descriptors(kept).and_then(|()| leave_rings());
        let (walked, left) = match left {
            Ok(()) => {
                let (walked, left) = walk();
                (walked, Some(left))
            }
            Err(error) => (Err(error), None),
        };
        let said = write_outcome(tell, walked);
        drop(left);
        said
    }));
    let status = i32::from(!matches!(walked, Ok(Ok(()))));
    // SAFETY: it ends the process, without what the parent wants done at its end.
    unsafe { libc::_exit(status) }
}

/// Writes the outcome: an errno (0 for none), and a text if the error has no errno.
fn write_outcome(mut tell: &PipeWriter, walked: io::Result<()>) -> io::Result<()> {
    let (errno, text) = match &walked {
        Ok(()) => (0, String::new()),
        Err(error) => match error.raw_os_error() {
            Some(errno) => (errno, String::new()),
            None => (0, error.to_string()),
        },
    };
    tell.write_all(
        &[&errno.to_le_bytes()[..], &[u8::from(walked.is_ok())], text.as_bytes()].concat(),
    )
}

fn read_outcome(mut told: PipeReader) -> io::Result<()> {
    // The child may have the pipe open for long; it writes once.
    let mut outcome = [0; 4096];
    let len = told.read(&mut outcome)?;
    let Some((errno, [is_ok, text @ ..])) = outcome[..len].split_first_chunk() else {
        return Err(io::Error::other("the process that walked over the mount has died"));
    };
    match (i32::from_le_bytes(*errno), is_ok) {
        (0, 0) => Err(io::Error::other(String::from_utf8_lossy(text).into_owned())),
        (0, _) => Ok(()),
        (errno, _) => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Closes all descriptors but the standard ones and `kept`.
fn leave_descriptors(mut kept: Vec<u32>) -> io::Result<()> {
    kept.sort_unstable();
    let mut from = FIRST;
    for fd in kept {
        if fd > from {
            close_range(from, fd - 1)?;
        }
        from = from.max(fd + 1);
    }
    close_range(from, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the descriptors are closed in the table of a child, which owns none of them.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Unmaps the memory of rings, which keeps them open.
#[allow(clippy::disallowed_methods, reason = "the map belongs to the machine")]
fn leave_rings() -> io::Result<()> {
    // Paths in it need not be text.
    let maps = std::fs::read("/proc/self/maps")?;
    for line in maps.split(|byte| *byte == b'\n').filter(|line| line.ends_with(RING.as_bytes())) {
        let range = line.split(|byte| *byte == b' ').next();
        let range = range.and_then(|range| std::str::from_utf8(range).ok()?.split_once('-'));
        let hex = |text| usize::from_str_radix(text, 16).ok();
        let range = range.and_then(|(from, to)| hex(from).zip(hex(to)));
        let (from, to) =
            range.ok_or_else(|| io::Error::other("/proc/self/maps is not to be read"))?;
        // SAFETY: a ring is used by the threads that the parent has for it, of which the child has none.
        unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(from), to - from)? };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd, RawFd};

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    /// Those of `descriptors` that the calling process has open.
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
            let left: Vec<RawFd> = kept.map(|kept| kept.as_raw_fd()).into_iter().collect();
            let walk = || {
                let open = open_among(&all);
                let is_right = open == left;
                (if is_right { Ok(()) } else { Err(io::Error::other(format!("{open:?}"))) }, ())
            };
            walk_apart(kept.map(|kept| kept.as_fd()), walk).unwrap();
        }
        assert_eq!(open_among(&all), all, "whoever asked has them still");
    }

    /// The number of a process that could not be was waited for, which stands for all children: so their ends were taken from
    /// those who had started them.
    #[test]
    fn where_there_can_be_no_process_it_is_said_why() {
        // In a user namespace of its own it may have no process more itself.
        let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if !rustix::process::geteuid().is_root() || !users.contains("4294967295") {
            return varve_testkit::skipped("root alone can be somebody who may have no process");
        }
        let before = getrlimit(Resource::Nproc);
        setrlimit(Resource::Nproc, Rlimit { current: Some(0), ..before }).unwrap();
        let as_nobody = || {
            let nobody = rustix::process::Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            walk_apart(None, || (Ok(()), ()))
        };
        let walked = thread::scope(|scope| scope.spawn(as_nobody).join());
        setrlimit(Resource::Nproc, before).unwrap();
        assert_eq!(walked.unwrap().unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        assert!(WALKING.lock().iter().all(|number| *number != u32::MAX));
    }

    #[test]
    fn a_walk_tells_what_came_of_it() {
        let errno = walk_apart(None, || (Err(io::Error::from_raw_os_error(16)), ())).unwrap_err();
        assert_eq!(errno.raw_os_error(), Some(16));
        let text = walk_apart(None, || (Err(io::Error::other("why not")), ())).unwrap_err();
        assert_eq!(text.to_string(), "why not");
        assert!(walk_apart::<()>(None, || panic!("as the test wants it")).is_err());
    }
}
