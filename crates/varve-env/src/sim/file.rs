//! Open files and locks of the simulated machine.
//!
//! Invariant: each call counts as one operation of the machine, which a crash point or a fault can make fail.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_types::Timestamp;

use super::content::{Change, PAGE_BYTES};
use super::crash::UnderWay;
use super::disk::{Disk, EBADF, EFBIG, EINVAL, EIO, ENOSPC, ENXIO, NodeId, errno};
use super::fault::{SimOp, is_crash};
use super::{Shared, State};
use crate::{Allocate, File, FileKind, FileLock, FileStat, Seek, Window, is_passing};

/// An open file.
pub(super) struct SimFile {
    shared: Arc<Shared>,
    pub(super) node: NodeId,
    path: PathBuf,
    writable: bool,
}

impl SimFile {
    /// Opens `node`, counting the handle. REQUIRES: `state` is the locked state of `shared`.
    pub(super) fn open(
        shared: &Arc<Shared>,
        state: &mut State,
        node: NodeId,
        path: &Path,
        writable: bool,
    ) -> SimFile {
        if let Some(node) = state.disk.node_mut(node) {
            node.handles += 1;
        }
        SimFile { shared: Arc::clone(shared), node, path: path.to_owned(), writable }
    }

    /// Makes one change.
    fn change(&self, op: SimOp, range: (u64, u64), change: Change) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        let begun = state.begin(op, &[&self.path], Some(range));
        self.change_begun(&mut state, begun, change).1
    }

    /// Writes `bytes`, by copying them into a window or else by a call. A faulty write leaves a prefix; says also how long that
    /// is.
    fn write(&self, bytes: &[u8], offset: u64, by_copy: bool) -> (usize, io::Result<()>) {
        let bytes: Arc<[u8]> = bytes.into();
        let mut state = self.shared.state.lock();
        let (range, node) = ((offset, bytes.len() as u64), self.node);
        if self.writable && !state.control.crashed {
            let bytes = Arc::clone(&bytes);
            state.under_way = Some(UnderWay { node, offset, bytes, by_copy });
        }
        let begun = state.begin(SimOp::Write, &[&self.path], Some(range));
        if !state.control.crashed {
            state.under_way = None;
        }
        self.change_begun(&mut state, begun, Change::Write { offset, bytes })
    }

    fn change_begun(
        &self,
        state: &mut State,
        begun: io::Result<()>,
        change: Change,
    ) -> (usize, io::Result<()>) {
        if !self.writable {
            return (0, begun.and_then(|()| errno(EBADF)));
        }
        let now = state.tick();
        match (begun, change) {
            (Ok(()), change) => state.disk.change_file_by(self.node, change, now),
            (Err(error), Change::Write { offset, bytes }) if !is_crash(&error) => {
                let kept = state.rng.below(bytes.len() as u64 + 1) as usize;
                let bytes = bytes[..kept].into();
                match state.disk.change_file(self.node, Change::Write { offset, bytes }, now) {
                    Ok(()) => (kept, Err(error)),
                    Err(other) => (0, Err(other)),
                }
            }
            (Err(error), _) => (0, Err(error)),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let state = &mut *self.shared.state.lock();
        match state.begin(SimOp::Sync, &[&self.path], None) {
            Ok(()) if state.control.ignores(SimOp::Sync, &self.path) => Ok(()),
            Ok(()) => state.disk.sync_file(self.node, &mut state.rng),
            Err(error) => {
                if !is_crash(&error) && !is_passing(&error) {
                    state.disk.lose_bytes(self.node, &mut state.rng);
                }
                Err(error)
            }
        }
    }
}

impl File for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::Read, &[&self.path], Some((offset, buf.len() as u64)))?;
        Ok(state.disk.file(self.node)?.current.read(buf, offset))
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let len = buf.len() as u64;
        if len == 0 {
            return Ok(());
        }
        check_end(offset, len)?;
        self.write(buf, offset, false).1
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let len = buf.len() as u64;
        check_end(offset, len)?;
        match self.write(buf, offset, false) {
            (part, Err(error)) if part > 0 && error.raw_os_error() == Some(ENOSPC) => Ok(part),
            (_, done) => done.map(|()| buf.len()),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        check_end(0, len)?;
        self.change(SimOp::SetLen, (len, 0), Change::SetLen(len))
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return errno(EINVAL);
        }
        check_end(offset, len)?;
        let change = match how {
            Allocate::Extend => Change::Reserve { offset, len, grow: true },
            Allocate::KeepSize => Change::Reserve { offset, len, grow: false },
            Allocate::PunchHole | Allocate::ZeroKeepSize => {
                Change::Zero { offset, len, grow: false }
            }
            Allocate::ZeroRange => Change::Zero { offset, len, grow: true },
        };
        self.change(SimOp::Allocate, (offset, len), change)
    }

    fn copy_from(&self, source: &dyn File, from: u64, to: u64, len: u64) -> io::Result<u64> {
        crate::copy_through_memory(source, from, self, to, len)
    }

    fn share_all(&self, source: &dyn File) -> io::Result<bool> {
        if !self.shared.state.lock().disk.shares_room {
            return Ok(false);
        }
        let (len, mut at) = (source.stat()?.len, 0);
        while at < len {
            at = match source.seek(Seek::Data, at) {
                Err(error) if error.raw_os_error() == Some(ENXIO) => break,
                data => data?,
            };
            let end = source.seek(Seek::Hole, at)?;
            while at < end {
                at += self.copy_from(source, at, at, end - at)?;
            }
        }
        self.set_len(len)?;
        Ok(true)
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::Stat, &[&self.path], Some((offset, 0)))?;
        state.disk.file(self.node)?.current.seek(what, offset).map_or_else(|| errno(ENXIO), Ok)
    }

    fn stat(&self) -> io::Result<FileStat> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::Stat, &[&self.path], None)?;
        stat_of(&state.disk, self.node)
    }

    fn set_times(
        &self,
        accessed: Option<Timestamp>,
        modified: Option<Timestamp>,
    ) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.begin(SimOp::SetTimes, &[&self.path], None)?;
        if let Some(node) = state.disk.node_mut(self.node) {
            node.accessed = accessed.unwrap_or(node.accessed);
            node.modified = modified.unwrap_or(node.modified);
        }
        Ok(())
    }

    fn window(&self, offset: u64, len: u64) -> io::Result<Option<Box<dyn Window>>> {
        let mut state = self.shared.state.lock();
        if state.disk.rules.copies_on_write {
            return Ok(None);
        }
        let file = SimFile::open(&self.shared, &mut state, self.node, &self.path, self.writable);
        Ok(Some(Box::new(SimWindow { file, range: offset..offset + len, failed: false })))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.descriptor.get().map(AsFd::as_fd)
    }
}

/// A window that is written as the file is: each write is an operation that may fail or be the last.
#[derive(Debug)]
struct SimWindow {
    file: SimFile,
    range: Range<u64>,
    failed: bool,
}

impl Window for SimWindow {
    fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if offset < self.range.start || offset + bytes.len() as u64 > self.range.end {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.failed {
            return errno(EIO);
        }
        let written = self.file.write(bytes, offset, true).1;
        // A copy into a hole that finds no room is no call that could say so: it raises a signal.
        let written = written.map_err(|error| match error.raw_os_error() {
            Some(ENOSPC) => io::Error::from_raw_os_error(EIO),
            _ => error,
        });
        written.inspect_err(|_| self.failed = true)
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.shared.state.lock().disk.release(self.node, |node| node.handles -= 1);
    }
}

/// Refuses ranges beyond the largest offset.
fn check_end(offset: u64, len: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => errno(EFBIG),
    }
}

/// Returns what a node's stat says.
pub(super) fn stat_of(disk: &Disk, id: NodeId) -> io::Result<FileStat> {
    let kind = disk.kind(id);
    let (len, allocated) = match kind {
        FileKind::File => {
            let content = &disk.file(id)?.current;
            (content.len(), content.page_count() * PAGE_BYTES)
        }
        _ => (disk.dir(id)?.current.len() as u64, 0),
    };
    let Some(node) = disk.nodes.get(&id) else {
        return errno(super::disk::ENOENT);
    };
    Ok(FileStat { kind, len, allocated, modified: node.modified, accessed: node.accessed })
}

/// A held lock.
pub(super) struct SimLock {
    pub(super) file: SimFile,
}

impl FileLock for SimLock {
    fn write_note(&self, note: &[u8]) -> io::Result<()> {
        self.file.write_all_at(note, 0)?;
        self.file.set_len(note.len() as u64)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl fmt::Debug for SimLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimLock").field("path", &self.file.path).finish_non_exhaustive()
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.file.shared.state.lock().locked.remove(&self.file.node);
    }
}
