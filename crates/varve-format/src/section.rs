//! Sections: the parts of a table file, each with its own compression and checksum.
//!
//! ```text
//! bytes  field
//!     n  content; with compression 2: u32 length of the original content, then one LZ4 block
//!     1  compression: 1 none, 2 LZ4
//!     4  crc32c of: file number u64, section offset u64, content, compression byte
//! ```
//!
//! Data blocks, filters, the index and the properties are all sections.

use bytes::Bytes;
use varve_types::FileNo;
use varve_types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use crate::checksum::{CRC_BYTES, placed_crc};
use crate::{FormatError, FormatResult, Problem};

/// Bytes of a section after its content.
pub const TRAILER_BYTES: usize = 1 + CRC_BYTES;
/// The most bytes of a compressed section's original content: one row of the largest size and its
/// framing. Sections that are not compressed may be longer.
pub const COMPRESSED_CONTENT_BYTES_MAX: usize = KEY_BYTES_MAX + VALUE_BYTES_MAX + 4096;

/// LZ4 makes at most this many bytes from one.
const LZ4_RATIO_MAX: usize = 255;
const LENGTH_BYTES: usize = 4;

/// How a section's content is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compression {
    /// Not at all.
    None = 1,
    /// LZ4, where it saves at least an eighth.
    Lz4 = 2,
}

impl Compression {
    /// The compression with this number.
    pub fn from_id(id: u8) -> Option<Compression> {
        match id {
            1 => Some(Compression::None),
            2 => Some(Compression::Lz4),
            _ => None,
        }
    }
}

/// Where a section stands in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes, trailer included.
    pub len: u32,
}

impl Handle {
    /// The offset just after it.
    pub fn end(self) -> u64 {
        self.offset.saturating_add(u64::from(self.len))
    }
}

/// `content` compressed, if that saves at least an eighth of it.
pub(crate) fn compress(content: &[u8], scratch: &mut Vec<u8>) -> bool {
    if content.len() > COMPRESSED_CONTENT_BYTES_MAX {
        return false;
    }
    scratch.clear();
    scratch.resize(LENGTH_BYTES + lz4_flex::block::get_maximum_output_size(content.len()), 0);
    scratch[..LENGTH_BYTES].copy_from_slice(&(content.len() as u32).to_le_bytes());
    let Ok(len) = lz4_flex::block::compress_into(content, &mut scratch[LENGTH_BYTES..]) else {
        return false;
    };
    scratch.truncate(LENGTH_BYTES + len);
    scratch.len() <= content.len() - content.len() / 8
}

/// Appends the section at `offset` of `file` with `content`, which was already compressed as
/// `compression` says. Returns where it stands.
pub(crate) fn put_section(
    out: &mut Vec<u8>,
    file: FileNo,
    offset: u64,
    content: &[u8],
    compression: Compression,
) -> FormatResult<Handle> {
    let len = content.len() + TRAILER_BYTES;
    let Ok(len) = u32::try_from(len) else {
        let (len, max) = (len as u64, u64::from(u32::MAX));
        return Err(FormatError::new(offset, Problem::TooLong { what: "section", len, max }));
    };
    let id = [compression as u8];
    let crc = placed_crc(file, offset, &[content, &id]);
    out.extend_from_slice(content);
    out.extend_from_slice(&id);
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(Handle { offset, len })
}

/// The content of the section whose bytes, trailer included, are `bytes` and were read at `offset` of
/// `file`. Content that is not compressed shares their memory.
pub fn open_section(bytes: &Bytes, file: FileNo, offset: u64) -> FormatResult<Bytes> {
    let Some(content_len) = bytes.len().checked_sub(TRAILER_BYTES) else {
        let (needed, left) = (TRAILER_BYTES as u64, bytes.len() as u64);
        return Err(FormatError::new(0u64, Problem::Truncated { needed, left }));
    };
    let (covered, stored) = bytes.split_at(content_len + 1);
    let mut crc = [0; CRC_BYTES];
    crc.copy_from_slice(stored);
    let (stored, computed) = (u32::from_le_bytes(crc), placed_crc(file, offset, &[covered]));
    if stored != computed {
        return Err(FormatError::new(0u64, Problem::Checksum { stored, computed }));
    }
    let id = covered[content_len];
    match Compression::from_id(id) {
        Some(Compression::None) => Ok(bytes.slice(..content_len)),
        Some(Compression::Lz4) => decompress(&covered[..content_len]).map(Bytes::from),
        None => {
            let problem = Problem::Unknown { what: "compression", id: id.into() };
            Err(FormatError::new(content_len, problem))
        }
    }
}

/// The content that [`compress`] made `stored` of.
pub(crate) fn decompress(stored: &[u8]) -> FormatResult<Vec<u8>> {
    let Some((len, packed)) = stored.split_first_chunk::<LENGTH_BYTES>() else {
        let (needed, left) = (LENGTH_BYTES as u64, stored.len() as u64);
        return Err(FormatError::new(0u64, Problem::Truncated { needed, left }));
    };
    let len = u32::from_le_bytes(*len) as usize;
    let max = COMPRESSED_CONTENT_BYTES_MAX.min(packed.len().saturating_mul(LZ4_RATIO_MAX));
    if len > max {
        let problem =
            Problem::TooLong { what: "decompressed content", len: len as u64, max: max as u64 };
        return Err(FormatError::new(0u64, problem));
    }
    let mut content = vec![0; len];
    match lz4_flex::block::decompress_into(packed, &mut content) {
        Ok(written) if written == len => Ok(content),
        _ => Err(FormatError::new(
            LENGTH_BYTES,
            Problem::Invalid("LZ4 data that does not decompress to the length given"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileNo = FileNo::new(3);

    fn sealed(content: &[u8], compression: Compression) -> Bytes {
        let mut out = Vec::new();
        let handle = put_section(&mut out, FILE, 4096, content, compression).unwrap();
        assert_eq!(handle, Handle { offset: 4096, len: out.len() as u32 });
        Bytes::from(out)
    }

    #[test]
    fn sections_come_back_from_their_place_only() {
        let bytes = sealed(b"content", Compression::None);
        assert_eq!(open_section(&bytes, FILE, 4096).unwrap().as_ref(), b"content");
        assert!(open_section(&bytes, FILE, 8192).is_err());
        assert!(open_section(&bytes, FILE.next(), 4096).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open_section(&Bytes::from(bad), FILE, 4096).is_err(), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(open_section(&bytes.slice(..cut), FILE, 4096).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn compressed_content_comes_back() {
        let content = b"layer of sediment, ".repeat(100);
        let mut packed = Vec::new();
        assert!(compress(&content, &mut packed));
        assert!(packed.len() < content.len() / 4);
        let bytes = sealed(&packed, Compression::Lz4);
        assert_eq!(open_section(&bytes, FILE, 4096).unwrap(), content);
        assert!(!compress(b"no two bytes alike", &mut packed));
        assert!(!compress(b"", &mut packed));
    }

    #[test]
    fn a_bomb_is_refused_before_it_is_unpacked() {
        let mut content = u32::MAX.to_le_bytes().to_vec();
        content.extend_from_slice(&[0x1f; 64]);
        let error = open_section(&sealed(&content, Compression::Lz4), FILE, 4096).unwrap_err();
        let max = 64 * LZ4_RATIO_MAX as u64;
        let len = u64::from(u32::MAX);
        assert_eq!(error.problem, Problem::TooLong { what: "decompressed content", len, max });
        assert!(decompress(&[9, 0, 0]).is_err());
        assert!(decompress(&[9, 0, 0, 0, 0x10, b'a']).is_err());
    }

    #[test]
    fn an_unknown_compression_is_named() {
        let mut out = b"content\x09".to_vec();
        let crc = placed_crc(FILE, 0, &[&out]);
        out.extend_from_slice(&crc.to_le_bytes());
        let error = open_section(&Bytes::from(out), FILE, 0).unwrap_err();
        assert_eq!(error.problem, Problem::Unknown { what: "compression", id: 9 });
    }
}
