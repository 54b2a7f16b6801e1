//! Walks a block in both directions.

use std::cmp::Ordering;

use bytes::Bytes;
use varve_types::SeqNo;

use super::{Block, Entry, Outline, internal_cmp};
use crate::{EntryKind, FormatError, FormatResult, Problem};

/// A position in a block: at an entry, or nowhere. After an error it is nowhere.
#[derive(Clone, Debug)]
pub struct BlockCursor {
    block: Block,
    /// The whole key of the present entry.
    key: Vec<u8>,
    at: Option<Position>,
}

#[derive(Clone, Copy, Debug)]
struct Position {
    offset: usize,
    entry: Entry,
}

impl BlockCursor {
    /// A cursor that is nowhere yet.
    pub fn new(block: Block) -> BlockCursor {
        BlockCursor { block, key: Vec::new(), at: None }
    }

    /// Moves to another block, nowhere in it yet; keeps the memory of the key.
    pub fn reset(&mut self, block: Block) {
        self.block = block;
        self.at = None;
    }

    /// Returns whether the cursor is at an entry.
    pub fn valid(&self) -> bool {
        self.at.is_some()
    }

    /// Returns whether the cursor is at the block's first entry.
    pub fn is_first(&self) -> bool {
        self.at.is_some_and(|at| at.offset == 0)
    }

    /// Returns whether the cursor is at the block's last entry.
    pub fn is_last(&self) -> bool {
        self.at.is_some_and(|at| at.entry.outline.end >= self.block.entries_end)
    }

    /// Returns the block.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Returns the entry's key. REQUIRES: valid.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the entry's sequence number; zero if the cursor is nowhere.
    pub fn seq(&self) -> SeqNo {
        self.at.map_or(SeqNo::ZERO, |at| at.entry.seq)
    }

    /// Returns what the entry does; a cursor that is nowhere says deletion.
    pub fn kind(&self) -> EntryKind {
        self.at.map_or(EntryKind::Delete, |at| at.entry.kind)
    }

    /// Returns the entry's value, sharing the block's memory; empty for a deletion.
    pub fn value(&self) -> Bytes {
        self.at.map_or_else(Bytes::new, |at| {
            self.block.content.slice(at.entry.outline.value_start..at.entry.outline.end)
        })
    }

    /// Returns the entry's offset in the block's content and how many bytes its key shares.
    pub(super) fn place(&self) -> Option<(usize, usize)> {
        self.at.map(|at| (at.offset, at.entry.outline.shared))
    }

    /// To the first entry.
    pub fn seek_first(&mut self) -> FormatResult<()> {
        self.enter_restart(0)
    }

    /// To the last entry.
    pub fn seek_last(&mut self) -> FormatResult<()> {
        let region = self.block.restarts - 1;
        self.enter_restart(region)?;
        self.walk_before(self.block.entries_end)
    }

    /// To the first entry at or after (`key`, `seq`) in internal order; nowhere if there is none.
    pub fn seek(&mut self, key: &[u8], seq: SeqNo) -> FormatResult<()> {
        self.at = None;
        let after = self.block.restarts_up_to(key, seq)?;
        self.enter_restart(after.saturating_sub(1))?;
        while self.valid() && internal_cmp((&self.key, self.seq()), (key, seq)) == Ordering::Less {
            self.next()?;
        }
        Ok(())
    }

    /// To the next entry; nowhere after the last.
    #[expect(clippy::should_implement_trait, reason = "a cursor also goes back")]
    pub fn next(&mut self) -> FormatResult<()> {
        match self.at.take() {
            Some(at) if at.entry.outline.end < self.block.entries_end => {
                self.enter_entry(at.entry.outline.end)
            }
            _ => Ok(()),
        }
    }

    /// To the entry before; nowhere before the first.
    pub fn prev(&mut self) -> FormatResult<()> {
        let Some(at) = self.at.take() else { return Ok(()) };
        let block = &self.block;
        let (mut low, mut high) = (0, block.restarts);
        while low < high {
            let middle = low + (high - low) / 2;
            if block.restart(middle) < at.offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(region) = low.checked_sub(1) else { return Ok(()) };
        self.enter_restart(region)?;
        self.walk_before(at.offset)
    }

    /// Walks on to the entry that ends at `end`.
    fn walk_before(&mut self, end: usize) -> FormatResult<()> {
        while let Some(at) = self.at
            && at.entry.outline.end < end
        {
            self.next()?;
        }
        Ok(())
    }

    fn enter_restart(&mut self, region: usize) -> FormatResult<()> {
        self.at = None;
        self.key.clear();
        self.enter_entry(self.block.restart(region))
    }

    /// To the entry at `offset`, whose predecessor's key is in `self.key`.
    fn enter_entry(&mut self, offset: usize) -> FormatResult<()> {
        let entry = self.block.entry(offset)?;
        let Outline { shared, key_start, value_start, .. } = entry.outline;
        if shared > self.key.len() {
            let rule = "an entry that shares more bytes than the key before has";
            return Err(FormatError::new(offset, Problem::Invalid(rule)));
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(&self.block.content[key_start..value_start]);
        self.at = Some(Position { offset, entry });
        Ok(())
    }
}
