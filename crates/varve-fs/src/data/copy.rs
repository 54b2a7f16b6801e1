//! Copying from file to file without the bytes leaving this program, and between large files without their
//! coming here: the storage below copies those, or shares their room.
//!
//! One call copies no more than a thread should be taken for. A hole of a small source becomes zeros.

use varve_vfs::{FsError, FsResult, Position};

use super::end_of;
use crate::fs::VarveFs;
use crate::node::OpenFile;

/// The most bytes one call copies from large file to large file.
const LARGE_BYTES_MAX: u64 = 128 << 20;
/// The most bytes one call copies otherwise.
const SMALL_BYTES_MAX: u64 = 1 << 20;

impl VarveFs {
    pub(crate) fn do_copy_range(&self, from: Position, to: Position, len: u64) -> FsResult<u64> {
        self.writable()?;
        let source = self.handles.get(from.ino, from.handle)?;
        let target = self.handles.get(to.ino, to.handle)?;
        if !source.flags.read || !target.flags.write || target.flags.append {
            return Err(FsError::BadHandle);
        }
        let overlaps = from.offset.abs_diff(to.offset) < len;
        if from.ino == to.ino && overlaps {
            return Err(FsError::Invalid("the ranges overlap"));
        }
        end_of(to.offset, len)?;
        if source.node.has_object() && target.node.has_object() {
            return self.copy_large((&source, from), (&target, to), len.min(LARGE_BYTES_MAX));
        }
        let len = usize::try_from(len.min(SMALL_BYTES_MAX)).unwrap_or(usize::MAX);
        let bytes = self.do_read(from.ino, from.handle, from.offset, len)?;
        let copied = self.write_what_fits(to.ino, to.handle, to.offset, &bytes, false)?;
        Ok(copied as u64)
    }

    fn copy_large(
        &self,
        (source, from): (&OpenFile, Position),
        (target, to): (&OpenFile, Position),
        len: u64,
    ) -> FsResult<u64> {
        let read = self.object_file(&source.node)?;
        let written = self.object_file(&target.node)?;
        let copy = |len| {
            let _no_commit = self.objects.installing.read();
            let copied = written.copy_from(read.as_ref(), from.offset, to.offset, len);
            copied.map_err(|error| self.object_error("copy to", to.ino, error))
        };
        let copied = if self.accounts.has_quotas() {
            let fail = |error| self.object_error("stat", from.ino, error);
            let left = read.stat().map_err(fail)?.len.saturating_sub(from.offset);
            self.copy_counted(written.as_ref(), to, len.min(left), copy)?
        } else {
            copy(len)?
        };
        self.touch_atime(&self.read_inode(from.ino)?);
        if target.flags.sync {
            self.sync_file(target, true)?;
        }
        Ok(copied)
    }
}
