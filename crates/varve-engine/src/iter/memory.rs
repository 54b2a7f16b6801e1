//! Walks a memtable, a chunk of rows at a time, so that its lock is never held for long.

use std::ops::Bound;
use std::sync::Arc;

use varve_types::{KeyspaceId, SeqNo};

use super::{KeyBounds, Source};
use crate::key::Key;
use crate::memtable::{Found, MemEntry, Memtable};
use crate::{Direction, StoreResult};

/// Rows of the first chunk; most scans are of small directories.
const CHUNK_ROWS_FIRST: usize = 16;
/// Rows of the chunks after it.
const CHUNK_ROWS: usize = 64;

/// Of each row of a memtable the newest version not newer than some sequence number.
pub(crate) struct MemorySource {
    memtable: Arc<Memtable>,
    keyspace: KeyspaceId,
    seq: SeqNo,
    direction: Direction,
    /// What is still to be fetched.
    rest: (Bound<Key>, Bound<Key>),
    more: bool,
    chunk: Vec<MemEntry>,
    at: usize,
}

impl MemorySource {
    /// A walk over `range`.
    pub(crate) fn new(
        memtable: Arc<Memtable>,
        keyspace: KeyspaceId,
        seq: SeqNo,
        range: KeyBounds<'_>,
        direction: Direction,
    ) -> MemorySource {
        let rest = (range.0.map(Key::from_slice), range.1.map(Key::from_slice));
        let (chunk, at) = (Vec::new(), 0);
        let mut source =
            MemorySource { memtable, keyspace, seq, direction, rest, more: true, chunk, at };
        source.fetch(CHUNK_ROWS_FIRST);
        source
    }

    fn fetch(&mut self, rows: usize) {
        self.chunk.clear();
        self.at = 0;
        let reverse = self.direction == Direction::Reverse;
        while self.more && self.chunk.is_empty() {
            let range =
                (self.rest.0.as_ref().map(Key::as_slice), self.rest.1.as_ref().map(Key::as_slice));
            let last =
                self.memtable.chunk(self.keyspace, range, reverse, self.seq, rows, &mut self.chunk);
            self.more = last.is_some();
            let Some(last) = last.map(Bound::Excluded) else { return };
            match self.direction {
                Direction::Forward => self.rest.0 = last,
                Direction::Reverse => self.rest.1 = last,
            }
        }
    }
}

impl Source for MemorySource {
    fn valid(&self) -> bool {
        self.at < self.chunk.len()
    }

    fn key(&self) -> &[u8] {
        self.chunk[self.at].key.as_slice()
    }

    fn seq(&self) -> SeqNo {
        self.chunk[self.at].seq
    }

    fn found(&self) -> StoreResult<Found> {
        Ok(self.chunk[self.at].found.clone())
    }

    fn advance(&mut self) -> StoreResult<()> {
        self.at += 1;
        if self.at >= self.chunk.len() && self.more {
            self.fetch(CHUNK_ROWS);
        }
        Ok(())
    }
}
