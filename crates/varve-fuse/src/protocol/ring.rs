//! Lays out a ring entry: the memory in which one request comes and its answer goes over io_uring.
//!
//! ```text
//! offset  0 in_out: fuse_in_header (40 bytes) of the request, then fuse_out_header (16 bytes) of the answer
//!       128 op_in: the operation's own structure
//!       256 flags u64 | 264 commit_id u64 | 272 payload_sz u32 | 276 padding u32 | 280 reserved u64
//!       288 free, up to LEAD_BYTES
//!      4096 payload: what follows the structure (names, data), then the answer's body
//! ```
//!
//! The first 288 bytes are `struct fuse_uring_req_header`. A request lies in three pieces, so [`gather`]
//! copies the two short ones in front of the payload, and what results has the form of a request read from
//! the descriptor. Offsets and lengths that the kernel gives are checked all the same.
//!
//! The fuzz target `fuse_ring_entry` builds this file together with `request`.

use super::request::DecodeError;

/// What the kernel must be given for a request's fixed parts, in bytes.
pub(crate) const HEADERS_BYTES: usize = 288;
/// What precedes the payload: the fixed parts, and room to gather a request. One page, so that the payload
/// begins with another.
pub(crate) const LEAD_BYTES: usize = 4096;

const IN_HEADER_BYTES: usize = 40;
const OUT_HEADER_BYTES: usize = 16;
const OP_IN: usize = 128;
const OP_IN_BYTES: usize = 128;
const COMMIT_ID: usize = 264;
const PAYLOAD_SIZE: usize = 272;

/// Length of the command in a submission (`cmd` of a 128-byte entry).
pub(crate) const COMMAND_BYTES: usize = 80;

/// Why an answer cannot go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// `struct fuse_uring_cmd_req`: `flags u64 | commit_id u64 | qid u16 | padding 6 * u8`, the rest zero.
pub(crate) fn command(queue: u16, commit_id: u64) -> [u8; COMMAND_BYTES] {
    let mut command = [0; COMMAND_BYTES];
    command[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    command[16..18].copy_from_slice(&queue.to_ne_bytes());
    command
}

/// Returns the number by which the kernel finds the request again; also the request's own.
pub(crate) fn commit_id(entry: &[u8]) -> Result<u64, DecodeError> {
    array(entry, COMMIT_ID).map(u64::from_ne_bytes)
}

/// Puts the pieces of a request side by side: its bytes, as a read of the descriptor would give them.
pub(crate) fn gather(entry: &mut [u8]) -> Result<&[u8], DecodeError> {
    let whole = length(array(entry, 0)?)?;
    let payload = length(array(entry, PAYLOAD_SIZE)?)?;
    let structure = whole
        .checked_sub(IN_HEADER_BYTES)
        .and_then(|rest| rest.checked_sub(payload))
        .filter(|&structure| structure <= OP_IN_BYTES)
        .ok_or(DecodeError::Truncated)?;
    let end = LEAD_BYTES.checked_add(payload).ok_or(DecodeError::Truncated)?;
    if end > entry.len() {
        return Err(DecodeError::Truncated);
    }
    let begin = LEAD_BYTES - structure - IN_HEADER_BYTES;
    entry.copy_within(..IN_HEADER_BYTES, begin);
    entry.copy_within(OP_IN..OP_IN + structure, begin + IN_HEADER_BYTES);
    Ok(&entry[begin..end])
}

/// Length of what a request brought after its structure.
pub(crate) fn payload_len(entry: &[u8]) -> usize {
    array(entry, PAYLOAD_SIZE).and_then(length).unwrap_or(0)
}

/// Puts in the answer to request `unique`: `errno` is 0 or positive, `body` follows if it is 0.
pub(crate) fn answer(
    entry: &mut [u8],
    unique: u64,
    errno: i32,
    body: &[u8],
) -> Result<(), TooLong> {
    let len = u32::try_from(body.len()).map_err(|_| TooLong)?;
    let (lead, payload) = entry.split_at_mut_checked(LEAD_BYTES).ok_or(TooLong)?;
    payload.get_mut(..body.len()).ok_or(TooLong)?.copy_from_slice(body);
    lead[..OUT_HEADER_BYTES].copy_from_slice(&super::reply::header(unique, errno, body.len()));
    lead[PAYLOAD_SIZE..PAYLOAD_SIZE + 4].copy_from_slice(&len.to_ne_bytes());
    Ok(())
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], DecodeError> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(DecodeError::Truncated)
}

fn length(bytes: [u8; 4]) -> Result<usize, DecodeError> {
    usize::try_from(u32::from_ne_bytes(bytes)).map_err(|_| DecodeError::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: usize = LEAD_BYTES + 64;

    /// An entry as the kernel fills it.
    fn entry(whole: u32, structure: &[u8], payload: &[u8], payload_size: u32) -> Vec<u8> {
        let mut entry = vec![0xEE; ENTRY];
        entry[..4].copy_from_slice(&whole.to_ne_bytes());
        entry[4..IN_HEADER_BYTES].fill(7);
        entry[OP_IN..OP_IN + structure.len()].copy_from_slice(structure);
        entry[COMMIT_ID..COMMIT_ID + 8].copy_from_slice(&42_u64.to_ne_bytes());
        entry[PAYLOAD_SIZE..PAYLOAD_SIZE + 4].copy_from_slice(&payload_size.to_ne_bytes());
        entry[LEAD_BYTES..LEAD_BYTES + payload.len()].copy_from_slice(payload);
        entry
    }

    #[test]
    fn a_request_is_gathered_from_its_pieces() {
        for (structure, payload) in
            [(&b""[..], &b""[..]), (b"", b"name\0"), (b"struct16", b""), (&[3; 128], &[9; 64])]
        {
            let whole = IN_HEADER_BYTES + structure.len() + payload.len();
            let mut entry = entry(whole as u32, structure, payload, payload.len() as u32);
            assert_eq!(commit_id(&entry), Ok(42));
            assert_eq!(payload_len(&entry), payload.len());
            let request = gather(&mut entry).unwrap();
            assert_eq!(request.len(), whole);
            assert_eq!(request[..4], (whole as u32).to_ne_bytes());
            assert_eq!(request[4..IN_HEADER_BYTES], [7; 36]);
            assert_eq!(&request[IN_HEADER_BYTES..whole - payload.len()], structure);
            assert_eq!(&request[whole - payload.len()..], payload);
        }
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        for (whole, payload) in [
            (39, 0),       // shorter than its header
            (40, 1),       // a payload longer than the request
            (40 + 129, 0), // a structure longer than its place
            (40 + 65, 65), // a payload beyond the entry
            (u32::MAX, 0), // lengths at the end of the range
            (u32::MAX, u32::MAX - 40),
        ] {
            assert_eq!(gather(&mut entry(whole, b"", b"", payload)), Err(DecodeError::Truncated));
        }
        assert_eq!(gather(&mut [0; 100]), Err(DecodeError::Truncated));
    }

    #[test]
    fn an_answer_has_its_header_and_its_length() {
        let mut entry = entry(40, b"", b"", 0);
        answer(&mut entry, 42, 0, b"body").unwrap();
        assert_eq!(entry[..16], super::super::reply::header(42, 0, 4));
        assert_eq!(payload_len(&entry), 4);
        assert_eq!(&entry[LEAD_BYTES..LEAD_BYTES + 4], b"body");
        answer(&mut entry, 42, 2, b"").unwrap();
        assert_eq!(entry[4..8], (-2_i32).to_ne_bytes());
        assert_eq!(payload_len(&entry), 0);
        assert_eq!(answer(&mut entry, 42, 0, &[0; 65]), Err(TooLong));
    }

    #[test]
    fn a_command_names_queue_and_request() {
        let command = command(3, 0x0102_0304_0506_0708);
        assert_eq!(command[..8], [0; 8]);
        assert_eq!(command[8..16], 0x0102_0304_0506_0708_u64.to_ne_bytes());
        assert_eq!(command[16..18], 3_u16.to_ne_bytes());
        assert!(command[18..].iter().all(|&byte| byte == 0));
    }
}
