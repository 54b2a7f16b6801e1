//! The bytes of an overlay file: blocks of a large file that replace blocks of another file, its base.
//!
//! 1. A writer writes blocks to the data, then appends a record for them and syncs the file.
//! 2. It writes the number of durable records to one of the two slots, in turn.
//! 3. A reader takes the newer slot and believes the records that it counts.
//!
//! ```text
//! offset        bytes  what
//!      0         4096  header
//!   4096         4096  slot 0 for how many records are durable
//!   8192         4096  slot 1
//!  12288           32  each record, one after the other
//!  data_start          byte O of the file at data_start + O
//!
//! header, zeros after it
//! | magic u64 | version u32 | kind u32 | salt u64 | data_start u64 | base_len u64 | secs i64 | nanos u32 | crc u32 |
//!
//!     version 1  the file may end before its last own block, if that ends with zeros
//!     version 2  the file never ends before its last own block; if it does, it was cut
//!
//! slot, zeros after it
//! | turn u64 | records u64 | zero u32 | crc u32 |
//!
//! record
//! | first u64 | count u64 | boot u64 | kind u32 | crc u32 |
//!     kind 1  the blocks from `first` on, `count` of them, are this file's own
//!     kind 2  the base is hidden from block `first` on; count is 0
//! ```
//!
//! All integers are little-endian. Each crc is crc32c of: salt u64, offset in the file u64, the bytes before it; the
//! crc of the header covers only the bytes before it. The slot with the higher turn counts, so that a torn write
//! loses nothing.
//!
//! Invariant: a record beyond the counted ones is believed only if its `boot` is the present run of the machine: then
//! a process died before it wrote the slot. Otherwise the power was lost, and the record is ignored. In a preimage
//! such records are always ignored.

use varve_types::Timestamp;
use varve_types::limits::FILE_BYTES_MAX;

/// Bytes of one block.
pub const BLOCK_BYTES: u64 = 1 << 16;
/// Bytes of the header, and of a slot.
pub const PAGE_BYTES: usize = 4096;
/// Where the two slots are.
pub const SLOT_OFFSETS: [u64; 2] = [4096, 8192];
/// Where the first record is.
pub const RECORDS_START: u64 = 12_288;
/// Bytes of one record.
pub const RECORD_BYTES: usize = 32;

const MAGIC: u64 = u64::from_le_bytes(*b"VarvOvl\x01");
/// The version of a file that may end before its last own block.
const VERSION: u32 = 1;
/// The version of a file that never ends before its last own block.
const VERSION_COVERING: u32 = 2;
const HEADER_BYTES: usize = 56;
const SLOT_BYTES: usize = 24;
const OWN: u32 = 1;
const CUT: u32 = 2;

/// Why bytes are not an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OverlayError(pub &'static str);

/// What an overlay is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OverlayKind {
    /// It holds the earlier content of the base: the header has its length and time.
    Kept = 1,
    /// It holds written blocks: the file itself has the length and the time.
    Written = 2,
}

/// The fixed part of an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayHeader {
    /// What it is for.
    pub kind: OverlayKind,
    /// A random number, which is part of every checksum.
    pub salt: u64,
    /// The length of the base when the overlay began.
    pub base_len: u64,
    /// The time of the last change of the base when the overlay began.
    pub modified: Timestamp,
    /// The file reaches to the end of its last own block that a record counts.
    pub is_covering: bool,
}

impl OverlayHeader {
    /// Returns the number of blocks of the base, of which the last may be shorter.
    pub fn base_blocks(&self) -> u64 {
        self.base_len.div_ceil(BLOCK_BYTES)
    }

    /// Returns the most records: each makes a block the overlay's own, or cuts one off.
    pub fn records_max(&self) -> u64 {
        2 * self.base_blocks()
    }

    /// Returns where the data begins: after the records, at a multiple of the block size, so that the storage below
    /// can share space.
    pub fn data_start(&self) -> u64 {
        let records_end = RECORDS_START + self.records_max() * RECORD_BYTES as u64;
        records_end.next_multiple_of(BLOCK_BYTES)
    }

    /// Returns whether one file can hold the records and after them as many bytes as the base has.
    pub fn has_room(&self) -> bool {
        let end = self.data_start().checked_add(self.base_len);
        end.is_some_and(|end| end <= FILE_BYTES_MAX)
    }

    /// Returns the page with the header. REQUIRES: it has room.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PAGE_BYTES);
        out.extend_from_slice(&MAGIC.to_le_bytes());
        let version = if self.is_covering { VERSION_COVERING } else { VERSION };
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&(self.kind as u32).to_le_bytes());
        out.extend_from_slice(&self.salt.to_le_bytes());
        out.extend_from_slice(&self.data_start().to_le_bytes());
        out.extend_from_slice(&self.base_len.to_le_bytes());
        out.extend_from_slice(&self.modified.secs().to_le_bytes());
        out.extend_from_slice(&self.modified.nanos().to_le_bytes());
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.resize(PAGE_BYTES, 0);
        out
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8]) -> Result<OverlayHeader, OverlayError> {
        let page = bytes.get(..PAGE_BYTES).ok_or(OverlayError("the header is cut off"))?;
        let (fields, rest) = page.split_at(HEADER_BYTES);
        if word(fields, 0) != MAGIC {
            return Err(OverlayError("it does not begin as an overlay does"));
        }
        let crc_at = HEADER_BYTES - 4;
        if crc32c::crc32c(&fields[..crc_at]) != half(fields, crc_at) {
            return Err(OverlayError("the checksum does not fit the header"));
        }
        let is_covering = match half(fields, 8) {
            VERSION => false,
            VERSION_COVERING => true,
            _ => return Err(OverlayError("an unknown version; use a newer varve")),
        };
        if rest.iter().any(|byte| *byte != 0) {
            return Err(OverlayError("something stands after the header"));
        }
        let kind = match half(fields, 12) {
            1 => OverlayKind::Kept,
            2 => OverlayKind::Written,
            _ => return Err(OverlayError("an unknown kind of overlay")),
        };
        let modified = Timestamp::new(word(fields, 40) as i64, half(fields, 48));
        let modified = modified.ok_or(OverlayError("a time that is none"))?;
        let header = OverlayHeader {
            kind,
            salt: word(fields, 16),
            base_len: word(fields, 32),
            modified,
            is_covering,
        };
        if !header.has_room() || header.data_start() != word(fields, 24) {
            return Err(OverlayError("lengths that contradict each other"));
        }
        Ok(header)
    }
}

/// A slot: how many records are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlaySlot {
    /// Counts the writes of slots. Its parity says which slot.
    pub turn: u64,
    /// The number of records that are durable together with their blocks.
    pub records: u64,
}

impl OverlaySlot {
    /// Returns the offset of this slot.
    pub fn offset(&self) -> u64 {
        SLOT_OFFSETS[(self.turn % 2) as usize]
    }

    /// Returns the bytes of the slot in an overlay with this salt.
    pub fn encode(&self, salt: u64) -> [u8; SLOT_BYTES] {
        let mut out = [0; SLOT_BYTES];
        out[..8].copy_from_slice(&self.turn.to_le_bytes());
        out[8..16].copy_from_slice(&self.records.to_le_bytes());
        seal(&mut out, salt, self.offset());
        out
    }

    /// Decodes the slot at `offset`.
    pub fn decode(bytes: &[u8], salt: u64, offset: u64) -> Result<OverlaySlot, OverlayError> {
        let fields = bytes.get(..SLOT_BYTES).ok_or(OverlayError("the slot is cut off"))?;
        let slot = OverlaySlot { turn: word(fields, 0), records: word(fields, 8) };
        if !is_sealed(fields, salt, offset) || slot.offset() != offset || half(fields, 16) != 0 {
            return Err(OverlayError("the checksum does not fit the slot"));
        }
        Ok(slot)
    }
}

/// A change of which blocks are an overlay's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlayChange {
    /// Blocks became its own.
    Own {
        /// The first.
        first: u64,
        /// How many, at least one.
        count: u64,
    },
    /// The base is hidden from this block on.
    Cut {
        /// The first hidden block.
        first: u64,
    },
}

/// A change with the run of the machine in which it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayRecord {
    /// The change.
    pub change: OverlayChange,
    /// The id of the run of the machine.
    pub boot: u64,
}

impl OverlayRecord {
    /// Returns the offset of record number `index`.
    pub fn offset(index: u64) -> u64 {
        RECORDS_START + index * RECORD_BYTES as u64
    }

    /// Returns the bytes of record number `index` of an overlay with this salt.
    pub fn encode(&self, salt: u64, index: u64) -> [u8; RECORD_BYTES] {
        let (first, count, kind) = match self.change {
            OverlayChange::Own { first, count } => (first, count, OWN),
            OverlayChange::Cut { first } => (first, 0, CUT),
        };
        let mut out = [0; RECORD_BYTES];
        out[..8].copy_from_slice(&first.to_le_bytes());
        out[8..16].copy_from_slice(&count.to_le_bytes());
        out[16..24].copy_from_slice(&self.boot.to_le_bytes());
        out[24..28].copy_from_slice(&kind.to_le_bytes());
        seal(&mut out, salt, OverlayRecord::offset(index));
        out
    }

    /// Decodes record number `index` of an overlay with this header.
    pub fn decode(
        bytes: &[u8],
        header: &OverlayHeader,
        index: u64,
    ) -> Result<OverlayRecord, OverlayError> {
        let fields = bytes.get(..RECORD_BYTES).ok_or(OverlayError("the record is cut off"))?;
        if !is_sealed(fields, header.salt, OverlayRecord::offset(index)) {
            return Err(OverlayError("the checksum does not fit the record"));
        }
        let (first, count) = (word(fields, 0), word(fields, 8));
        let change = match half(fields, 24) {
            OWN if count > 0 => OverlayChange::Own { first, count },
            CUT if count == 0 => OverlayChange::Cut { first },
            _ => return Err(OverlayError("an unknown kind of record")),
        };
        let within = first.checked_add(count).is_some_and(|end| end <= header.base_blocks());
        match within {
            true => Ok(OverlayRecord { change, boot: word(fields, 16) }),
            false => Err(OverlayError("a record of blocks that the base does not have")),
        }
    }
}

/// Puts the checksum into the last four bytes.
fn seal(fields: &mut [u8], salt: u64, offset: u64) {
    let at = fields.len() - 4;
    let crc = placed_crc(&fields[..at], salt, offset);
    fields[at..].copy_from_slice(&crc.to_le_bytes());
}

fn is_sealed(fields: &[u8], salt: u64, offset: u64) -> bool {
    let at = fields.len() - 4;
    placed_crc(&fields[..at], salt, offset) == half(fields, at)
}

fn placed_crc(bytes: &[u8], salt: u64, offset: u64) -> u32 {
    let place = crc32c::crc32c(&salt.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(place, &offset.to_le_bytes()), bytes)
}

/// REQUIRES: eight bytes at `at`.
fn word(bytes: &[u8], at: usize) -> u64 {
    (0..8).map(|i| u64::from(bytes[at + i]) << (8 * i)).sum()
}

/// REQUIRES: four bytes at `at`.
fn half(bytes: &[u8], at: usize) -> u32 {
    (0..4).map(|i| u32::from(bytes[at + i]) << (8 * i)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> OverlayHeader {
        let modified = Timestamp::new(1_700_000_000, 5).unwrap_or_default();
        let (kind, is_covering) = (OverlayKind::Kept, true);
        OverlayHeader { kind, salt: 7, base_len: 10 << 30, modified, is_covering }
    }

    #[test]
    fn the_parts_come_back() {
        let header = header();
        let old = OverlayHeader { is_covering: false, ..header };
        assert_eq!(OverlayHeader::decode(&old.encode()), Ok(old));
        assert_eq!(OverlayHeader::decode(&header.encode()), Ok(header));
        assert_eq!(header.data_start() % BLOCK_BYTES, 0);
        let slot = OverlaySlot { turn: 5, records: 99 };
        assert_eq!(OverlaySlot::decode(&slot.encode(7), 7, 8192), Ok(slot));
        for change in [OverlayChange::Own { first: 3, count: 4 }, OverlayChange::Cut { first: 1 }] {
            let record = OverlayRecord { change, boot: 11 };
            assert_eq!(OverlayRecord::decode(&record.encode(7, 2), &header, 2), Ok(record));
        }
    }

    #[test]
    fn a_base_leaves_room_for_the_records() {
        for (base_len, is_read) in
            [(1 << 61, true), ((1 << 61) + 1, true), (FILE_BYTES_MAX, false), (u64::MAX, false)]
        {
            let header = OverlayHeader { base_len, ..header() };
            assert_eq!(header.has_room(), is_read);
            assert_eq!(OverlayHeader::decode(&header.encode()).is_ok(), is_read, "{base_len}");
        }
    }

    #[test]
    fn what_stands_elsewhere_or_reaches_too_far_is_refused() {
        let header = header();
        let slot = OverlaySlot { turn: 5, records: 99 }.encode(7);
        assert!(OverlaySlot::decode(&slot, 7, 4096).is_err(), "the other slot");
        assert!(OverlaySlot::decode(&slot, 8, 8192).is_err(), "another file");
        let record = |first, count| {
            let change = OverlayChange::Own { first, count };
            OverlayRecord { change, boot: 0 }.encode(7, 0)
        };
        let blocks = header.base_blocks();
        assert!(OverlayRecord::decode(&record(0, blocks), &header, 0).is_ok());
        assert!(OverlayRecord::decode(&record(0, blocks), &header, 1).is_err(), "another place");
        for (first, count) in [(0, blocks + 1), (1, blocks), (u64::MAX, 1), (0, 0)] {
            assert!(OverlayRecord::decode(&record(first, count), &header, 0).is_err());
        }
    }
}
