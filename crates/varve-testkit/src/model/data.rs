//! The bytes of one file: sparse, and cheap for small files.

use std::collections::BTreeMap;

/// Bytes per chunk.
const CHUNK_BYTES: u64 = 65_536;

/// A file's bytes. An absent chunk, or the missing end of a short chunk, reads as zeros. No chunk holds bytes beyond
/// the size.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    chunks: BTreeMap<u64, Vec<u8>>,
}

/// Returns the pieces of `offset..offset + len` by chunk: (chunk, start within it, length).
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let (chunk, start) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
        let piece = (CHUNK_BYTES - start).min(end - at);
        at += piece;
        (piece > 0).then_some((chunk, start as usize, piece as usize))
    })
}

impl Data {
    /// `len` bytes from `offset` on; the caller has cut them to the size.
    pub(super) fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len as usize);
        for (chunk, start, piece) in pieces(offset, len) {
            let end = bytes.len() + piece;
            if let Some(held) = self.chunks.get(&chunk) {
                let from = start.min(held.len());
                bytes.extend_from_slice(&held[from..(start + piece).min(held.len())]);
            }
            bytes.resize(end, 0);
        }
        bytes
    }

    /// Puts `data` at `offset`.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut rest = data;
        for (chunk, start, piece) in pieces(offset, data.len() as u64) {
            let (part, tail) = rest.split_at(piece);
            let held = self.chunks.entry(chunk).or_default();
            if held.len() < start + piece {
                held.resize(start + piece, 0);
            }
            held[start..start + piece].copy_from_slice(part);
            rest = tail;
        }
    }

    /// Forgets everything from `size` on.
    pub(super) fn cut(&mut self, size: u64) {
        self.chunks.split_off(&size.div_ceil(CHUNK_BYTES));
        if let Some(held) = self.chunks.get_mut(&(size / CHUNK_BYTES)) {
            held.truncate((size % CHUNK_BYTES) as usize);
        }
    }

    /// Makes a range zeros. The caller has cut it to the size.
    pub(super) fn zero(&mut self, offset: u64, len: u64) {
        for (chunk, start, piece) in pieces(offset, len) {
            if piece as u64 == CHUNK_BYTES {
                self.chunks.remove(&chunk);
            } else if let Some(held) = self.chunks.get_mut(&chunk) {
                let end = (start + piece).min(held.len());
                held[start.min(end)..end].fill(0);
            }
        }
    }

    /// Returns the first byte at or after `offset` that is in a chunk, or that is in none.
    pub(super) fn seek(&self, offset: u64, held: bool) -> Option<u64> {
        let first = offset / CHUNK_BYTES;
        let found = if held {
            *self.chunks.range(first..).next()?.0
        } else {
            let run = self.chunks.range(first..).zip(first..).take_while(|((a, _), b)| *a == b);
            first + run.count() as u64
        };
        Some(offset.max(found * CHUNK_BYTES))
    }

    /// Room taken, in units of 512 bytes.
    pub(super) fn blocks(&self) -> u64 {
        self.chunks.values().map(|held| (held.len() as u64).div_ceil(512)).sum()
    }
}
