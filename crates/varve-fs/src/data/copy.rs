//! Copying from file to file without the bytes leaving this program, and between large files without their
//! coming here: the storage below copies those, or shares their room.
//!
//! 1. What is asked for ends where the source does; what then is left must not overlap.
//! 2. All of a clone's large file that has no bytes of its own yet is borrowed by an empty target too ([`crate::clones`]).
//! 3. If the source is large, and the target is or becomes so, the target moves to an object first, so that all of it is
//!    copied there ([`crate::overlay::copy_part`]). Holes stay holes.
//! 4. Else the bytes are read and written like those of a program; a hole of a small source becomes zeros. So is
//!    what a clone's large file borrows: while that is read nothing may be kept of what changes ([`crate::preimages`]).
//!
//! One call copies no more than a thread should be taken for, and says how much.

use varve_schema::Content;
use varve_vfs::{FsError, FsResult, Position};

use super::{At, end_of};
use crate::fs::VarveFs;
use crate::open::OpenFile;
use crate::overlay::copy_part;

/// The most bytes one call copies from large file to large file.
const LARGE_BYTES_MAX: u64 = 16 << 20;
/// The most bytes one call copies otherwise.
const SMALL_BYTES_MAX: u64 = 1 << 20;

impl VarveFs {
    pub(crate) fn do_copy_range(&self, from: Position, to: Position, len: u64) -> FsResult<u64> {
        self.writable()?;
        let source = self.session.handles.get(from.ino, from.handle)?;
        let target = self.session.handles.get(to.ino, to.handle)?;
        if !source.flags.read || !target.flags.write || target.flags.append {
            return Err(FsError::BadHandle);
        }
        let inode = self.read_inode(from.ino)?;
        let size = self.attr(&inode)?.size;
        let len = len.min(size.saturating_sub(from.offset));
        if len == 0 {
            return Ok(0);
        }
        if from.ino == to.ino && from.offset.abs_diff(to.offset) < len {
            return Err(FsError::Invalid("the ranges overlap"));
        }
        end_of(to.offset, len)?;
        self.check_writes(&self.read_inode(to.ino)?, target.flags, At::Offset(to.offset))?;
        let is_whole = len == size && from.offset == 0 && to.offset == 0;
        if is_whole
            && matches!(inode.content, Content::Shared(_))
            && self.lend_on(from.ino, to.ino, size)?
        {
            self.touch_atime(&inode);
            if target.flags.sync {
                self.sync_file(&target, true)?;
            }
            return Ok(size);
        }
        let part = len.min(LARGE_BYTES_MAX);
        if source.node.has_object() && self.is_large_to(&target, to.offset + part)? {
            return self.copy_large((&source, from), (&target, to), part);
        }
        let len = usize::try_from(len.min(SMALL_BYTES_MAX)).unwrap_or(usize::MAX);
        let bytes = self.do_read(from.ino, from.handle, from.offset, len)?;
        let at = At::Offset(to.offset);
        Ok(self.write_what_fits(to.ino, to.handle, at, &bytes, false)?.bytes as u64)
    }

    /// Whether the bytes of a file are in an object, or are now, as they are about to reach to `end`.
    fn is_large_to(&self, file: &OpenFile, end: u64) -> FsResult<bool> {
        if file.node.has_object() {
            return Ok(true);
        }
        if end <= self.superblock.large_file_threshold_bytes {
            return Ok(false);
        }
        let mut held = self.hold_counted(file.node.ino)?;
        self.own_bytes(&mut held)?;
        if !held.inode.content.is_object() {
            self.migrate(&mut held)?;
        }
        Ok(true)
    }

    fn copy_large(
        &self,
        (source, from): (&OpenFile, Position),
        (target, to): (&OpenFile, Position),
        len: u64,
    ) -> FsResult<u64> {
        let read = self.object_file(&source.node)?;
        let written = self.object_file(&target.node)?;
        let fail = |error| self.object_error("copy to", to.ino, error);
        let copy = |len| {
            let _no_commit = self.objects.installing.read();
            let part = copy_part((read.as_ref(), from.offset), (written.as_ref(), to.offset), len);
            let (copied, is_written) = part.map_err(fail)?;
            if copied > 0 && !is_written {
                // Holes over holes: nothing below has noted a change.
                written.set_times(None, Some(self.now())).map_err(fail)?;
            }
            Ok(copied)
        };
        let copied = if self.accounts.has_quotas() {
            self.copy_counted((target, written.as_ref()), to, len, copy)?
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
