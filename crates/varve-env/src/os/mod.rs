//! The real machine: Linux system calls, the system's clocks, the kernel's randomness and threads.
//!
//! Invariants: files get mode 0600 and directories 0700, because a store's files hold the contents of files whose
//! owners may not share them.
//!
//! A user who may write to a store's directory must not be able to make its opener, often root, read or write
//! elsewhere. Below a directory given to [`Env::confine`] no symbolic link is followed (openat2(2), RESOLVE_BENEATH
//! and RESOLVE_NO_SYMLINKS; on kernels without it, Linux before 5.6, only in the last name), and only regular files
//! are opened as files.

#![allow(
    clippy::disallowed_methods,
    reason = "this module is where the machine comes in; everything else goes through Env"
)]

mod disk;
mod file;
mod inherited;
mod lease;
mod lock;
pub mod memory;
mod path;
pub mod peer;
pub mod signals;
mod whole;
mod window;

use std::ffi::OsStr;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};
use varve_types::Timestamp;

use crate::failures::tried;
use crate::watch::{Watch, Watched, sync_each_below};
use crate::{
    DirItem, Env, File, FileKind, FileLock, FileStat, JoinHandle, OpenMode, Space, ThreadPanicked,
};
use file::{OsFile, stat_of};
pub use inherited::{ends_with_its_starter, nothing_inherited};
use path::Roots;

/// The file with the id of this boot.
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";
/// Permissions of new directories.
const DIR_MODE: Mode = Mode::RWXU;

/// The machine this process runs on.
#[derive(Debug)]
pub struct OsEnv {
    boot_id: u128,
    roots: Roots,
    /// The disk below the first confined directory, once there is one.
    disk: OnceLock<u64>,
}

impl OsEnv {
    /// Returns the real machine. Without a readable boot id every process counts as a new boot. This is always safe:
    /// recovery then trusts only what was synced.
    pub fn new() -> Arc<OsEnv> {
        let boot_id = std::fs::read_to_string(BOOT_ID_PATH)
            .ok()
            .and_then(|text| parse_boot_id(&text))
            .unwrap_or_else(|| (u128::from(random_u64()) << 64) | u128::from(random_u64()));
        Arc::new(OsEnv { boot_id, roots: Roots::default(), disk: OnceLock::new() })
    }

    /// Takes over the lock that `fd` holds, which comes from [`FileLock::fd`] of another process.
    pub fn adopt_lock(fd: OwnedFd) -> Box<dyn FileLock> {
        Box::new(lock::adopt(fd))
    }

    /// Returns whether an opener has locked the file ([`Env::lock`]). During the call nobody can lock the file, but
    /// other callers may ask too.
    pub fn is_locked(&self, path: &Path) -> io::Result<bool> {
        lock::is_held(self.roots.open_file(path, OFlags::RDONLY)?)
    }

    /// Opens a file for appending, such as a log; makes it if it is missing.
    pub fn open_to_append(&self, path: &Path) -> io::Result<OwnedFd> {
        self.roots.open_file(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)
    }

    /// Opens a directory, to reach names in it that are not files of a store, such as sockets.
    pub fn open_dir(&self, path: &Path) -> io::Result<OwnedFd> {
        self.roots.open(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// Returns what a name stands for, by a call about this name alone.
    fn kind_of(&self, path: &Path) -> io::Result<FileKind> {
        let (dir, name) = self.roots.parent(path)?;
        Ok(stat_of(&fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?)?.kind)
    }
}

impl Env for OsEnv {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let flags = match mode {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::ReadWrite => OFlags::RDWR,
            OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            OpenMode::CreateOrOpen => OFlags::RDWR | OFlags::CREATE,
        };
        Ok(Arc::new(OsFile::new(self.roots.open_file(path, flags)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((from_dir, from), (to_dir, to)) = (self.roots.parent(from)?, self.roots.parent(to)?);
        Ok(fs::renameat(from_dir, from, to_dir, to)?)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((from_dir, from), (to_dir, to)) = (self.roots.parent(from)?, self.roots.parent(to)?);
        Ok(fs::linkat(from_dir, from, to_dir, to, AtFlags::empty())?)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.roots.parent(path)?;
        Ok(fs::unlinkat(dir, name, AtFlags::empty())?)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.roots.parent(path)?;
        Ok(fs::mkdirat(dir, name, DIR_MODE)?)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.roots.parent(path)?;
        Ok(fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirItem>> {
        let mut items = Vec::new();
        for entry in fs::Dir::new(self.roots.open_dir(dir)?)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                fs::FileType::RegularFile => FileKind::File,
                fs::FileType::Directory => FileKind::Dir,
                // Not every file system reports the kind in a listing.
                fs::FileType::Unknown => match self.kind_of(&dir.join(name)) {
                    Ok(kind) => kind,
                    // The name was removed meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                },
                _ => FileKind::Other,
            };
            items.push(DirItem { name: name.to_owned(), kind });
        }
        Ok(items)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        stat_of(&fs::fstat(self.roots.open(path, OFlags::PATH)?)?)
    }

    fn confine(&self, dir: &Path) -> io::Result<()> {
        self.roots.add(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.roots.sync_dir(dir, |dir| fs::fsync(dir))
    }

    fn watch(&self, dir: &Path) -> io::Result<Watch> {
        let dir = self.roots.open_dir(dir)?;
        let is_whole = whole::is_synced_whole(fs::fstatfs(&dir)?.f_type);
        Ok(if is_whole { Watch(Watched::FileSystem(dir)) } else { Watch::of_none() })
    }

    /// One call for the whole file system, however many files there are, if the file system supports that.
    fn sync_below(&self, watch: &Watch, dir: &Path) -> io::Result<()> {
        match &watch.0 {
            Watched::FileSystem(descriptor) => {
                tried(fs::syncfs(descriptor).map_err(io::Error::from))
            }
            _ => sync_each_below(self, dir),
        }
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        let fd = self.roots.open_file(path, OFlags::RDWR | OFlags::CREATE)?;
        Ok(lock::acquire(fd)?.map(|lock| Box::new(lock) as Box<dyn FileLock>))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let stat = fs::fstatvfs(self.roots.open(path, OFlags::PATH)?)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Space {
            total_bytes: bytes(stat.f_blocks),
            free_bytes: bytes(stat.f_bfree),
            available_bytes: bytes(stat.f_bavail),
        })
    }

    fn now(&self) -> Timestamp {
        let now = clock_gettime(ClockId::Realtime);
        u32::try_from(now.tv_nsec)
            .ok()
            .and_then(|nanos| Timestamp::new(now.tv_sec, nanos))
            .unwrap_or(Timestamp::EPOCH)
    }

    fn monotonic(&self) -> Duration {
        let now = clock_gettime(ClockId::Monotonic);
        let secs = u64::try_from(now.tv_sec).unwrap_or(0);
        Duration::new(secs, u32::try_from(now.tv_nsec).unwrap_or(0))
    }

    fn boot_id(&self) -> u128 {
        let disk = self.disk.get().copied().unwrap_or_else(|| {
            let Some(root) = self.roots.first() else { return 0 };
            *self.disk.get_or_init(|| disk::sequence(&root).unwrap_or(0))
        });
        self.boot_id ^ u128::from(disk)
    }

    fn random(&self) -> u64 {
        random_u64()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        spawn_thread(name, body)
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn is_deterministic(&self) -> bool {
        false
    }
}

/// Returns a number from the kernel's generator, or from the standard library's keyed hasher if the kernel has none.
fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    match retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty())) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => std::hash::RandomState::new().hash_one(bytes),
    }
}

/// Returns the number in a boot id such as `2f1c7a0e-9d35-4a77-a7f1-0c0a64a6f3d2`.
fn parse_boot_id(text: &str) -> Option<u128> {
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

/// Starts a thread of the operating system. The simulated machine uses it too.
pub(crate) fn spawn_thread(
    name: &str,
    body: Box<dyn FnOnce() + Send>,
) -> io::Result<Box<dyn JoinHandle>> {
    let handle = std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
    Ok(Box::new(OsThread(handle)))
}

/// A running thread.
struct OsThread(std::thread::JoinHandle<()>);

impl JoinHandle for OsThread {
    fn join(self: Box<Self>) -> Result<(), ThreadPanicked> {
        self.0.join().map_err(|_| ThreadPanicked)
    }
}

#[cfg(test)]
mod tests;
