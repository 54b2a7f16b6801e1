//! Why bytes could not be decoded.

use std::fmt;

/// The result of decoding.
pub type FormatResult<T> = Result<T, FormatError>;

/// Bytes that are not what a store writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} (at byte {offset} of the section)")]
pub struct FormatError {
    /// Where it was noticed, in bytes from the start of the section that was decoded.
    pub offset: u64,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong with some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A field reaches beyond the end.
    Truncated {
        /// Bytes the field takes.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// A variable-length integer does not fit its type, or is longer than its value needs.
    Varint,
    /// The checksum does not match the content or the place.
    Checksum {
        /// As it stands in the bytes.
        stored: u32,
        /// As the bytes and their place give it.
        computed: u32,
    },
    /// A number that stands for one of a list of things stands for none this program knows.
    Unknown {
        /// Of what list.
        what: &'static str,
        /// The number.
        id: u64,
    },
    /// The format version is above what this program reads.
    Newer {
        /// The version found.
        found: u32,
        /// The newest version this program reads.
        supported: u32,
    },
    /// A length is above its limit.
    TooLong {
        /// Of what.
        what: &'static str,
        /// The length found.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// A rule of the structure does not hold; the text is the rule broken.
    Invalid(&'static str),
}

impl FormatError {
    /// `problem`, noticed at `offset`.
    pub fn new(offset: impl TryInto<u64>, problem: Problem) -> FormatError {
        FormatError { offset: offset.try_into().unwrap_or(u64::MAX), problem }
    }

    /// The same error as seen from the whole that the section is part of, where it begins at `base`.
    #[must_use]
    pub fn shifted(self, base: u64) -> FormatError {
        FormatError { offset: self.offset.saturating_add(base), problem: self.problem }
    }

    /// Returns the version found and the newest supported, if the bytes are of a newer format rather than damaged.
    pub fn newer(&self) -> Option<(u32, u32)> {
        match self.problem {
            Problem::Newer { found, supported } => Some((found, supported)),
            _ => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Truncated { needed, left } => {
                write!(f, "a field of {needed} bytes where {left} are left")
            }
            Problem::Varint => write!(f, "a malformed variable-length integer"),
            Problem::Checksum { stored, computed } => {
                write!(f, "checksum {stored:08x}, but content and place give {computed:08x}")
            }
            Problem::Unknown { what, id } => {
                write!(f, "unknown {what} {id} (damaged, or written by a newer version)")
            }
            Problem::Newer { found, supported } => {
                write!(f, "format version {found}; this program reads up to {supported}")
            }
            Problem::TooLong { what, len, max } => {
                write!(f, "{what} of {len} bytes, above the limit of {max}")
            }
            Problem::Invalid(rule) => f.write_str(rule),
        }
    }
}
