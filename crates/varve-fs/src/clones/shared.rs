//! Files whose bytes are still those of a file of a source: reading them there, and making them the file's own before
//! somebody writes.
//!
//! A small file's chunks are copied in one batch with the end of the reference; a large file gets an object as one that grows
//! does ([`crate::data`]). Cut to nothing, neither is copied. A copy of all of a large file borrows the same bytes.

use bytes::Bytes;
use varve_env::File;
use varve_namespace::Changes;
use varve_schema::{CHUNK_BYTES, CloneReference, Content, Inode, RowKey, SharedContent};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, Gave, SeekFrom, SetIdTaken, Written};

use crate::data::changed;
use crate::epoch::Epoch;
use crate::fs::VarveFs;
use crate::held::Held;
use crate::overlay::copy_part;

/// The most bytes copied in one go: meanwhile nothing can be kept for views, and so nothing they see be changed.
const COPY_BYTES_MAX: u64 = 16 << 20;
/// The most bytes given back by one read.
const READ_BYTES_MAX: u64 = 16 << 20;

impl VarveFs {
    /// Bytes of a file that borrows them. `None` if it does so no more.
    pub(crate) fn read_borrowed(
        &self,
        inode: &Inode,
        offset: u64,
        len: usize,
    ) -> FsResult<Option<Bytes>> {
        let Content::Shared(borrowed) = inode.content else { return Ok(None) };
        let read = self.read_lent(inode, borrowed, offset, len);
        match read {
            // The source may be gone with the last reference.
            Err(_) if self.read_inode(inode.ino)?.content != inode.content => Ok(None),
            read => read.map(Some),
        }
    }

    fn read_lent(
        &self,
        inode: &Inode,
        SharedContent { source, ino, blocks }: SharedContent,
        offset: u64,
        len: usize,
    ) -> FsResult<Bytes> {
        let from = self.sources()?.open(Epoch::of(source))?;
        if blocks.is_none() {
            return from.read_small(&lent_small(inode, ino), offset, len);
        }
        let len = (len as u64).min(inode.size.saturating_sub(offset)).min(READ_BYTES_MAX);
        let mut buffer = vec![0; len as usize];
        let read = from.objects.read_origin(ino, |file| file.read_at(&mut buffer, offset));
        let read = read.map_err(|error| from.object_error("read", ino, error))?;
        if read < buffer.len() {
            return Err(from.ends_early(ino, offset + read as u64, inode.size));
        }
        Ok(buffer.into())
    }

    /// The next data or hole of a file that borrows its bytes.
    pub(crate) fn seek_borrowed(
        &self,
        inode: &Inode,
        SharedContent { source, ino, blocks }: SharedContent,
        offset: u64,
        what: SeekFrom,
    ) -> FsResult<u64> {
        let from = self.sources()?.open(Epoch::of(source))?;
        if blocks.is_none() {
            return from.seek_small(&lent_small(inode, ino), offset, what);
        }
        let seek = |what| from.objects.read_origin(ino, |file| file.seek(what, offset));
        from.seek_object(ino, what, seek)
    }

    /// Makes the bytes of the held file its own, if it borrows them. Commits.
    pub(crate) fn own_bytes(&self, held: &mut Held<'_>) -> FsResult<()> {
        let Content::Shared(borrowed) = held.inode.content else { return Ok(()) };
        if borrowed.blocks.is_some() {
            return self.migrate(held);
        }
        let from = self.sources()?.open(Epoch::of(borrowed.source))?;
        let mut changes = Changes::new();
        let ino = held.inode.ino;
        for index in 0..held.inode.size.div_ceil(CHUNK_BYTES as u64) {
            if let Some(chunk) = from.chunk_row(borrowed.ino, index)? {
                changes.put_data(RowKey::chunk(ino, index), chunk);
            }
        }
        changes.release_source(&held.inode);
        held.inode.content = Content::Chunks;
        self.stage(&mut changes, held)?;
        self.commit(&mut changes)
    }

    /// Lets the file `to`, if it is empty, borrow the `size` bytes that the large file `from` borrows, all of them. False if
    /// that is not how it is, or locks are in the way. Commits. As `from` cannot return its reference meanwhile, the source stays.
    pub(crate) fn lend_on(&self, from: InodeId, to: InodeId, size: u64) -> FsResult<bool> {
        let mut held = self.hold_counted(to)?;
        let is_empty = held.inode.content == Content::None && held.inode.size == 0;
        if !is_empty || held.is_detached() {
            return Ok(false);
        }
        let Some(lent) = self.try_hold_also(&mut held, from)? else { return Ok(false) };
        let Content::Shared(borrowed @ SharedContent { blocks: Some(_), .. }) = lent.content else {
            return Ok(false);
        };
        if lent.size != size {
            return Ok(false);
        }
        held.inode.content = lent.content;
        held.inode.size = size;
        changed(&mut held.inode, self.now());
        let mut changes = Changes::new();
        changes
            .put_meta(RowKey::clone_reference(borrowed.source, to), CloneReference::File.encode());
        self.stage(&mut changes, &mut held)?;
        let bytes = usize::try_from(size).unwrap_or(usize::MAX);
        let written = Written { offset: 0, bytes, set_id: SetIdTaken::None };
        match self.commit_call(&mut changes, Gave::Written(written)) {
            // A part may fit.
            Err(FsError::QuotaExceeded) => Ok(false),
            committed => committed.map(|()| true),
        }
    }

    /// Copies the bytes of the large file that `inode` borrows from to `object`, which nobody else has yet, holes as holes.
    pub(crate) fn copy_lent(
        &self,
        inode: &Inode,
        SharedContent { source, ino, .. }: SharedContent,
        object: &dyn File,
    ) -> FsResult<()> {
        let from = self.sources()?.open(Epoch::of(source))?;
        let fail = |error| from.object_error("copy", ino, error);
        object
            .set_len(inode.size)
            .map_err(|error| self.object_error("extend", inode.ino, error))?;
        let mut at = 0;
        while at < inode.size {
            let len = (inode.size - at).min(COPY_BYTES_MAX);
            let copy = |file: &dyn File| copy_part((file, at), (object, at), len);
            match from.objects.read_origin(ino, copy).map_err(fail)? {
                (0, _) => return Err(from.ends_early(ino, at, inode.size)),
                (copied, _) => at += copied,
            }
        }
        Ok(())
    }
}

/// The small file `ino` of a source from which `inode` borrows.
fn lent_small(inode: &Inode, ino: InodeId) -> Inode {
    Inode { ino, content: Content::Chunks, ..inode.clone() }
}
