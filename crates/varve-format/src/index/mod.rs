//! The index of a table: which blocks to look in.
//!
//! 1. While a table is built, [`IndexBuilder`] sees every key and every block.
//! 2. [`Index::find`] names the blocks that can hold a key, nearly always one; [`Index::seek`] those
//!    that can hold the first version from some place on.
//!
//! | policy | what it stores | where it may be used |
//! | --- | --- | --- |
//! | plain: 1 ([`plain`]) | a separator and the place of each block | everywhere |
//! | Elias-Fano: 2 ([`elias_fano`]) | the directories of the blocks, and a fence per block | paged tables |
//! | three-level: 3 ([`three_level`]) | the same as entropy-coded tries | paged tables |
//!
//! A *paged* table has keys of 8 + 8 bytes and blocks that fill whole pages, so that their places need no
//! room ([`pages`]). Both compact indexes cut the blocks by their first keys ([`boundaries`]): what they
//! leave undecided costs its reader another block, never a row.
//!
//! Source: SlimDB 5.3.1.

mod boundaries;
mod elias_fano;
mod pages;
mod plain;
mod split_code;
mod three_level;
mod trie;

use std::ops::RangeInclusive;

use varve_types::SeqNo;

use crate::FormatResult;
use crate::filter::PREFIX_BYTES;
use crate::section::Handle;
use boundaries::{BoundaryCollector, split};
use elias_fano::EliasFanoIndex;
use plain::{PlainIndex, PlainIndexBuilder};
use three_level::ThreeLevelIndex;

/// How the blocks of a table are indexed. The numbers stand in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IndexPolicy {
    /// Separator keys.
    Plain = 1,
    /// A sorted list of directories and one of fences.
    EliasFano = 2,
    /// Entropy-coded tries of directories and of suffixes.
    ThreeLevel = 3,
}

impl IndexPolicy {
    /// Returns the policy with this number.
    pub fn from_id(id: u8) -> Option<IndexPolicy> {
        match id {
            1 => Some(IndexPolicy::Plain),
            2 => Some(IndexPolicy::EliasFano),
            3 => Some(IndexPolicy::ThreeLevel),
            _ => None,
        }
    }

    /// Returns what people call it.
    pub fn name(self) -> &'static str {
        match self {
            IndexPolicy::Plain => "plain",
            IndexPolicy::EliasFano => "elias-fano",
            IndexPolicy::ThreeLevel => "three-level",
        }
    }
}

/// An index, ready to be searched. Blocks are numbered from 0 in key order.
#[derive(Debug)]
pub struct Index(Kind);

#[derive(Debug)]
enum Kind {
    Plain(PlainIndex),
    EliasFano(EliasFanoIndex),
    ThreeLevel(ThreeLevelIndex),
}

impl Index {
    /// Takes the index section's content. No block may reach beyond `data_end`.
    pub fn decode(policy: IndexPolicy, content: &[u8], data_end: u64) -> FormatResult<Index> {
        let kind = match policy {
            IndexPolicy::Plain => Kind::Plain(PlainIndex::decode(content, data_end)?),
            IndexPolicy::EliasFano => Kind::EliasFano(EliasFanoIndex::decode(content, data_end)?),
            IndexPolicy::ThreeLevel => {
                Kind::ThreeLevel(ThreeLevelIndex::decode(content, data_end)?)
            }
        };
        Ok(Index(kind))
    }

    /// Returns the blocks that can hold the newest version of `key` as of `seq`, if the table has one. More than one
    /// where the index cannot tell them apart: a reader tries one after the other. `None` if all versions of the
    /// table are known to be before it.
    #[inline]
    pub fn find(&self, key: &[u8], seq: SeqNo) -> Option<RangeInclusive<usize>> {
        match &self.0 {
            Kind::Plain(index) => index.find(key, seq).map(|block| block..=block),
            Kind::EliasFano(index) => Some(index.find(key)),
            Kind::ThreeLevel(index) => Some(index.find(key)),
        }
    }

    /// Returns the blocks that can hold the first version at or after (`key`, `seq`) in internal order, or else it is
    /// the first of the block that follows them. Contains what [`Index::find`] says.
    #[inline]
    pub fn seek(&self, key: &[u8], seq: SeqNo) -> Option<RangeInclusive<usize>> {
        match &self.0 {
            Kind::ThreeLevel(index) => Some(index.seek(key)),
            Kind::Plain(_) | Kind::EliasFano(_) => self.find(key, seq),
        }
    }

    /// Returns the last block that can hold a key below `end`, or one after it where the index does not know better;
    /// `None` if that is the table's last.
    pub fn last_below(&self, end: &[u8]) -> Option<usize> {
        match &self.0 {
            Kind::Plain(index) => index.find(end, SeqNo::ZERO),
            Kind::EliasFano(index) => Some(*index.find(&before(end)).end()),
            Kind::ThreeLevel(index) => Some(*index.seek(&before(end)).end()),
        }
    }

    /// Returns where block `block` stands; `None` beyond the last.
    #[inline]
    pub fn handle(&self, block: usize) -> Option<Handle> {
        match &self.0 {
            Kind::Plain(index) => index.handle(block),
            Kind::EliasFano(index) => index.pages().handle(block),
            Kind::ThreeLevel(index) => index.pages().handle(block),
        }
    }

    /// Returns the number of blocks; at least 1.
    pub fn block_count(&self) -> usize {
        match &self.0 {
            Kind::Plain(index) => index.block_count(),
            Kind::EliasFano(index) => index.pages().block_count(),
            Kind::ThreeLevel(index) => index.pages().block_count(),
        }
    }

    /// Bytes of memory the index takes.
    pub fn memory_bytes(&self) -> usize {
        match &self.0 {
            Kind::Plain(index) => index.memory_bytes(),
            Kind::EliasFano(index) => index.memory_bytes(),
            Kind::ThreeLevel(index) => index.memory_bytes(),
        }
    }
}

/// Returns the last key of 8 + 8 bytes below `end`.
fn before(end: &[u8]) -> [u8; 2 * PREFIX_BYTES] {
    let (prefix, suffix) = split(end);
    let number = u128::from(prefix) << u64::BITS | u128::from(suffix);
    let is_key = end.len() <= 2 * PREFIX_BYTES;
    number.saturating_sub(is_key.into()).to_be_bytes()
}

/// Collects the index while a table is built.
#[derive(Debug)]
pub(crate) enum IndexBuilder {
    Plain(PlainIndexBuilder),
    EliasFano(BoundaryCollector),
    ThreeLevel(BoundaryCollector),
}

impl IndexBuilder {
    /// A builder for blocks that fill whole pages, `block_pages` of them unless a row needs more;
    /// [`IndexPolicy::Plain`] bears any blocks.
    pub(crate) fn new(policy: IndexPolicy, block_pages: u32) -> IndexBuilder {
        let collector = BoundaryCollector::new(block_pages);
        match policy {
            IndexPolicy::Plain => IndexBuilder::Plain(PlainIndexBuilder::default()),
            IndexPolicy::EliasFano => IndexBuilder::EliasFano(collector),
            IndexPolicy::ThreeLevel => IndexBuilder::ThreeLevel(collector),
        }
    }

    /// Returns what is being built.
    pub(crate) fn policy(&self) -> IndexPolicy {
        match self {
            IndexBuilder::Plain(_) => IndexPolicy::Plain,
            IndexBuilder::EliasFano(_) => IndexPolicy::EliasFano,
            IndexBuilder::ThreeLevel(_) => IndexPolicy::ThreeLevel,
        }
    }

    /// Takes note of a key, after [`IndexBuilder::add`] for the block before it, if it begins one.
    pub(crate) fn note_key(&mut self, key: &[u8]) {
        match self {
            IndexBuilder::Plain(_) => {}
            IndexBuilder::EliasFano(blocks) | IndexBuilder::ThreeLevel(blocks) => {
                blocks.note_key(key);
            }
        }
    }

    /// Adds the block at `handle`, whose last version is (`last_key`, `last_seq`); the next block, if
    /// there is one, begins with `next_key`.
    pub(crate) fn add(
        &mut self,
        last_key: &[u8],
        last_seq: SeqNo,
        next_key: Option<&[u8]>,
        handle: Handle,
    ) {
        match self {
            IndexBuilder::Plain(blocks) => blocks.add(last_key, last_seq, next_key, handle),
            IndexBuilder::EliasFano(blocks) | IndexBuilder::ThreeLevel(blocks) => {
                blocks.add(last_key, next_key, handle);
            }
        }
    }

    /// Bytes of the section so far. Compact indexes, which keep no whole keys and are encoded at the end, count as nothing.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            IndexBuilder::Plain(blocks) => blocks.bytes(),
            IndexBuilder::EliasFano(_) | IndexBuilder::ThreeLevel(_) => 0,
        }
    }

    /// Appends the section's content.
    pub(crate) fn finish(&self, out: &mut Vec<u8>) {
        match self {
            IndexBuilder::Plain(blocks) => blocks.finish(out),
            IndexBuilder::EliasFano(blocks) => elias_fano::encode(blocks, out),
            IndexBuilder::ThreeLevel(blocks) => three_level::encode(blocks, out),
        }
    }
}

#[cfg(test)]
mod tests;
