//! Room on the device that the store holds, so that it can be opened and emptied when there is none left.
//!
//! Room that is merely free belongs to whoever writes first, and large files, which grow below the store, and other programs write
//! without asking. So the store holds some as files, `RESERVE-00` and on, all of it allocated:
//!
//! 1. [`Reserve::refill`] makes the files that are missing, once the device has less room than [`HELD_BELOW_BYTES`].
//! 2. What a recovery, a removal, a flush, a merge, or a collection writes goes through [`Reserve::env`]: an operation that finds no room
//!    is tried again after a file of the reserve was removed. What makes the store larger does not: [`crate::space`] refuses it before,
//!    and it writes by the environment below.
//! 3. The last [`OPENING_PIECES`] files are given back only while the store is opened, so that it can be opened wherever it was killed; a
//!    half of them only until it is recovered, so that it can be killed then and opened again. [`LENT_PIECES`] more are for
//!    [`Reserve::lend_inode`] alone: names that the owner of the store makes beside it once it is open.
//! 4. What was given back is taken again with the next removal of a file, and at each periodic sync.
//!
//! The files hold nothing. A store without them is whole, and gets them when there is room.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use varve_env::rng::Rng;
use varve_env::{
    Allocate, DirItem, Env, File, FileLock, FileStat, JoinHandle, OpenMode, Seek, Space, Watch,
    Window, is_no_space,
};
use varve_types::Timestamp;

use crate::files::StoreFile;
use crate::options::reserve_bytes;

/// Files that are given back while the store runs; together they hold the bytes that are asked for.
const PIECES: u8 = 16;
/// Further files, the first by their numbers, for who opens the store. That makes four files before it removes any (a log, a manifest, its
/// copy, a new `CURRENT`), and may be killed then.
const OPENING_PIECES: u8 = 8;
/// Further files for names beside the store: the two sockets of a daemon.
const LENT_PIECES: u8 = 2;
/// Files that are not given back while the store runs, except to lend them.
const KEPT_PIECES: u8 = OPENING_PIECES + LENT_PIECES;
/// And those that are not given back for what follows a recovery.
const KEPT_RECOVERED: u8 = OPENING_PIECES / 2 + LENT_PIECES;
/// So many of these hold one block, for the sake of their inodes, and the others as much as those before.
const KEPT_INODES: u8 = 6 + LENT_PIECES;
/// A device with more room than this is not filled between two looks at it.
const HELD_BELOW_BYTES: u64 = 16 << 30;
/// Sizes of files are multiples of this, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// See the module's comment.
#[derive(Debug)]
pub struct Reserve {
    below: Arc<dyn Env>,
    dir: PathBuf,
    /// Bytes to hold on a device of any size; 0: none.
    wanted_bytes: u64,
    /// Files that are there, with the bytes that each holds; 0 for one that has yet to get its room.
    held: Mutex<BTreeMap<u8, u64>>,
    /// The sum of those that a running store may take.
    usable_bytes: AtomicU64,
    /// So many files are not given back at present, except to lend them.
    kept: AtomicU8,
    /// Some was given back since the last refill.
    has_given: AtomicBool,
}

impl Reserve {
    /// The reserve of the engine in `dir`, of which `wanted_bytes` at most are to be held, while the store is opened.
    pub fn find(below: &Arc<dyn Env>, dir: &Path, wanted_bytes: u64) -> Arc<Reserve> {
        let mut held = BTreeMap::new();
        for number in 0..PIECES + KEPT_PIECES {
            // A copy of a store, and a power cut, may leave files without room. They still hold an inode.
            if let Ok(stat) = below.stat(&StoreFile::Reserve(number).path(dir)) {
                held.insert(number, stat.allocated);
            }
        }
        let reserve = Reserve {
            below: Arc::clone(below),
            dir: dir.to_path_buf(),
            wanted_bytes,
            held: Mutex::new(held),
            usable_bytes: AtomicU64::new(0),
            kept: AtomicU8::new(LENT_PIECES),
            has_given: AtomicBool::new(false),
        };
        reserve.count(&reserve.held.lock());
        Arc::new(reserve)
    }

    /// The engine's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The environment below, for what makes the store larger.
    pub fn below(&self) -> &Arc<dyn Env> {
        &self.below
    }

    /// An environment whose operations take room of the reserve where there is no other.
    pub fn env(self: &Arc<Self>) -> Arc<dyn Env> {
        Arc::new(ReserveEnv(Arc::clone(self)))
    }

    /// Bytes that operations of a running store can take.
    pub(crate) fn usable_bytes(&self) -> u64 {
        self.usable_bytes.load(Ordering::Relaxed)
    }

    /// The store is recovered: what another recovery takes is kept from now on.
    pub(crate) fn is_recovered(&self) {
        self.kept.store(KEPT_RECOVERED, Ordering::Relaxed);
    }

    /// The store is open: all that is held for that is kept from now on.
    pub(crate) fn is_open(&self) {
        self.kept.store(KEPT_PIECES, Ordering::Relaxed);
    }

    /// Runs `attempt`, again with room of the reserve as long as it finds none and there is some.
    pub fn with_room<T>(&self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match attempt() {
                Err(error) if is_no_space(&error) && self.give_back() => {}
                other => return other,
            }
        }
    }

    fn count(&self, held: &BTreeMap<u8, u64>) {
        let usable = held.values().rev().take(held.len().saturating_sub(KEPT_PIECES.into()));
        self.usable_bytes.store(usable.sum(), Ordering::Relaxed);
    }

    /// Gives the room of one file back to the device. False if there is none to give.
    fn give_back(&self) -> bool {
        let mut held = self.held.lock();
        if held.len() <= self.kept.load(Ordering::Relaxed).into() {
            return false;
        }
        let Some((number, _)) = held.pop_last() else { return false };
        self.remove(number, &held);
        true
    }

    /// Gives the inode of one file back to the device, for a name beside the store. False if there is none to give.
    pub(crate) fn lend_inode(&self) -> bool {
        let mut held = self.held.lock();
        // The smallest.
        let Some((number, _)) = held.pop_first() else { return false };
        self.remove(number, &held);
        true
    }

    /// Removes the file `number`, which is no longer among those that are `held`.
    fn remove(&self, number: u8, held: &BTreeMap<u8, u64>) {
        self.has_given.store(true, Ordering::Relaxed);
        self.count(held);
        let path = StoreFile::Reserve(number).path(&self.dir);
        // Some file systems give the room of a removed file back later than that of a cut one.
        let cut = || {
            let file = self.below.open(&path, OpenMode::ReadWrite)?;
            file.set_len(0)?;
            file.sync_data()
        };
        let cut = cut();
        let removed = self.below.remove_file(&path);
        if let Err(error) = cut.or(removed) {
            log::warn!("cannot give back {}: {error}", path.display());
        }
    }

    /// Makes the files that are missing, as far as there is room, and removes those that are not wanted.
    pub fn refill(&self) {
        let mut held = self.held.lock();
        if self.wanted_bytes > 0 && is_whole(&held) {
            return;
        }
        if let Err(error) = self.refill_locked(&mut held)
            && !is_no_space(&error)
        {
            log::warn!("cannot hold room in {}: {error}", self.dir.display());
        }
        self.has_given.fetch_and(!is_whole(&held), Ordering::Relaxed);
        self.count(&held);
    }

    fn refill_locked(&self, held: &mut BTreeMap<u8, u64>) -> io::Result<()> {
        if self.wanted_bytes == 0 {
            while let Some((number, _)) = held.pop_last() {
                self.below.remove_file(&StoreFile::Reserve(number).path(&self.dir))?;
            }
            return Ok(());
        }
        let Space { total_bytes, available_bytes, .. } = self.below.space(&self.dir)?;
        let wanted = reserve_bytes(self.wanted_bytes, total_bytes);
        let piece = wanted / u64::from(PIECES) / BLOCK_BYTES * BLOCK_BYTES;
        if piece == 0 || available_bytes >= HELD_BELOW_BYTES {
            return Ok(());
        }
        let mut left = available_bytes;
        for number in 0..PIECES + KEPT_PIECES {
            if held.get(&number).is_some_and(|bytes| *bytes > 0) {
                continue;
            }
            // What is running needs some, too.
            if left < 2 * piece {
                return Ok(());
            }
            let piece = if number < KEPT_INODES { BLOCK_BYTES } else { piece };
            let path = StoreFile::Reserve(number).path(&self.dir);
            let made = self.make(&path, piece);
            if let Err(error) = made {
                let _ = self.below.remove_file(&path);
                held.remove(&number);
                return Err(error);
            }
            held.insert(number, piece);
            left -= piece;
        }
        Ok(())
    }

    /// Makes a file that takes `bytes`. A power cut may leave less of it, which the next opening notices.
    fn make(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = self.below.open(path, OpenMode::CreateOrOpen)?;
        match file.allocate(Allocate::Extend, 0, bytes) {
            Err(error) if !is_no_space(&error) => self.write_noise(file.as_ref(), bytes),
            allocated => allocated,
        }
    }

    /// Takes room by writing where it cannot be had otherwise: of what does not become smaller by compression.
    fn write_noise(&self, file: &dyn File, bytes: u64) -> io::Result<()> {
        let mut rng = Rng::new(self.below.random());
        for at in (0..bytes).step_by(BLOCK_BYTES as usize) {
            file.write_all_at(&rng.bytes(BLOCK_BYTES as usize), at)?;
        }
        file.sync_data()
    }
}

/// Whether all files are there, with their room.
fn is_whole(held: &BTreeMap<u8, u64>) -> bool {
    held.len() == usize::from(PIECES + KEPT_PIECES) && held.values().all(|bytes| *bytes > 0)
}

/// See [`Reserve::env`].
struct ReserveEnv(Arc<Reserve>);

impl fmt::Debug for ReserveEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.below.fmt(f)
    }
}

impl Env for ReserveEnv {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        if mode == OpenMode::Read {
            return self.0.below.open(path, mode);
        }
        let file = self.0.with_room(|| self.0.below.open(path, mode))?;
        Ok(Arc::new(ReserveFile { file, reserve: Arc::clone(&self.0) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.with_room(|| self.0.below.rename(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.with_room(|| self.0.below.link(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.with_room(|| self.0.below.remove_file(path))?;
        if self.0.has_given.load(Ordering::Relaxed) {
            self.0.refill();
        }
        Ok(())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.with_room(|| self.0.below.create_dir(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.0.with_room(|| self.0.below.remove_dir(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirItem>> {
        self.0.below.list(dir)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        self.0.below.stat(path)
    }

    fn confine(&self, dir: &Path) -> io::Result<()> {
        self.0.below.confine(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.below.sync_dir(dir)
    }

    fn watch(&self, dir: &Path) -> io::Result<Watch> {
        self.0.below.watch(dir)
    }

    fn sync_below(&self, watch: &Watch, dir: &Path) -> io::Result<()> {
        self.0.below.sync_below(watch, dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.0.with_room(|| self.0.below.lock(path))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.0.below.space(path)
    }

    fn now(&self) -> Timestamp {
        self.0.below.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.below.monotonic()
    }

    fn boot_id(&self) -> u128 {
        self.0.below.boot_id()
    }

    fn random(&self) -> u64 {
        self.0.below.random()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        self.0.below.spawn(name, body)
    }

    fn sleep(&self, duration: Duration) {
        self.0.below.sleep(duration);
    }

    fn is_deterministic(&self) -> bool {
        self.0.below.is_deterministic()
    }
}

/// A file whose writes take room of the reserve. A sync that fails is not repeated: what it was to write may be lost.
#[derive(Debug)]
struct ReserveFile {
    file: Arc<dyn File>,
    reserve: Arc<Reserve>,
}

impl File for ReserveFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.reserve.with_room(|| self.file.write_all_at(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.reserve.with_room(|| self.file.write_at(buf, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.reserve.with_room(|| self.file.set_len(len))
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        self.reserve.with_room(|| self.file.allocate(how, offset, len))
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        self.file.seek(what, offset)
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.file.stat()
    }

    fn set_times(
        &self,
        accessed: Option<Timestamp>,
        modified: Option<Timestamp>,
    ) -> io::Result<()> {
        self.file.set_times(accessed, modified)
    }

    fn copy_from(&self, source: &dyn File, from: u64, to: u64, len: u64) -> io::Result<u64> {
        self.reserve.with_room(|| self.file.copy_from(source, from, to, len))
    }

    fn share_all(&self, source: &dyn File) -> io::Result<bool> {
        self.file.share_all(source)
    }

    fn window(&self, offset: u64, len: u64) -> io::Result<Option<Box<dyn Window>>> {
        self.file.window(offset, len)
    }

    fn warm_room(&self, offset: u64, len: u64) {
        self.file.warm_room(offset, len);
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file.prefetch(offset, len);
    }

    fn has_writers(&self) -> io::Result<bool> {
        self.file.has_writers()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.fd()
    }
}
