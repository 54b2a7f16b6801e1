//! One open file of the operating system.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, Advice, FallocateFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};
use rustix::time::Timespec;
use varve_types::Timestamp;

use super::lease;
use super::window::{self, OsWindow};
use crate::failures::tried;
use crate::{Allocate, File, FileKind, FileStat, Seek, Window, copy_through_memory};

/// A file descriptor. Reads and writes are positional, so that threads share it freely.
#[derive(Debug)]
pub(super) struct OsFile {
    fd: OwnedFd,
}

impl OsFile {
    /// Takes over `fd`.
    pub(super) fn new(fd: OwnedFd) -> OsFile {
        OsFile { fd }
    }
}

impl File for OsFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            match retry_on_intr(|| rustix::io::pread(&self.fd, &mut buf[done..], at))? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            done += self.write_at(&buf[done..], offset + done as u64)?;
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        match retry_on_intr(|| rustix::io::pwrite(&self.fd, buf, offset))? {
            0 if !buf.is_empty() => Err(io::ErrorKind::WriteZero.into()),
            n => Ok(n),
        }
    }

    // A failed fsync is reported once by the kernel and then forgotten, so it is never retried here,
    // not even on EINTR.
    fn sync_data(&self) -> io::Result<()> {
        tried(fs::fdatasync(&self.fd).map_err(io::Error::from))
    }

    fn sync_all(&self) -> io::Result<()> {
        tried(fs::fsync(&self.fd).map_err(io::Error::from))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(retry_on_intr(|| fs::ftruncate(&self.fd, len))?)
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        let flags = match how {
            Allocate::Extend => FallocateFlags::empty(),
            Allocate::KeepSize => FallocateFlags::KEEP_SIZE,
            Allocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Allocate::ZeroRange => FallocateFlags::ZERO_RANGE,
            Allocate::ZeroKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        Ok(retry_on_intr(|| fs::fallocate(&self.fd, flags, offset, len))?)
    }

    // The descriptor's own position moves, which nothing reads: all I/O is positional.
    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        let from = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        Ok(fs::seek(&self.fd, from)?)
    }

    fn stat(&self) -> io::Result<FileStat> {
        stat_of(&fs::fstat(&self.fd)?)
    }

    fn set_times(
        &self,
        accessed: Option<Timestamp>,
        modified: Option<Timestamp>,
    ) -> io::Result<()> {
        let times = fs::Timestamps {
            last_access: timespec_of(accessed),
            last_modification: timespec_of(modified),
        };
        Ok(fs::futimens(&self.fd, &times)?)
    }

    fn copy_from(&self, source: &dyn File, from: u64, to: u64, len: u64) -> io::Result<u64> {
        let through_memory = || copy_through_memory(source, from, self, to, len);
        let Some(fd) = source.fd() else { return through_memory() };
        let count = usize::try_from(len).unwrap_or(usize::MAX);
        let copy =
            || fs::copy_file_range(fd, Some(&mut { from }), &self.fd, Some(&mut { to }), count);
        match retry_on_intr(copy) {
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => through_memory(),
            copied => Ok(copied? as u64),
        }
    }

    fn share_all(&self, source: &dyn File) -> io::Result<bool> {
        let Some(fd) = source.fd() else { return Ok(false) };
        match retry_on_intr(|| fs::ioctl_ficlone(&self.fd, fd)) {
            // What a storage says that cannot, or not for these two.
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::INVAL | Errno::XDEV) => {
                Ok(false)
            }
            shared => Ok(shared.map(|()| true)?),
        }
    }

    fn window(&self, offset: u64, len: u64) -> io::Result<Option<Box<dyn Window>>> {
        let window = OsWindow::open(&self.fd, offset, len)?;
        Ok(window.map(|window| Box::new(window) as Box<dyn Window>))
    }

    fn warm_room(&self, offset: u64, len: u64) {
        window::warm_room(self, offset, len);
    }

    fn prefetch(&self, offset: u64, len: u64) {
        let _ = fs::fadvise(&self.fd, offset, NonZeroU64::new(len), Advice::WillNeed);
    }

    fn has_writers(&self) -> io::Result<bool> {
        lease::has_writers(self.fd.as_fd())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

/// `None` becomes UTIME_OMIT.
fn timespec_of(time: Option<Timestamp>) -> Timespec {
    match time {
        Some(time) => Timespec { tv_sec: time.secs(), tv_nsec: i64::from(time.nanos()) },
        None => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
    }
}

/// Converts the kernel's answer.
pub(super) fn stat_of(stat: &fs::Stat) -> io::Result<FileStat> {
    let time = |secs: i64, nanos: u64| {
        u32::try_from(nanos).ok().and_then(|nanos| Timestamp::new(secs, nanos)).ok_or(Errno::RANGE)
    };
    let kind = match fs::FileType::from_raw_mode(stat.st_mode) {
        fs::FileType::RegularFile => FileKind::File,
        fs::FileType::Directory => FileKind::Dir,
        _ => FileKind::Other,
    };
    Ok(FileStat {
        kind,
        len: u64::try_from(stat.st_size).map_err(|_| Errno::RANGE)?,
        allocated: u64::try_from(stat.st_blocks).map_err(|_| Errno::RANGE)? * 512,
        modified: time(stat.st_mtime, stat.st_mtime_nsec)?,
        accessed: time(stat.st_atime, stat.st_atime_nsec)?,
    })
}
