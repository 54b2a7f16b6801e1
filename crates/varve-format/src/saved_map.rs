//! The maps of the upper sub-levels of a store, as a file keeps them from a close to the next open.
//!
//! ```text
//! offset  bytes  field
//!      0     24  header (see [`crate::header`]) of magic "varvemap"
//! then of each key space that has a map:
//!             4  length of the section that follows
//!             n  section (see [`crate::section`])
//! ```
//!
//! The content of a section:
//!
//! ```text
//! varint  key space
//! varint  number of tables; of each, ascending by file: varint file, u64 salt, string smallest key, byte number in the map
//! filter  over keys (see [`crate::filter::multi_level`])
//! byte    1 if a filter over prefixes follows (see [`crate::filter::parent`]), else 0
//! ```
//!
//! Invariant: a map is valid as long as every table that it numbers is unchanged. The salts distinguish these files
//! from all others, and the smallest key shows whether a merge has removed the beginning of a table.

use bytes::Bytes;
use varve_types::limits::KEY_BYTES_MAX;
use varve_types::{FileNo, FileSalt, KeyspaceId};

use crate::codec::{Reader, put_string, put_varint};
use crate::filter::SubLevel;
use crate::filter::multi_level::MultiLevelFilter;
use crate::filter::parent::ParentFilter;
use crate::header::{FILE_HEADER_BYTES, file_salt, put_file_header};
use crate::section::{open_section, seal_section};
use crate::segment::{RECORD_PREFIX_BYTES, record_at};
use crate::{FormatError, FormatResult, Problem};

/// Bytes of the file before its sections.
pub const MAP_HEADER_BYTES: usize = FILE_HEADER_BYTES;

const MAGIC: [u8; 8] = *b"varvemap";
/// The fewest bytes of a table.
const TABLE_BYTES_MIN: u64 = 11;

/// A table as a map knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedTable {
    /// Its file.
    pub file: FileNo,
    /// The salt of the file.
    pub salt: FileSalt,
    /// The first key that counts.
    pub smallest_key: Bytes,
    /// Its number in the map.
    pub number: SubLevel,
}

/// The map of a key space.
#[derive(Debug, PartialEq, Eq)]
pub struct SavedMap {
    /// The key space.
    pub keyspace: KeyspaceId,
    /// The tables that have numbers, ascending by file.
    pub tables: Vec<NumberedTable>,
    /// The filter over keys.
    pub keys: MultiLevelFilter,
    /// The filter over prefixes, where keys have them.
    pub prefixes: Option<ParentFilter>,
}

/// Appends the header of the file with this salt.
pub fn put_map_header(out: &mut Vec<u8>, salt: FileSalt) {
    put_file_header(out, MAGIC, salt);
}

/// Returns the salt that the header of the file, its first [`MAP_HEADER_BYTES`], says its checksums hold.
pub fn map_salt(header: &[u8]) -> FormatResult<FileSalt> {
    file_salt(header, MAGIC, "not the beginning of a file of maps: the magic is missing")
}

/// Returns the map whose record begins at `offset` of the file, all of which is `bytes`, and where the record ends.
pub fn map_at(bytes: &Bytes, salt: FileSalt, offset: usize) -> FormatResult<(SavedMap, usize)> {
    let len = bytes.len();
    let prefix = bytes.get(offset..len.min(offset + RECORD_PREFIX_BYTES)).unwrap_or_default();
    let handle = record_at(prefix, offset as u64, len as u64)
        .map_err(|error| error.shifted(offset as u64))?;
    let end = handle.end() as usize;
    let section = bytes.slice(handle.offset as usize..end);
    let map = open_section(&section, salt, handle.offset)
        .and_then(|content| SavedMap::decode(&content))
        .map_err(|error| error.shifted(handle.offset))?;
    Ok((map, end))
}

/// Appends the content of the section of a key space.
pub fn encode_map(
    out: &mut Vec<u8>,
    keyspace: KeyspaceId,
    tables: &[NumberedTable],
    keys: &MultiLevelFilter,
    prefixes: Option<&ParentFilter>,
) {
    put_varint(out, keyspace.get().into());
    put_varint(out, tables.len() as u64);
    for table in tables {
        put_varint(out, table.file.get());
        out.extend_from_slice(&table.salt.get().to_le_bytes());
        put_string(out, &table.smallest_key);
        out.push(table.number.get());
    }
    keys.encode(out);
    out.push(u8::from(prefixes.is_some()));
    if let Some(prefixes) = prefixes {
        prefixes.encode(out);
    }
}

/// Appends the length and the section of a key space, whose content `encode` appends; it will begin at `offset` of the file
/// with this salt.
pub fn put_map_section(
    out: &mut Vec<u8>,
    salt: FileSalt,
    offset: u64,
    encode: impl FnOnce(&mut Vec<u8>),
) -> FormatResult<()> {
    let start = out.len();
    out.extend_from_slice(&[0; RECORD_PREFIX_BYTES]);
    let content = out.len();
    encode(out);
    let handle = seal_section(out, content, salt, offset + RECORD_PREFIX_BYTES as u64)?;
    out[start..content].copy_from_slice(&handle.len.to_le_bytes());
    Ok(())
}

impl SavedMap {
    /// Takes the content of a section.
    pub fn decode(content: &[u8]) -> FormatResult<SavedMap> {
        let mut reader = Reader::new(content);
        let keyspace = KeyspaceId::new(reader.varint_u32()?);
        let tables = read_tables(&mut reader)?;
        let keys = MultiLevelFilter::decode(&mut reader)?;
        let has_prefixes = reader.bool("presence of a filter over prefixes")?;
        let prefixes = has_prefixes.then(|| ParentFilter::decode(&mut reader)).transpose()?;
        reader.finish()?;
        Ok(SavedMap { keyspace, tables, keys, prefixes })
    }
}

fn read_tables(reader: &mut Reader<'_>) -> FormatResult<Vec<NumberedTable>> {
    let start = reader.pos();
    let (len, max) = (reader.varint()?, reader.remaining() as u64 / TABLE_BYTES_MIN);
    if len > max {
        let problem = Problem::TooLong { what: "list of tables", len, max };
        return Err(FormatError::new(start, problem));
    }
    let mut tables: Vec<NumberedTable> = Vec::new();
    for _ in 0..len {
        let start = reader.pos();
        let file = FileNo::new(reader.varint()?);
        let salt = FileSalt::new(reader.u64()?);
        let smallest_key = Bytes::copy_from_slice(reader.string("key", KEY_BYTES_MAX)?);
        let number = SubLevel::new(reader.u8()?);
        let ascends = tables.last().is_none_or(|last| last.file < file);
        let Some(number) = number.filter(|_| ascends) else {
            let rule = "tables out of order, or one with a number that cannot be";
            return Err(FormatError::new(start, Problem::Invalid(rule)));
        };
        tables.push(NumberedTable { file, salt, smallest_key, number });
    }
    Ok(tables)
}
