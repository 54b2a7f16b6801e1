//! The payload of a batch record of the write-ahead log.
//!
//! ```text
//! bytes   field
//!     8   sequence number of the first write; the i-th write (from 0) has this plus i
//!     4   number of writes, at least 1
//! then each write:
//!     1   operation: 1 delete, 2 put
//! varint  key space
//! string  key                           (string: varint length, bytes)
//! string  value, of a put only
//! then, if the batch is the commit of a branch:
//!     1   3
//! varint  the branch, which ends with this batch
//! ```
//!
//! Decoding copies nothing: keys and values share the memory of the record.

use bytes::Bytes;
use varve_types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use varve_types::{BranchId, KeyspaceId, SeqNo};

use crate::codec::{Reader, put_string, put_varint};
use crate::{EntryKind, FormatError, FormatResult, Problem};

/// The fewest bytes a write takes: operation, key space, empty key.
const WRITE_BYTES_MIN: usize = 3;
/// Begins the end of a branch; beside the operations of [`EntryKind`].
const BRANCH_END: u8 = 3;

/// One write of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedWrite {
    /// Where.
    pub keyspace: KeyspaceId,
    /// The key.
    pub key: Bytes,
    /// The value, or `None` if the key is deleted.
    pub value: Option<Bytes>,
}

/// A batch as it stands in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedBatch {
    /// The sequence number of the first write; each further one has the next.
    pub first_seq: SeqNo,
    /// The writes in order.
    pub writes: Vec<LoggedWrite>,
    /// The branch whose commit this is.
    pub ends: Option<BranchId>,
}

/// Appends the start of a batch of `count` writes, which [`encode_put`] and [`encode_delete`] append.
pub fn encode_batch_start(out: &mut Vec<u8>, first_seq: SeqNo, count: u32) {
    out.extend_from_slice(&first_seq.get().to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
}

/// Appends the write: set `key` to `value`.
pub fn encode_put(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], value: &[u8]) {
    out.push(EntryKind::Put as u8);
    put_varint(out, keyspace.get().into());
    put_string(out, key);
    put_string(out, value);
}

/// Appends the write: delete `key`.
pub fn encode_delete(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8]) {
    out.push(EntryKind::Delete as u8);
    put_varint(out, keyspace.get().into());
    put_string(out, key);
}

/// Appends, after all writes, that they are the commit of `branch`.
pub fn encode_branch_end(out: &mut Vec<u8>, branch: BranchId) {
    out.push(BRANCH_END);
    put_varint(out, branch.get());
}

/// Reads the payload of a batch record.
pub fn decode_batch(payload: &Bytes) -> FormatResult<LoggedBatch> {
    let mut reader = Reader::new(payload);
    let first_seq = reader.u64()?;
    let count = reader.u32()? as usize;
    if count == 0 {
        return Err(FormatError::new(8u64, Problem::Invalid("a batch of no writes")));
    }
    let room = reader.remaining() / WRITE_BYTES_MIN;
    if count > room {
        let (len, max) = (count as u64, room as u64);
        return Err(FormatError::new(8u64, Problem::TooLong { what: "list of writes", len, max }));
    }
    if first_seq.checked_add(count as u64).is_none_or(|end| end > SeqNo::MAX.get()) {
        let rule = "a sequence number above the largest";
        return Err(FormatError::new(0u64, Problem::Invalid(rule)));
    }
    let mut writes = Vec::with_capacity(count);
    for _ in 0..count {
        writes.push(decode_write(&mut reader, payload)?);
    }
    let ends = if reader.is_empty() { None } else { Some(decode_branch_end(&mut reader)?) };
    reader.finish()?;
    Ok(LoggedBatch { first_seq: SeqNo::new(first_seq), writes, ends })
}

fn decode_branch_end(reader: &mut Reader<'_>) -> FormatResult<BranchId> {
    let start = reader.pos();
    match reader.u8()? {
        BRANCH_END => Ok(BranchId::new(reader.varint()?)),
        id => {
            let problem = Problem::Unknown { what: "end of a batch", id: id.into() };
            Err(FormatError::new(start, problem))
        }
    }
}

fn decode_write(reader: &mut Reader<'_>, payload: &Bytes) -> FormatResult<LoggedWrite> {
    let start = reader.pos();
    let kind = reader.u8()?;
    let unknown = FormatError::new(start, Problem::Unknown { what: "operation", id: kind.into() });
    let Some(kind) = EntryKind::from_id(kind) else { return Err(unknown) };
    let keyspace = KeyspaceId::new(reader.varint_u32()?);
    let key = payload.slice_ref(reader.string("key", KEY_BYTES_MAX)?);
    let value = match kind {
        EntryKind::Put => Some(payload.slice_ref(reader.string("value", VALUE_BYTES_MAX)?)),
        EntryKind::Delete => None,
        EntryKind::Separated => return Err(unknown),
    };
    Ok(LoggedWrite { keyspace, key, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_come_back() {
        let mut out = Vec::new();
        encode_batch_start(&mut out, SeqNo::new(7), 3);
        encode_put(&mut out, KeyspaceId::new(1), b"key", b"value");
        encode_delete(&mut out, KeyspaceId::new(300), b"gone");
        encode_put(&mut out, KeyspaceId::new(0), b"", b"");
        let batch = decode_batch(&Bytes::from(out.clone())).unwrap();
        assert_eq!(batch.first_seq, SeqNo::new(7));
        assert_eq!(batch.writes[0].value.as_deref(), Some(&b"value"[..]));
        assert_eq!(batch.writes[1].keyspace, KeyspaceId::new(300));
        assert_eq!(batch.writes[1].value, None);
        assert_eq!(batch.writes[2].value.as_deref(), Some(&b""[..]));
        assert_eq!(batch.ends, None);
        for cut in 0..out.len() {
            assert!(decode_batch(&Bytes::copy_from_slice(&out[..cut])).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_commit_names_its_branch() {
        let mut out = Vec::new();
        encode_batch_start(&mut out, SeqNo::new(7), 1);
        encode_put(&mut out, KeyspaceId::new(1), b"key", b"value");
        encode_branch_end(&mut out, BranchId::new(500));
        let batch = decode_batch(&Bytes::from(out.clone())).unwrap();
        assert_eq!((batch.writes.len(), batch.ends), (1, Some(BranchId::new(500))));
        let end = out.len() - 3;
        out[end] = 4;
        let error = decode_batch(&Bytes::from(out)).unwrap_err();
        assert_eq!(error.problem, Problem::Unknown { what: "end of a batch", id: 4 });
        assert_eq!(error.offset, end as u64);
    }

    /// Recovery took the last write of such a batch for the one before its first, and of the first of all for the largest.
    #[test]
    fn a_batch_of_no_writes_is_refused() {
        let mut out = Vec::new();
        encode_batch_start(&mut out, SeqNo::ZERO, 0);
        let error = decode_batch(&Bytes::from(out)).unwrap_err();
        assert_eq!((error.offset, &error.problem), (8, &Problem::Invalid("a batch of no writes")));
    }

    #[test]
    fn a_count_beyond_the_bytes_allocates_nothing() {
        let mut out = Vec::new();
        encode_batch_start(&mut out, SeqNo::new(1), u32::MAX);
        let error = decode_batch(&Bytes::from(out)).unwrap_err();
        assert!(matches!(error.problem, Problem::TooLong { .. }));
    }
}
