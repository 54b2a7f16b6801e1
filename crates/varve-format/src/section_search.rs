//! Finds sections of unknown position and length by their checksums.
//!
//! 1. One pass notes every offset where a section may end: one byte that is a packing, and four that may be its
//!    checksum.
//! 2. A section from `s` to `e` has a checksum that follows from the CRCs of the file up to `s` and up to `e`
//!    ([`crate::checksum`]). Carried on to the end of the file, the part that depends on `s` alone equals the part
//!    that depends on `e` alone. So the ends that belong to a start are looked up, at a cost that does not depend on
//!    the length of the section.
//!
//! The time is in proportion to the bytes plus the tried starts. A sum from every start to every end would take time
//! in proportion to their product.

use std::cell::Cell;

use bytes::Bytes;
use varve_types::FileSalt;

use crate::checksum::{CRC_BYTES, Sums, carry, placed_crc};
use crate::section::{Handle, Packing, SECTION_BYTES_SEARCHED_MAX, unpack};

/// A search; see the module's comment.
#[derive(Debug)]
pub struct SectionSearch {
    bytes: Bytes,
    salt: FileSalt,
    /// Where the bytes stand in their file.
    base: u64,
    sums: Sums,
    /// Where sections may end, before their checksums, each behind what starts must have in common with it; sorted.
    ends: Vec<(u32, u32)>,
    tried: Cell<u64>,
}

impl SectionSearch {
    /// A search in `bytes`, which stand at `base` of the file with `salt`.
    ///
    /// REQUIRES: fewer than 4 GiB.
    pub fn new(bytes: Bytes, salt: FileSalt, base: u64) -> SectionSearch {
        let sums = Sums::new(&bytes);
        let mut ends = Vec::new();
        for end in 1..(bytes.len() + 1).saturating_sub(CRC_BYTES) {
            if Packing::from_id(bytes[end - 1]).is_none() {
                continue;
            }
            let Some(stored) = bytes[end..].first_chunk().map(|crc| u32::from_le_bytes(*crc))
            else {
                continue;
            };
            let common = carry(stored ^ sums.up_to(&bytes, end), bytes.len() - end);
            ends.push((common, end as u32));
        }
        ends.sort_unstable();
        SectionSearch { bytes, salt, base, sums, ends, tried: Cell::new(0) }
    }

    /// Returns what `accept` makes of the first section at `offset` of the file of which it makes anything.
    pub fn find<T>(
        &self,
        offset: u64,
        mut accept: impl FnMut(Handle, Bytes) -> Option<T>,
    ) -> Option<T> {
        let start = usize::try_from(offset.checked_sub(self.base)?).ok()?;
        if start >= self.bytes.len() {
            return None;
        }
        self.tried.set(self.tried.get() + 1);
        let before = placed_crc(self.salt.get(), offset, &[]) ^ self.sums.up_to(&self.bytes, start);
        let common = carry(before, self.bytes.len() - start);
        let first = self.ends.partition_point(|end| *end <= (common, start as u32));
        let ends = self.ends[first..].iter().take_while(|(found, _)| *found == common);
        ends.map(|(_, end)| *end as usize)
            .take_while(|end| end + CRC_BYTES - start <= SECTION_BYTES_SEARCHED_MAX)
            .find_map(|end| {
                let section = self.bytes.slice(start..end + CRC_BYTES);
                let handle = Handle { offset, len: section.len() as u32 };
                accept(handle, unpack(&section, end - 1 - start).ok()?)
            })
    }

    /// Steps of work that the search has taken: bytes passed, ends noted and starts tried.
    pub fn work(&self) -> u64 {
        self.bytes.len() as u64 + self.ends.len() as u64 + self.tried.get()
    }
}
