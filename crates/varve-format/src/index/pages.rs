//! Where the blocks of a paged table stand.
//!
//! Blocks fill whole units of as many pages as the block size has, and follow each other without gaps, and nearly all of them fill the same number
//! of pages, so that only the others are listed. Where versions of one key run over the end of a block,
//! the blocks that share the key are one *group*: an index finds groups.
//!
//! ```text
//! varint  number of blocks
//! varint  pages of a block
//! varint  number of large blocks; then of each, in order:
//!           varint number of blocks between it and the one before
//!           varint pages beyond those of other blocks, at least 1
//! varint  number of blocks that begin with the key that ends the block before; then of each, in order:
//!           varint number of blocks between it and the one before
//! ```

use std::ops::RangeInclusive;

use crate::codec::{Reader, put_varint};
use crate::section::Handle;
use crate::table::PAGE_BYTES;
use crate::{FormatError, FormatResult, Problem};

/// See the module's comment.
#[derive(Debug, Default)]
pub(super) struct Pages {
    blocks: u32,
    block_pages: u32,
    /// Large blocks, and the pages that these and those before take beyond others.
    large: Vec<(u32, u32)>,
    /// Blocks that belong to the group of the block before.
    continued: Vec<u32>,
}

impl Pages {
    /// No blocks yet; most will fill `block_pages` pages.
    pub(super) fn new(block_pages: u32) -> Pages {
        Pages { block_pages, ..Pages::default() }
    }

    /// Adds a block.
    ///
    /// REQUIRES: it fills whole pages, no fewer than others, right after the one before.
    pub(super) fn add(&mut self, handle: Handle, continued: bool) {
        let pages = handle.len / PAGE_BYTES as u32;
        debug_assert_eq!(handle.offset, self.end());
        debug_assert!(handle.len.is_multiple_of(PAGE_BYTES as u32) && pages >= self.block_pages);
        if continued {
            self.continued.push(self.blocks);
        }
        let extra = pages - self.block_pages;
        if extra > 0 {
            self.large.push((self.blocks, self.extra_before(self.large.len()) + extra));
        }
        self.blocks += 1;
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.blocks.into());
        put_varint(out, self.block_pages.into());
        put_varint(out, self.large.len() as u64);
        let (mut next, mut before) = (0, 0);
        for &(block, extra) in &self.large {
            put_varint(out, (block - next).into());
            put_varint(out, (extra - before).into());
            (next, before) = (block + 1, extra);
        }
        put_varint(out, self.continued.len() as u64);
        next = 0;
        for &block in &self.continued {
            put_varint(out, (block - next).into());
            next = block + 1;
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>, data_end: u64) -> FormatResult<Pages> {
        let start = reader.pos();
        let bad = |rule| Err(FormatError::new(start, Problem::Invalid(rule)));
        let mut pages = Pages::new(0);
        pages.blocks = reader.varint_u32()?;
        pages.block_pages = reader.varint_u32()?;
        if pages.blocks == 0 || pages.block_pages == 0 {
            return bad("a table without blocks, or with blocks without pages");
        }
        let (mut next, mut extra) = (0, 0);
        for _ in 0..list_len(reader)? {
            next = pages.next_listed(reader, next)?;
            let more = reader.varint_u32()?;
            extra = u32::checked_add(extra, more).filter(|_| more > 0).unwrap_or(u32::MAX);
            pages.large.push((next - 1, extra));
        }
        next = 0;
        for _ in 0..list_len(reader)? {
            next = pages.next_listed(reader, next)?;
            pages.continued.push(next - 1);
        }
        if extra == u32::MAX || pages.continued.first() == Some(&0) {
            return bad("a large block without more pages, or a first block that continues one");
        }
        pages.large.shrink_to_fit();
        pages.continued.shrink_to_fit();
        let all = u64::from(pages.blocks) * u64::from(pages.block_pages) + u64::from(extra);
        if all > data_end / PAGE_BYTES || pages.longest() > u64::from(u32::MAX) / PAGE_BYTES {
            return bad("blocks beyond the blocks' part of the table");
        }
        Ok(pages)
    }

    pub(super) fn block_count(&self) -> usize {
        self.blocks as usize
    }

    /// Returns the number of groups; at least 1 if there is a block.
    pub(super) fn group_count(&self) -> usize {
        self.block_count() - self.continued.len()
    }

    /// Returns where block `block` stands; `None` beyond the last.
    #[inline]
    pub(super) fn handle(&self, block: usize) -> Option<Handle> {
        if block >= self.block_count() {
            return None;
        }
        let large = self.large.partition_point(|&(large, _)| (large as usize) < block);
        let before = self.extra_before(large);
        let own = match self.large.get(large) {
            Some(&(at, through)) if at as usize == block => through - before,
            _ => 0,
        };
        let page = block as u64 * u64::from(self.block_pages) + u64::from(before);
        let len = (self.block_pages + own) * PAGE_BYTES as u32;
        Some(Handle { offset: page * PAGE_BYTES, len })
    }

    /// Returns the blocks of groups `first` to `last`.
    #[inline]
    pub(super) fn blocks_of(&self, first: usize, last: usize) -> RangeInclusive<usize> {
        if self.continued.is_empty() {
            return first..=last;
        }
        self.first_block(first)..=self.first_block(last + 1) - 1
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.large.capacity() * size_of::<(u32, u32)>()
            + self.continued.capacity() * size_of::<u32>()
    }

    /// Returns the first block of a group; the number of blocks for the group after the last.
    fn first_block(&self, group: usize) -> usize {
        // As many blocks are continued before the group as can be while their groups are before it.
        let (mut low, mut high) = (0, self.continued.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if (self.continued[middle] as usize) - middle <= group {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        // A run of continued blocks right at the group's start belongs to the group before.
        group + low
    }

    fn end(&self) -> u64 {
        let extra = self.extra_before(self.large.len());
        (u64::from(self.blocks) * u64::from(self.block_pages) + u64::from(extra)) * PAGE_BYTES
    }

    /// Returns the pages that the first `count` large blocks take beyond others.
    fn extra_before(&self, count: usize) -> u32 {
        count.checked_sub(1).map_or(0, |last| self.large[last].1)
    }

    fn longest(&self) -> u64 {
        let extra = self.large.windows(2).map(|pair| pair[1].1 - pair[0].1);
        let first = self.large.first().map_or(0, |&(_, extra)| extra);
        u64::from(self.block_pages) + u64::from(extra.fold(first, u32::max))
    }

    /// Returns the block after the next one of a list, of which all before `next` were listed.
    fn next_listed(&self, reader: &mut Reader<'_>, next: u32) -> FormatResult<u32> {
        let gap = reader.varint_u32()?;
        match next.checked_add(gap) {
            Some(block) if block < self.blocks => Ok(block + 1),
            _ => Err(reader.error(Problem::Invalid("a listed block beyond the last"))),
        }
    }
}

/// Returns the length of a list whose members take a byte or more.
fn list_len(reader: &mut Reader<'_>) -> FormatResult<u64> {
    let len = reader.varint()?;
    let max = reader.remaining() as u64;
    if len > max {
        return Err(reader.error(Problem::TooLong { what: "list of blocks", len, max }));
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of each block, and whether it continues the one before.
    fn sample() -> Vec<(u32, bool)> {
        (0..200).map(|i| (1 + u32::from(i % 17 == 3) * (i % 5), i > 0 && i % 7 < 3)).collect()
    }

    #[test]
    fn places_and_groups_come_back() {
        let mut built = Pages::new(1);
        let mut handles = Vec::new();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (block, (pages, continued)) in sample().into_iter().enumerate() {
            let handle = Handle { offset: built.end(), len: pages * PAGE_BYTES as u32 };
            built.add(handle, continued);
            handles.push(handle);
            match groups.last_mut().filter(|_| continued) {
                Some(group) => group.push(block),
                None => groups.push(vec![block]),
            }
        }
        let mut out = Vec::new();
        built.encode(&mut out);
        let pages = Pages::decode(&mut Reader::new(&out), built.end()).unwrap();
        assert!(Pages::decode(&mut Reader::new(&out), built.end() - 1).is_err());
        assert_eq!((pages.block_count(), pages.group_count()), (200, groups.len()));
        for (block, handle) in handles.into_iter().enumerate() {
            assert_eq!(pages.handle(block), Some(handle), "block {block}");
        }
        assert_eq!(pages.handle(200), None);
        for (number, group) in groups.iter().enumerate() {
            let (first, last) = (group[0], group[group.len() - 1]);
            assert_eq!(pages.blocks_of(number, number), first..=last, "group {number}");
            assert_eq!(pages.blocks_of(0, number), 0..=last);
        }
        for cut in 0..out.len() {
            assert!(Pages::decode(&mut Reader::new(&out[..cut]), u64::MAX).is_err());
        }
    }
}
