//! One record of a log.
//!
//! ```text
//! offset  bytes  field
//!      0      4  crc32c of: file number xor salt u64 (at offset 0 the number alone), record offset u64,
//!                bytes 4..20 of this header, payload
//!      4      4  payload length
//!      8      1  kind: 1 header, 2 batch, 3 marker, 4 barrier, 5 edit, 6 clean close
//!      9      1  flags: bit 0 external (the batch depends on data outside the store)
//!     10      2  zero
//!     12      8  synced_len: bytes of this log known durable when this record was written
//!     20      n  payload
//!   20+n    0-7  zeros up to a multiple of 8
//! ```

use super::LogId;
use crate::checksum::{CRC_BYTES, placed_crc};
use crate::codec::Reader;
use crate::{FormatError, FormatResult, Problem};
use bytes::Bytes;

/// Bytes of a record before its payload.
pub const HEADER_BYTES: usize = 20;
/// Where in a record's header its kind stands.
pub(super) const KIND_AT: usize = 8;
/// Records begin at multiples of this many bytes.
pub const ALIGN_BYTES: usize = 8;
/// The longest payload: a batch of the most bytes allowed, with room for the framing of its rows.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 30;

const FLAG_EXTERNAL: u8 = 1;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// The first record of a log: a [`super::LogHeader`].
    Header = 1,
    /// A batch of writes: [`crate::batch`].
    Batch = 2,
    /// No payload: carries `synced_len` after a sync.
    Marker = 3,
    /// 8 bytes, a sequence number: the data outside the store that earlier records depend on is durable,
    /// for writes up to that number.
    Barrier = 4,
    /// A manifest edit: [`crate::edit`].
    Edit = 5,
    /// No payload: the log was closed in order and synced; nothing follows.
    CloseClean = 6,
}

impl RecordKind {
    fn from_id(id: u8) -> Option<RecordKind> {
        Some(match id {
            1 => RecordKind::Header,
            2 => RecordKind::Batch,
            3 => RecordKind::Marker,
            4 => RecordKind::Barrier,
            5 => RecordKind::Edit,
            6 => RecordKind::CloseClean,
            _ => return None,
        })
    }
}

/// What a record's header says besides the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The log.
    pub log: LogId,
    /// The record's offset in the log; a multiple of [`ALIGN_BYTES`].
    pub offset: u64,
    /// What the record is.
    pub kind: RecordKind,
    /// Whether the record depends on data outside the store.
    pub external: bool,
    /// Bytes of this log known durable.
    pub synced_len: u64,
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its offset in the log.
    pub offset: u64,
    /// What it is.
    pub kind: RecordKind,
    /// Whether it depends on data outside the store.
    pub external: bool,
    /// Bytes of this log known durable when it was written.
    pub synced_len: u64,
    /// The payload; shares the memory of the log's bytes.
    pub payload: Bytes,
}

impl Record {
    /// Returns the offset at which the next record begins.
    pub fn end(&self) -> u64 {
        self.offset + encoded_len(self.payload.len()) as u64
    }
}

/// Bytes of a record with a payload of `payload_len` bytes, padding included.
pub fn encoded_len(payload_len: usize) -> usize {
    (HEADER_BYTES + payload_len).next_multiple_of(ALIGN_BYTES)
}

/// Appends a record whose payload is `payload`'s parts one after the other.
///
/// REQUIRES: at most [`PAYLOAD_BYTES_MAX`] bytes of payload.
pub fn encode_record(out: &mut Vec<u8>, stamp: Stamp, payload: &[&[u8]]) {
    let start = begin_record(out);
    for part in payload {
        out.extend_from_slice(part);
    }
    finish_record(out, start, stamp);
}

/// Where a record that is being written begins in its buffer.
#[derive(Debug)]
#[must_use = "a record is complete after finish_record"]
pub struct RecordStart(usize);

/// Begins a record: the caller appends the payload to `out` and calls [`finish_record`].
pub fn begin_record(out: &mut Vec<u8>) -> RecordStart {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    RecordStart(start)
}

/// Completes the record begun at `start`: everything appended since is its payload.
///
/// REQUIRES: at most [`PAYLOAD_BYTES_MAX`] bytes of payload.
pub fn finish_record(out: &mut Vec<u8>, start: RecordStart, stamp: Stamp) {
    let RecordStart(start) = start;
    let payload_len = out.len() - start - HEADER_BYTES;
    assert!(payload_len <= PAYLOAD_BYTES_MAX, "a record of {payload_len} bytes");
    assert!(stamp.offset.is_multiple_of(ALIGN_BYTES as u64), "a record at {}", stamp.offset);
    let record = &mut out[start..];
    record[4..8].copy_from_slice(&(payload_len as u32).to_le_bytes());
    record[KIND_AT] = stamp.kind as u8;
    record[9] = if stamp.external { FLAG_EXTERNAL } else { 0 };
    record[12..20].copy_from_slice(&stamp.synced_len.to_le_bytes());
    let file = stamp.log.in_checksum(stamp.offset);
    let crc = placed_crc(file, stamp.offset, &[&record[CRC_BYTES..]]);
    record[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
    out.resize(start + encoded_len(payload_len), 0);
}

/// A record's header fields, consistent but with the checksum not yet compared.
pub(super) struct Framing {
    pub(super) kind: RecordKind,
    pub(super) external: bool,
    pub(super) synced_len: u64,
    pub(super) payload_len: usize,
    pub(super) stored_crc: u32,
}

/// Returns the header at the start of `bytes`, which reach to the end of the log. Errors count offsets from the
/// record's start.
pub(super) fn decode_framing(bytes: &[u8], offset: u64) -> FormatResult<Framing> {
    let mut reader = Reader::new(bytes);
    let stored_crc = reader.u32()?;
    let payload_len = reader.u32()? as usize;
    let kind = reader.u8()?;
    let flags = reader.u8()?;
    let zeros = reader.bytes(2)?;
    let synced_len = reader.u64()?;
    let kind = RecordKind::from_id(kind).ok_or_else(|| {
        FormatError::new(KIND_AT, Problem::Unknown { what: "record kind", id: kind.into() })
    })?;
    if flags & !FLAG_EXTERNAL != 0 {
        let problem = Problem::Unknown { what: "record flags", id: flags.into() };
        return Err(FormatError::new(9u64, problem));
    }
    if zeros != [0; 2] {
        return Err(FormatError::new(10u64, Problem::Invalid("reserved bytes that are not zero")));
    }
    if synced_len > offset {
        let rule = "a record that claims to be synced before it is written";
        return Err(FormatError::new(12u64, Problem::Invalid(rule)));
    }
    if payload_len > PAYLOAD_BYTES_MAX {
        let (len, max) = (payload_len as u64, PAYLOAD_BYTES_MAX as u64);
        return Err(FormatError::new(4u64, Problem::TooLong { what: "record", len, max }));
    }
    let needed = encoded_len(payload_len);
    if needed > bytes.len() {
        let (needed, left) = (needed as u64, bytes.len() as u64);
        return Err(FormatError::new(4u64, Problem::Truncated { needed, left }));
    }
    let external = flags & FLAG_EXTERNAL != 0;
    Ok(Framing { kind, external, synced_len, payload_len, stored_crc })
}

/// Checks what `framing` does not: the checksum and the padding.
pub(super) fn check_content(
    bytes: &[u8],
    log: LogId,
    offset: u64,
    framing: &Framing,
) -> FormatResult<()> {
    let payload_end = HEADER_BYTES + framing.payload_len;
    let file = log.in_checksum(offset);
    let computed = placed_crc(file, offset, &[&bytes[CRC_BYTES..payload_end]]);
    if computed != framing.stored_crc {
        let problem = Problem::Checksum { stored: framing.stored_crc, computed };
        return Err(FormatError::new(0u64, problem));
    }
    let padding = &bytes[payload_end..encoded_len(framing.payload_len)];
    if padding.iter().any(|&byte| byte != 0) {
        return Err(FormatError::new(payload_end, Problem::Invalid("padding that is not zero")));
    }
    Ok(())
}
