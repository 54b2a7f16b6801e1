//! The Elias-Fano index: the directories of the block boundaries as a sorted list, and a *fence* per
//! boundary, its suffix measured in 256ths of the mean distance between its directory's boundaries.
//!
//! 1. The rank of a key's prefix among the directories, exact, says between which boundaries to look; for
//!    a prefix that is no directory, that is the answer.
//! 2. A directory whose k boundaries are numbers f to f + k - 1 owns the fences 256 f to 256 (f + k) - 1,
//!    and its suffixes are spread over them evenly. The rank of a key's fence is its group. A directory that begins with
//!    a block owns it from the smallest suffix on, so that a scan of the directory reads no block before it.
//!
//! ```text
//! pages   (see [`super::pages`])
//! varint  number of leading zero bits of all suffixes
//!     8   the first directory's prefix, u64; absent if there is no boundary, as all that follows
//! list    prefixes of the directories, the first taken from each
//! list    number of boundaries up to and including each directory's
//! list    fences
//! list    ties: numbers of the boundaries whose fence is also that of the key before them
//! ```
//!
//! Invariant: a boundary that is no tie parts the keys of its fence from those below, so that equal fences
//! mean at or after the boundary. Only keys with the fence of a tie may be on either side.
//!
//! Where suffixes are spread unevenly (numbers of chunks rather than hashes) many boundaries are ties and
//! a search of the blocks decides.
//!
//! Source: the task that thesis section 5.3.1 sets, solved with Elias-Fano lists (Vigna 2013) in place of
//! tries: for directories numbered densely, the lists take less room and a tenth of the time.

use std::ops::RangeInclusive;

use super::boundaries::{BoundaryCollector, split};
use super::pages::Pages;
use crate::bits::elias_fano::{self, Access, EliasFano};
use crate::codec::{Reader, put_varint};
use crate::{FormatResult, Problem};

/// A fence is a place among 2^8 between two boundaries.
const FENCE_BITS: u32 = 8;

/// See the module's comment.
#[derive(Debug)]
pub(super) struct EliasFanoIndex {
    pages: Pages,
    zeros: u32,
    first_prefix: u64,
    prefixes: EliasFano,
    ends: EliasFano,
    fences: EliasFano,
    ties: EliasFano,
}

/// Appends the index's content.
pub(super) fn encode(collected: &BoundaryCollector, out: &mut Vec<u8>) {
    collected.pages.encode(out);
    let all = collected.boundaries.iter().fold(0, |all, boundary| all | boundary.suffix);
    let zeros = all.leading_zeros();
    put_varint(out, zeros.into());
    let Some(first) = collected.directories.first() else { return };
    out.extend_from_slice(&first.prefix.to_le_bytes());
    let (mut prefixes, mut ends, mut fences, mut ties) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (directory, boundaries) in collected.by_directory() {
        let start = fences.len();
        for boundary in boundaries {
            let of = |suffix| fence(suffix, zeros, start, boundaries.len());
            let own = if boundary.before.is_some() { of(boundary.suffix) } else { of(0) };
            if boundary.before.map(of) == Some(own) {
                ties.push(fences.len() as u64);
            }
            fences.push(own);
        }
        prefixes.push(directory.prefix - first.prefix);
        ends.push(fences.len() as u64);
    }
    [prefixes, ends, fences, ties].iter().for_each(|list| elias_fano::encode(list, out));
}

/// Returns the fence of `suffix` in a directory with `count` boundaries from number `start` on.
#[inline]
fn fence(suffix: u64, zeros: u32, start: usize, count: usize) -> u64 {
    let fences = (count as u64) << FENCE_BITS;
    let spread = match suffix.checked_shl(zeros) {
        Some(spread) if spread >> zeros == suffix => spread,
        Some(_) => u64::MAX,
        None => {
            if suffix == 0 {
                0
            } else {
                u64::MAX
            }
        }
    };
    let within = (u128::from(spread) * u128::from(fences)) >> 64;
    ((start as u64) << FENCE_BITS) + within as u64
}

impl EliasFanoIndex {
    pub(super) fn decode(content: &[u8], data_end: u64) -> FormatResult<EliasFanoIndex> {
        let mut reader = Reader::new(content);
        let pages = Pages::decode(&mut reader, data_end)?;
        let zeros = reader.varint_u32()?;
        let any = pages.group_count() > 1;
        let first_prefix = if any { reader.u64()? } else { 0 };
        let mut list = |access| {
            let none = &mut Reader::new(&[0]);
            EliasFano::decode(if any { &mut reader } else { none }, access)
        };
        let prefixes = list(Access::Rank)?;
        let ends = list(Access::Get)?;
        let fences = list(Access::Rank)?;
        let ties = list(Access::Rank)?;
        reader.finish()?;
        let index = EliasFanoIndex { pages, zeros, first_prefix, prefixes, ends, fences, ties };
        match index.broken() {
            Some(rule) => Err(reader.error(Problem::Invalid(rule))),
            None => Ok(index),
        }
    }

    /// Returns the rule that does not hold among the lists.
    fn broken(&self) -> Option<&'static str> {
        let boundaries = self.pages.group_count() - 1;
        if self.zeros > u64::BITS || self.fences.len() != boundaries {
            return Some("an index with another number of fences than blocks");
        }
        if self.prefixes.len() != self.ends.len() || self.ties.len() > boundaries {
            return Some("an index with lists of different lengths");
        }
        let (mut last, mut last_end) = (None, 0);
        for (prefix, end) in self.prefixes.iter_from(0).zip(self.ends.iter_from(0)) {
            if last.is_some_and(|last| prefix <= last) || end <= last_end {
                return Some("an index with directories twice or without boundaries");
            }
            (last, last_end) = (Some(prefix), end);
        }
        let fits = self.first_prefix.checked_add(last.unwrap_or(0)).is_some();
        (last_end != boundaries as u64 || !fits)
            .then_some("an index whose directories do not own its boundaries")
    }

    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Returns the blocks that can hold `key`, or else the first key after it.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> RangeInclusive<usize> {
        let (prefix, suffix) = split(key);
        let (first, last) = self.groups(prefix, suffix);
        self.pages.blocks_of(first, last)
    }

    #[inline]
    fn groups(&self, prefix: u64, suffix: u64) -> (usize, usize) {
        let Some(prefix) = prefix.checked_sub(self.first_prefix) else { return (0, 0) };
        let found = self.prefixes.ranks(prefix);
        let directory = found.start;
        if found.is_empty() {
            let start = directory.checked_sub(1).map_or(0, |before| self.ends.get(before) as usize);
            return (start, start);
        }
        let (start, end) = self.ends.get_with_before(directory);
        let (start, end) = (start as usize, end as usize);
        let fence = fence(suffix, self.zeros, start, end - start);
        let fences = self.fences.ranks(fence);
        let below = fences.start.clamp(start, end);
        let through = fences.end.clamp(below, end);
        let parted = through > below && self.ties.ranks(below as u64).is_empty();
        (below + usize::from(parted), through)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let lists = [&self.prefixes, &self.ends, &self.fences, &self.ties];
        size_of::<EliasFanoIndex>() - lists.len() * size_of::<EliasFano>()
            + self.pages.memory_bytes()
            + lists.into_iter().map(EliasFano::memory_bytes).sum::<usize>()
    }
}
