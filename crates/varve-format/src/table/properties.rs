//! What a table says of itself.
//!
//! ```text
//! varint  key space
//! byte    1 if the key space is prefixed, else 0
//! byte    compression of data blocks: 1 none, 2 LZ4
//! varint  versions, tombstones, smallest seq, largest seq, data blocks,
//!         bytes of keys and values, one after the other
//! string  smallest key
//! string  largest key
//! varint  number of segments, then of each varint file number and varint bytes of records that rows point at
//! varint  of each data block, in their order: largest seq of the table, less the largest of the block
//! ```
//!
//! What is after the segments is absent from tables that earlier versions of this program wrote.

use bytes::Bytes;
use varve_types::limits::KEY_BYTES_MAX;
use varve_types::{KeyspaceId, SeqNo};

use crate::codec::{Reader, put_string, put_varint};
use crate::section::Compression;
use crate::segment::{SegmentShare, put_shares, read_shares};
use crate::{FormatError, FormatResult, Problem};

/// What a table says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The key space whose rows it holds.
    pub keyspace: KeyspaceId,
    /// Every key is 8 bytes of prefix and 8 bytes of suffix.
    pub prefixed: bool,
    /// How data blocks are compressed where that saves room.
    pub compression: Compression,
    /// Versions, tombstones included.
    pub entries: u64,
    /// Versions that delete their key.
    pub tombstones: u64,
    /// The oldest version's sequence number.
    pub smallest_seq: SeqNo,
    /// The newest version's sequence number.
    pub largest_seq: SeqNo,
    /// Data blocks.
    pub blocks: u64,
    /// Bytes of all keys and values, before sharing and compression.
    pub raw_bytes: u64,
    /// The first key.
    pub smallest_key: Bytes,
    /// The last key.
    pub largest_key: Bytes,
    /// The segments that rows point into, ascending.
    pub segments: Vec<SegmentShare>,
    /// The newest version's sequence number in each data block; empty if the table does not say.
    pub newest: Vec<SeqNo>,
}

impl Properties {
    /// Appends the section's content.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.keyspace.get().into());
        out.extend_from_slice(&[u8::from(self.prefixed), self.compression as u8]);
        put_varint(out, self.entries);
        put_varint(out, self.tombstones);
        put_varint(out, self.smallest_seq.get());
        put_varint(out, self.largest_seq.get());
        put_varint(out, self.blocks);
        put_varint(out, self.raw_bytes);
        put_string(out, &self.smallest_key);
        put_string(out, &self.largest_key);
        put_shares(out, &self.segments);
        for newest in &self.newest {
            put_varint(out, self.largest_seq.get() - newest.get());
        }
    }

    /// Takes the properties section's content.
    pub fn decode(content: &[u8]) -> FormatResult<Properties> {
        let mut reader = Reader::new(content);
        let keyspace = KeyspaceId::new(reader.varint_u32()?);
        let prefixed = reader.bool("presence of prefixes")?;
        let start = reader.pos();
        let compression = reader.u8()?;
        let compression = Compression::from_id(compression).ok_or_else(|| {
            let problem = Problem::Unknown { what: "compression", id: compression.into() };
            FormatError::new(start, problem)
        })?;
        let mut properties = Properties {
            keyspace,
            prefixed,
            compression,
            entries: reader.varint()?,
            tombstones: reader.varint()?,
            smallest_seq: SeqNo::new(reader.varint()?),
            largest_seq: SeqNo::new(reader.varint()?),
            blocks: reader.varint()?,
            raw_bytes: reader.varint()?,
            smallest_key: Bytes::copy_from_slice(reader.string("key", KEY_BYTES_MAX)?),
            largest_key: Bytes::copy_from_slice(reader.string("key", KEY_BYTES_MAX)?),
            segments: read_shares(&mut reader)?,
            newest: Vec::new(),
        };
        properties.newest = read_newest(&mut reader, &properties)?;
        reader.finish()?;
        Ok(properties)
    }
}

/// A number for each block, if there is anything left to read.
fn read_newest(reader: &mut Reader<'_>, properties: &Properties) -> FormatResult<Vec<SeqNo>> {
    let mut newest = Vec::new();
    while !reader.is_empty() {
        let start = reader.pos();
        let behind = reader.varint()?;
        let seq = properties.largest_seq.get().checked_sub(behind).map(SeqNo::new);
        match seq.filter(|seq| *seq >= properties.smallest_seq) {
            Some(seq) => newest.push(seq),
            None => {
                let rule = "a block whose newest version is outside of the table's range";
                return Err(FormatError::new(start, Problem::Invalid(rule)));
            }
        }
    }
    if !newest.is_empty() && newest.len() as u64 != properties.blocks {
        let rule = "another number of newest versions than of blocks";
        return Err(reader.error(Problem::Invalid(rule)));
    }
    Ok(newest)
}
