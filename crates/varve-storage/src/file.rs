//! An open file of a store.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use varve_env::{Allocate, File, FileKind, FileStat, Seek};
use varve_types::Timestamp;

use crate::extents::{Extent, ObjectId, Source};
use crate::node::{Node, State};
use crate::record::Change;
use crate::store::Store;

/// What was written to a file and is in memory is uploaded once it is more than this.
const WRITTEN_BYTES_MAX: u64 = 32 << 20;
/// How far a file is fetched ahead of a program that reads it from front to back.
const AHEAD_BYTES: u64 = 8 << 20;
/// Bytes that are copied through memory at once.
const COPY_BYTES: u64 = 1 << 20;
/// ENXIO.
const NO_DATA: i32 = 6;

/// An open file.
pub(crate) struct RemoteFile {
    store: Arc<Store>,
    node: Arc<Node>,
    can_write: bool,
    /// Where the next read begins if the file is read from front to back.
    expected: AtomicU64,
}

impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteFile").field("path", &self.node.lock().path).finish_non_exhaustive()
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        self.store.release(&self.node);
    }
}

impl RemoteFile {
    /// Opens a file. REQUIRES: the files of the store are locked, so that it is not removed meanwhile.
    pub(crate) fn open(store: &Arc<Store>, node: Arc<Node>, can_write: bool) -> RemoteFile {
        node.lock().handles += 1;
        RemoteFile { store: Arc::clone(store), node, can_write, expected: AtomicU64::new(0) }
    }

    /// Changes what is written to the file, and gives it this moment as its time unless `keep_times`.
    fn write<T>(&self, keep_times: bool, change: impl FnOnce(&mut State) -> T) -> io::Result<T> {
        if !self.can_write {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.store.check()?;
        let now = self.store.machine.now();
        let mut state = self.node.lock();
        let is_new = state.write().1;
        if !keep_times {
            state.write().0.modified = now;
        }
        let outcome = change(&mut state);
        drop(state);
        if is_new {
            self.store.is_dirty(&self.node);
        }
        Ok(outcome)
    }

    /// Puts an extent into what was written.
    fn put(&self, offset: u64, len: u64, source: Source) -> io::Result<()> {
        let memory = match &source {
            Source::Memory(bytes) => bytes.len() as u64,
            _ => 0,
        };
        let waits = self.write(false, |state| {
            let written = state.write().0;
            written.extents.put(offset, Extent { len, source });
            written.len = written.len.max(offset + len);
            written.memory_bytes += memory;
            written.memory_bytes
        })?;
        if waits >= WRITTEN_BYTES_MAX { self.store.upload(&self.node) } else { Ok(()) }
    }

    fn extend(&self, end: u64) -> io::Result<()> {
        self.write(false, |state| {
            let written = state.write().0;
            written.len = written.len.max(end);
        })
    }

    fn end_of(offset: u64, len: u64) -> io::Result<u64> {
        let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
        end.ok_or_else(|| io::ErrorKind::FileTooLarge.into())
    }

    /// The objects that hold a part of the file.
    fn objects(&self, from: u64, to: u64) -> Vec<(ObjectId, u64, u64)> {
        let state = self.node.lock();
        let to = to.min(state.len());
        if from >= to {
            return Vec::new();
        }
        let pieces = state.pieces(from..to).into_iter();
        let objects = pieces.filter_map(|(len, source)| match source {
            Some(Source::Object { id, from, .. }) => Some((id, from, len)),
            _ => None,
        });
        objects.collect()
    }
}

impl File for RemoteFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.store.check()?;
        let (pieces, count, len) = {
            let state = self.node.lock();
            let len = state.len();
            let count = len.saturating_sub(offset).min(buf.len() as u64) as usize;
            (state.pieces(offset..offset + count as u64), count, len)
        };
        if count == 0 {
            return Ok(0);
        }
        let end = offset + count as u64;
        let misses = self.store.cache.misses();
        let is_next = self.expected.swap(end, Ordering::Relaxed) == offset && offset > 0;
        let objects =
            pieces.iter().filter(|(_, source)| matches!(source, Some(Source::Object { .. })));
        if objects.count() > 1 {
            self.store.cache.prefetch(&self.objects(offset, end))?;
        }
        let mut at = 0;
        for (len, source) in pieces {
            let part = &mut buf[at..at + len as usize];
            match source {
                None | Some(Source::Zeros) => part.fill(0),
                Some(Source::Memory(bytes)) => part.copy_from_slice(&bytes),
                Some(Source::Object { id, from, .. }) => self.store.cache.read(id, from, part)?,
            }
            at += len as usize;
        }
        // What was fetched ahead before is used up.
        if is_next && end < len && self.store.cache.misses() > misses {
            self.store.cache.prefetch(&self.objects(end, end + AHEAD_BYTES))?;
        }
        Ok(count)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let len = buf.len() as u64;
        Self::end_of(offset, len)?;
        if buf.is_empty() {
            return Ok(());
        }
        self.put(offset, len, Source::Memory(Bytes::copy_from_slice(buf)))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.store.sync(&self.node)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.store.sync(&self.node)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::end_of(len, 0)?;
        self.write(false, |state| {
            let written = state.write().0;
            written.extents.take(len..u64::MAX);
            written.base_end = written.base_end.min(len);
            written.len = len;
        })
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        let end = Self::end_of(offset, len)?;
        match how {
            Allocate::KeepSize => Ok(()),
            Allocate::Extend => self.extend(end),
            Allocate::PunchHole | Allocate::ZeroKeepSize | Allocate::ZeroRange => {
                let now = self.node.lock().len();
                let zeros = offset.min(now)..end.min(now);
                if !zeros.is_empty() {
                    self.put(zeros.start, zeros.end - zeros.start, Source::Zeros)?;
                }
                if how == Allocate::ZeroRange { self.extend(end) } else { Ok(()) }
            }
        }
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        let state = self.node.lock();
        let len = state.len();
        if offset >= len {
            return Err(io::Error::from_raw_os_error(NO_DATA));
        }
        let mut at = offset;
        for (len, source) in state.pieces(offset..len) {
            let is_data = !matches!(source, None | Some(Source::Zeros));
            if is_data == (what == Seek::Data) {
                return Ok(at);
            }
            at += len;
        }
        match what {
            Seek::Hole => Ok(len),
            Seek::Data => Err(io::Error::from_raw_os_error(NO_DATA)),
        }
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(stat_of(&self.node))
    }

    fn set_times(
        &self,
        accessed: Option<Timestamp>,
        modified: Option<Timestamp>,
    ) -> io::Result<()> {
        self.write(true, |state| {
            let written = state.write().0;
            written.accessed = accessed.unwrap_or(written.accessed);
            written.modified = modified.unwrap_or(written.modified);
        })
    }

    fn copy_from(&self, source: &dyn File, from: u64, to: u64, len: u64) -> io::Result<u64> {
        let mut buffer = vec![0; len.min(COPY_BYTES) as usize];
        let count = source.read_at(&mut buffer, from)?;
        buffer.truncate(count);
        if count > 0 {
            self.put(to, count as u64, Source::Memory(buffer.into()))?;
        }
        Ok(count as u64)
    }

    /// Both files have the same objects from then on.
    fn share_all(&self, source: &dyn File) -> io::Result<bool> {
        let Some(source) = source.as_any().and_then(|file| file.downcast_ref::<RemoteFile>())
        else {
            return Ok(false);
        };
        if !Arc::ptr_eq(&self.store, &source.store) || Arc::ptr_eq(&self.node, &source.node) {
            return Ok(false);
        }
        // All of it but a rest becomes objects, and the rest is copied.
        self.store.upload(&source.node)?;
        let mut live = self.store.change()?;
        let mut state = source.node.lock();
        // The objects of a removed file are garbage for whoever reads the journal.
        let Some(path) = state.path.clone() else { return Ok(false) };
        state.share();
        let (len, pieces) = (state.len(), state.pieces(0..state.len()));
        drop(state);
        live.tree.changed(&path)?;
        live.pending.push(Change::Share(path));
        drop(live);
        let mut at = 0;
        for (len, piece) in pieces {
            if let Some(piece) = piece {
                self.put(at, len, piece)?;
            }
            at += len;
        }
        self.extend(len)?;
        Ok(true)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        let ranges = self.objects(offset, offset.saturating_add(len.min(AHEAD_BYTES)));
        // A read that needs it fails with the reason.
        let _ = self.store.cache.prefetch(&ranges);
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

pub(crate) fn stat_of(node: &Node) -> FileStat {
    let state = node.lock();
    let (accessed, modified) = state.times();
    let pieces = state.pieces(0..state.len()).into_iter();
    let data = pieces.filter(|(_, source)| !matches!(source, None | Some(Source::Zeros)));
    let allocated = data.map(|(len, _)| len).sum();
    FileStat { kind: FileKind::File, len: state.len(), allocated, modified, accessed }
}
