//! Measures how much of its CPU a thread gets that gives way, from the scheduler's numbers in /proc.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The times of one thread since it began to give way.
#[derive(Debug)]
pub(super) struct Times {
    schedstat: File,
    stat: File,
    had: Had,
    looked_at: Instant,
}

/// The times of a thread since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Had {
    /// How long it ran. While the thread runs, the kernel updates this at ticks of the scheduler.
    ran: Duration,
    /// How long it was ready before it ran. A wait counts when it is over.
    waited: Duration,
}

impl Times {
    /// Begins to measure a thread of this process.
    pub(super) fn of(tid: libc::pid_t, now: Instant) -> io::Result<Times> {
        let (schedstat, stat) = (open(tid, "schedstat")?, open(tid, "stat")?);
        let had = Had::read(&schedstat)?;
        Ok(Times { schedstat, stat, had, looked_at: now })
    }

    /// Returns whether the thread was ready without running for more than half of the time since the last call, or
    /// never ran and is ready. True also if the times cannot be read.
    pub(super) fn was_kept(&mut self, now: Instant) -> bool {
        let Ok(had) = Had::read(&self.schedstat) else { return true };
        let waited = had.waited.saturating_sub(self.had.waited);
        let was_kept = 2 * waited > now.duration_since(self.looked_at)
            || (had.ran == self.had.ran && is_ready(&self.stat));
        (self.had, self.looked_at) = (had, now);
        was_kept
    }
}

impl Had {
    fn read(schedstat: &File) -> io::Result<Had> {
        Had::parse(&read::<64>(schedstat)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses the first two numbers, which are nanoseconds (the kernel's Documentation/scheduler/sched-stats).
    fn parse(schedstat: &[u8]) -> Option<Had> {
        let mut numbers = std::str::from_utf8(schedstat).ok()?.split_ascii_whitespace();
        let mut next = || Some(Duration::from_nanos(numbers.next()?.parse().ok()?));
        Some(Had { ran: next()?, waited: next()? })
    }
}

/// Opens a file of a thread in /proc. Builds the path without the allocator.
fn open(tid: libc::pid_t, name: &str) -> io::Result<File> {
    let mut path = [0; 64];
    let mut rest = &mut path[..];
    write!(rest, "/proc/self/task/{tid}/{name}")?;
    let len = 64 - rest.len();
    File::open(OsStr::from_bytes(&path[..len]))
}

/// Returns whether a thread runs or is ready to run.
fn is_ready(stat: &File) -> bool {
    // Its id and its name of at most 15 bytes stand before the state.
    read::<64>(stat).is_ok_and(|stat| state(&stat) == Some(b'R'))
}

/// Returns the state in a stat (proc(5)). It follows the name in parentheses, and the name may contain parentheses.
fn state(stat: &[u8]) -> Option<u8> {
    let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end_of_name + 2).copied()
}

/// Reads the beginning of a file of /proc anew; pads a shorter one with blanks.
pub(super) fn read<const N: usize>(file: &File) -> io::Result<[u8; N]> {
    let mut text = [0; N];
    let len = file.read_at(&mut text, 0)?;
    text[len..].fill(b' ');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_understood() {
        let had = Had::parse(b"1500 20 7\n ").unwrap();
        assert_eq!(had, Had { ran: Duration::from_nanos(1500), waited: Duration::from_nanos(20) });
        assert_eq!(Had::parse(b"1500"), None);
        assert_eq!(state(b"12 (varve-ring-0) R 1 12 "), Some(b'R'));
        assert_eq!(state(b"12 (a) R (b) S 1 12 "), Some(b'S'));
        assert_eq!(state(b"12 (cut"), None);
    }

    #[test]
    fn a_thread_that_sleeps_was_not_kept_and_one_that_runs_says_so() {
        let mut own =
            Times::of(rustix::thread::gettid().as_raw_nonzero().get(), Instant::now()).unwrap();
        assert!(is_ready(&own.stat));
        std::thread::scope(|scope| {
            let (_stay, until_gone) = std::sync::mpsc::channel::<()>();
            let (tell, told) = std::sync::mpsc::channel();
            scope.spawn(move || {
                tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                let _ = until_gone.recv();
            });
            let mut sleeper = Times::of(told.recv().unwrap(), Instant::now()).unwrap();
            varve_testkit::eventually("it sleeps", || !is_ready(&sleeper.stat));
            std::thread::sleep(Duration::from_millis(20));
            sleeper.was_kept(Instant::now());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!sleeper.was_kept(Instant::now()));
        });
        own.was_kept(Instant::now());
    }
}
