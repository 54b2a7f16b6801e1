//! The payload of a log's first record.
//!
//! ```text
//! offset  bytes  field
//!      0      4  format version
//!      4      1  kind of log: 1 write-ahead log, 2 manifest
//!      5      1  1 if there is a previous log, else 0
//!      6     16  boot id of the machine that wrote the log
//!     22      8  sequence number of the first write that may stand in this log
//!     30      8  previous log: file number (0 if none)
//!     38      8  previous log: final length in bytes (0 if none)
//!     46      8  salt of the checksums of all later records; the same in all logs of a store
//! ```

use varve_types::{FileNo, SeqNo};

use crate::codec::Reader;
use crate::{FORMAT_VERSION, FormatError, FormatResult, Problem};

/// What a log is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LogKind {
    /// The write-ahead log.
    Wal = 1,
    /// The manifest.
    Manifest = 2,
}

/// The log that was written before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreviousLog {
    /// Its file number.
    pub file: FileNo,
    /// Its length in bytes when this log was begun; it was not written again.
    pub final_len: u64,
}

/// Which log, and the secret that its checksums hold.
///
/// A log holds bytes that users choose. Who knew what the checksum of a record begins with could write a
/// file that holds a record; found after a torn tail, it would be taken for one. So all records but the
/// header, which holds nothing of users, begin with a salt that only the store's files know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogId {
    /// The log's file number.
    pub file: FileNo,
    /// The salt in its header.
    pub salt: u64,
}

impl LogId {
    /// Returns the number that stands for the file in the checksum of the record at `offset`.
    pub(super) fn in_checksum(self, offset: u64) -> u64 {
        if offset == 0 { self.file.get() } else { self.file.get() ^ self.salt }
    }
}

/// How a log begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// What the log is for.
    pub kind: LogKind,
    /// The boot of the machine during which it was written; after another boot the page cache, and
    /// with it what was not synced, is gone.
    pub boot_id: u128,
    /// No write in this log has a smaller sequence number.
    pub first_seq: SeqNo,
    /// The log before this one, if there was one.
    pub previous: Option<PreviousLog>,
    /// What the checksums of all later records begin with ([`LogId`]).
    pub salt: u64,
}

impl LogHeader {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.push(self.kind as u8);
        out.push(u8::from(self.previous.is_some()));
        out.extend_from_slice(&self.boot_id.to_le_bytes());
        out.extend_from_slice(&self.first_seq.get().to_le_bytes());
        let (file, final_len) = self.previous.map_or((0, 0), |log| (log.file.get(), log.final_len));
        out.extend_from_slice(&file.to_le_bytes());
        out.extend_from_slice(&final_len.to_le_bytes());
        out.extend_from_slice(&self.salt.to_le_bytes());
    }

    /// Reads the payload of a log's first record.
    pub fn decode(payload: &[u8]) -> FormatResult<LogHeader> {
        let mut reader = Reader::new(payload);
        let version = reader.u32()?;
        if version > FORMAT_VERSION {
            let problem = Problem::Newer { found: version, supported: FORMAT_VERSION };
            return Err(FormatError::new(0u64, problem));
        }
        if version == 0 {
            return Err(FormatError::new(0u64, Problem::Invalid("format version 0")));
        }
        let kind = match reader.u8()? {
            1 => LogKind::Wal,
            2 => LogKind::Manifest,
            id => {
                let problem = Problem::Unknown { what: "kind of log", id: id.into() };
                return Err(FormatError::new(4u64, problem));
            }
        };
        let has_previous = reader.bool("presence of a previous log")?;
        let boot_id = reader.u128()?;
        let first_seq = SeqNo::new(reader.u64()?);
        let file = FileNo::new(reader.u64()?);
        let final_len = reader.u64()?;
        let salt = reader.u64()?;
        reader.finish()?;
        let previous = has_previous.then_some(PreviousLog { file, final_len });
        Ok(LogHeader { kind, boot_id, first_seq, previous, salt })
    }
}
