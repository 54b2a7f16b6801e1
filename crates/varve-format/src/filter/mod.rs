//! Filters: small summaries that say of most absent keys that they are absent.
//!
//! 1. A table holds a filter over its keys and, if they are prefixed, one over their 8-byte prefixes, so
//!    that a scan of one prefix (a directory) skips the tables that hold nothing of it (TableFS 4.2.4: the
//!    parent inode Bloom filter).
//! 2. Several sub-levels may have one map for all of them instead, in no table: from a key to the newest sub-level
//!    that holds it ([`multi_level`]), and from a prefix to the sub-levels that hold rows of it ([`parent`]).
//!
//! All work on [`filter_hash`]; the first byte of a table's filter names its kind.
//!
//! | kind | bits per key | absent keys that pass | |
//! | --- | --- | --- | --- |
//! | Bloom: 2 ([`bloom`]) | any b | 1 % at 10 | the cheapest to build |
//! | cuckoo: 3 ([`cuckoo`]) | f / 0.96 | 7.7 / 2^f | SlimDB 5.3.2 |
//! | quotient: 4 ([`quotient`]) | (r + 3) / load | load / 2^r | merges without the keys: KVFS 3.2 |
//! | fuse: 5 ([`fuse`]) | 1.13 to 1.2 f | 1 / 2^f | the smallest |
//! | multi-level | (f + l) / 0.96 | 7.7 / 2^f | one lookup for all sub-levels |
//! | parent | (f + s) / 0.96 per prefix | 7.7 / 2^f | |
//!
//! Invariant of all: no key that was put in is denied.

pub mod bloom;
pub mod cuckoo;
pub mod fuse;
pub mod multi_level;
pub mod parent;
pub mod quotient;
mod sub_levels;

use crate::codec::Reader;
use crate::{FormatError, FormatResult, Problem};
use bloom::Bloom;
use cuckoo::CuckooFilter;
use fuse::FuseFilter;
use quotient::QuotientFilter;

pub use sub_levels::{SubLevel, SubLevels};

/// Bytes of a key's prefix in a prefixed key space.
pub const PREFIX_BYTES: usize = 8;

/// How tables are filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterPolicy {
    /// No filter.
    None,
    /// A Bloom filter over keys, and one over prefixes where the key space is prefixed.
    Bloom {
        /// Bits of filter per key; 10 lets 1 of 100 absent keys pass.
        bits_per_key: u8,
    },
    /// A cuckoo filter over each.
    Cuckoo {
        /// Bits of a key that are kept, 4 to 32; 12 let 1 of 530 absent keys pass.
        fingerprint_bits: u8,
    },
    /// A quotient filter over each.
    Quotient {
        /// Bits of a key that are kept besides its place, 1 to 32; 8 let 1 of 340 absent keys pass.
        remainder_bits: u8,
    },
    /// A binary fuse filter over each.
    Fuse {
        /// Bits of a key that are kept, 1 to 32; 8 let 1 of 256 absent keys pass.
        fingerprint_bits: u8,
    },
}

impl FilterPolicy {
    /// Returns the kind of filters that it makes.
    pub fn kind(self) -> FilterKind {
        match self {
            FilterPolicy::None => FilterKind::None,
            FilterPolicy::Bloom { .. } => FilterKind::Bloom,
            FilterPolicy::Cuckoo { .. } => FilterKind::Cuckoo,
            FilterPolicy::Quotient { .. } => FilterKind::Quotient,
            FilterPolicy::Fuse { .. } => FilterKind::Fuse,
        }
    }
}

/// What a filter is. The numbers stand in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FilterKind {
    /// No filter.
    None = 1,
    /// See [`bloom`].
    Bloom = 2,
    /// See [`cuckoo`].
    Cuckoo = 3,
    /// See [`quotient`].
    Quotient = 4,
    /// See [`fuse`].
    Fuse = 5,
}

impl FilterKind {
    /// Returns the kind of a table's filters with this number.
    pub fn from_id(id: u8) -> Option<FilterKind> {
        match id {
            1 => Some(FilterKind::None),
            2 => Some(FilterKind::Bloom),
            3 => Some(FilterKind::Cuckoo),
            4 => Some(FilterKind::Quotient),
            5 => Some(FilterKind::Fuse),
            _ => None,
        }
    }

    /// Returns what people call it.
    pub fn name(self) -> &'static str {
        match self {
            FilterKind::None => "none",
            FilterKind::Bloom => "bloom",
            FilterKind::Cuckoo => "cuckoo",
            FilterKind::Quotient => "quotient",
            FilterKind::Fuse => "fuse",
        }
    }
}

/// Returns the hash of a key, or of a prefix, that filters are built from and asked with.
#[inline]
pub fn filter_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// A table's filter, ready to be asked.
#[derive(Debug)]
pub enum Filter {
    /// A Bloom filter.
    Bloom(Bloom),
    /// A cuckoo filter.
    Cuckoo(CuckooFilter),
    /// A quotient filter.
    Quotient(QuotientFilter),
    /// A binary fuse filter.
    Fuse(FuseFilter),
}

impl Filter {
    /// Returns the filter that `policy` wants over what has these hashes, which may repeat.
    pub fn build(policy: FilterPolicy, mut hashes: Vec<u64>) -> Option<Filter> {
        match policy {
            FilterPolicy::None => None,
            FilterPolicy::Bloom { bits_per_key } => {
                Some(Filter::Bloom(Bloom::build(&hashes, bits_per_key)))
            }
            FilterPolicy::Cuckoo { fingerprint_bits } => {
                Some(Filter::Cuckoo(CuckooFilter::build(&hashes, fingerprint_bits)))
            }
            FilterPolicy::Quotient { remainder_bits } => {
                Some(Filter::Quotient(QuotientFilter::build(&hashes, remainder_bits)))
            }
            FilterPolicy::Fuse { fingerprint_bits } => {
                hashes.sort_unstable();
                hashes.dedup();
                // Without seeds that fit, which has a chance of nearly 0, any other filter will do.
                Some(match FuseFilter::build(&hashes, fingerprint_bits) {
                    Some(fuse) => Filter::Fuse(fuse),
                    None => Filter::Bloom(Bloom::build(&hashes, fingerprint_bits)),
                })
            }
        }
    }

    /// Takes a filter section's content.
    pub fn decode(content: &[u8]) -> FormatResult<Filter> {
        let Some(&id) = content.first() else {
            return Err(FormatError::new(0u64, Problem::Truncated { needed: 1, left: 0 }));
        };
        match FilterKind::from_id(id) {
            Some(FilterKind::Bloom) => Bloom::decode(content).map(Filter::Bloom),
            Some(FilterKind::Cuckoo) => CuckooFilter::decode(content).map(Filter::Cuckoo),
            Some(FilterKind::Quotient) => QuotientFilter::decode(content).map(Filter::Quotient),
            Some(FilterKind::Fuse) => FuseFilter::decode(content).map(Filter::Fuse),
            Some(FilterKind::None) | None => {
                Err(FormatError::new(0u64, Problem::Unknown { what: "filter", id: id.into() }))
            }
        }
    }

    /// Appends the section's content.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Filter::Bloom(filter) => filter.encode(out),
            Filter::Cuckoo(filter) => filter.encode(out),
            Filter::Quotient(filter) => filter.encode(out),
            Filter::Fuse(filter) => filter.encode(out),
        }
    }

    /// Returns what it is.
    pub fn kind(&self) -> FilterKind {
        match self {
            Filter::Bloom(_) => FilterKind::Bloom,
            Filter::Cuckoo(_) => FilterKind::Cuckoo,
            Filter::Quotient(_) => FilterKind::Quotient,
            Filter::Fuse(_) => FilterKind::Fuse,
        }
    }

    /// False if what has this [`filter_hash`] is not in the table; true if it may be.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        match self {
            Filter::Bloom(filter) => filter.may_contain(hash),
            Filter::Cuckoo(filter) => filter.may_contain(hash),
            Filter::Quotient(filter) => filter.may_contain(hash),
            Filter::Fuse(filter) => filter.may_contain(hash),
        }
    }

    /// Bytes of memory the filter takes.
    pub fn memory_bytes(&self) -> usize {
        let own = match self {
            Filter::Bloom(filter) => filter.memory_bytes(),
            Filter::Cuckoo(filter) => filter.memory_bytes(),
            Filter::Quotient(filter) => filter.memory_bytes(),
            Filter::Fuse(filter) => filter.memory_bytes(),
        };
        size_of::<Filter>() + own
    }
}

/// Spreads what little differs between two numbers over all bits.
#[inline]
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let number = (number ^ (number >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    number ^ (number >> 33)
}

/// Checks that a byte of a filter's header is within its range.
fn check_width(width: u8, range: std::ops::RangeInclusive<u8>, at: usize) -> FormatResult<u32> {
    if range.contains(&width) {
        return Ok(width.into());
    }
    let rule = "a filter whose entries have too few or too many bits";
    Err(FormatError::new(at, Problem::Invalid(rule)))
}

/// A byte that is reserved.
fn check_zero(reader: &mut Reader<'_>) -> FormatResult<()> {
    match reader.u8()? {
        0 => Ok(()),
        _ => Err(reader.error(Problem::Invalid("reserved bytes that are not zero"))),
    }
}

#[cfg(test)]
mod tests;
