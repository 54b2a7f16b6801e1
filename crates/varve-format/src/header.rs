//! The beginning of a file of sections that has no footer.
//!
//! ```text
//! offset  bytes  field
//!      0      8  magic
//!      8      4  format version
//!     12      8  salt of the file
//!     20      4  crc32c of: salt u64, offset 0 u64, bytes 0..20
//! ```

use varve_types::FileSalt;

use crate::checksum::placed_crc;
use crate::codec::Reader;
use crate::{FORMAT_VERSION, FormatError, FormatResult, Problem};

/// Bytes of the header.
pub(crate) const FILE_HEADER_BYTES: usize = 24;

const VERSION_AT: usize = 8;
const SALT_AT: usize = 12;
const CRC_AT: usize = 20;

/// Appends the header of a file of the kind `magic`.
pub(crate) fn put_file_header(out: &mut Vec<u8>, magic: [u8; 8], salt: FileSalt) {
    let start = out.len();
    out.extend_from_slice(&magic);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&salt.get().to_le_bytes());
    let crc = placed_crc(salt.get(), 0, &[&out[start..]]);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// Returns the salt that the header of a file of the kind `magic` says its checksums hold; `other` is what is wrong
/// with a file of another kind.
pub(crate) fn file_salt(
    header: &[u8],
    magic: [u8; 8],
    other: &'static str,
) -> FormatResult<FileSalt> {
    let Ok(header) = <&[u8; FILE_HEADER_BYTES]>::try_from(header) else {
        let (needed, left) = (FILE_HEADER_BYTES as u64, header.len() as u64);
        return Err(FormatError::new(0u64, Problem::Truncated { needed, left }));
    };
    if header[..VERSION_AT] != magic {
        return Err(FormatError::new(0u64, Problem::Invalid(other)));
    }
    let version = Reader::new(&header[VERSION_AT..]).u32()?;
    if version > FORMAT_VERSION {
        let problem = Problem::Newer { found: version, supported: FORMAT_VERSION };
        return Err(FormatError::new(VERSION_AT, problem));
    }
    let salt = FileSalt::new(Reader::new(&header[SALT_AT..]).u64()?);
    let stored = Reader::new(&header[CRC_AT..]).u32()?;
    let computed = placed_crc(salt.get(), 0, &[&header[..CRC_AT]]);
    if stored != computed {
        return Err(FormatError::new(CRC_AT, Problem::Checksum { stored, computed }));
    }
    Ok(salt)
}
