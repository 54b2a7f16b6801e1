//! The payload of a barrier record of the write-ahead log.
//!
//! ```text
//! bytes   field
//!     8   the largest sequence number whose data outside the store is durable
//! ```

use varve_types::SeqNo;

/// Bytes of the payload.
pub const BARRIER_BYTES: usize = 8;

/// Returns the payload of a barrier that covers all batches up to `covered`.
pub fn encode_barrier(covered: SeqNo) -> [u8; BARRIER_BYTES] {
    covered.get().to_le_bytes()
}

/// Returns what a barrier with this payload covers; one of another length covers nothing.
pub fn decode_barrier(payload: &[u8]) -> SeqNo {
    SeqNo::new(payload.try_into().map_or(0, u64::from_le_bytes))
}
