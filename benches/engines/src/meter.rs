//! Counts what the process takes of the machine, from outside of the stores and alike for all.
//!
//! - Processor time: of all threads of the process.
//! - Bytes written: given to write calls, from /proc/self/io (wchar), and what a store says that it wrote through mapped files.
//! - Bytes read: fetched from the device for this process (read_bytes). The page cache is emptied of the store's files
//!   every few operations, so that a store has no more memory than its own; what LevelDB has mapped cannot be, which
//!   favours it a little.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::store::Outcome;

/// The counters at a moment, or their growth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    /// Nanoseconds of processor time.
    pub(crate) cpu_ns: u64,
    /// Bytes given to write calls.
    pub(crate) written: u64,
    /// Bytes read from the device.
    pub(crate) read: u64,
}

impl Meter {
    /// The counters now.
    pub(crate) fn now() -> Outcome<Meter> {
        let text = fs::read_to_string("/proc/self/io")?;
        let counter = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
        };
        let (written, read) = (counter("wchar:"), counter("read_bytes:"));
        Ok(Meter { cpu_ns: cpu_ns()?, written, read })
    }

    /// What was taken since `self`.
    pub(crate) fn since(&self) -> Outcome<Meter> {
        let now = Meter::now()?;
        Ok(Meter {
            cpu_ns: now.cpu_ns - self.cpu_ns,
            written: now.written - self.written,
            read: now.read - self.read,
        })
    }
}

/// Nanoseconds that all threads of this process spent on processors.
pub(crate) fn cpu_ns() -> Outcome<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Waits until nothing has been written for five seconds: the store has nothing more to do in the background.
pub(crate) fn wait_until_still() -> Outcome<()> {
    let (mut last, mut still) = (Meter::now()?.written, 0);
    while still < 50 {
        std::thread::sleep(Duration::from_millis(100));
        let now = Meter::now()?.written;
        still = if now == last { still + 1 } else { 0 };
        last = now;
    }
    Ok(())
}

/// Bytes that the files below `dir` take on the device.
pub(crate) fn space_bytes(dir: &Path) -> Outcome<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(found) if found.is_dir() => space_bytes(&entry.path())?,
            Ok(found) => found.blocks() * 512,
            Err(_) => 0,
        };
    }
    Ok(bytes)
}

/// The files below `dir`, made durable and then kept open to be dropped from the page cache again and again.
pub(crate) struct Files(Vec<File>);

impl Files {
    /// The files that are there now.
    pub(crate) fn below(dir: &Path) -> Outcome<Files> {
        let mut files = Files(Vec::new());
        files.collect(dir)?;
        for file in &files.0 {
            file.sync_all()?;
        }
        Ok(files)
    }

    fn collect(&mut self, dir: &Path) -> Outcome<()> {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                self.collect(&path)?;
            } else if let Ok(file) = File::open(&path) {
                self.0.push(file);
            }
        }
        Ok(())
    }

    /// Drops what the page cache has of them.
    pub(crate) fn drop_cached(&self) {
        for file in &self.0 {
            // SAFETY: the descriptor is open; the call touches no memory of this process.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
    }
}
