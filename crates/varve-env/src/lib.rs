//! Everything a store needs from the machine: files, clock, randomness and threads.
//!
//! The rooms above see only [`Env`] and [`File`]. [`os::OsEnv`] is the real machine;
//! [`sim::SimEnv`] is a seeded machine in memory whose disk can fail, fill up and lose power. [`ShadowEnv`] is another machine of which
//! nothing is written.
//!
//! What an implementation promises, and what the rest of Varve builds its crash safety on:
//!
//! 1. Bytes handed to [`File::write_all_at`] or [`Window::write`] survive the death of the process, not of the machine.
//! 2. Bytes and length survive a power cut once [`File::sync_data`] returns.
//! 3. A name (created, renamed, linked, removed) survives a power cut once [`Env::sync_dir`] of its
//!    directory returns; until then either state may be found.
//! 4. After a failed sync nothing is promised about what was written before it, unless it failed as [`is_passing`] says: then it
//!    was not tried.

mod failures;
pub mod os;
mod shadow;
pub mod sim;
mod watch;

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

/// What the storage below says of one file.
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
    /// Time of the last read that the storage below noticed.
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

/// Room on the storage below, in bytes and in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes not in use.
    pub free_bytes: u64,
    /// Bytes that this process may still take.
    pub available_bytes: u64,
}

/// How [`File::allocate`] changes a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Reserve room and extend the length over the range.
    Extend,
    /// Reserve room, leave the length.
    KeepSize,
    /// Give the range's room back; it reads as zeros; the length stays.
    PunchHole,
    /// Zero the range, extending the length over it.
    ZeroRange,
    /// Zero the range within the length.
    ZeroKeepSize,
}

/// Where [`File::seek`] looks from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that holds data.
    Data,
    /// The next byte of a hole; the end of the file counts as one.
    Hole,
}

/// The most bytes that [`File::copy_from`] takes through memory at once.
const COPY_PIECE_BYTES: u64 = 1 << 20;

/// [`File::copy_from`] through memory.
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

    /// Writes a part of `buf` at `offset`, all of it if nothing is in the way, and says how many bytes that is: at least one, if there
    /// are any.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.write_all_at(buf, offset).map(|()| buf.len())
    }

    /// Makes the file's bytes and length durable.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the file's bytes, length and times durable.
    fn sync_all(&self) -> io::Result<()>;

    /// Cuts or extends (with a hole) the file to `len` bytes.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Changes the allocation of a range.
    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()>;

    /// The next data or hole at or after `offset`; `ENXIO` (raw error 6) past the end.
    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64>;

    /// Length, space and times.
    fn stat(&self) -> io::Result<FileStat>;

    /// Sets the times; `None` leaves one as it is.
    fn set_times(&self, accessed: Option<Timestamp>, modified: Option<Timestamp>)
    -> io::Result<()>;

    /// Copies up to `len` bytes from `from` of `source` to `to` of this file, and says how many: fewer at the
    /// end of `source`, or because a call is not to take long. Shares room instead if the storage can.
    fn copy_from(&self, source: &dyn File, from: u64, to: u64, len: u64) -> io::Result<u64>;

    /// Makes this empty file one with the bytes of `source`, which must be a file of the same machine, if the storage can
    /// have them share room. False if it cannot: nothing has happened then.
    fn share_all(&self, _source: &dyn File) -> io::Result<bool> {
        Ok(false)
    }

    /// A window over `len` bytes from `offset` on, through which they are written without a system call. `None` where a
    /// write through it could fail for want of room.
    ///
    /// REQUIRES: what is written through it is allocated and within the file's length by then, and the file is not cut below
    /// that as long as the window is open.
    fn window(&self, _offset: u64, _len: u64) -> io::Result<Option<Box<dyn Window>>> {
        Ok(None)
    }

    /// Brings room into memory that will soon be written to, and reads as zeros: a few writes, in place of a fault or more for each
    /// page that reads and reserves it. The next sync writes all of it, and those after it need not note that it is in use now. A
    /// hint, which may do nothing.
    ///
    /// REQUIRES: the range is allocated and within the file's length, and nothing has been written there.
    fn warm_room(&self, _offset: u64, _len: u64) {}

    /// Has a range fetched that will be read soon, without waiting for it. A hint, which may do nothing.
    fn prefetch(&self, _offset: u64, _len: u64) {}

    /// Whether anybody on this machine has the file open for writing, or has closed it and still has a mapping that he made
    /// when he had. False where that cannot be told.
    ///
    /// REQUIRES: it is open for reading only. Descriptors of this process count as others do.
    fn has_writers(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// The descriptor to hand to the kernel, if this is a file of the operating system.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Fills `buf` from `offset`; `UnexpectedEof` if the file is shorter.
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

/// A part of a file that is open for writing, see [`File::window`]. What is written is the file's at once, for all who read
/// it; it survives the death of the process, and a power cut after the next sync of the file.
pub trait Window: Send + Sync + fmt::Debug {
    /// Writes `bytes` at `offset` of the file, all of which is within the window. On an error any part of them may
    /// have been written, and every further write fails.
    fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

/// Held while a store is open; dropping it lets the next opener in. The operating system drops it when
/// the process dies.
pub trait FileLock: Send + Sync + fmt::Debug {
    /// Replaces what the locked file says about its holder.
    fn write_note(&self, note: &[u8]) -> io::Result<()>;

    /// The descriptor that holds the lock, to hand to another process, if this is a lock of the operating
    /// system.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A thread that was started with [`Env::spawn`].
pub trait JoinHandle: Send {
    /// Waits for its end; `Err` if it panicked.
    fn join(self: Box<Self>) -> Result<(), ThreadPanicked>;
}

/// A thread ended by panicking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPanicked;

/// The machine.
pub trait Env: Send + Sync + fmt::Debug {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// Renames, replacing `to` if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives the file `from` the second name `to`.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Makes one directory; `AlreadyExists` if the name is taken.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory, in no particular order.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirItem>>;

    /// What a name stands for; `NotFound` if nothing.
    fn stat(&self, path: &Path) -> io::Result<FileStat>;

    /// From now on no path below `dir` leads elsewhere: symbolic links below it are refused, and so is what
    /// is no regular file. Does nothing where there are none.
    fn confine(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    /// Makes the names in a directory durable. For want of a descriptor it fails as [`is_passing`] says.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Begins to be told of what cannot be written below `dir`, which is there: comes before anything is written.
    fn watch(&self, dir: &Path) -> io::Result<Watch>;

    /// Makes durable every file and name below `dir`, whoever wrote it, in this process or an earlier one. Fails if anything
    /// there could not be written since `watch` was opened, or last failed; it may be of other files of the same storage.
    /// Files that are removed meanwhile are no error. REQUIRES: `dir` is there, and below that of the watch.
    fn sync_below(&self, watch: &Watch, dir: &Path) -> io::Result<()>;

    /// Creates the file if needed and locks it against every other opener, in this process or another.
    /// `Ok(None)` if somebody else holds it.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>>;

    /// Room left on the storage that holds `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;

    /// The time of day. It may jump, in either direction.
    fn now(&self) -> Timestamp;

    /// Time since some fixed point; never goes back.
    fn monotonic(&self) -> Duration;

    /// Differs after every restart of the machine, and after its storage was plugged in anew where that can be told: what an earlier
    /// process wrote with the same id is still all there, synced or not, unless the storage has lost it without a word.
    fn boot_id(&self) -> u128;

    /// A random number.
    fn random(&self) -> u64;

    /// Starts a thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>>;

    /// Waits.
    fn sleep(&self, duration: Duration);

    /// True if background work must run on the caller's thread at fixed points, so that one seed
    /// replays one run.
    fn is_deterministic(&self) -> bool;
}
