//! The three-level index of SlimDB (5.3.1, algorithms 1 and 2).
//!
//! 1. The prefixes of the block boundaries stand in entropy-coded tries ([`super::trie`]), which map a key's
//!    prefix to the rank of its directory.
//! 2. A rank/select dictionary maps the rank to the directory's boundaries.
//! 3. The suffixes of the boundaries stand in tries, one for each directory: the rank of a key's suffix
//!    among them is its group of blocks.
//!
//! ```text
//! pages   (see [`super::pages`])
//! varint  number of directories; nothing follows if 0
//! list    number of boundaries up to and including each directory's (see bits/elias_fano.rs)
//! varint  number of leading zero bits of all suffixes
//! u64s    the first prefix of each group of 128 directories
//! u64s    the first suffix of each group of 128 boundaries
//! varint  bits of the tries
//! u64s    tries, the first bit of a word its highest: of each group of directories, 6 bits of how many
//!         leading bits all have in common, and the trie of the prefixes from there; then of each group
//!         of boundaries and each directory in it, the trie of those boundaries' suffixes, from the
//!         leading zeros on
//! ```
//!
//! Of a prefix the bits matter that tell it from the table's prefixes next to it; of a suffix those that
//! tell it from the key before. So a search is exact for every key of the table. A prefix that the table
//! lacks may be taken for a directory, which harms no lookup; a scan must look on either side of it
//! ([`ThreeLevelIndex::seek`]).
//!
//! Departures from the paper: tries have tails; the tries of many directories, and those of a large one,
//! are cut into groups of 128, so that a search reads no more than one group of each level.

use std::ops::RangeInclusive;

use super::boundaries::{BoundaryCollector, Directory, split};
use super::pages::Pages;
use super::trie::{self, KEY_BITS, KeyPosition, TrieKey};
use crate::bits::elias_fano::{self, Access, EliasFano};
use crate::bits::{BitReader, BitWriter, put_words, read_words};
use crate::codec::{Reader, put_varint};
use crate::{FormatResult, Problem};

/// Directories, or boundaries, of one group.
const GROUP: usize = 128;
/// Bits of the number of bits that the prefixes of a group have in common.
const COMMON_BITS: u32 = 6;

/// See the module's comment.
#[derive(Debug)]
pub(super) struct ThreeLevelIndex {
    pages: Pages,
    directories: usize,
    ends: EliasFano,
    zeros: u32,
    prefix_heads: Box<[u64]>,
    suffix_heads: Box<[u64]>,
    tries: Box<[u64]>,
    /// Where the tries of each group of directories begin, in bits.
    prefix_tries: Box<[u32]>,
    /// Where the tries of each group of boundaries begin, and the directory of its first boundary.
    suffix_tries: Box<[(u32, u32)]>,
}

/// Appends the index's content (algorithm 1).
pub(super) fn encode(collected: &BoundaryCollector, out: &mut Vec<u8>) {
    collected.pages.encode(out);
    let directories = &collected.directories;
    put_varint(out, directories.len() as u64);
    if directories.is_empty() {
        return;
    }
    let mut ends = Vec::with_capacity(directories.len());
    for directory in directories {
        ends.push(ends.last().copied().unwrap_or(0) + directory.boundaries as u64);
    }
    elias_fano::encode(&ends, out);
    let all = collected.boundaries.iter().fold(0, |all, boundary| all | boundary.suffix);
    let zeros = all.leading_zeros();
    put_varint(out, zeros.into());
    let heads = directories.iter().step_by(GROUP).map(|directory| directory.prefix);
    put_words(out, &heads.collect::<Vec<u64>>());
    let heads = collected.boundaries.iter().step_by(GROUP).map(|boundary| boundary.suffix);
    put_words(out, &heads.collect::<Vec<u64>>());
    let mut tries = BitWriter::default();
    directories.chunks(GROUP).for_each(|group| encode_prefixes(group, &mut tries));
    encode_suffixes(collected, zeros, &mut tries);
    put_varint(out, tries.bits());
    put_words(out, tries.words());
}

fn encode_prefixes(group: &[Directory], tries: &mut BitWriter) {
    let keys: Vec<TrieKey> = group
        .iter()
        .map(|directory| {
            let prefix = directory.prefix;
            let apart = |other: u64| (prefix ^ other).leading_zeros() + 1;
            let matter = directory.neighbours.into_iter().flatten().map(apart).max();
            TrieKey { key: prefix, matter: matter.unwrap_or(0) }
        })
        .collect();
    let common = match (keys.first(), keys.last()) {
        (Some(first), Some(last)) if keys.len() > 1 => (first.key ^ last.key).leading_zeros(),
        _ => 0,
    };
    tries.put(common.into(), COMMON_BITS);
    trie::encode(&keys, common, tries);
}

fn encode_suffixes(collected: &BoundaryCollector, zeros: u32, tries: &mut BitWriter) {
    let mut next = 0;
    for (_, mut boundaries) in collected.by_directory() {
        while !boundaries.is_empty() {
            let room = GROUP - next % GROUP;
            let (here, after) = boundaries.split_at(room.min(boundaries.len()));
            let keys: Vec<TrieKey> = here
                .iter()
                .map(|boundary| {
                    let key = boundary.suffix;
                    let apart = |before: u64| (key ^ before).leading_zeros() + 1;
                    TrieKey { key, matter: boundary.before.map_or(0, apart) }
                })
                .collect();
            trie::encode(&keys, zeros, tries);
            next += here.len();
            boundaries = after;
        }
    }
}

impl ThreeLevelIndex {
    pub(super) fn decode(content: &[u8], data_end: u64) -> FormatResult<ThreeLevelIndex> {
        let mut reader = Reader::new(content);
        let pages = Pages::decode(&mut reader, data_end)?;
        let start = reader.clone();
        let bad = |rule| Err(start.error(Problem::Invalid(rule)));
        let boundaries = pages.group_count() - 1;
        let directories = reader.varint()? as usize;
        if directories > boundaries || (directories == 0) != (boundaries == 0) {
            return bad("an index with more directories than blocks, or without any");
        }
        let none = &mut Reader::new(&[0]);
        let list = if directories > 0 { &mut reader } else { none };
        let ends = EliasFano::decode(list, Access::Get)?;
        let mut last = 0;
        let ascends = ends.iter_from(0).all(|end| end > std::mem::replace(&mut last, end));
        if ends.len() != directories || !ascends || last != boundaries as u64 {
            return bad("an index whose directories do not own its boundaries");
        }
        let zeros = if directories > 0 { reader.varint_u32()? } else { 0 };
        let prefix_heads = read_heads(&mut reader, directories)?;
        let suffix_heads = read_heads(&mut reader, boundaries)?;
        let bits = if directories > 0 { reader.varint()? } else { 0 };
        if bits > (reader.remaining() as u64 * 8).min(u32::MAX.into()) || zeros > KEY_BITS {
            return bad("an index with more bits of tries than there are");
        }
        let tries = read_words(&mut reader, bits.next_multiple_of(KEY_BITS.into()))?;
        reader.finish()?;
        let mut index = ThreeLevelIndex {
            pages,
            directories,
            ends,
            zeros,
            prefix_heads,
            suffix_heads,
            tries,
            prefix_tries: Box::default(),
            suffix_tries: Box::default(),
        };
        if !index.place_tries(boundaries, bits) {
            return bad("an index whose tries are malformed");
        }
        Ok(index)
    }

    /// Walks all tries and notes where groups begin; false if one is malformed.
    fn place_tries(&mut self, boundaries: usize, end: u64) -> bool {
        let mut bits = BitReader::new(&self.tries, 0);
        let mut prefix_tries = Vec::with_capacity(self.directories.div_ceil(GROUP));
        for first in (0..self.directories).step_by(GROUP) {
            prefix_tries.push(bits.at() as u32);
            let common = bits.take(COMMON_BITS) as u32;
            let count = GROUP.min(self.directories - first);
            if !trie::check(&mut bits, count, common) || bits.at() > end {
                return false;
            }
        }
        let mut suffix_tries = Vec::with_capacity(boundaries.div_ceil(GROUP));
        let mut start = 0;
        for (directory, own_end) in self.ends.iter_from(0).enumerate() {
            while start < own_end as usize {
                if start.is_multiple_of(GROUP) {
                    suffix_tries.push((bits.at() as u32, directory as u32));
                }
                let portion_end = (start / GROUP * GROUP + GROUP).min(own_end as usize);
                let well = trie::check(&mut bits, portion_end - start, self.zeros);
                if !well || bits.at() > end {
                    return false;
                }
                start = portion_end;
            }
        }
        let well = bits.at() == end && bits.peek() == 0;
        self.prefix_tries = prefix_tries.into_boxed_slice();
        self.suffix_tries = suffix_tries.into_boxed_slice();
        well && self.prefix_heads.is_sorted()
    }

    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Returns the blocks that hold `key`, if the table does (algorithm 2).
    pub(super) fn find(&self, key: &[u8]) -> RangeInclusive<usize> {
        let (prefix, suffix) = split(key);
        let group = match self.directory(prefix) {
            KeyPosition::Before(directory) => self.end_before(directory),
            KeyPosition::At(directory) => self.group_in(directory, suffix),
        };
        self.pages.blocks_of(group, group)
    }

    /// Returns the blocks that can hold the first key at or after `key`, or else it begins the next.
    pub(super) fn seek(&self, key: &[u8]) -> RangeInclusive<usize> {
        let (first, last) = match self.directory(split(key).0) {
            KeyPosition::Before(directory) => {
                (self.end_before(directory), self.end_before(directory))
            }
            KeyPosition::At(directory) => {
                (self.end_before(directory), self.end_before(directory + 1))
            }
        };
        self.pages.blocks_of(first, last)
    }

    /// First level: the rank of a prefix.
    fn directory(&self, prefix: u64) -> KeyPosition {
        let after = self.prefix_heads.partition_point(|head| *head <= prefix);
        let Some(group) = after.checked_sub(1) else { return KeyPosition::Before(0) };
        let first = group * GROUP;
        let count = GROUP.min(self.directories - first);
        let mut bits = BitReader::new(&self.tries, self.prefix_tries[group].into());
        let common = bits.take(COMMON_BITS) as u32;
        if (prefix ^ self.prefix_heads[group]).leading_zeros() < common {
            return KeyPosition::Before(first + count);
        }
        match trie::find(bits, count, common, prefix) {
            KeyPosition::Before(rank) => KeyPosition::Before(first + rank),
            KeyPosition::At(rank) => KeyPosition::At(first + rank),
        }
    }

    /// Second level: the boundaries of all directories before this one.
    fn end_before(&self, directory: usize) -> usize {
        directory.checked_sub(1).map_or(0, |last| self.ends.get(last) as usize)
    }

    /// Third level: the group of a suffix within a directory.
    fn group_in(&self, directory: usize, suffix: u64) -> usize {
        let (start, end) = (self.end_before(directory), self.end_before(directory + 1));
        let (first_group, last_group) = (start / GROUP, (end - 1) / GROUP);
        // All groups but the first begin with a boundary of this directory.
        let heads = &self.suffix_heads[first_group + 1..=last_group];
        let group = first_group + heads.partition_point(|head| *head <= suffix);
        let (bit, first_directory) = self.suffix_tries[group];
        let mut bits = BitReader::new(&self.tries, bit.into());
        let mut portion = group * GROUP;
        if group == first_group {
            for own_end in self.ends.iter_from(first_directory as usize) {
                if portion >= start {
                    break;
                }
                trie::skip(&mut bits, own_end as usize - portion);
                portion = own_end as usize;
            }
        }
        let count = end.min((group + 1) * GROUP) - portion;
        if suffix.leading_zeros() < self.zeros {
            return portion + count;
        }
        match trie::find(bits, count, self.zeros, suffix) {
            KeyPosition::Before(rank) => portion + rank,
            KeyPosition::At(rank) => portion + rank + 1,
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let words = self.prefix_heads.len() + self.suffix_heads.len() + self.tries.len();
        size_of::<ThreeLevelIndex>() - size_of::<EliasFano>()
            + self.pages.memory_bytes()
            + self.ends.memory_bytes()
            + words * size_of::<u64>()
            + self.prefix_tries.len() * size_of::<u32>()
            + self.suffix_tries.len() * size_of::<(u32, u32)>()
    }
}

/// One word for each group of `count`.
fn read_heads(reader: &mut Reader<'_>, count: usize) -> FormatResult<Box<[u64]>> {
    read_words(reader, count.div_ceil(GROUP) as u64 * u64::from(KEY_BITS))
}
