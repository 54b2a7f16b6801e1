//! The usage of directory trees: totals, changes of totals, limits on them, and their rows.
//!
//! ```text
//! usage in a directory's inode: | bytes varint | files varint | dirs varint |
//!                               | 0 |  or  | 1 | bytes | files | dirs |   pending, zigzag varints, not all 0
//! mark row:                     | version u8 | directory varint |
//! limits row:                   | version u8 | flags u8 | bytes varint, if flag 0 | inodes varint, if flag 1 |
//! ```
//!
//! Bytes are sizes as in `st_size`, of regular files and symbolic links. Sums are modulo 2^64, so additions and
//! subtractions in any order never fail. A sum is right as long as the true value is below 2^64.
//!
//! Invariant: the usage in a directory's inode covers everything below it, except what subdirectories have not
//! propagated yet; such a subdirectory has a mark row.

use bytes::Bytes;
use varve_types::InodeId;

use crate::codec::{Short, unzigzag, zigzag};
use crate::{DecodeError, ROW_VERSION, Reader, put_varint};

/// What lies below a directory, without the directory itself. A file with several names counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Sum of the sizes of regular files and symbolic links, in bytes.
    pub bytes: u64,
    /// Files and all other objects except directories.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
}

/// A change of a [`Usage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UsageChange {
    /// The number of bytes by which it grows.
    pub bytes: i64,
    /// The number of files by which it grows.
    pub files: i64,
    /// The number of directories by which it grows.
    pub dirs: i64,
}

impl Usage {
    /// Returns the usage after `change`.
    #[must_use]
    pub fn plus(self, change: UsageChange) -> Usage {
        Usage {
            bytes: self.bytes.wrapping_add_signed(change.bytes),
            files: self.files.wrapping_add_signed(change.files),
            dirs: self.dirs.wrapping_add_signed(change.dirs),
        }
    }

    /// Returns the usage before `change`.
    #[must_use]
    pub fn minus(self, change: UsageChange) -> Usage {
        self.plus(change.negated())
    }

    /// Returns whether `change` leaves no count of files and directories below zero. A change of bytes is modulo 2^64, so it
    /// cannot be told from the opposite one.
    pub fn covers(self, change: UsageChange) -> bool {
        self.files.checked_add_signed(change.files).is_some()
            && self.dirs.checked_add_signed(change.dirs).is_some()
    }

    /// Returns this as a change from nothing.
    pub fn as_change(self) -> UsageChange {
        UsageChange { bytes: self.bytes as i64, files: self.files as i64, dirs: self.dirs as i64 }
    }

    /// Returns the number of files and directories.
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
    /// Returns the change by one more file of `bytes` bytes.
    pub fn file(bytes: u64) -> UsageChange {
        UsageChange { bytes: bytes as i64, files: 1, dirs: 0 }
    }

    /// The change by one more directory.
    pub const DIR: UsageChange = UsageChange { bytes: 0, files: 0, dirs: 1 };

    /// Returns the change by the growth of a file from `old` to `new` bytes.
    pub fn size(old: u64, new: u64) -> UsageChange {
        UsageChange { bytes: new.wrapping_sub(old) as i64, files: 0, dirs: 0 }
    }

    /// Returns both changes together.
    #[must_use]
    pub fn plus(self, other: UsageChange) -> UsageChange {
        UsageChange {
            bytes: self.bytes.wrapping_add(other.bytes),
            files: self.files.wrapping_add(other.files),
            dirs: self.dirs.wrapping_add(other.dirs),
        }
    }

    /// Returns the opposite change.
    #[must_use]
    pub fn negated(self) -> UsageChange {
        UsageChange {
            bytes: self.bytes.wrapping_neg(),
            files: self.files.wrapping_neg(),
            dirs: self.dirs.wrapping_neg(),
        }
    }

    /// Returns the number of files and directories by which it grows.
    pub fn inodes(self) -> i64 {
        self.files.wrapping_add(self.dirs)
    }

    /// Returns whether nothing changes.
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
                    Err(reader.error("a pending change of nothing"))
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
    /// Returns the row's value.
    pub fn encode(self) -> Vec<u8> {
        let mut out = vec![ROW_VERSION];
        put_varint(&mut out, self.0.get());
        out
    }

    /// Decodes a row's value.
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

/// The most that may lie below a directory: a limits row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// The most bytes; `None` for no limit.
    pub bytes: Option<u64>,
    /// The most files and directories; `None` for no limit.
    pub inodes: Option<u64>,
}

impl Limits {
    /// Returns the row's value.
    pub fn encode(self) -> Vec<u8> {
        let flag = |limit: Option<u64>, bit: u8| if limit.is_some() { bit } else { 0 };
        let mut out =
            vec![ROW_VERSION, flag(self.bytes, HAS_BYTES) | flag(self.inodes, HAS_INODES)];
        for limit in [self.bytes, self.inodes].into_iter().flatten() {
            put_varint(&mut out, limit);
        }
        out
    }

    /// Decodes a row's value.
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
