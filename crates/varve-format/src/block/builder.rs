//! Builds blocks.

use varve_types::SeqNo;

use super::{COUNT_BITS, KIND_BITS, RESTART_BYTES, RESTART_INTERVAL, common_prefix};
use crate::EntryKind;
use crate::codec::put_varint;

/// Builds one block after the other, reusing its memory.
#[derive(Debug, Default)]
pub struct BlockBuilder {
    out: Vec<u8>,
    restarts: Vec<u32>,
    entries: usize,
    last_key: Vec<u8>,
    /// Bytes of every key; 0 if they differ.
    key_bytes: u8,
}

impl BlockBuilder {
    /// An empty block, for keys of any length.
    pub fn new() -> BlockBuilder {
        BlockBuilder::default()
    }

    /// An empty block, for keys of `key_bytes` bytes: a byte less for each.
    pub fn for_keys_of(key_bytes: u8) -> BlockBuilder {
        BlockBuilder { key_bytes, ..BlockBuilder::default() }
    }

    /// True if nothing was added since [`BlockBuilder::clear`].
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Returns the key added last; empty if none.
    pub fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Adds a version of `key`, unless the content would then be above `max` bytes; an empty block
    /// takes any version. Returns whether it was added.
    ///
    /// REQUIRES: after all versions added so far, in internal order; the key has the length that all have.
    pub fn add(
        &mut self,
        key: &[u8],
        seq: SeqNo,
        kind: EntryKind,
        value: &[u8],
        max: usize,
    ) -> bool {
        debug_assert!(self.key_bytes == 0 || key.len() == usize::from(self.key_bytes));
        let restart = self.entries.is_multiple_of(RESTART_INTERVAL);
        let shared = if restart { 0 } else { common_prefix(&self.last_key, key) };
        let before = self.out.len();
        put_varint(&mut self.out, shared as u64);
        if self.key_bytes == 0 {
            put_varint(&mut self.out, (key.len() - shared) as u64);
        }
        put_varint(&mut self.out, value.len() as u64);
        put_varint(&mut self.out, (seq.get() << KIND_BITS) | u64::from(kind as u8));
        let restarts = self.restarts.len() + usize::from(restart) + 1;
        let len = self.out.len() + key.len() - shared + value.len() + restarts * RESTART_BYTES;
        if len > max && self.entries > 0 {
            self.out.truncate(before);
            return false;
        }
        self.out.extend_from_slice(&key[shared..]);
        self.out.extend_from_slice(value);
        if restart {
            self.restarts.push(before as u32);
        }
        self.entries += 1;
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
        true
    }

    /// Returns the finished content; [`BlockBuilder::clear`] must follow.
    ///
    /// REQUIRES: not empty.
    pub fn finish(&mut self) -> &[u8] {
        assert!(self.entries > 0, "a block without entries");
        for restart in &self.restarts {
            self.out.extend_from_slice(&restart.to_le_bytes());
        }
        let count = self.restarts.len() as u32 | u32::from(self.key_bytes) << COUNT_BITS;
        self.out.extend_from_slice(&count.to_le_bytes());
        &self.out
    }

    /// Begins the next block.
    pub fn clear(&mut self) {
        self.out.clear();
        self.restarts.clear();
        self.entries = 0;
        self.last_key.clear();
    }
}
