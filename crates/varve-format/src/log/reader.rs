//! Reads the records of a log in order. The salt of the later ones stands in the first.

use bytes::Bytes;
use varve_types::FileNo;

use super::record::{Framing, HEADER_BYTES, check_content, decode_framing, encoded_len};
use super::{LogHeader, LogId, Record, RecordKind};
use crate::FormatError;

/// What stands at the reader's position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextRecord {
    /// A valid record.
    Record(Record),
    /// The end of the log, just after a record.
    End,
    /// Bytes that are no valid record. The error's offset counts from the start of the log.
    Bad {
        /// Where the record would begin; everything before it is valid.
        offset: u64,
        /// What is wrong.
        why: FormatError,
    },
}

/// Returns whether `rest`, what stands behind the last record of a log, is room that was taken ahead and not written
/// to.
pub fn is_room(rest: &[u8]) -> bool {
    rest.iter().all(|byte| *byte == 0)
}

/// Reads a log's records in order, up to the first bad one.
#[derive(Clone, Debug)]
pub struct LogReader {
    bytes: Bytes,
    log: LogId,
    pos: usize,
}

impl LogReader {
    /// A reader of `bytes`, the whole of log `file`. The records' payloads share its memory.
    pub fn new(bytes: Bytes, file: FileNo) -> LogReader {
        LogReader { bytes, log: LogId { file, salt: 0 }, pos: 0 }
    }

    /// Returns where the next record begins: the length of what was read so far.
    pub fn offset(&self) -> u64 {
        self.pos as u64
    }

    /// The log, with its salt once the header was read.
    pub fn log(&self) -> LogId {
        self.log
    }

    /// Returns the next record. After `End` or `Bad`, the same again.
    pub fn next_record(&mut self) -> NextRecord {
        if self.pos == self.bytes.len() {
            return NextRecord::End;
        }
        match record_at(&self.bytes, self.log, self.pos) {
            Ok(record) => {
                if record.offset == 0
                    && let Ok(header) = LogHeader::decode(&record.payload)
                {
                    self.log.salt = header.salt;
                }
                self.pos += encoded_len(record.payload.len());
                NextRecord::Record(record)
            }
            Err(why) => NextRecord::Bad { offset: self.pos as u64, why },
        }
    }
}

/// Returns what the record that seems to begin at `offset` of the log `bytes` would hold, its length, and its
/// payload, whatever its checksum says: damage may be anywhere in it.
pub fn claimed_record(bytes: &Bytes, offset: u64) -> Option<(RecordKind, usize, Bytes)> {
    let start = usize::try_from(offset).ok()?;
    let framing = decode_framing(bytes.get(start..)?, offset).ok()?;
    let payload = start + HEADER_BYTES;
    let len = framing.payload_len;
    Some((framing.kind, encoded_len(len), bytes.slice(payload..payload + len)))
}

/// Returns the record at `pos`.
pub(super) fn record_at(bytes: &Bytes, log: LogId, pos: usize) -> Result<Record, FormatError> {
    let offset = pos as u64;
    let rest = &bytes[pos..];
    let checked = decode_framing(rest, offset).and_then(|framing| {
        check_content(rest, log, offset, &framing)?;
        Ok(framing)
    });
    let Framing { kind, external, synced_len, payload_len, .. } =
        checked.map_err(|error| error.shifted(offset))?;
    let start = pos + HEADER_BYTES;
    let payload = bytes.slice(start..start + payload_len);
    Ok(Record { offset, kind, external, synced_len, payload })
}
