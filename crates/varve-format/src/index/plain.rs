//! The plain index: one *separator* per block, a short string that is not below any key of its block and
//! below all keys of the next. Where versions of one key run over the end of a block, the separator is
//! that key, and a sequence number says how far the block reaches.
//!
//! ```text
//! varint  number of blocks
//! then each block, in order:
//! string  separator
//! varint  0, or the sequence number of the block's last version if the next block begins with the
//!         same key
//! varint  bytes between the end of the block before and this one (padding)
//! varint  length of the block in bytes, trailer included
//! ```
//!
//! In memory all separators lie in one buffer; a search compares in place.

use std::cmp::Ordering;

use varve_types::SeqNo;
use varve_types::limits::KEY_BYTES_MAX;

use crate::block::{common_prefix, internal_cmp};
use crate::codec::{Reader, put_string, put_varint};
use crate::section::Handle;
use crate::{FormatError, FormatResult, Problem};

/// The fewest bytes a block takes in the index.
const ENTRY_BYTES_MIN: usize = 4;

/// See the module's comment.
#[derive(Debug)]
pub(super) struct PlainIndex {
    separators: Vec<u8>,
    /// Where each separator ends in `separators`.
    ends: Vec<u32>,
    /// Where the blocks begin; apart from their lengths, so that no memory goes into padding.
    offsets: Vec<u64>,
    lens: Vec<u32>,
    /// Blocks whose last key goes on in the next, and the last version they hold; in order.
    split: Vec<(u32, SeqNo)>,
}

impl PlainIndex {
    pub(super) fn decode(content: &[u8], data_end: u64) -> FormatResult<PlainIndex> {
        let mut reader = Reader::new(content);
        let count = reader.varint()?;
        let room = (reader.remaining() / ENTRY_BYTES_MIN) as u64;
        if count == 0 || count > room.min(u64::from(u32::MAX)) {
            let problem = Problem::TooLong { what: "list of blocks", len: count, max: room };
            return Err(FormatError::new(0u64, problem));
        }
        let mut index = PlainIndex {
            separators: Vec::new(),
            ends: Vec::with_capacity(count as usize),
            offsets: Vec::with_capacity(count as usize),
            lens: Vec::with_capacity(count as usize),
            split: Vec::new(),
        };
        for _ in 0..count {
            index.decode_block(&mut reader, data_end)?;
        }
        reader.finish()?;
        index.separators.shrink_to_fit();
        Ok(index)
    }

    fn decode_block(&mut self, reader: &mut Reader<'_>, data_end: u64) -> FormatResult<()> {
        let start = reader.pos();
        let separator = reader.string("separator", KEY_BYTES_MAX)?;
        let seq = SeqNo::new(reader.varint()?);
        let gap = reader.varint()?;
        let len = reader.varint_u32()?;
        let block = self.ends.len();
        if let Some(last) = block.checked_sub(1)
            && internal_cmp((self.separator(last), self.split_seq(last)), (separator, seq))
                != Ordering::Less
        {
            let rule = "separators that are out of order";
            return Err(FormatError::new(start, Problem::Invalid(rule)));
        }
        let last = block.checked_sub(1).and_then(|last| self.handle(last));
        let before = last.map_or(0, Handle::end);
        let offset = before.checked_add(gap);
        let end = offset.and_then(|offset| offset.checked_add(len.into()));
        let (Some(offset), Some(end)) = (offset, end) else {
            let rule = "a block beyond the largest offset";
            return Err(FormatError::new(start, Problem::Invalid(rule)));
        };
        if end > data_end || len == 0 {
            let rule = "a block of no bytes, or beyond the blocks' part of the table";
            return Err(FormatError::new(start, Problem::Invalid(rule)));
        }
        self.separators.extend_from_slice(separator);
        let Ok(key_end) = u32::try_from(self.separators.len()) else {
            let (len, max) = (self.separators.len() as u64, u64::from(u32::MAX));
            return Err(FormatError::new(start, Problem::TooLong { what: "index", len, max }));
        };
        self.ends.push(key_end);
        self.offsets.push(offset);
        self.lens.push(len);
        if seq != SeqNo::ZERO {
            self.split.push((block as u32, seq));
        }
        Ok(())
    }

    /// Returns the number of the only block that can hold the newest version of `key` as of `seq`. The first version
    /// at or after (`key`, `seq`) in internal order is in it too, or else the first of the next block. `None` if all
    /// versions of the table are before it.
    pub(super) fn find(&self, key: &[u8], seq: SeqNo) -> Option<usize> {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let before = match self.separator(middle).cmp(key) {
                Ordering::Less => true,
                Ordering::Greater => false,
                Ordering::Equal => self.split_seq(middle) > seq,
            };
            if before {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low < self.ends.len()).then_some(low)
    }

    #[inline]
    pub(super) fn handle(&self, block: usize) -> Option<Handle> {
        Some(Handle { offset: *self.offsets.get(block)?, len: *self.lens.get(block)? })
    }

    #[inline]
    fn separator(&self, block: usize) -> &[u8] {
        let start = block.checked_sub(1).map_or(0, |last| self.ends[last] as usize);
        &self.separators[start..self.ends[block] as usize]
    }

    fn split_seq(&self, block: usize) -> SeqNo {
        let found = self.split.binary_search_by_key(&(block as u32), |&(block, _)| block);
        found.map_or(SeqNo::ZERO, |i| self.split[i].1)
    }

    pub(super) fn block_count(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<PlainIndex>()
            + self.separators.capacity()
            + self.ends.capacity() * size_of::<u32>()
            + self.offsets.capacity() * size_of::<u64>()
            + self.lens.capacity() * size_of::<u32>()
            + self.split.capacity() * size_of::<(u32, SeqNo)>()
    }
}

/// Collects the index while a table is built.
#[derive(Debug, Default)]
pub(crate) struct PlainIndexBuilder {
    entries: Vec<u8>,
    count: u64,
    end: u64,
}

impl PlainIndexBuilder {
    /// Adds the block at `handle`, whose last version is (`last_key`, `last_seq`); the next block, if
    /// there is one, begins with `next_key`.
    pub(super) fn add(
        &mut self,
        last_key: &[u8],
        last_seq: SeqNo,
        next_key: Option<&[u8]>,
        handle: Handle,
    ) {
        let mut seq = SeqNo::ZERO;
        match next_key {
            Some(next_key) if next_key == last_key => {
                seq = last_seq;
                put_string(&mut self.entries, last_key);
            }
            Some(next_key) => put_string(&mut self.entries, separator(last_key, next_key)),
            None => put_string(&mut self.entries, last_key),
        }
        put_varint(&mut self.entries, seq.get());
        put_varint(&mut self.entries, handle.offset - self.end);
        put_varint(&mut self.entries, handle.len.into());
        self.end = handle.end();
        self.count += 1;
    }

    /// Bytes of the blocks added so far.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len()
    }

    /// Appends the section's content.
    pub(super) fn finish(&self, out: &mut Vec<u8>) {
        put_varint(out, self.count);
        out.extend_from_slice(&self.entries);
    }
}

/// A short string at or above `last` and below `next`: as much of `next` as makes it larger than
/// `last`, if that is not all of `next`; else `last`.
///
/// REQUIRES: `last` below `next`.
fn separator<'a>(last: &'a [u8], next: &'a [u8]) -> &'a [u8] {
    let len = common_prefix(last, next) + 1;
    if len < next.len() && len < last.len() { &next[..len] } else { last }
}

#[cfg(test)]
mod tests {
    use super::super::{Index, IndexPolicy};
    use super::*;

    #[test]
    fn separators_separate() {
        let keys: [&[u8]; 9] =
            [b"", b"a", b"aa", b"aaaaaa", b"aab", b"ab", b"abcdefgh", b"b\xff\xff\xff", b"c"];
        for (i, last) in keys.iter().enumerate() {
            for next in &keys[i + 1..] {
                let between = separator(last, next);
                assert!(*last <= between && between < *next, "{last:?} {between:?} {next:?}");
                assert!(between.len() <= last.len());
            }
        }
        assert_eq!(separator(b"abcdefgh", b"abxyz"), b"abx");
    }

    fn handle(offset: u64, len: u32) -> Handle {
        Handle { offset, len }
    }

    fn sample() -> Vec<u8> {
        let mut builder = PlainIndexBuilder::default();
        builder.add(b"apple", SeqNo::new(9), Some(b"banana"), handle(0, 4000));
        builder.add(b"cherry", SeqNo::new(50), Some(b"cherry"), handle(4096, 4096));
        builder.add(b"cherry", SeqNo::new(20), Some(b"cherry"), handle(8192, 100));
        builder.add(b"cherry", SeqNo::new(7), Some(b"date"), handle(8292, 100));
        builder.add(b"elder", SeqNo::new(7), None, handle(8392, 100));
        let mut out = Vec::new();
        builder.finish(&mut out);
        out
    }

    #[test]
    fn finds_the_block_and_the_version_within_a_split_key() {
        let index = Index::decode(IndexPolicy::Plain, &sample(), 8492).unwrap();
        assert_eq!(index.block_count(), 5);
        assert_eq!(index.handle(3), Some(handle(8292, 100)));
        assert_eq!(index.handle(5), None);
        let find = |key: &str, seq| {
            let blocks = index.find(key.as_bytes(), SeqNo::new(seq))?;
            assert_eq!(blocks.start(), blocks.end());
            Some(*blocks.start())
        };
        assert_eq!(find("", 5), Some(0));
        assert_eq!(find("apple", 0), Some(0));
        assert_eq!(find("banana", 0), Some(1));
        assert_eq!(find("cherry", 60), Some(1));
        assert_eq!(find("cherry", 50), Some(1));
        assert_eq!(find("cherry", 49), Some(2));
        assert_eq!(find("cherry", 20), Some(2));
        assert_eq!(find("cherry", 19), Some(3));
        assert_eq!(find("cherry", 1), Some(3));
        assert_eq!(find("date", 1), Some(4));
        assert_eq!(find("elder", 0), Some(4));
        assert_eq!(find("elder0", 9), None);
        assert!(index.memory_bytes() > 5 * 20);
    }

    #[test]
    fn bad_indexes_are_refused() {
        let good = sample();
        for cut in 0..good.len() {
            assert!(Index::decode(IndexPolicy::Plain, &good[..cut], 8492).is_err());
        }
        assert!(Index::decode(IndexPolicy::Plain, &good, 8491).is_err());
        assert!(Index::decode(IndexPolicy::Plain, &[0], 1).is_err());
        let mut count = Vec::new();
        put_varint(&mut count, u64::MAX);
        assert!(Index::decode(IndexPolicy::Plain, &count, 1).is_err());
    }
}
