//! The map itself: one filter over the keys of the upper sub-levels, and one over their prefixes.
//!
//! Invariant: a map that a version has never changes; a change is made to a copy.

use varve_format::filter::multi_level::{MultiLevelFilter, Prior, Widths};
use varve_format::filter::parent::ParentFilter;
use varve_format::filter::{PREFIX_BYTES, SubLevel, SubLevels, filter_hash};

use super::number::MapId;
use crate::table::cache::Reservation;

/// 12 bits of a key, and 6 for its number.
pub(super) const WIDTHS: Widths = Widths { fingerprint_bits: 12, level_bits: 6 };
/// Bits of a prefix.
pub(super) const PREFIX_FINGERPRINT_BITS: u8 = 12;
/// The largest number, which is enough for two levels with half as many sub-levels more as those at which they are merged. A slot
/// of the filter over prefixes has a bit for each beside its fingerprint, and 64 in all.
pub(super) const NUMBER_MAX: u8 = 64 - PREFIX_FINGERPRINT_BITS;
/// There is room for one prefix in so many keys.
pub(super) const KEYS_PER_PREFIX: usize = 8;
/// What the filters of a map take for a key, nearly.
pub(super) const BYTES_PER_KEY: usize = 4;
/// What a map takes besides.
pub(super) const BYTES_MIN: usize = 16 << 10;

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct SublevelMap {
    pub(super) id: MapId,
    pub(super) keys: MultiLevelFilter,
    /// Only where keys have prefixes.
    pub(super) prefixes: Option<ParentFilter>,
    /// The part of the memory budget that it takes.
    pub(super) _room: Reservation,
}

/// Bytes that a map with room for `keys` keys takes, nearly.
pub(super) fn bytes_for(keys: usize) -> usize {
    BYTES_MIN + keys * BYTES_PER_KEY
}

impl SublevelMap {
    /// A map with room for `keys` keys.
    pub(super) fn new(id: MapId, keys: usize, prefixed: bool, room: Reservation) -> SublevelMap {
        let prefixes = || {
            let room = keys / KEYS_PER_PREFIX;
            ParentFilter::new(room, PREFIX_FINGERPRINT_BITS, NUMBER_MAX)
        };
        SublevelMap {
            id,
            keys: MultiLevelFilter::new(keys, WIDTHS),
            prefixes: prefixed.then(prefixes),
            _room: room,
        }
    }

    /// The same to be changed.
    pub(super) fn copy(&self, room: Reservation) -> SublevelMap {
        let (keys, prefixes) = (self.keys.clone(), self.prefixes.clone());
        SublevelMap { id: self.id, keys, prefixes, _room: room }
    }

    pub(crate) fn id(&self) -> MapId {
        self.id
    }

    /// The numbers of the tables that may hold the newest row of `key`: one at most, unless writes were blind.
    pub(crate) fn lookup(&self, key: &[u8], hash: u64) -> SubLevels {
        self.keys.lookup(key, hash)
    }

    /// The numbers of the tables that may hold rows of `prefix`; `None` if it cannot tell.
    pub(crate) fn of_prefix(&self, prefix: &[u8; PREFIX_BYTES]) -> Option<SubLevels> {
        let prefixes = self.prefixes.as_ref().filter(|prefixes| !prefixes.is_full())?;
        Some(prefixes.lookup(filter_hash(prefix)))
    }

    /// Fingerprints, keys kept whole, and whether it degraded.
    pub(crate) fn contents(&self) -> (usize, usize, bool) {
        (self.keys.used(), self.keys.secondary_keys(), self.keys.is_degraded())
    }

    /// Bytes of memory it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.keys.memory_bytes() + self.prefixes.as_ref().map_or(0, ParentFilter::memory_bytes)
    }

    pub(super) fn insert(&mut self, key: &[u8], number: SubLevel, prior: Prior) {
        self.keys.insert(key, filter_hash(key), number, prior);
    }

    pub(super) fn insert_prefix(&mut self, prefix: &[u8; PREFIX_BYTES], number: SubLevel) {
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.insert(filter_hash(prefix), number);
        }
    }

    pub(super) fn forget(&mut self, number: SubLevel) {
        self.keys.forget(number);
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.forget(number);
        }
    }
}
