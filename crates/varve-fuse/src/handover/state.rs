//! The state of a session that the next session needs, as bytes.
//!
//! ```text
//! | version u32 | flags u64 | write_bytes_max u32 | count u32 | open inode ... |
//! open inode: | ino u64 | open files u64 | backing file u32 |     0: through the page cache
//! ```
//!
//! Integers are little-endian. `flags` are the agreed capabilities under the kernel's numbers; the highest bit says
//! whether the mount is one of root alone. Such a state has version 2, so that an older program, which would let
//! others in, refuses it. The fuzz target `session_state` builds this file by itself.

/// The version of a state from which any program can continue.
const VERSION: u32 = 1;
/// The version of the state of a mount of root alone.
const VERSION_ROOT_ALONE: u32 = 2;
/// A flag beside the capabilities: the kernel checks no permissions, because it lets only root in. All numbers of the
/// kernel are far below.
pub(crate) const ROOT_ALONE: u64 = 1 << 63;
/// Bytes of one open inode.
const OPEN_INODE_BYTES: usize = 20;

/// The state of a session between two requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionState {
    /// The capabilities agreed on.
    pub(crate) flags: u64,
    /// The largest write in one request.
    pub(crate) write_bytes_max: u32,
    /// Inodes with open files, if passthrough was agreed on.
    pub(crate) open: Vec<OpenInode>,
}

/// An inode with open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenInode {
    pub(crate) ino: u64,
    /// Open files.
    pub(crate) count: u64,
    /// The kernel's number of the backing file they share.
    pub(crate) backing: Option<u32>,
}

impl SessionState {
    /// Encodes the state.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(20 + self.open.len() * OPEN_INODE_BYTES);
        out.extend_from_slice(&version_of(self.flags).to_le_bytes());
        out.extend_from_slice(&self.flags.to_le_bytes());
        out.extend_from_slice(&self.write_bytes_max.to_le_bytes());
        out.extend_from_slice(&(self.open.len() as u32).to_le_bytes());
        for open in &self.open {
            out.extend_from_slice(&open.ino.to_le_bytes());
            out.extend_from_slice(&open.count.to_le_bytes());
            out.extend_from_slice(&open.backing.unwrap_or(0).to_le_bytes());
        }
        out
    }

    /// Decodes what [`SessionState::encode`] wrote. The error is the reason why the bytes are something else.
    pub(crate) fn decode(bytes: &[u8]) -> Result<SessionState, &'static str> {
        let mut fields = Fields(bytes);
        let version = fields.u32()?;
        let (flags, write_bytes_max) = (fields.u64()?, fields.u32()?);
        if version != version_of(flags) {
            return Err("written by another version");
        }
        let count = fields.u32()? as usize;
        if count.checked_mul(OPEN_INODE_BYTES) != Some(fields.0.len()) {
            return Err("a wrong number of open inodes");
        }
        let mut open = Vec::with_capacity(count);
        for _ in 0..count {
            let (ino, count, backing) = (fields.u64()?, fields.u64()?, fields.u32()?);
            open.push(OpenInode { ino, count, backing: (backing != 0).then_some(backing) });
        }
        Ok(SessionState { flags, write_bytes_max, open })
    }
}

fn version_of(flags: u64) -> u32 {
    if flags & ROOT_ALONE == 0 { VERSION } else { VERSION_ROOT_ALONE }
}

/// Takes bytes apart from front to back.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (first, rest) = self.0.split_first_chunk().ok_or("it ends too early")?;
        self.0 = rest;
        Ok(*first)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> SessionState {
        SessionState {
            flags: (1 << 37) | 0x2009,
            write_bytes_max: 1 << 20,
            open: vec![
                OpenInode { ino: 17, count: 2, backing: Some(1) },
                OpenInode { ino: 1 << 40, count: 1, backing: None },
            ],
        }
    }

    #[test]
    fn the_state_is_written_as_version_1_wrote_it() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1/session.state");
        varve_testkit::golden(path, &example().encode());
    }

    #[test]
    fn comes_back_and_nothing_cut_or_longer_is_taken() {
        let bytes = example().encode();
        assert_eq!(SessionState::decode(&bytes), Ok(example()));
        for len in 0..bytes.len() {
            assert!(SessionState::decode(&bytes[..len]).is_err(), "cut at {len}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(SessionState::decode(&longer).is_err());
        for (at, bit) in [(0, 3), (11, 0x80)] {
            let mut other = bytes.clone();
            other[at] ^= bit;
            assert_eq!(SessionState::decode(&other), Err("written by another version"));
        }
        let alone = SessionState { flags: example().flags | ROOT_ALONE, ..example() };
        assert_eq!(SessionState::decode(&alone.encode()), Ok(alone));
    }

    #[test]
    fn every_flipped_bit_is_survived() {
        let bytes = example().encode();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                if let Ok(state) = SessionState::decode(&bad) {
                    assert_eq!(state.encode(), bad);
                }
            }
        }
    }
}
