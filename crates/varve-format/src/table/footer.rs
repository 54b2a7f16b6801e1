//! The end of a table file.
//!
//! ```text
//! offset  bytes  field
//!      0     12  properties: offset u64, length u32
//!     12     12  index
//!     24     12  filter over keys; zeros if none
//!     36     12  filter over prefixes; zeros if none
//!     48     12  zones; zeros if all data blocks are in this file
//!     60      1  index policy: 1 plain, 2 Elias-Fano, 3 three-level
//!     61      1  kind of the filters: 1 none, 2 Bloom, 3 cuckoo, 4 quotient, 5 fuse
//!     62      2  zero
//!     64      8  salt of the file, which the manifest has of it too
//!     72      4  format version
//!     76      4  crc32c of: salt u64, footer offset u64, bytes 0..76
//!     80      8  magic "varvetbl"
//! ```
//!
//! The version and the magic keep their place, counted from the end, in every version of the format.

use varve_types::FileSalt;

use crate::checksum::placed_crc;
use crate::codec::Reader;
use crate::filter::FilterKind;
use crate::index::IndexPolicy;
use crate::section::Handle;
use crate::{FORMAT_VERSION, FormatError, FormatResult, Problem};

/// Bytes of the footer.
pub const FOOTER_BYTES: usize = 88;

const VERSION_AT: usize = 72;
const CRC_AT: usize = 76;
const MAGIC_AT: usize = 80;
const MAGIC: [u8; 8] = *b"varvetbl";

/// Where the sections of a table are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Part of every checksum of the file.
    pub salt: FileSalt,
    /// Its [`super::Properties`].
    pub properties: Handle,
    /// Its [`crate::index::Index`].
    pub index: Handle,
    /// How to read the index.
    pub index_policy: IndexPolicy,
    /// What its filters are.
    pub filter_kind: FilterKind,
    /// Its [`crate::filter::Filter`] over keys.
    pub filter: Option<Handle>,
    /// Its [`crate::filter::Filter`] over the first 8 bytes of keys.
    pub prefix_filter: Option<Handle>,
    /// Its [`super::Zones`], if it is stitched.
    pub zones: Option<Handle>,
}

impl Footer {
    /// Returns the salt that the footer of a table names, for a reader who has no manifest; only [`Footer::decode`]
    /// with it tells whether it is right.
    pub fn salt_of(bytes: &[u8]) -> FormatResult<FileSalt> {
        let at = VERSION_AT - 8;
        let own = bytes.get(at..).unwrap_or_default();
        Reader::new(own).u64().map(FileSalt::new).map_err(|error| error.shifted(at as u64))
    }

    /// Returns where the data blocks of the file end.
    pub fn data_end(&self) -> u64 {
        self.sections().map(|(_, handle)| handle.offset).min().unwrap_or(0)
    }

    /// Returns the sections besides the data blocks, with their names.
    pub fn sections(&self) -> impl Iterator<Item = (&'static str, Handle)> {
        let all = [
            ("filter", self.filter),
            ("prefix filter", self.prefix_filter),
            ("zones", self.zones),
            ("index", Some(self.index)),
            ("properties", Some(self.properties)),
        ];
        all.into_iter().filter_map(|(name, handle)| Some((name, handle?)))
    }

    /// Appends the footer, which will stand at `offset` of the file.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, offset: u64) {
        let start = out.len();
        let none = Handle { offset: 0, len: 0 };
        let optional = [self.filter, self.prefix_filter, self.zones];
        let optional = optional.map(|handle| handle.unwrap_or(none));
        for handle in [self.properties, self.index].into_iter().chain(optional) {
            out.extend_from_slice(&handle.offset.to_le_bytes());
            out.extend_from_slice(&handle.len.to_le_bytes());
        }
        out.extend_from_slice(&[self.index_policy as u8, self.filter_kind as u8, 0, 0]);
        out.extend_from_slice(&self.salt.get().to_le_bytes());
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        let crc = placed_crc(self.salt.get(), offset, &[&out[start..]]);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&MAGIC);
    }

    /// Reads the last [`FOOTER_BYTES`] of the table with `salt`, which begin at `offset` of it.
    pub fn decode(bytes: &[u8], salt: FileSalt, offset: u64) -> FormatResult<Footer> {
        let Ok(bytes) = <&[u8; FOOTER_BYTES]>::try_from(bytes) else {
            let (needed, left) = (FOOTER_BYTES as u64, bytes.len() as u64);
            return Err(FormatError::new(0u64, Problem::Truncated { needed, left }));
        };
        if bytes[MAGIC_AT..] != MAGIC {
            let rule = "not the end of a table: the magic is missing";
            return Err(FormatError::new(MAGIC_AT, Problem::Invalid(rule)));
        }
        let version = Reader::new(&bytes[VERSION_AT..]).u32()?;
        if version > FORMAT_VERSION {
            let problem = Problem::Newer { found: version, supported: FORMAT_VERSION };
            return Err(FormatError::new(VERSION_AT, problem));
        }
        let stored = Reader::new(&bytes[CRC_AT..]).u32()?;
        let computed = placed_crc(salt.get(), offset, &[&bytes[..CRC_AT]]);
        if stored != computed {
            return Err(FormatError::new(CRC_AT, Problem::Checksum { stored, computed }));
        }
        decode_fields(bytes, salt, offset)
    }
}

fn decode_fields(bytes: &[u8], salt: FileSalt, offset: u64) -> FormatResult<Footer> {
    let mut reader = Reader::new(bytes);
    let mut handles = [None; 5];
    for handle in &mut handles {
        *handle = decode_handle(&mut reader, offset)?;
    }
    let [properties, index, filter, prefix_filter, zones] = handles;
    let start = reader.pos();
    let index_policy = reader.u8()?;
    let index_policy = IndexPolicy::from_id(index_policy).ok_or_else(|| {
        let problem = Problem::Unknown { what: "index policy", id: index_policy.into() };
        FormatError::new(start, problem)
    })?;
    let kind = reader.u8()?;
    let filtered = filter.is_some() || prefix_filter.is_some();
    let known = FilterKind::from_id(kind).filter(|kind| (*kind != FilterKind::None) == filtered);
    let filter_kind = known.ok_or_else(|| {
        let problem = Problem::Unknown { what: "kind of filter", id: kind.into() };
        FormatError::new(start + 1, problem)
    })?;
    let reserved = reader.bytes(2)?;
    let own_salt = reader.u64()?;
    let (Some(properties), Some(index)) = (properties, index) else {
        let rule = "a table without properties or index";
        return Err(FormatError::new(0u64, Problem::Invalid(rule)));
    };
    if reserved != [0; 2] || own_salt != salt.get() {
        let rule = "reserved bytes that are not zero, or the salt of another file";
        return Err(FormatError::new(start, Problem::Invalid(rule)));
    }
    Ok(Footer { salt, properties, index, index_policy, filter_kind, filter, prefix_filter, zones })
}

/// A section's place before `limit`, or `None` if all zeros.
fn decode_handle(reader: &mut Reader<'_>, limit: u64) -> FormatResult<Option<Handle>> {
    let start = reader.pos();
    let handle = Handle { offset: reader.u64()?, len: reader.u32()? };
    if handle == (Handle { offset: 0, len: 0 }) {
        return Ok(None);
    }
    match handle.offset.checked_add(handle.len.into()) {
        Some(end) if end <= limit && handle.len > 0 => Ok(Some(handle)),
        _ => {
            let rule = "a section beyond the footer, or of no bytes";
            Err(FormatError::new(start, Problem::Invalid(rule)))
        }
    }
}
