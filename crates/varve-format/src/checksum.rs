//! CRC32C over a place and some content.
//!
//! The place (what stands for the file, and the offset) goes first, so that a block or record that is read from where
//! it was not written fails, be it a stale sector or a file swapped with another.

/// Bytes of a checksum.
pub(crate) const CRC_BYTES: usize = 4;

/// The checksum of `parts`, one after the other, at `offset` of the file that `file` stands for: a table's salt, or
/// what a log has instead.
pub(crate) fn placed_crc(file: u64, offset: u64, parts: &[&[u8]]) -> u32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&file.to_le_bytes());
    place[8..].copy_from_slice(&offset.to_le_bytes());
    parts.iter().fold(crc32c::crc32c(&place), |crc, part| crc32c::crc32c_append(crc, part))
}
