//! One filter over the upper sub-levels of a key space: which of them holds the newest row of a key, and which
//! hold rows of a directory (SlimDB, thesis 5.3.2 and 5.3.3, figure 5.8).
//!
//! 1. A table that the map knows has a *number* in it; tables of one number never overlap. A version has one map,
//!    which never changes: a flush or a merge makes the next from it, along with the next version.
//! 2. A flush puts in the keys of its memtable. Whether an equal fingerprint is the key's own is known from the
//!    lookup that came before the write ([`Findings`]); nothing is read for it. A write that did not look costs an
//!    entry with the whole key, and when these are too many the filter degrades to what Bloom filters would do.
//! 3. A merge tells where it took each key from ([`Moves`]) and so where it went, or that it left the map.
//! 4. [`SublevelMap::lookup`] names the one number that is to be read; tables without a number are asked through
//!    filters of their own.
//!
//! Invariant: of all tables with numbers that hold rows of a key, the map names that with the newest. What might
//! break it (tables that came or went otherwise, see [`next_map`]) makes the map end, and a new one begin.
//!
//! 5. At close and at rest the maps go to a file ([`saved`]), so that the next open goes on with them. Tables without
//!    numbers are asked through their own filters until merges have replaced them (ADR 2026-11-20-sublevel-map).

mod findings;
mod moves;
mod next;
mod saved;

use varve_format::filter::multi_level::{MultiLevelFilter, Prior, Widths};
use varve_format::filter::parent::ParentFilter;
use varve_format::filter::{PREFIX_BYTES, SubLevel, SubLevels, filter_hash};

use crate::table::cache::Reservation;

pub(crate) use findings::Findings;
pub(crate) use moves::Moves;
pub(crate) use next::{Next, next_map};
pub(crate) use saved::{SavedMaps, restore};

/// 12 bits of a key, and 6 for its number.
const WIDTHS: Widths = Widths { fingerprint_bits: 12, level_bits: 6 };
/// Bits of a prefix.
const PREFIX_FINGERPRINT_BITS: u8 = 12;
/// The largest number, which is enough for two levels with half as many sub-levels more as those at which they are merged. A slot
/// of the filter over prefixes has a bit for each beside its fingerprint, and 64 in all.
const NUMBER_MAX: u8 = 64 - PREFIX_FINGERPRINT_BITS;
/// There is room for one prefix in so many keys.
const KEYS_PER_PREFIX: usize = 8;
/// What the filters of a map take for a key, nearly.
const BYTES_PER_KEY: usize = 4;
/// What a map takes besides.
const BYTES_MIN: usize = 16 << 10;

/// A map, as told from all others of the store since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapId(pub(crate) u64);

/// The number of a table in a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapNumber {
    pub(crate) map: MapId,
    pub(crate) number: SubLevel,
}

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct SublevelMap {
    id: MapId,
    keys: MultiLevelFilter,
    /// Only where keys have prefixes.
    prefixes: Option<ParentFilter>,
    /// The part of the memory budget that it takes.
    _room: Reservation,
}

/// Bytes that a map with room for `keys` keys takes, nearly.
fn bytes_for(keys: usize) -> usize {
    BYTES_MIN + keys * BYTES_PER_KEY
}

impl SublevelMap {
    /// A map with room for `keys` keys.
    fn new(id: MapId, keys: usize, prefixed: bool, room: Reservation) -> SublevelMap {
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
    fn copy(&self, room: Reservation) -> SublevelMap {
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

    fn insert(&mut self, key: &[u8], number: SubLevel, prior: Prior) {
        self.keys.insert(key, filter_hash(key), number, prior);
    }

    fn insert_prefix(&mut self, prefix: &[u8; PREFIX_BYTES], number: SubLevel) {
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.insert(filter_hash(prefix), number);
        }
    }

    fn forget(&mut self, number: SubLevel) {
        self.keys.forget(number);
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.forget(number);
        }
    }
}
