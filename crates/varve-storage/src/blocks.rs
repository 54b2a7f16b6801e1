//! Bytes of files as objects: blocks that each have a checksum before them, so that any part can be read and checked
//! alone.
//!
//! ```text
//! block    crc32c u32 of: the store's id, the object's id, the block's number, the bytes; then up to 64 KiB of bytes
//! object   blocks, all but the last whole
//! ```

use std::ops::Range;

use bytes::Bytes;

use crate::extents::ObjectId;

/// Bytes of the payload in each block but the last.
pub(crate) const BLOCK_BYTES: u64 = 64 << 10;
const CRC_BYTES: u64 = 4;
/// Bytes that a whole block takes.
const STRIDE: u64 = BLOCK_BYTES + CRC_BYTES;

fn crc(store: u128, id: ObjectId, block: u64, bytes: &[u8]) -> u32 {
    let mut place = [0; 40];
    place[..16].copy_from_slice(&store.to_le_bytes());
    place[16..24].copy_from_slice(&id.epoch.to_le_bytes());
    place[24..32].copy_from_slice(&id.number.to_le_bytes());
    place[32..].copy_from_slice(&block.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), bytes)
}

/// The object of a store with the payload `parts`, one after the other.
pub(crate) fn encode(store: u128, id: ObjectId, parts: &[Bytes]) -> Bytes {
    let len: usize = parts.iter().map(Bytes::len).sum();
    let blocks = len.div_ceil(BLOCK_BYTES as usize);
    let mut object = Vec::with_capacity(len + blocks * CRC_BYTES as usize);
    let mut start = 0;
    let close = |object: &mut Vec<u8>, start: &mut usize, block: u64| {
        let sum = crc(store, id, block, &object[*start + CRC_BYTES as usize..]);
        object[*start..*start + CRC_BYTES as usize].copy_from_slice(&sum.to_le_bytes());
        *start = object.len();
    };
    let mut block = 0;
    for part in parts {
        let mut rest = &part[..];
        while !rest.is_empty() {
            if object.len() == start {
                object.extend_from_slice(&[0; CRC_BYTES as usize]);
            }
            let room = STRIDE as usize - (object.len() - start);
            let (now, later) = rest.split_at(room.min(rest.len()));
            object.extend_from_slice(now);
            rest = later;
            if object.len() - start == STRIDE as usize {
                close(&mut object, &mut start, block);
                block += 1;
            }
        }
    }
    if object.len() > start {
        close(&mut object, &mut start, block);
    }
    object.into()
}

/// The range of an object that holds the blocks `blocks`; it may end behind the object.
pub(crate) fn range_of(blocks: Range<u64>) -> Range<u64> {
    blocks.start * STRIDE..blocks.end * STRIDE
}

/// The payload of the blocks from `first` on, which are `bytes` of the object; the error names an offset of the object.
pub(crate) fn decode(store: u128, id: ObjectId, first: u64, bytes: &[u8]) -> Result<Bytes, String> {
    let mut payload = Vec::with_capacity(bytes.len());
    for (index, stored) in bytes.chunks(STRIDE as usize).enumerate() {
        let block = first + index as u64;
        let Some((sum, content)) = stored.split_first_chunk::<{ CRC_BYTES as usize }>() else {
            return Err(format!("it ends within a checksum at offset {}", block * STRIDE));
        };
        if u32::from_le_bytes(*sum) != crc(store, id, block, content) {
            return Err(format!(
                "the checksum of the {} bytes at offset {} is wrong",
                content.len(),
                block * STRIDE
            ));
        }
        payload.extend_from_slice(content);
    }
    Ok(payload.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: u128 = 77;

    #[test]
    fn each_part_of_an_object_can_be_read_alone_and_each_flipped_bit_is_noticed() {
        let id = ObjectId { epoch: 3, number: 9 };
        let block = BLOCK_BYTES as usize;
        for len in [1, 5, block - 1, block, block + 1, 3 * block, 3 * block + 7] {
            let payload: Bytes = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let parts = [payload.slice(..len / 3), payload.slice(len / 3..)];
            let object = encode(STORE, id, &parts);
            assert_eq!(decode(STORE, id, 0, &object).unwrap(), payload);
            for first in 0..len.div_ceil(block) as u64 {
                let range = range_of(first..first + 2);
                let part = &object[range.start as usize..(range.end as usize).min(object.len())];
                let end = ((first as usize + 2) * block).min(len);
                assert_eq!(
                    decode(STORE, id, first, part).unwrap(),
                    payload[first as usize * block..end]
                );
                assert!(decode(STORE, id, first + 1, part).is_err(), "another place");
            }
            for at in (0..object.len()).step_by(997).chain([object.len() - 1]) {
                let mut damaged = object.to_vec();
                damaged[at] ^= 1;
                assert!(decode(STORE, id, 0, &damaged).is_err(), "{at}");
            }
            assert!(decode(STORE, ObjectId { epoch: 4, number: 9 }, 0, &object).is_err());
            assert!(decode(STORE + 1, id, 0, &object).is_err());
        }
    }
}
