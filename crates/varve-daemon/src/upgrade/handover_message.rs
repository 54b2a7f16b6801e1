//! The message by which the daemon of a mount hands over to its successor, as bytes.
//!
//! ```text
//! | "VARVEBTN" | version u32 | facts length u32 | session length u32 | files length u32 |
//! | facts | session | files | crc32c u32 over all before it |
//! ```
//!
//! Little-endian. `facts` is JSON: the mount and the command line; `session` belongs to varve-fuse, `files` to varve-fs. The fuzz target
//! `handover_message` compiles this file by itself.

/// Changes whenever a part changes its meaning. A binary takes over only from a daemon of the same version, and reports its version
/// before anything stops.
pub(crate) const VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"VARVEBTN";
const HEADER_BYTES: usize = 8 + 4 * 4;
const CHECKSUM_BYTES: usize = 4;

/// The parts, encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HandoverMessage {
    /// The mount and the command line.
    pub(crate) facts: Vec<u8>,
    /// The session with the kernel.
    pub(crate) session: Vec<u8>,
    /// The file system's volatile state.
    pub(crate) files: Vec<u8>,
}

impl HandoverMessage {
    /// The bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let parts = [&self.facts, &self.session, &self.files];
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        for part in parts {
            out.extend_from_slice(&(part.len() as u32).to_le_bytes());
        }
        for part in parts {
            out.extend_from_slice(part);
        }
        let checksum = crc32c::crc32c(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads what [`HandoverMessage::encode`] wrote. The error says why other bytes are refused.
    pub(crate) fn decode(bytes: &[u8]) -> Result<HandoverMessage, &'static str> {
        let Some((content, checksum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err("it is cut short");
        };
        if crc32c::crc32c(content) != u32::from_le_bytes(*checksum) {
            return Err("its checksum does not fit");
        }
        let Some((header, mut rest)) = content.split_first_chunk::<HEADER_BYTES>() else {
            return Err("it is cut short");
        };
        let number = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if !header.starts_with(MAGIC) || number(8) != VERSION {
            return Err("it is from another version");
        }
        let mut part = |at: usize| {
            let (part, after) = rest.split_at_checked(number(at) as usize)?;
            rest = after;
            Some(part.to_vec())
        };
        let parts = (part(12), part(16), part(20));
        match parts {
            (Some(facts), Some(session), Some(files)) if rest.is_empty() => {
                Ok(HandoverMessage { facts, session, files })
            }
            _ => Err("its lengths do not fit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> HandoverMessage {
        HandoverMessage { facts: b"{}".to_vec(), session: vec![1, 2, 3], files: vec![9; 40] }
    }

    #[test]
    fn the_handover_message_is_written_as_version_1_wrote_it() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1/handover_message");
        varve_testkit::golden(path, &example().encode());
        assert_eq!(HandoverMessage::decode(&example().encode()), Ok(example()));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let bytes = example().encode();
        for at in 0..bytes.len() {
            assert!(HandoverMessage::decode(&bytes[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                assert!(HandoverMessage::decode(&bad).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    /// With the checksum put right, so that the code behind it is reached.
    #[test]
    fn other_versions_and_false_lengths_are_refused() {
        let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = example().encode();
            bytes.truncate(bytes.len() - CHECKSUM_BYTES);
            change(&mut bytes);
            let checksum = crc32c::crc32c(&bytes);
            bytes.extend_from_slice(&checksum.to_le_bytes());
            HandoverMessage::decode(&bytes)
        };
        assert_eq!(sealed(&|_| {}), Ok(example()));
        assert_eq!(sealed(&|bytes| bytes[8] += 1), Err("it is from another version"));
        for at in [12, 16, 20] {
            assert_eq!(sealed(&|bytes| bytes[at] += 1), Err("its lengths do not fit"));
            assert_eq!(sealed(&|bytes| bytes[at + 3] = 0xff), Err("its lengths do not fit"));
        }
        assert_eq!(sealed(&|bytes| bytes.truncate(20)), Err("it is cut short"));
    }
}
