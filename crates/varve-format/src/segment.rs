//! Segments: files of values that are stored outside of their rows.
//!
//! 1. A writer appends a record for each value, and puts a [`ValuePointer`] into the row.
//! 2. A reader follows the pointer and checks the section.
//!
//! Invariant: a value is never changed after it was appended.
//!
//! ```text
//! offset  bytes  field
//!      0     24  header (see [`crate::header`]) of magic "varveseg"; the manifest has the salt too
//! then records, one after the other:
//!             4  length of the section that follows
//!             n  section: the value (see [`crate::section`])
//! ```
//!
//! In the row a [`ValuePointer`] stands for the value:
//!
//! ```text
//! varint  file number of the segment
//! varint  offset of the section in it
//! varint  length of the section
//! ```
//!
//! The lengths before the sections serve a scan of a segment without its rows.
//!
//! Source: column style, thesis 4.2.8: values are appended once, and small index rows point at them.

use varve_types::{FileNo, FileSalt};

use crate::codec::{Reader, put_varint};
use crate::header::{FILE_HEADER_BYTES, file_salt, put_file_header};
use crate::section::{Compression, Handle, Packing, TRAILER_BYTES, compress, put_section};
use crate::{FormatError, FormatResult, Problem};

/// Bytes of a segment before its records.
pub const SEGMENT_HEADER_BYTES: usize = FILE_HEADER_BYTES;
/// Bytes of a record before its section.
pub const RECORD_PREFIX_BYTES: usize = 4;

/// The fewest bytes of a share.
const SHARE_BYTES_MIN: u64 = 2;
const MAGIC: [u8; 8] = *b"varveseg";

/// Where the value of a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValuePointer {
    /// The segment's file number.
    pub segment: FileNo,
    /// The section with the value.
    pub handle: Handle,
}

impl ValuePointer {
    /// Appends what stands in the row.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.segment.get());
        put_varint(out, self.handle.offset);
        put_varint(out, self.handle.len.into());
    }

    /// Takes what stands in the row.
    pub fn decode(bytes: &[u8]) -> FormatResult<ValuePointer> {
        let mut reader = Reader::new(bytes);
        let segment = FileNo::new(reader.varint()?);
        let handle = Handle { offset: reader.varint()?, len: reader.varint_u32()? };
        reader.finish()?;
        handle.check()?;
        let first = (SEGMENT_HEADER_BYTES + RECORD_PREFIX_BYTES) as u64;
        if handle.offset < first
            || (handle.len as usize) < TRAILER_BYTES
            || handle.offset.checked_add(handle.len.into()).is_none()
        {
            let rule = "a pointer to where no value of a segment can stand";
            return Err(FormatError::new(0u64, Problem::Invalid(rule)));
        }
        Ok(ValuePointer { segment, handle })
    }

    /// Bytes of the record that it points into.
    pub fn record_bytes(&self) -> u64 {
        RECORD_PREFIX_BYTES as u64 + u64::from(self.handle.len)
    }
}

/// How many bytes of a segment's records a table points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentShare {
    /// The segment's file number.
    pub segment: FileNo,
    /// Bytes of records; not zero.
    pub bytes: u64,
}

/// Appends the shares of a table, ascending by segment: varint number of them, then of each varint segment and
/// varint bytes.
pub(crate) fn put_shares(out: &mut Vec<u8>, shares: &[SegmentShare]) {
    put_varint(out, shares.len() as u64);
    for share in shares {
        put_varint(out, share.segment.get());
        put_varint(out, share.bytes);
    }
}

/// Reads the shares of a table.
pub(crate) fn read_shares(reader: &mut Reader<'_>) -> FormatResult<Vec<SegmentShare>> {
    let start = reader.pos();
    let (len, max) = (reader.varint()?, reader.remaining() as u64 / SHARE_BYTES_MIN);
    if len > max {
        let problem = Problem::TooLong { what: "list of segments", len, max };
        return Err(FormatError::new(start, problem));
    }
    let mut shares: Vec<SegmentShare> = Vec::new();
    for _ in 0..len {
        let share =
            SegmentShare { segment: FileNo::new(reader.varint()?), bytes: reader.varint()? };
        if share.bytes == 0 || shares.last().is_some_and(|last| last.segment >= share.segment) {
            let rule = "segments that are out of order or of which nothing is used";
            return Err(FormatError::new(start, Problem::Invalid(rule)));
        }
        shares.push(share);
    }
    Ok(shares)
}

/// Builds a segment.
#[derive(Debug)]
pub struct SegmentBuilder {
    salt: FileSalt,
    compression: Compression,
    out: Vec<u8>,
    /// Bytes of the file before `out`.
    drained: u64,
    scratch: Vec<u8>,
}

impl SegmentBuilder {
    /// A builder of a file whose checksums hold `salt`, which compresses values where that saves room, if
    /// `compression` says so.
    pub fn new(salt: FileSalt, compression: Compression) -> SegmentBuilder {
        let mut out = Vec::new();
        put_file_header(&mut out, MAGIC, salt);
        SegmentBuilder { salt, compression, out, drained: 0, scratch: Vec::new() }
    }

    /// Appends a value; returns where its section will stand.
    pub fn add(&mut self, value: &[u8]) -> FormatResult<Handle> {
        let packed = self.compression == Compression::Lz4 && compress(value, &mut self.scratch);
        let (content, packing) =
            if packed { (&self.scratch[..], Packing::Lz4) } else { (value, Packing::Plain) };
        let len = (content.len() + TRAILER_BYTES) as u32;
        self.out.extend_from_slice(&len.to_le_bytes());
        let offset = self.drained + self.out.len() as u64;
        put_section(&mut self.out, self.salt, offset, content, packing)
    }

    /// Bytes of the file so far.
    pub fn file_bytes(&self) -> u64 {
        self.drained + self.out.len() as u64
    }

    /// Bytes of the file that the caller has not yet cleared. They follow those cleared.
    pub fn output(&self) -> &[u8] {
        &self.out
    }

    /// Forgets the output, which the caller has written.
    pub fn clear_output(&mut self) {
        self.drained += self.out.len() as u64;
        self.out.clear();
    }
}

/// Returns the salt that the header of a segment, its first [`SEGMENT_HEADER_BYTES`], says its checksums hold.
pub fn segment_salt(header: &[u8]) -> FormatResult<FileSalt> {
    file_salt(header, MAGIC, "not the beginning of a segment: the magic is missing")
}

/// Returns the section of the record at `offset`, whose first [`RECORD_PREFIX_BYTES`] are `prefix`; in a segment of
/// `end` bytes.
pub fn record_at(prefix: &[u8], offset: u64, end: u64) -> FormatResult<Handle> {
    let len = Reader::new(prefix).u32()?;
    let handle = Handle { offset: offset.saturating_add(RECORD_PREFIX_BYTES as u64), len };
    handle.check()?;
    if (len as usize) < TRAILER_BYTES || handle.end() > end {
        let rule =
            "a record that is shorter than its trailer or reaches beyond the end of the file";
        return Err(FormatError::new(0u64, Problem::Invalid(rule)));
    }
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::section::open_section;

    const FILE: FileNo = FileNo::new(7);
    const SALT: FileSalt = FileSalt::new(77);

    #[test]
    fn values_come_back_through_their_pointers_and_by_walking() {
        for compression in [Compression::None, Compression::Lz4] {
            let values = [&[7; 3000][..], b"", b"short", &[9; 70_000]];
            let mut builder = SegmentBuilder::new(SALT, compression);
            let (mut file, mut handles) = (Vec::new(), Vec::new());
            for value in values {
                handles.push(builder.add(value).unwrap());
                file.extend_from_slice(builder.output());
                builder.clear_output();
            }
            assert_eq!(builder.file_bytes(), file.len() as u64);
            assert_eq!(segment_salt(&file[..SEGMENT_HEADER_BYTES]), Ok(SALT));
            let file = Bytes::from(file);
            let (mut at, end) = (SEGMENT_HEADER_BYTES as u64, file.len() as u64);
            for (value, handle) in values.iter().zip(&handles) {
                let prefix = &file[at as usize..at as usize + RECORD_PREFIX_BYTES];
                assert_eq!(record_at(prefix, at, end), Ok(*handle));
                let section = file.slice(handle.offset as usize..handle.end() as usize);
                assert_eq!(open_section(&section, SALT, handle.offset).unwrap(), value);
                at = handle.end();
                let pointer = ValuePointer { segment: FILE, handle: *handle };
                let mut row = Vec::new();
                pointer.encode(&mut row);
                assert_eq!(ValuePointer::decode(&row), Ok(pointer));
            }
            assert_eq!(at, end);
        }
    }

    #[test]
    fn a_changed_header_is_refused() {
        let builder = SegmentBuilder::new(SALT, Compression::None);
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut header = builder.output().to_vec();
            header[bit / 8] ^= 1 << (bit % 8);
            assert!(segment_salt(&header).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn pointers_to_where_nothing_stands_are_refused() {
        for (offset, len) in [(27, 5), (28, 4), (28, u32::MAX), (u64::MAX, 5)] {
            let mut row = Vec::new();
            ValuePointer { segment: FILE, handle: Handle { offset, len } }.encode(&mut row);
            assert!(ValuePointer::decode(&row).is_err(), "{offset} {len}");
        }
        assert!(record_at(&4u32.to_le_bytes(), 24, 100).is_err());
        assert!(record_at(&73u32.to_le_bytes(), 24, 100).is_err());
        assert!(record_at(&72u32.to_le_bytes(), 24, 100).is_ok());
    }
}
