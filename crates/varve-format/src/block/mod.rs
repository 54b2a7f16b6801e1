//! Blocks: sorted versions of rows, the unit in which tables are read and cached.
//!
//! ```text
//! entries, then restarts: u32 offset of every 16th entry, then u32: in the low 24 bits the number of restarts, in the
//! others the bytes of every key, or 0 if entries have lengths of their own
//!
//! entry   varint  bytes shared with the key before; 0 at a restart
//!         varint  bytes of the key that follow, where keys have lengths of their own; else the rest of them do
//!         varint  bytes of the value
//!         varint  sequence number << 2 | kind (1 delete, 2 put, 3 separated)
//!         bytes   rest of the key
//!         bytes   value, or where it stands ([`crate::segment`]) if separated
//! ```
//!
//! Entries are in *internal order*: keys ascending, and of one key the newest version first, so that
//! a search for (key, seq) stops at the version a reader as of `seq` sees.
//!
//! Invariants: the first entry is a restart; between restarts the shared length is the whole common
//! prefix of the two keys ([`Block::get`] relies on it and never rebuilds a key); a block has at
//! least one entry.

mod builder;
mod cursor;

use std::cmp::Ordering;

use bytes::Bytes;
use varve_types::SeqNo;
use varve_types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

pub use builder::BlockBuilder;
pub use cursor::BlockCursor;

use crate::codec::{Reader, read_varint, varint_bytes};
use crate::filter::PREFIX_BYTES;
use crate::{EntryKind, FormatError, FormatResult, Problem};

/// Every such many entries one has its whole key.
pub(crate) const RESTART_INTERVAL: usize = 16;
const RESTART_BYTES: usize = 4;
/// Bits of the number of restarts; the length of keys has the others of its word.
const COUNT_BITS: u32 = 24;
const KIND_BITS: u32 = 2;
/// Bytes that are read at once for a tag, which nearly always takes fewer.
const TAG_WORD_BYTES: usize = 8;

/// Returns the order of versions: by key, and of one key the newest first.
#[inline]
pub fn internal_cmp(a: (&[u8], SeqNo), b: (&[u8], SeqNo)) -> Ordering {
    key_cmp(a.0, b.0).then(b.1.cmp(&a.1))
}

/// Returns the order of keys: that of their bytes. Those of 8 + 8 bytes are compared as numbers, without a call.
#[inline]
fn key_cmp(a: &[u8], b: &[u8]) -> Ordering {
    match (<[u8; 2 * PREFIX_BYTES]>::try_from(a), b.try_into()) {
        (Ok(a), Ok(b)) => u128::from_be_bytes(a).cmp(&u128::from_be_bytes(b)),
        _ => a.cmp(b),
    }
}

/// A version of a row, found by [`Block::get`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// When it was written.
    pub seq: SeqNo,
    /// What it does.
    pub kind: EntryKind,
    /// The value; empty for a deletion. Shares the block's memory.
    pub value: Bytes,
}

/// A block's content, ready to be searched.
#[derive(Clone, Debug)]
pub struct Block {
    content: Bytes,
    /// Where the entries end and the restarts begin.
    entries_end: usize,
    restarts: usize,
    /// Bytes of every key; 0 if entries have lengths of their own.
    key_bytes: u8,
}

/// What of an entry says whether to look closer and where the next one is; ranges are offsets in the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outline {
    shared: usize,
    key_start: usize,
    value_start: usize,
    end: usize,
}

/// An entry's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    outline: Outline,
    seq: SeqNo,
    kind: EntryKind,
}

impl Block {
    /// Takes a block's content, as [`crate::section::open_section`] returns it. Checks the frame;
    /// [`Block::check`] checks the entries too.
    pub fn parse(content: Bytes) -> FormatResult<Block> {
        let len = content.len();
        let truncated = |needed: usize| {
            let problem = Problem::Truncated { needed: needed as u64, left: len as u64 };
            FormatError::new(0u64, problem)
        };
        let count_at = len.checked_sub(RESTART_BYTES).ok_or_else(|| truncated(RESTART_BYTES))?;
        let word = read_u32(&content, count_at);
        let (restarts, key_bytes) = (word & ((1 << COUNT_BITS) - 1), (word >> COUNT_BITS) as u8);
        let restart_bytes =
            restarts.checked_mul(RESTART_BYTES).ok_or_else(|| truncated(usize::MAX))?;
        let entries_end =
            count_at.checked_sub(restart_bytes).ok_or_else(|| truncated(restart_bytes))?;
        let block = Block { content, entries_end, restarts, key_bytes };
        let mut lower = 0;
        for i in 0..restarts {
            let restart = block.restart(i);
            if restart >= entries_end || (i == 0) != (restart == 0) || restart < lower {
                let rule = "restarts that are out of order or outside of the entries";
                let at = entries_end + i * RESTART_BYTES;
                return Err(FormatError::new(at, Problem::Invalid(rule)));
            }
            lower = restart + 1;
        }
        if restarts == 0 {
            return Err(FormatError::new(count_at, Problem::Invalid("a block without entries")));
        }
        Ok(block)
    }

    /// Bytes of memory the block takes.
    pub fn memory_bytes(&self) -> usize {
        self.content.len() + size_of::<Block>()
    }

    /// Returns the key of the first entry.
    pub fn first_key(&self) -> FormatResult<&[u8]> {
        let first = self.restart_outline(0)?;
        Ok(self.suffix(&first))
    }

    /// Returns the newest version of `key` that a reader as of `seq` sees, if it is in this block.
    pub fn get(&self, key: &[u8], seq: SeqNo) -> FormatResult<Option<Found>> {
        let after = self.restarts_up_to(key, seq)?;
        if let Some(region) = after.checked_sub(1) {
            let end = self.region_end(region);
            if let Some(entry) = self.scan_region(self.restart(region), end, key, seq)? {
                return Ok(Some(self.found(entry)));
            }
        }
        if after < self.restarts && self.suffix(&self.restart_outline(after)?) == key {
            let entry = self.entry(self.restart(after))?;
            if entry.seq <= seq {
                return Ok(Some(self.found(entry)));
            }
        }
        Ok(None)
    }

    /// Reads every entry and fails unless all invariants of blocks hold. Returns their number.
    pub fn check(&self) -> FormatResult<u64> {
        let mut cursor = BlockCursor::new(self.clone());
        let mut last: Option<(Vec<u8>, SeqNo)> = None;
        let (mut count, mut restarts) = (0, 0);
        cursor.seek_first()?;
        while let Some((offset, shared)) = cursor.place() {
            let is_restart = restarts < self.restarts && self.restart(restarts) == offset;
            restarts += usize::from(is_restart);
            let here = (cursor.key(), cursor.seq());
            let common = last.as_ref().map_or(0, |(key, _)| common_prefix(key, here.0));
            let in_order = last
                .as_ref()
                .is_none_or(|(key, seq)| internal_cmp((key, *seq), here) == Ordering::Less);
            if !in_order || shared != if is_restart { 0 } else { common } {
                let rule = "an entry that is out of order or shares too little";
                return Err(FormatError::new(offset, Problem::Invalid(rule)));
            }
            last = Some((here.0.to_vec(), here.1));
            count += 1;
            cursor.next()?;
        }
        if restarts != self.restarts {
            let rule = "a restart that is not at an entry";
            return Err(FormatError::new(self.entries_end, Problem::Invalid(rule)));
        }
        Ok(count)
    }

    /// Finds the first version of `key` as of `seq` among the entries from `pos` to `end`, all of one restart. Keeps
    /// count of how many bytes of `key` the entry before matched, which says how it compares with one that shares
    /// more or fewer bytes with that entry, without looking at its key.
    fn scan_region(
        &self,
        mut pos: usize,
        end: usize,
        key: &[u8],
        seq: SeqNo,
    ) -> FormatResult<Option<Entry>> {
        let mut matched = 0;
        while pos < end {
            let (at, outline) = (pos, self.outline(pos)?);
            pos = outline.end;
            match outline.shared.cmp(&matched) {
                Ordering::Greater => continue,
                Ordering::Less => return Ok(None),
                Ordering::Equal => {}
            }
            let (suffix, rest) = (self.suffix(&outline), &key[matched..]);
            let common = common_prefix(suffix, rest);
            if common == suffix.len() && common == rest.len() {
                let entry = self.entry(at)?;
                if entry.seq <= seq {
                    return Ok(Some(entry));
                }
            }
            if suffix.get(common) > rest.get(common) {
                return Ok(None);
            }
            matched += common;
        }
        Ok(None)
    }

    /// Returns the number of restarts whose entry is at or before (`key`, `seq`).
    fn restarts_up_to(&self, key: &[u8], seq: SeqNo) -> FormatResult<usize> {
        let (mut low, mut high) = (0, self.restarts);
        while low < high {
            let middle = low + (high - low) / 2;
            let after = match key_cmp(self.suffix(&self.restart_outline(middle)?), key) {
                Ordering::Equal => self.entry(self.restart(middle))?.seq < seq,
                order => order == Ordering::Greater,
            };
            if after {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(low)
    }

    #[inline]
    fn restart(&self, i: usize) -> usize {
        read_u32(&self.content, self.entries_end + i * RESTART_BYTES)
    }

    /// Returns where the entries of restart `i` end.
    fn region_end(&self, i: usize) -> usize {
        if i + 1 < self.restarts { self.restart(i + 1) } else { self.entries_end }
    }

    fn restart_outline(&self, i: usize) -> FormatResult<Outline> {
        let pos = self.restart(i);
        let outline = self.outline(pos)?;
        if outline.shared != 0 {
            let rule = "a restart that shares bytes with the key before";
            return Err(FormatError::new(pos, Problem::Invalid(rule)));
        }
        Ok(outline)
    }

    /// Returns the outline of the entry at `pos`, without a look at its tag if that can be done.
    #[inline(always)]
    fn outline(&self, pos: usize) -> FormatResult<Outline> {
        let entries = &self.content[..self.entries_end];
        match outline(entries, pos, self.key_bytes) {
            Some((outline, _)) => Ok(outline),
            None => Ok(decode_entry(entries, pos, self.key_bytes)?.outline),
        }
    }

    /// Returns the entry at `pos`.
    #[inline(always)]
    fn entry(&self, pos: usize) -> FormatResult<Entry> {
        let entries = &self.content[..self.entries_end];
        match short_entry(entries, pos, self.key_bytes) {
            Some(entry) => Ok(entry),
            None => decode_entry(entries, pos, self.key_bytes),
        }
    }

    /// Returns the part of the entry's key that it does not share.
    #[inline]
    fn suffix(&self, outline: &Outline) -> &[u8] {
        &self.content[outline.key_start..outline.value_start]
    }

    fn found(&self, entry: Entry) -> Found {
        let value = self.content.slice(entry.outline.value_start..entry.outline.end);
        Found { seq: entry.seq, kind: entry.kind, value }
    }
}

/// Returns the outline of the entry at `pos` and where its tag begins, if it is as nearly all are: its key as long as
/// all others, its value of less than 16 KiB, and more behind its head than what a head can take.
#[inline(always)]
fn outline(entries: &[u8], pos: usize, key_bytes: u8) -> Option<(Outline, usize)> {
    let rest = entries.get(pos..)?;
    let [shared, head @ ..] = rest.first_chunk::<{ 1 + 2 + TAG_WORD_BYTES }>()?;
    let unshared = key_bytes.checked_sub(*shared).filter(|_| key_bytes != 0 && *shared < 0x80)?;
    let (value_len, value_len_bytes) = read_varint(&head[..2])?;
    let tag_at = 1 + value_len_bytes;
    let tag_bytes = varint_bytes(head[value_len_bytes..].first_chunk()?)?;
    let key_at = tag_at + tag_bytes;
    let value_at = key_at + usize::from(unshared);
    let len = value_at + value_len as usize;
    let outline = Outline {
        shared: usize::from(*shared),
        key_start: pos + key_at,
        value_start: pos + value_at,
        end: pos + len,
    };
    (len <= rest.len()).then_some((outline, pos + tag_at))
}

/// Returns the entry at `pos`, if it has an [`outline`]. As [`decode_entry`] has it.
#[inline(always)]
fn short_entry(entries: &[u8], pos: usize, key_bytes: u8) -> Option<Entry> {
    let (outline, tag_at) = outline(entries, pos, key_bytes)?;
    let (tag, _) = read_varint(entries[tag_at..].first_chunk::<TAG_WORD_BYTES>()?)?;
    let kind = EntryKind::from_id((tag & ((1 << KIND_BITS) - 1)) as u8)?;
    Some(Entry { outline, seq: SeqNo::new(tag >> KIND_BITS), kind })
}

/// Returns the entry at `pos`; `key_bytes` as [`Block`] has them.
fn decode_entry(entries: &[u8], pos: usize, key_bytes: u8) -> FormatResult<Entry> {
    let mut reader = Reader::new(&entries[pos..]);
    let fields = (|| {
        let shared = reader.varint()?;
        let unshared = match u64::from(key_bytes) {
            0 => reader.varint()?,
            // What shares more than a key has is refused below.
            all => all.checked_sub(shared).unwrap_or(u64::MAX),
        };
        let value_len = reader.varint()?;
        let tag = reader.varint()?;
        Ok((shared, unshared, value_len, tag))
    })();
    let (shared, unshared, value_len, tag) =
        fields.map_err(|error: FormatError| error.shifted(pos as u64))?;
    let at = |problem| Err(FormatError::new(pos, problem));
    let (key_max, value_max) = (KEY_BYTES_MAX as u64, VALUE_BYTES_MAX as u64);
    if shared > key_max || unshared > key_max || shared + unshared > key_max {
        let len = shared.saturating_add(unshared);
        return at(Problem::TooLong { what: "key", len, max: key_max });
    }
    if value_len > value_max {
        return at(Problem::TooLong { what: "value", len: value_len, max: value_max });
    }
    let (needed, left) = (unshared + value_len, reader.remaining() as u64);
    if needed > left {
        return at(Problem::Truncated { needed, left });
    }
    let kind_id = (tag & ((1 << KIND_BITS) - 1)) as u8;
    let Some(kind) = EntryKind::from_id(kind_id) else {
        return at(Problem::Unknown { what: "kind of entry", id: kind_id.into() });
    };
    let seq = SeqNo::new(tag >> KIND_BITS);
    let key_start = pos + reader.pos();
    let value_start = key_start + unshared as usize;
    let end = value_start + value_len as usize;
    let outline = Outline { shared: shared as usize, key_start, value_start, end };
    Ok(Entry { outline, seq, kind })
}

/// REQUIRES: four bytes at `pos`.
#[inline]
fn read_u32(bytes: &[u8], pos: usize) -> usize {
    let mut array = [0; 4];
    array.copy_from_slice(&bytes[pos..pos + 4]);
    u32::from_le_bytes(array) as usize
}

/// Returns how many bytes `a` and `b` have in common at their start.
#[inline]
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let mut common = 0;
    while let (Some(a), Some(b)) = (a[common..].first_chunk(), b[common..].first_chunk()) {
        let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differ != 0 {
            return common + differ.trailing_zeros() as usize / 8;
        }
        common += size_of::<u64>();
    }
    common + a[common..].iter().zip(&b[common..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
