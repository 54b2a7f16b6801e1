//! Sections: the parts of a table file, each with its own compression and checksum.
//!
//! ```text
//! bytes  field
//!     n  stored content, as the packing says
//!     1  packing: 1 the content itself
//!                 2 u32 length of the content, then the content as one LZ4 block
//!                 3 the content, zeros, then u16 number of zeros
//!     4  crc32c of: salt of the file u64, section offset u64, stored content, packing byte
//! ```
//!
//! Data blocks, filters, the index and the properties are all sections.
//!
//! 1. A writer packs content ([`compress`], [`pad`]) and appends the section with its checksum.
//! 2. [`open_section`] checks the bytes of a section and unpacks the content.
//!
//! Invariant: no content is returned whose checksum is wrong. Packing 3 makes a data block fill whole pages, so that
//! an index need not store its length.

use bytes::Bytes;
use varve_types::FileSalt;
use varve_types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use crate::checksum::{CRC_BYTES, placed_crc};
use crate::{FormatError, FormatResult, Problem};

/// Bytes of a section after its content.
pub const TRAILER_BYTES: usize = 1 + CRC_BYTES;
/// The longest section, trailer included: far above a filter or an index of the largest table. A handle with a larger
/// length is refused, so that it takes no memory.
pub const SECTION_BYTES_MAX: u32 = 1 << 28;
/// The most bytes of a compressed section's original content: one row of the largest size and its
/// framing. Sections that are not compressed may be longer.
pub const COMPRESSED_CONTENT_BYTES_MAX: usize = KEY_BYTES_MAX + VALUE_BYTES_MAX + 4096;

/// The longest section that is looked for by its checksum.
pub(crate) const SECTION_BYTES_SEARCHED_MAX: usize = COMPRESSED_CONTENT_BYTES_MAX + TRAILER_BYTES;

/// LZ4 makes at most this many bytes from one.
const LZ4_RATIO_MAX: usize = 255;
const LENGTH_BYTES: usize = 4;
/// Sections are padded to multiples of at most this many bytes.
pub(crate) const PADDED_UNIT_MAX: u32 = 1 << 16;
/// Bytes of the number of zeros.
pub(crate) const PADDING_BYTES: usize = 2;

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
    /// Returns the compression with this number.
    pub fn from_id(id: u8) -> Option<Compression> {
        match id {
            1 => Some(Compression::None),
            2 => Some(Compression::Lz4),
            _ => None,
        }
    }
}

/// How a section's content is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Packing {
    /// As it is.
    Plain = 1,
    /// Compressed by [`compress`].
    Lz4 = 2,
    /// With zeros after it, by [`pad`].
    Padded = 3,
}

impl Packing {
    pub(crate) fn from_id(id: u8) -> Option<Packing> {
        match id {
            1 => Some(Packing::Plain),
            2 => Some(Packing::Lz4),
            3 => Some(Packing::Padded),
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
    /// Fails if no section is that long. A caller checks this before it allocates memory for the section.
    pub fn check(self) -> FormatResult<()> {
        if self.len <= SECTION_BYTES_MAX {
            return Ok(());
        }
        let (len, max) = (self.len.into(), SECTION_BYTES_MAX.into());
        Err(FormatError::new(0u64, Problem::TooLong { what: "section", len, max }))
    }

    /// Returns the offset just after it.
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

/// Puts `content` into `out` with as many zeros that the section has a multiple of `unit` bytes.
///
/// REQUIRES: `unit` at most [`PADDED_UNIT_MAX`].
pub(crate) fn pad(content: &[u8], unit: usize, out: &mut Vec<u8>) {
    let len = content.len() + PADDING_BYTES + TRAILER_BYTES;
    let zeros = len.next_multiple_of(unit) - len;
    out.clear();
    out.extend_from_slice(content);
    out.resize(content.len() + zeros, 0);
    out.extend_from_slice(&(zeros as u16).to_le_bytes());
}

/// Appends the section at `offset` of the file with `salt` with `content`, which was already packed as `packing`
/// says. Returns where it stands.
pub(crate) fn put_section(
    out: &mut Vec<u8>,
    salt: FileSalt,
    offset: u64,
    content: &[u8],
    packing: Packing,
) -> FormatResult<Handle> {
    let len = content.len() + TRAILER_BYTES;
    let within = u32::try_from(len).ok().filter(|len| *len <= SECTION_BYTES_MAX);
    let Some(len) = within else {
        let (len, max) = (len as u64, u64::from(SECTION_BYTES_MAX));
        return Err(FormatError::new(offset, Problem::TooLong { what: "section", len, max }));
    };
    let id = [packing as u8];
    let crc = placed_crc(salt.get(), offset, &[content, &id]);
    out.extend_from_slice(content);
    out.extend_from_slice(&id);
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(Handle { offset, len })
}

/// Makes what stands in `out` from `start` on a section at `offset` of the file with `salt`, as it is. Returns where it
/// stands.
pub(crate) fn seal_section(
    out: &mut Vec<u8>,
    start: usize,
    salt: FileSalt,
    offset: u64,
) -> FormatResult<Handle> {
    let len = out.len().saturating_sub(start) + TRAILER_BYTES;
    let within = u32::try_from(len).ok().filter(|len| *len <= SECTION_BYTES_MAX);
    let Some(len) = within else {
        let (len, max) = (len as u64, u64::from(SECTION_BYTES_MAX));
        return Err(FormatError::new(offset, Problem::TooLong { what: "section", len, max }));
    };
    out.push(Packing::Plain as u8);
    let crc = placed_crc(salt.get(), offset, &[&out[start..]]);
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(Handle { offset, len })
}

/// Returns the content of the section whose bytes, trailer included, are `bytes` and were read at `offset` of the
/// file with `salt`. Content that is not compressed shares their memory.
pub fn open_section(bytes: &Bytes, salt: FileSalt, offset: u64) -> FormatResult<Bytes> {
    let Some(content_len) = bytes.len().checked_sub(TRAILER_BYTES) else {
        let (needed, left) = (TRAILER_BYTES as u64, bytes.len() as u64);
        return Err(FormatError::new(0u64, Problem::Truncated { needed, left }));
    };
    let (covered, stored) = bytes.split_at(content_len + 1);
    let mut crc = [0; CRC_BYTES];
    crc.copy_from_slice(stored);
    let (stored, computed) = (u32::from_le_bytes(crc), placed_crc(salt.get(), offset, &[covered]));
    if stored != computed {
        return Err(FormatError::new(0u64, Problem::Checksum { stored, computed }));
    }
    unpack(bytes, content_len)
}

/// Returns the content of a section of which `content_len` bytes are stored content and the next is the packing.
pub(crate) fn unpack(section: &Bytes, content_len: usize) -> FormatResult<Bytes> {
    let id = section[content_len];
    match Packing::from_id(id) {
        Some(Packing::Plain) => Ok(section.slice(..content_len)),
        Some(Packing::Lz4) => decompress(&section[..content_len]).map(Bytes::from),
        Some(Packing::Padded) => {
            unpadded_len(&section[..content_len]).map(|content_len| section.slice(..content_len))
        }
        None => {
            let problem = Problem::Unknown { what: "packing", id: id.into() };
            Err(FormatError::new(content_len, problem))
        }
    }
}

/// Returns the length of the content that [`pad`] made `stored` of.
fn unpadded_len(stored: &[u8]) -> FormatResult<usize> {
    let parts = stored.split_last_chunk::<PADDING_BYTES>().and_then(|(padded, zeros)| {
        let zeros = usize::from(u16::from_le_bytes(*zeros));
        padded.split_at_checked(padded.len().checked_sub(zeros)?)
    });
    match parts {
        Some((content, zeros)) if zeros.iter().all(|byte| *byte == 0) => Ok(content.len()),
        _ => {
            let rule = "padding that is longer than its section, or not of zeros";
            Err(FormatError::new(stored.len(), Problem::Invalid(rule)))
        }
    }
}

/// Returns the content that [`compress`] made `stored` of.
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
    use crate::section_search::SectionSearch;

    const SALT: FileSalt = FileSalt::new(3);

    fn sealed(content: &[u8], packing: Packing) -> Bytes {
        let mut out = Vec::new();
        let handle = put_section(&mut out, SALT, 4096, content, packing).unwrap();
        assert_eq!(handle, Handle { offset: 4096, len: out.len() as u32 });
        Bytes::from(out)
    }

    #[test]
    fn sections_come_back_from_their_place_only() {
        let bytes = sealed(b"content", Packing::Plain);
        assert_eq!(open_section(&bytes, SALT, 4096).unwrap().as_ref(), b"content");
        assert!(open_section(&bytes, SALT, 8192).is_err());
        assert!(open_section(&bytes, FileSalt::new(4), 4096).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open_section(&Bytes::from(bad), SALT, 4096).is_err(), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(open_section(&bytes.slice(..cut), SALT, 4096).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn compressed_content_comes_back() {
        let content = b"layer of sediment, ".repeat(100);
        let mut packed = Vec::new();
        assert!(compress(&content, &mut packed));
        assert!(packed.len() < content.len() / 4);
        let bytes = sealed(&packed, Packing::Lz4);
        assert_eq!(open_section(&bytes, SALT, 4096).unwrap(), content);
        assert!(!compress(b"no two bytes alike", &mut packed));
        assert!(!compress(b"", &mut packed));
    }

    #[test]
    fn padded_content_fills_pages_and_comes_back() {
        for len in [0, 1, 4088, 4089, 4090, 5000] {
            let (content, mut padded) = (vec![7; len], Vec::new());
            pad(&content, 4096, &mut padded);
            let bytes = sealed(&padded, Packing::Padded);
            assert!(bytes.len().is_multiple_of(4096));
            assert_eq!(open_section(&bytes, SALT, 4096).unwrap(), content);
        }
        for bad in [&b"\0"[..], b"\0\0\x03\0", b"a\0b\x02\0"] {
            assert!(open_section(&sealed(bad, Packing::Padded), SALT, 4096).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_bomb_is_refused_before_it_is_unpacked() {
        let mut content = u32::MAX.to_le_bytes().to_vec();
        content.extend_from_slice(&[0x1f; 64]);
        let error = open_section(&sealed(&content, Packing::Lz4), SALT, 4096).unwrap_err();
        let max = 64 * LZ4_RATIO_MAX as u64;
        let len = u64::from(u32::MAX);
        assert_eq!(error.problem, Problem::TooLong { what: "decompressed content", len, max });
        assert!(decompress(&[9, 0, 0]).is_err());
        assert!(decompress(&[9, 0, 0, 0, 0x10, b'a']).is_err());
    }

    #[test]
    fn sections_of_every_packing_are_found_without_a_length() {
        let content = b"layer of sediment, ".repeat(100);
        let (mut packed, mut padded) = (Vec::new(), Vec::new());
        assert!(compress(&content, &mut packed));
        pad(&content, 4096, &mut padded);
        for (stored, packing) in
            [(&content, Packing::Plain), (&packed, Packing::Lz4), (&padded, Packing::Padded)]
        {
            let section = sealed(stored, packing);
            let file = [&[0; 4096][..], &section, &[0; 100]].concat();
            let search = SectionSearch::new(Bytes::from(file), SALT, 0);
            let (handle, found) = search.find(4096, |handle, found| Some((handle, found))).unwrap();
            assert_eq!(handle, Handle { offset: 4096, len: section.len() as u32 }, "{packing:?}");
            assert_eq!(found, content);
        }
    }

    #[test]
    fn a_handle_that_says_too_much_is_refused() {
        assert_eq!(Handle { offset: 0, len: SECTION_BYTES_MAX }.check(), Ok(()));
        let error = Handle { offset: 0, len: SECTION_BYTES_MAX + 1 }.check().unwrap_err();
        assert!(matches!(error.problem, Problem::TooLong { what: "section", .. }), "{error}");
    }

    #[test]
    fn an_unknown_packing_is_named() {
        let mut out = b"content\x09".to_vec();
        let crc = placed_crc(SALT.get(), 0, &[&out]);
        out.extend_from_slice(&crc.to_le_bytes());
        let error = open_section(&Bytes::from(out), SALT, 0).unwrap_err();
        assert_eq!(error.problem, Problem::Unknown { what: "packing", id: 9 });
    }
}
