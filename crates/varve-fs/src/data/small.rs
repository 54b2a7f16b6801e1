//! Files in the store: up to 512 bytes within the inode, more in chunk rows.
//!
//! Invariants: no byte at or beyond the size is stored, so that a file which grows again reads zeros there;
//! a chunk row may be shorter than a chunk, and absent or missing bytes within the size are zeros.

use bytes::Bytes;
use varve_namespace::Changes;
use varve_schema::{CHUNK_BYTES, Content, INLINE_BYTES_MAX, Inode, RowKey, is_lost_chunk};
use varve_types::InodeId;
use varve_vfs::FsResult;

use crate::error;
use crate::fs::VarveFs;

const CHUNK: u64 = CHUNK_BYTES as u64;

/// The part of a range that lies in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Number of the chunk.
    pub(super) index: u64,
    /// First byte within the chunk.
    pub(super) start: usize,
    /// End within the chunk.
    pub(super) end: usize,
    /// First byte within the range.
    pub(super) at: usize,
}

/// Splits the range from `offset` to `end` at the borders of chunks.
pub(super) fn pieces(offset: u64, end: u64) -> impl Iterator<Item = Piece> {
    let range = if offset < end { offset / CHUNK..end.div_ceil(CHUNK) } else { 0..0 };
    range.map(move |index| {
        let base = index * CHUNK;
        let first = offset.max(base);
        let last = end.min(base + CHUNK);
        Piece {
            index,
            start: (first - base) as usize,
            end: (last - base) as usize,
            at: (first - offset) as usize,
        }
    })
}

impl VarveFs {
    /// Bytes of a file in the store. REQUIRES: the lock of its row, if it has chunks.
    pub(crate) fn read_small(&self, inode: &Inode, offset: u64, len: usize) -> FsResult<Bytes> {
        let end = inode.size.min(offset.saturating_add(len as u64));
        if offset >= end {
            return Ok(Bytes::new());
        }
        let (from, len) = (offset as usize, (end - offset) as usize);
        match &inode.content {
            Content::Inline(bytes) if bytes.len() >= from + len => {
                Ok(bytes.slice(from..from + len))
            }
            Content::Inline(bytes) => {
                let mut out = vec![0; len];
                let stored = bytes.get(from..).unwrap_or_default();
                out[..stored.len().min(len)].copy_from_slice(&stored[..stored.len().min(len)]);
                Ok(out.into())
            }
            Content::Chunks => {
                let mut out = vec![0; len];
                for piece in pieces(offset, end) {
                    if let Some(chunk) = self.chunk(inode.ino, piece.index)? {
                        let stored = chunk.get(piece.start..piece.end.min(chunk.len()));
                        let stored = stored.unwrap_or_default();
                        out[piece.at..piece.at + stored.len()].copy_from_slice(stored);
                    }
                }
                Ok(out.into())
            }
            _ => Ok(vec![0; len].into()),
        }
    }

    /// Writes within the threshold. REQUIRES: the lock of the row.
    pub(super) fn write_small(
        &self,
        changes: &mut Changes,
        inode: &mut Inode,
        offset: u64,
        data: &[u8],
    ) -> FsResult<()> {
        let end = offset + data.len() as u64;
        let inline = match &inode.content {
            Content::Inline(bytes) => Some(bytes.clone()),
            Content::None => Some(Bytes::new()),
            _ => None,
        };
        match inline {
            Some(old) if end <= INLINE_BYTES_MAX as u64 => {
                let bytes = overlay(&old, offset as usize, data);
                inode.content = Content::Inline(bytes.into());
            }
            old => {
                let pieces_of_range = pieces(offset, end);
                let inline = old.unwrap_or_default();
                if offset >= CHUNK && !inline.is_empty() {
                    changes.put_data(RowKey::chunk(inode.ino, 0), inline.clone());
                }
                for piece in pieces_of_range {
                    let part = &data[piece.at..piece.at + (piece.end - piece.start)];
                    let whole = piece.end - piece.start == CHUNK_BYTES;
                    let stored = match inode.content {
                        _ if whole => Bytes::new(),
                        Content::Chunks => self.chunk(inode.ino, piece.index)?.unwrap_or_default(),
                        _ if piece.index == 0 => inline.clone(),
                        _ => Bytes::new(),
                    };
                    let chunk = overlay(&stored, piece.start, part);
                    changes.put_data(RowKey::chunk(inode.ino, piece.index), chunk);
                }
                inode.content = Content::Chunks;
            }
        }
        inode.size = inode.size.max(end);
        Ok(())
    }

    /// Cuts or extends within the threshold. REQUIRES: the lock of the row.
    pub(super) fn resize_small(
        &self,
        changes: &mut Changes,
        inode: &mut Inode,
        size: u64,
    ) -> FsResult<()> {
        if size < inode.size {
            match &inode.content {
                Content::Inline(bytes) if bytes.len() as u64 > size => {
                    inode.content = Content::Inline(bytes.slice(..size as usize));
                }
                Content::Chunks => self.cut_chunks(changes, inode.ino, inode.size, size)?,
                _ => {}
            }
            if size == 0 {
                inode.content = Content::None;
            }
        }
        inode.size = size;
        Ok(())
    }

    fn cut_chunks(&self, changes: &mut Changes, ino: InodeId, old: u64, size: u64) -> FsResult<()> {
        changes.delete_chunks(ino, size.div_ceil(CHUNK), old);
        let keep = (size % CHUNK) as usize;
        if keep > 0
            && let Some(chunk) = self.chunk_row(ino, size / CHUNK)?
            && chunk.len() > keep
            && !is_lost_chunk(&chunk)
        {
            changes.put_data(RowKey::chunk(ino, size / CHUNK), chunk.slice(..keep));
        }
        Ok(())
    }

    /// Makes a range within the size read as zeros. REQUIRES: the lock of the row.
    pub(super) fn zero_small(
        &self,
        changes: &mut Changes,
        inode: &mut Inode,
        offset: u64,
        end: u64,
    ) -> FsResult<()> {
        let end = end.min(inode.size);
        match &inode.content {
            Content::Inline(bytes) => {
                let mut zeroed = bytes.to_vec();
                let end = zeroed.len().min(end as usize);
                if let Some(range) = zeroed.get_mut(offset as usize..end) {
                    range.fill(0);
                }
                inode.content = Content::Inline(zeroed.into());
            }
            Content::Chunks => {
                let (mut freed, mut written) = (0, 0);
                for piece in pieces(offset, end) {
                    let key = RowKey::chunk(inode.ino, piece.index);
                    let Some(chunk) = self.chunk_row(inode.ino, piece.index)? else { continue };
                    if piece.start == 0 && piece.end == CHUNK_BYTES {
                        changes.delete_data(key);
                        freed += chunk.len();
                    } else if is_lost_chunk(&chunk) {
                        return Err(error::lost_chunk(inode.ino, piece.index));
                    } else {
                        let mut zeroed = chunk.to_vec();
                        let end = zeroed.len().min(piece.end);
                        if let Some(range) = zeroed.get_mut(piece.start..end) {
                            range.fill(0);
                        }
                        written += zeroed.len();
                        changes.put_data(key, zeroed);
                    }
                }
                if freed > written {
                    changes.reclaims_space = true;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// `old` with `data` over it from `start` on; a gap between them is zeros.
fn overlay(old: &[u8], start: usize, data: &[u8]) -> Vec<u8> {
    let end = start + data.len();
    let mut out = Vec::with_capacity(old.len().max(end));
    out.extend_from_slice(&old[..start.min(old.len())]);
    out.resize(start, 0);
    out.extend_from_slice(data);
    out.extend_from_slice(old.get(end..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_range_without_overlap() {
        for (offset, end) in
            [(0, 0), (5, 5), (0, 1), (0, CHUNK), (CHUNK - 1, CHUNK + 1), (7, 5 * CHUNK)]
        {
            let mut at = offset;
            for piece in pieces(offset, end) {
                assert_eq!(piece.index * CHUNK + piece.start as u64, at);
                assert_eq!(piece.at as u64, at - offset);
                assert!(piece.start < piece.end && piece.end <= CHUNK_BYTES);
                at += (piece.end - piece.start) as u64;
            }
            assert_eq!(at, end);
        }
    }

    #[test]
    fn overlay_fills_gaps_with_zeros() {
        assert_eq!(overlay(b"ab", 4, b"c"), b"ab\0\0c");
        assert_eq!(overlay(b"abcdef", 1, b"XY"), b"aXYdef");
        assert_eq!(overlay(b"abcdef", 4, b"XYZ"), b"abcdXYZ");
        assert_eq!(overlay(b"abc", 3, b"XY"), b"abcXY");
        assert_eq!(overlay(b"abc", 0, b"XYZ"), b"XYZ");
    }
}
