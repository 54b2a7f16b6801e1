//! SEEK_DATA and SEEK_HOLE: by the rows that exist, or by the object file. The end of a file counts as a
//! hole.
//!
//! What programs write to mapped memory the kernel tells later, and it asks for holes without telling it before. So a
//! file that may be mapped to be written to has no holes, unless its bytes go straight to the object. A mapping keeps
//! the handle by which it was made from being released.

use std::io;

use varve_env::Seek;
use varve_schema::{CHUNK_BYTES, Content, Inode};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, Handle, SeekFrom};

use crate::fs::VarveFs;

const CHUNK: u64 = CHUNK_BYTES as u64;
const ENXIO: i32 = 6;

impl VarveFs {
    pub(crate) fn do_lseek(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        what: SeekFrom,
    ) -> FsResult<u64> {
        let file = self.session.handles.get(ino, handle)?;
        if file.node.state().mappers > 0 {
            return seek_in(self.attr(&self.read_inode(ino)?)?.size, offset, what);
        }
        loop {
            if !file.node.has_object() {
                let held = self.hold(ino)?;
                if let Content::Shared(borrowed) = held.inode.content {
                    return self.seek_borrowed(&held.inode, borrowed, offset, what);
                }
                if !held.inode.content.is_object() {
                    return self.seek_small(&held.inode, offset, what);
                }
            }
            // It may have become small again meanwhile.
            let Some(object) = self.find_object(&file.node)? else { continue };
            let found = {
                let _no_commit = self.objects.installing.read();
                self.seek_object(ino, what, |what| object.seek(what, offset))?
            };
            let end = match self.options.read_only {
                true => self.claimed_end(&self.read_inode(ino)?),
                false => u64::MAX,
            };
            return match what {
                SeekFrom::Hole if offset < end => Ok(found.min(end)),
                SeekFrom::Data if found < end => Ok(found),
                _ => Err(FsError::NoSuchOffset),
            };
        }
    }

    /// What `seek` finds in the object of `ino`.
    pub(crate) fn seek_object(
        &self,
        ino: InodeId,
        what: SeekFrom,
        seek: impl FnOnce(Seek) -> io::Result<u64>,
    ) -> FsResult<u64> {
        let what = match what {
            SeekFrom::Data => Seek::Data,
            SeekFrom::Hole => Seek::Hole,
        };
        seek(what).map_err(|error| match error.raw_os_error() {
            Some(ENXIO) => FsError::NoSuchOffset,
            _ => self.object_error("seek in", ino, error),
        })
    }

    pub(crate) fn seek_small(&self, inode: &Inode, offset: u64, what: SeekFrom) -> FsResult<u64> {
        if offset >= inode.size {
            return Err(FsError::NoSuchOffset);
        }
        let mut at = offset;
        while at < inode.size {
            let (is_data, end) = match &inode.content {
                Content::Inline(bytes) if at < bytes.len() as u64 => (true, bytes.len() as u64),
                Content::Chunks => {
                    let index = at / CHUNK;
                    (self.chunk_row(inode.ino, index)?.is_some(), (index + 1) * CHUNK)
                }
                _ => (false, inode.size),
            };
            if is_data == (what == SeekFrom::Data) {
                return Ok(at);
            }
            at = end.min(inode.size);
        }
        match what {
            SeekFrom::Data => Err(FsError::NoSuchOffset),
            SeekFrom::Hole => Ok(inode.size),
        }
    }
}

/// What `what` finds in a file of `size` bytes without holes.
fn seek_in(size: u64, offset: u64, what: SeekFrom) -> FsResult<u64> {
    match what {
        _ if offset >= size => Err(FsError::NoSuchOffset),
        SeekFrom::Data => Ok(offset),
        SeekFrom::Hole => Ok(size),
    }
}
