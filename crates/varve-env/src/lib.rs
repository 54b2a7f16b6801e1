//! Everything that a store needs from the machine: files, clocks, randomness and threads.
//!
//! The crates above see only [`Env`] and [`File`]. [`os::OsEnv`] is the real machine. [`sim::SimEnv`] is a seeded
//! machine in memory, whose disk can fail, fill up and lose power. [`ShadowEnv`] shows another machine and keeps all
//! writes in memory.
//!
//! Invariants: every implementation promises the following, and Varve builds its crash safety on it:
//!
//! 1. Bytes that [`File::write_all_at`] or [`Window::write`] has written survive the death of the process, but
//!    perhaps not of the machine.
//! 2. Bytes and length survive a power cut once [`File::sync_data`] returns.
//! 3. A name (created, renamed, linked, removed) survives a power cut once [`Env::sync_dir`] of its
//!    directory returns; until then either state may be found.
//! 4. After a failed sync nothing is promised about earlier writes, except if the failure [`is_passing`]: then the
//!    sync was not tried.

mod failures;
pub mod os;
pub mod rng;
mod shadow;
pub mod sim;
mod watch;

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use varve_types::Timestamp;

pub use failures::{is_no_space, is_passing, is_unreadable, told};
pub use shadow::ShadowEnv;
pub use watch::Watch;

/// How [`Env::open`] opens a file. All modes but `Read` allow reading and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, for reading only.
    Read,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// A new file; `AlreadyExists` if the name is taken.
    CreateNew,
    /// A new file, or the existing one as it is.
    CreateOrOpen,
}

/// What kind of object a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// Anything else.
    Other,
}

/// The attributes of a file of the storage below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// File, directory or other.
    pub kind: FileKind,
    /// Length in bytes.
    pub len: u64,
    /// Space taken, in bytes.
    pub allocated: u64,
    /// Time of the last change of its bytes.
    pub modified: Timestamp,
    /// Time of the last read, as far as the storage below records it.
    pub accessed: Timestamp,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirItem {
    /// The name within the directory.
    pub name: std::ffi::OsString,
    /// What it stands for.
    pub kind: FileKind,
}

/// The space of the storage below, in bytes and in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The number of all bytes.
    pub total_bytes: u64,
    /// The number of free bytes.
    pub free_bytes: u64,
    /// The number of bytes that this process may still take.
    pub available_bytes: u64,
}

/// How [`File::allocate`] changes a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Reserve space and extend the length over the range.
    Extend,
    /// Reserve space and leave the length.
    KeepSize,
    /// Free the space of the range, which then reads as zeros; the length stays.
    PunchHole,
    /// Zero the range, extending the length over it.
    ZeroRange,
    /// Zero the range within the length.
    ZeroKeepSize,
}

/// What [`File::seek`] looks for from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that holds data.
    Data,
    /// The next byte of a hole; the end of the file counts as one.
    Hole,
}

/// The most bytes that [`File::copy_from`] copies through memory at once.
const COPY_PIECE_BYTES: u64 = 1 << 20;

/// Copies as [`File::copy_from`] does, through memory.
fn copy_through_memory(
    source: &dyn File,
    from: u64,
    target: &dyn File,
    to: u64,
    len: u64,
) -> io::Result<u64> {
    let mut buffer = vec![0; len.min(COPY_PIECE_BYTES) as usize];
    let count = source.read_at(&mut buffer, from)?;
    // Of a copy that finds no room halfway the caller must hear what has changed.
    Ok(target.write_at(&buffer[..count], to)? as u64)
}

/// An open file. All calls take `&self` and may be made from several threads at once.
pub trait File: Send + Sync + fmt::Debug {
    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `buf` at `offset`, extending the file as needed. On an error any part of `buf`
    /// may have been written.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Writes a part of `buf` at `offset`, all of it if nothing prevents this. Returns the number of written bytes:
    /// at least one, unless `buf` is empty.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.write_all_at(buf, offset).map(|()| buf.len())
    }

    /// Makes the file's bytes and length durable.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the file's bytes, length and times durable.
    fn sync_all(&self) -> io::Result<()>;

    /// Cuts the file to `len` bytes, or extends it with a hole.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Changes the allocation of a range.
    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()>;

    /// Returns the next data or hole at or after `offset`; `ENXIO` (raw error 6) past the end.
    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64>;

    /// Returns the length, the space and the times.
    fn stat(&self) -> io::Result<FileStat>;

    /// Sets the times; `None` leaves one as it is.
    fn set_times(&self, accessed: Option<Timestamp>, modified: Option<Timestamp>)
    -> io::Result<()>;

    /// Copies up to `len` bytes from offset `from` of `source` to offset `to` of this file, and returns the count. It
    /// is smaller at the end of `source`, or when one call would take long. The storage shares space instead of
    /// copying if it can.
    fn copy_from(&self, source: &dyn File, from: u64, to: u64, len: u64) -> io::Result<u64>;

    /// Gives this empty file the bytes of `source`, a file of the same machine, if the storage can let both share
    /// space. False if it cannot; then nothing has changed.
    fn share_all(&self, _source: &dyn File) -> io::Result<bool> {
        Ok(false)
    }

    /// Opens a window over `len` bytes from `offset` on, through which a write needs no system call. `None` if a
    /// write through it could fail for lack of space.
    ///
    /// REQUIRES: a range that is written through the window is allocated and within the file's length at the time of
    /// the write, and nobody cuts the file below it while the window is open.
    fn window(&self, _offset: u64, _len: u64) -> io::Result<Option<Box<dyn Window>>> {
        Ok(None)
    }

    /// Brings a range into memory that will soon be written to and reads as zeros. This takes a few writes, in place
    /// of a fault or more for each page. The next sync writes the whole range, and later syncs need not record that
    /// it is in use now. This is a hint, which may do nothing.
    ///
    /// REQUIRES: the range is allocated and within the file's length, and nothing has been written there.
    fn warm_room(&self, _offset: u64, _len: u64) {}

    /// Starts to fetch a range that will be read soon, without waiting for it. This is a hint, which may do nothing.
    fn prefetch(&self, _offset: u64, _len: u64) {}

    /// Returns whether a process on this machine has the file open for writing, or still has a writable mapping of it
    /// after closing it. False if that cannot be found out.
    ///
    /// REQUIRES: the file is open for reading only. Descriptors of this process count like all others.
    fn has_writers(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Returns the descriptor to pass to the kernel, if this is a file of the operating system.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the file as what it is, for a file of the same machine that shares space with it ([`File::share_all`]).
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Reads `buf.len()` bytes at `offset`; `UnexpectedEof` if the file is shorter.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read_at(buf, offset)? {
            n if n == buf.len() => Ok(()),
            n => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("wanted {} bytes at offset {offset}, the file has {n}", buf.len()),
            )),
        }
    }
}

/// A part of a file that is open for writing, see [`File::window`]. Every reader of the file sees a write at once. A
/// write survives the death of the process, and a power cut after the next sync of the file.
pub trait Window: Send + Sync + fmt::Debug {
    /// Writes `bytes` at `offset` of the file, within the window. After an error any part of them may have been
    /// written, and every further write fails.
    fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

/// The lock of an open store. A drop lets the next opener in. The operating system drops the lock when the process
/// dies.
pub trait FileLock: Send + Sync + fmt::Debug {
    /// Replaces the text in the locked file about its holder.
    fn write_note(&self, note: &[u8]) -> io::Result<()>;

    /// Returns the descriptor that holds the lock, to pass to another process, if this is a lock of the operating
    /// system.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A thread that was started with [`Env::spawn`].
pub trait JoinHandle: Send {
    /// Waits for the end of the thread; `Err` if it panicked.
    fn join(self: Box<Self>) -> Result<(), ThreadPanicked>;
}

/// The error of a thread that panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPanicked;

/// The machine.
pub trait Env: Send + Sync + fmt::Debug {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// Renames `from` to `to`, and replaces `to` if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives the file `from` the second name `to`.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Makes one directory; `AlreadyExists` if the name is taken.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Returns the names in a directory, in no particular order.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirItem>>;

    /// Returns what a name stands for; `NotFound` if nothing.
    fn stat(&self, path: &Path) -> io::Result<FileStat>;

    /// From now on no path below `dir` leads elsewhere: opening fails for symbolic links below it, and for anything
    /// except regular files. Does nothing on a machine without such objects.
    fn confine(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    /// Makes the names in a directory durable. If no descriptor is left, the failure [`is_passing`].
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Begins to watch for writes below the existing directory `dir` that fail. A caller does this before it writes
    /// anything there.
    fn watch(&self, dir: &Path) -> io::Result<Watch>;

    /// Makes durable every file and name below `dir`, whichever process wrote it. Fails if a write there has failed
    /// since `watch` was opened or last reported a failure; the failed write may be of another file of the same
    /// storage. Files that are removed meanwhile are no error. REQUIRES: `dir` exists and is below the directory of
    /// the watch.
    fn sync_below(&self, watch: &Watch, dir: &Path) -> io::Result<()>;

    /// Creates the file if needed, and locks it against every other opener in this process or another. `Ok(None)` if
    /// another opener holds the lock.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>>;

    /// Returns the space of the storage that holds `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;

    /// Returns the time of day. It may jump in either direction.
    fn now(&self) -> Timestamp;

    /// Returns the time since a fixed point. It never goes back.
    fn monotonic(&self) -> Duration;

    /// Returns an id that changes with every restart of the machine, and when its storage was plugged in anew, if the
    /// machine can detect that. If the id is still the same, everything that an earlier process wrote is still there,
    /// synced or not, unless the storage has lost it silently.
    fn boot_id(&self) -> u128;

    /// Returns a random number.
    fn random(&self) -> u64;

    /// Starts a thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>>;

    /// Sleeps.
    fn sleep(&self, duration: Duration);

    /// Returns true if background work must run on the caller's thread at fixed points, so that one seed replays one
    /// run.
    fn is_deterministic(&self) -> bool;

    /// Returns what was asked of storage that counts its requests, by name. Empty for a local storage.
    fn storage_counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
