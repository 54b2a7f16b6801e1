//! A machine that shows the files of another one and keeps all writes in memory, where readers see them.
//!
//! It serves programs that only read a store, on a storage without space for what the open writes.
//!
//! 1. A file is the one of the machine below until it is opened for writing.
//! 2. Then its written pages are in memory, until this machine is dropped.
//! 3. Changes of names are in memory too. Directories cannot be renamed.
//!
//! Invariant: nothing changes on the machine below.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use varve_types::Timestamp;

use crate::{
    Allocate, DirItem, Env, File, FileKind, FileLock, FileStat, JoinHandle, OpenMode, Seek, Space,
    Watch, copy_through_memory,
};

/// The bytes of a page, which is copied when a part of it is written.
const PAGE_BYTES: u64 = 4096;
/// The space that this machine reports, in bytes, for callers that write only if there is some.
const ROOM_BYTES: u64 = 1 << 40;

/// What a changed name stands for.
#[derive(Clone, Debug)]
enum Entry {
    /// Nothing.
    Gone,
    Dir,
    /// A file that was made, or opened for writing.
    Shadowed(Arc<Body>),
    /// The file at this path on the machine below.
    Moved(PathBuf),
}

/// The machine; see the module's comment.
pub struct ShadowEnv {
    below: Arc<dyn Env>,
    names: Mutex<BTreeMap<PathBuf, Entry>>,
}

/// The bytes of a file.
#[derive(Debug)]
struct Body {
    /// The file on the machine below, if there is one.
    below: Option<Arc<dyn File>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    len: u64,
    /// How many bytes of the file below still count.
    below_len: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
    modified: Timestamp,
    accessed: Timestamp,
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn exists_already() -> io::Error {
    io::ErrorKind::AlreadyExists.into()
}

impl ShadowEnv {
    /// A machine that shows `below` and does not change it.
    pub fn new(below: Arc<dyn Env>) -> Arc<ShadowEnv> {
        Arc::new(ShadowEnv { below, names: Mutex::default() })
    }

    /// Returns whether something is at `path`.
    fn is_there(&self, names: &BTreeMap<PathBuf, Entry>, path: &Path) -> io::Result<bool> {
        match names.get(path) {
            Some(Entry::Gone) => Ok(false),
            Some(_) => Ok(true),
            None => match self.below.stat(path) {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(error) => Err(error),
            },
        }
    }

    /// Removes the name `path` of a directory or a file, and returns what it stood for.
    fn take(&self, names: &mut BTreeMap<PathBuf, Entry>, path: &Path) -> io::Result<Entry> {
        if !self.is_there(names, path)? {
            return Err(not_found());
        }
        let was = names.insert(path.to_path_buf(), Entry::Gone);
        Ok(was.unwrap_or_else(|| Entry::Moved(path.to_path_buf())))
    }

    fn check_parent(&self, names: &BTreeMap<PathBuf, Entry>, path: &Path) -> io::Result<()> {
        let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
            return Ok(());
        };
        if self.is_there(names, parent)? { Ok(()) } else { Err(not_found()) }
    }

    fn new_body(&self) -> Arc<Body> {
        let now = self.below.now();
        let state =
            State { len: 0, below_len: 0, pages: BTreeMap::new(), modified: now, accessed: now };
        Arc::new(Body { below: None, state: Mutex::new(state) })
    }

    /// Opens the file at `path` below, for writing in memory.
    fn shadowed(&self, path: &Path) -> io::Result<Arc<Body>> {
        let file = self.below.open(path, OpenMode::Read)?;
        let FileStat { len, modified, accessed, .. } = file.stat()?;
        let state = State { len, below_len: len, pages: BTreeMap::new(), modified, accessed };
        Ok(Arc::new(Body { below: Some(file), state: Mutex::new(state) }))
    }
}

impl fmt::Debug for ShadowEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShadowEnv").field("below", &self.below).finish_non_exhaustive()
    }
}

impl Env for ShadowEnv {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut names = self.names.lock();
        let is_new = || mode == OpenMode::CreateNew || mode == OpenMode::CreateOrOpen;
        let body = match names.get(path).cloned() {
            Some(Entry::Dir) => return Err(io::ErrorKind::IsADirectory.into()),
            Some(Entry::Shadowed(body)) => Some(body),
            Some(Entry::Moved(from)) if mode == OpenMode::Read => {
                return self.below.open(&from, mode);
            }
            Some(Entry::Moved(from)) => Some(self.shadowed(&from)?),
            Some(Entry::Gone) => None,
            None if mode == OpenMode::Read => return self.below.open(path, mode),
            None if self.is_there(&names, path)? => Some(self.shadowed(path)?),
            None => None,
        };
        let body = match body {
            Some(_) if mode == OpenMode::CreateNew => return Err(exists_already()),
            Some(body) => body,
            None if is_new() => {
                self.check_parent(&names, path)?;
                self.new_body()
            }
            None => return Err(not_found()),
        };
        names.insert(path.to_path_buf(), Entry::Shadowed(Arc::clone(&body)));
        let now = Arc::clone(&self.below);
        Ok(Arc::new(ShadowFile { body, clock: now }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        if matches!(names.get(from), Some(Entry::Dir)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.check_parent(&names, to)?;
        if let (Some(Entry::Shadowed(one)), Some(Entry::Shadowed(other))) =
            (names.get(from), names.get(to))
            && Arc::ptr_eq(one, other)
        {
            // As for rename(2), two names of one file both stay.
            return Ok(());
        }
        let entry = self.take(&mut names, from)?;
        names.insert(to.to_path_buf(), entry);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        if !self.is_there(&names, from)? {
            return Err(not_found());
        }
        if self.is_there(&names, to)? {
            return Err(exists_already());
        }
        self.check_parent(&names, to)?;
        // From now on both names stand for one file.
        let entry = match self.take(&mut names, from)? {
            Entry::Moved(below) => Entry::Shadowed(self.shadowed(&below)?),
            entry => entry,
        };
        names.insert(from.to_path_buf(), entry.clone());
        names.insert(to.to_path_buf(), entry);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.take(&mut self.names.lock(), path).map(drop)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        if self.is_there(&names, path)? {
            return Err(exists_already());
        }
        self.check_parent(&names, path)?;
        names.insert(path.to_path_buf(), Entry::Dir);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        if !self.list(path)?.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        self.take(&mut self.names.lock(), path).map(drop)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirItem>> {
        let names = self.names.lock();
        let mut items = match names.get(dir) {
            Some(Entry::Dir) => Vec::new(),
            Some(_) => return Err(not_found()),
            None => self.below.list(dir)?,
        };
        let own = || names.iter().filter(|(path, _)| path.parent() == Some(dir));
        let changed: BTreeSet<_> = own().filter_map(|(path, _)| path.file_name()).collect();
        items.retain(|item| !changed.contains(item.name.as_os_str()));
        for (path, entry) in own() {
            let kind = match entry {
                Entry::Gone => continue,
                Entry::Dir => FileKind::Dir,
                Entry::Shadowed(_) => FileKind::File,
                Entry::Moved(from) => self.below.stat(from)?.kind,
            };
            items.extend(path.file_name().map(|name| DirItem { name: name.to_owned(), kind }));
        }
        Ok(items)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        let entry = self.names.lock().get(path).cloned();
        match entry {
            Some(Entry::Gone) => Err(not_found()),
            Some(Entry::Dir) => {
                let now = self.below.now();
                let (kind, len, allocated) = (FileKind::Dir, 0, 0);
                Ok(FileStat { kind, len, allocated, modified: now, accessed: now })
            }
            Some(Entry::Shadowed(body)) => Ok(body.stat()),
            Some(Entry::Moved(from)) => self.below.stat(&from),
            None => self.below.stat(path),
        }
    }

    fn confine(&self, dir: &Path) -> io::Result<()> {
        self.below.confine(dir)
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn watch(&self, _dir: &Path) -> io::Result<Watch> {
        Ok(Watch::of_none())
    }

    fn sync_below(&self, _watch: &Watch, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.below.lock(path)
    }

    /// A caller may take any space, which is in memory. The free space below is reported as it is.
    fn space(&self, path: &Path) -> io::Result<Space> {
        Ok(Space { available_bytes: ROOM_BYTES, ..self.below.space(path)? })
    }

    fn now(&self) -> Timestamp {
        self.below.now()
    }

    fn monotonic(&self) -> Duration {
        self.below.monotonic()
    }

    fn boot_id(&self) -> u128 {
        self.below.boot_id()
    }

    fn random(&self) -> u64 {
        self.below.random()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        self.below.spawn(name, body)
    }

    fn sleep(&self, duration: Duration) {
        self.below.sleep(duration);
    }

    fn is_deterministic(&self) -> bool {
        self.below.is_deterministic()
    }
}

impl Body {
    fn stat(&self) -> FileStat {
        let state = self.state.lock();
        FileStat {
            kind: FileKind::File,
            len: state.len,
            allocated: state.len.next_multiple_of(PAGE_BYTES),
            modified: state.modified,
            accessed: state.accessed,
        }
    }

    /// Returns the current bytes of a page.
    fn page(&self, state: &State, number: u64) -> io::Result<Box<[u8]>> {
        if let Some(page) = state.pages.get(&number) {
            return Ok(page.clone());
        }
        let mut page = vec![0; PAGE_BYTES as usize];
        let start = number * PAGE_BYTES;
        let len = state.below_len.saturating_sub(start).min(PAGE_BYTES) as usize;
        if let Some(below) = self.below.as_ref().filter(|_| len > 0) {
            below.read_exact_at(&mut page[..len], start)?;
        }
        Ok(page.into())
    }

    fn write(&self, state: &mut State, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (number, start) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let len = (PAGE_BYTES as usize - start).min(bytes.len() - done);
            let mut page = self.page(state, number)?;
            page[start..start + len].copy_from_slice(&bytes[done..done + len]);
            state.pages.insert(number, page);
            done += len;
        }
        state.len = state.len.max(offset + bytes.len() as u64);
        Ok(())
    }

    fn set_len(&self, state: &mut State, len: u64) -> io::Result<()> {
        if len < state.len {
            // Bytes after the end must read as zeros if the file grows again.
            let tail = (len % PAGE_BYTES) as usize;
            if tail > 0 {
                let mut page = self.page(state, len / PAGE_BYTES)?;
                page[tail..].fill(0);
                state.pages.insert(len / PAGE_BYTES, page);
            }
            state.pages.split_off(&len.div_ceil(PAGE_BYTES));
            state.below_len = state.below_len.min(len);
        }
        state.len = len;
        Ok(())
    }
}

/// An open file.
#[derive(Debug)]
struct ShadowFile {
    body: Arc<Body>,
    clock: Arc<dyn Env>,
}

impl File for ShadowFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.body.state.lock();
        let len = (buf.len() as u64).min(state.len.saturating_sub(offset)) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let start = (at % PAGE_BYTES) as usize;
            let count = (PAGE_BYTES as usize - start).min(len - done);
            let page = self.body.page(&state, at / PAGE_BYTES)?;
            buf[done..done + count].copy_from_slice(&page[start..start + count]);
            done += count;
        }
        Ok(len)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.body.state.lock();
        self.body.write(&mut state, buf, offset)?;
        state.modified = self.clock.now();
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.body.state.lock();
        self.body.set_len(&mut state, len)?;
        state.modified = self.clock.now();
        Ok(())
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        let mut state = self.body.state.lock();
        let end = offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        if matches!(how, Allocate::PunchHole | Allocate::ZeroRange | Allocate::ZeroKeepSize) {
            let mut at = offset;
            while at < end.min(state.len) {
                let next = ((at / PAGE_BYTES + 1) * PAGE_BYTES).min(end).min(state.len);
                let zeros = vec![0; (next - at) as usize];
                self.body.write(&mut state, &zeros, at)?;
                at = next;
            }
        }
        if matches!(how, Allocate::Extend | Allocate::ZeroRange) {
            state.len = state.len.max(end);
        }
        Ok(())
    }

    /// All of it is data.
    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        /// No such address.
        const ENXIO: i32 = 6;
        let len = self.body.state.lock().len;
        match what {
            _ if offset >= len => Err(io::Error::from_raw_os_error(ENXIO)),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(len),
        }
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(self.body.stat())
    }

    fn set_times(
        &self,
        accessed: Option<Timestamp>,
        modified: Option<Timestamp>,
    ) -> io::Result<()> {
        let mut state = self.body.state.lock();
        state.accessed = accessed.unwrap_or(state.accessed);
        state.modified = modified.unwrap_or(state.modified);
        Ok(())
    }

    fn copy_from(&self, source: &dyn File, from: u64, to: u64, len: u64) -> io::Result<u64> {
        copy_through_memory(source, from, self, to, len)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests;
