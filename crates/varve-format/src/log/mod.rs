//! Logs: files of framed records, for the write-ahead log and the manifest alike.
//!
//! A log begins with a [`LogHeader`] record. Every record says how much of the log was known durable
//! when it was written (`synced_len`), which is what tells a torn tail from damage:
//!
//! 1. [`LogReader`] reads records from the start until the end or the first bad one, at offset P.
//! 2. If [`resync()`] finds a later valid record whose `synced_len` is above P, or a later log proves
//!    that this one was synced beyond P, then a durable record is lost: damage.
//! 3. Otherwise nothing after P was ever promised: a torn tail, which the engine cuts.
//!
//! Invariants: records begin at multiples of [`ALIGN_BYTES`] and follow each other without gaps;
//! the checksum covers the file's number, the record's offset and a salt ([`LogId`]), so that a stale,
//! moved or forged record never passes; a region of zeros is never a record.

/// The longest log. A writer of the write-ahead log begins another long before, and a manifest is one state and the
/// edits that follow it; so what is longer is no log, and nobody need read it to know.
pub const LOG_BYTES_MAX: u64 = 1 << 30;

mod barrier;
mod header;
mod reader;
mod record;
mod resync;

pub use barrier::{BARRIER_BYTES, decode_barrier, encode_barrier};
pub use header::{LogHeader, LogId, LogKind, PreviousLog};
pub use reader::{LogReader, NextRecord, claimed_record, is_room};
pub use record::{
    ALIGN_BYTES, HEADER_BYTES, PAYLOAD_BYTES_MAX, Record, RecordKind, RecordStart, Stamp,
    begin_record, encode_record, encoded_len, finish_record,
};
pub use resync::resync;

#[cfg(test)]
mod tests;
