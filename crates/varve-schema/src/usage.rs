//! What a directory tree holds: totals, changes of totals, limits on them, and the rows about them.
//!
//! ```text
//! usage in a directory's inode: | bytes varint | files varint | dirs varint |
//!                               | 0 |  or  | 1 | bytes | files | dirs |   pending, zigzag varints, not all 0
//! mark row:                     | version u8 | directory varint |
//! limits row:                   | version u8 | flags u8 | bytes varint, if flag 0 | inodes varint, if flag 1 |
//! ```
//!
//! Bytes are sizes as `st_size` has them, of regular files and symbolic links. Sums are taken modulo 2^64, so
//! that adding and taking away in any order never fails; they are right as long as the truth is below 2^64.

use bytes::Bytes;
use varve_types::InodeId;

use crate::codec::{Short, unzigzag, zigzag};
use crate::{DecodeError, ROW_VERSION, Reader, put_varint};

/// What lies below a directory, itself not counted. A file with several names counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Sum of the sizes of regular files and symbolic links, in bytes.
    pub bytes: u64,
    /// Files, and everything else that is no directory.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
}

/// A change of a [`Usage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UsageChange {
    /// Bytes more.
    pub bytes: i64,
    /// Files more.
    pub files: i64,
    /// Directories more.
    pub dirs: i64,
}

impl Usage {
    /// The usage after `change`.
    #[must_use]
    pub fn plus(self, change: UsageChange) -> Usage {
        Usage {
            bytes: self.bytes.wrapping_add_signed(change.bytes),
            files: self.files.wrapping_add_signed(change.files),
            dirs: self.dirs.wrapping_add_signed(change.dirs),
        }
    }

    /// The usage before `change`.
    #[must_use]
    pub fn minus(self, change: UsageChange) -> Usage {
        self.plus(change.negated())
    }

    /// This as a change from nothing.
    pub fn as_change(self) -> UsageChange {
        UsageChange { bytes: self.bytes as i64, files: self.files as i64, dirs: self.dirs as i64 }
    }

    /// Files and directories.
    pub fn inodes(self) -> u64 {
        self.files.wrapping_add(self.dirs)
    }

    pub(crate) fn encode_to<const N: usize>(self, out: &mut Short<N>) {
        for count in [self.bytes, self.files, self.dirs] {
            out.put_varint(count);
        }
    }

    pub(crate) fn decode_from(reader: &mut Reader<'_>) -> Result<Usage, DecodeError> {
        Ok(Usage { bytes: reader.varint()?, files: reader.varint()?, dirs: reader.varint()? })
    }
}

impl UsageChange {
    /// One file of `bytes` bytes more.
    pub fn file(bytes: u64) -> UsageChange {
        UsageChange { bytes: bytes as i64, files: 1, dirs: 0 }
    }

    /// One directory more.
    pub const DIR: UsageChange = UsageChange { bytes: 0, files: 0, dirs: 1 };

    /// Growth of a file from `old` to `new` bytes.
    pub fn size(old: u64, new: u64) -> UsageChange {
        UsageChange { bytes: new.wrapping_sub(old) as i64, files: 0, dirs: 0 }
    }

    /// Both changes together.
    #[must_use]
    pub fn plus(self, other: UsageChange) -> UsageChange {
        UsageChange {
            bytes: self.bytes.wrapping_add(other.bytes),
            files: self.files.wrapping_add(other.files),
            dirs: self.dirs.wrapping_add(other.dirs),
        }
    }

    /// The change back.
    #[must_use]
    pub fn negated(self) -> UsageChange {
        UsageChange {
            bytes: self.bytes.wrapping_neg(),
            files: self.files.wrapping_neg(),
            dirs: self.dirs.wrapping_neg(),
        }
    }

    /// Files and directories more.
    pub fn inodes(self) -> i64 {
        self.files.wrapping_add(self.dirs)
    }

    /// Whether nothing changes.
    pub fn is_zero(self) -> bool {
        self == UsageChange::default()
    }

    pub(crate) fn encode_to<const N: usize>(self, out: &mut Short<N>) {
        out.put([u8::from(!self.is_zero())]);
        if !self.is_zero() {
            for change in [self.bytes, self.files, self.dirs] {
                out.put_varint(zigzag(change));
            }
        }
    }

    pub(crate) fn decode_from(reader: &mut Reader<'_>) -> Result<UsageChange, DecodeError> {
        match reader.u8()? {
            0 => Ok(UsageChange::default()),
            1 => {
                let mut change = || reader.varint().map(unzigzag);
                let change = UsageChange { bytes: change()?, files: change()?, dirs: change()? };
                if change.is_zero() {
                    Err(reader.error("an pending change of nothing"))
                } else {
                    Ok(change)
                }
            }
            _ => Err(reader.error("an unknown kind of change")),
        }
    }
}

/// A mark row: names a directory that may have pending usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub InodeId);

impl Mark {
    /// The row's value.
    pub fn encode(self) -> Vec<u8> {
        let mut out = vec![ROW_VERSION];
        put_varint(&mut out, self.0.get());
        out
    }

    /// Reads a row's value.
    pub fn decode(bytes: &Bytes) -> Result<Mark, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let dir = InodeId::new(reader.varint()?);
        reader.end()?;
        Ok(Mark(dir))
    }
}

const HAS_BYTES: u8 = 1;
const HAS_INODES: u8 = 1 << 1;

/// The most that may lie below a directory; a limits row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// The most bytes; `None` for no limit.
    pub bytes: Option<u64>,
    /// The most files and directories; `None` for no limit.
    pub inodes: Option<u64>,
}

impl Limits {
    /// The row's value.
    pub fn encode(self) -> Vec<u8> {
        let flag = |limit: Option<u64>, bit: u8| if limit.is_some() { bit } else { 0 };
        let mut out =
            vec![ROW_VERSION, flag(self.bytes, HAS_BYTES) | flag(self.inodes, HAS_INODES)];
        for limit in [self.bytes, self.inodes].into_iter().flatten() {
            put_varint(&mut out, limit);
        }
        out
    }

    /// Reads a row's value.
    pub fn decode(bytes: &Bytes) -> Result<Limits, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let flags = reader.u8()?;
        if flags & !(HAS_BYTES | HAS_INODES) != 0 {
            return Err(reader.error("unknown flags of limits"));
        }
        let mut limit = |bit: u8| (flags & bit != 0).then(|| reader.varint()).transpose();
        let limits = Limits { bytes: limit(HAS_BYTES)?, inodes: limit(HAS_INODES)? };
        reader.end()?;
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_add_up_in_any_order() {
        let all = [
            UsageChange::file(u64::MAX >> 1),
            UsageChange::DIR,
            UsageChange::size(100, 7),
            UsageChange::file(5).negated(),
        ];
        let forward = all.iter().fold(Usage::default(), |usage, change| usage.plus(*change));
        let backward = all.iter().rev().fold(Usage::default(), |usage, change| usage.plus(*change));
        assert_eq!(forward, backward);
        let sum = all.into_iter().fold(UsageChange::default(), UsageChange::plus);
        assert_eq!(forward.as_change(), sum);
        assert_eq!(forward.minus(sum), Usage::default());
        assert_eq!((forward.inodes(), sum.inodes()), (1, 1));
        assert!(sum.plus(sum.negated()).is_zero());
    }

    #[test]
    fn limits_come_back_and_others_are_refused() {
        for bytes in [None, Some(0), Some(u64::MAX)] {
            for inodes in [None, Some(300)] {
                let limits = Limits { bytes, inodes };
                assert_eq!(Limits::decode(&limits.encode().into()), Ok(limits));
            }
        }
        for raw in [&[1u8, 4][..], &[1, 1], &[1, 0, 0], &[2, 0]] {
            assert!(Limits::decode(&Bytes::copy_from_slice(raw)).is_err(), "{raw:?}");
        }
    }
}
