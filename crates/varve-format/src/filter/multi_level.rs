//! The multi-level cuckoo filter: which sub-level holds a key's newest row (SlimDB 5.3.2, algorithms 3
//! and 4).
//!
//! 1. The *primary* table maps fingerprints to sub-levels. A fingerprint occurs once among the slots that a
//!    key may use, so a key that is not in the secondary table has one sub-level at most.
//! 2. The *secondary* table holds, whole, the keys whose fingerprint another key had first.
//! 3. [`MultiLevelFilter::insert`] gets what the write found when it looked for the key ([`Prior`]). This shows
//!    without a read whether an equal fingerprint belongs to the same key.
//! 4. [`MultiLevelFilter::lookup`] looks in the secondary table, then in the primary. At most one sub-level must be
//!    read.
//! 5. A merge moves keys to another sub-level: [`MultiLevelFilter::moved`] gets the old one from the merge.
//!
//! A *blind* write, which did not look, goes to the secondary table if its fingerprint is taken. When that is full
//! the filter is *degraded*: further fingerprints repeat in the primary table, and a lookup may name several
//! sub-levels, as a Bloom filter for each sub-level would. Beyond what its tables can hold the filter is *saturated*:
//! it names all sub-levels. Invariant: the filter never denies a key.
//!
//! ```text
//!  bytes  field
//!      1  bits of a fingerprint, 4 to 32
//!      1  bits of a sub-level's number, 1 to 6
//!      1  1 if degraded, 2 if saturated, 3 if both, else 0
//!      1  zero
//!      4  number of buckets
//!    8*n  slots, four to a bucket, an array of both widths; 0 is free
//!      8  the numbers that are in it, a bit for each
//! varint  number of keys kept whole; of each, ascending, string key and byte number
//! varint  number of fingerprints without a slot; of each, ascending, varint bucket, varint fingerprint and u64 set
//! ```

use std::collections::BTreeMap;

use varve_types::limits::KEY_BYTES_MAX;

use super::cuckoo::{Buckets, Homeless, Spot};
use super::{SubLevel, SubLevels, check_width, check_zero};
use crate::codec::{Reader, put_string, put_varint};
use crate::{FormatError, FormatResult, Problem};

/// The room of the secondary table per slot of the primary, in bytes: 1 of 64 slots may have a key of 16
/// bytes in it, eight times what chance makes of 12-bit fingerprints.
const SECONDARY_BYTES_PER_SLOT: f64 = (16 + ENTRY_BYTES) as f64 / 64.0;
/// What a key in the secondary table takes beside its bytes, nearly.
const ENTRY_BYTES: usize = 32;
/// Room that every secondary table has.
const SECONDARY_BYTES_MIN: usize = 4096;
/// Fingerprints without a slot per slot, beyond which the filter is saturated.
const HOMELESS_PER_SLOT: f64 = 1.0 / 256.0;
const HOMELESS_MIN: usize = 64;

/// What the filter keeps of each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths {
    /// Bits of a fingerprint, 4 to 32.
    pub fingerprint_bits: u8,
    /// Bits of a sub-level's number, 1 to 6.
    pub level_bits: u8,
}

impl Widths {
    /// 12 and 4 bits: up to 15 sub-levels, and 2 of 1000 absent keys pass (thesis table 5.6).
    pub const DEFAULT: Widths = Widths { fingerprint_bits: 12, level_bits: 4 };
}

/// What a write found of its key in the sub-levels of the filter, before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prior {
    /// None of them holds it.
    Absent,
    /// This is the newest that holds it.
    At(SubLevel),
    /// It did not look.
    Unknown,
}

/// See the module's comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultiLevelFilter {
    primary: Buckets,
    widths: Widths,
    secondary: BTreeMap<Box<[u8]>, SubLevel>,
    /// Bytes that the secondary table takes.
    secondary_bytes: usize,
    /// Fingerprints that found no slot, by their smaller bucket.
    homeless: BTreeMap<(usize, u64), SubLevels>,
    levels: SubLevels,
    /// Slots of the primary table that are taken.
    used: usize,
    degraded: bool,
    saturated: bool,
}

impl MultiLevelFilter {
    /// A filter with room for `keys` different keys.
    pub fn new(keys: usize, widths: Widths) -> MultiLevelFilter {
        let fingerprint_bits = widths.fingerprint_bits.clamp(4, 32);
        let level_bits = widths.level_bits.clamp(1, 6);
        MultiLevelFilter {
            primary: Buckets::for_keys(keys, fingerprint_bits.into(), level_bits.into()),
            widths: Widths { fingerprint_bits, level_bits },
            secondary: BTreeMap::new(),
            secondary_bytes: 0,
            homeless: BTreeMap::new(),
            levels: SubLevels::NONE,
            used: 0,
            degraded: false,
            saturated: false,
        }
    }

    /// Returns what it keeps of each key.
    pub fn widths(&self) -> Widths {
        self.widths
    }

    /// The largest number a sub-level may have in it.
    pub fn level_max(&self) -> u8 {
        (1 << self.widths.level_bits) - 1
    }

    /// Puts in that `level` now holds the newest row of `key`, whose filter hash is `hash` (algorithm 4).
    ///
    /// REQUIRES: `level` is at most [`MultiLevelFilter::level_max`] and not older than any that `key` was
    /// put in with; `prior` is true.
    pub fn insert(&mut self, key: &[u8], hash: u64, level: SubLevel, prior: Prior) {
        debug_assert!(level.get() <= self.level_max(), "a sub-level that does not fit its bits");
        self.levels.insert(level);
        if let Some(known) = self.secondary.get_mut(key) {
            *known = level;
            return;
        }
        let spot = self.primary.spot(hash);
        let payload = u64::from(level.get());
        let mut taken = self.homeless_at(spot).is_some();
        let mut own = None;
        for (slot, held) in self.primary.matching(spot) {
            taken = true;
            if held == payload && self.degraded {
                return;
            }
            if prior == Prior::At(SubLevel::new(held as u8).unwrap_or(SubLevel::MAX)) {
                own = Some(slot);
            }
        }
        if !taken {
            return self.insert_primary(spot, payload);
        }
        match own.filter(|_| !self.degraded) {
            Some(slot) => self.primary.set_payload(slot, payload),
            None => self.insert_taken(key, spot, level),
        }
    }

    /// Returns the sub-levels that may hold the newest row of `key`: at most one unless the filter is degraded
    /// (algorithm 3).
    pub fn lookup(&self, key: &[u8], hash: u64) -> SubLevels {
        if !self.secondary.is_empty()
            && let Some(level) = self.secondary.get(key)
        {
            return SubLevels::from(*level);
        }
        if self.saturated {
            return self.levels;
        }
        let spot = self.primary.spot(hash);
        let held = self.primary.matching(spot).fold(0, |all, (_, level)| all | 1 << level);
        self.homeless_at(spot).unwrap_or_default().union(SubLevels::from_bits(held))
    }

    /// Notes that the newest row that `from` has of `key` is now in `to`, or in no sub-level of the filter. Nothing
    /// changes for a key that has a newer row elsewhere.
    ///
    /// REQUIRES: `from` holds the key, and is the newest of the sub-levels that the move takes it from; `to` is at
    /// most [`MultiLevelFilter::level_max`].
    pub fn moved(&mut self, key: &[u8], hash: u64, from: SubLevel, to: Option<SubLevel>) {
        if let Some(to) = to {
            self.levels.insert(to);
        }
        if let Some(known) = self.secondary.get_mut(key) {
            match to {
                _ if *known != from => {}
                Some(to) => *known = to,
                None => {
                    self.secondary.remove(key);
                    self.secondary_bytes -= key.len() + ENTRY_BYTES;
                }
            }
            return;
        }
        let spot = self.primary.spot(hash);
        if self.degraded {
            // Other keys may have this fingerprint, in the same sub-level: it stays until that is forgotten.
            let payload = to.map(|to| u64::from(to.get()));
            if let Some(payload) = payload
                && self.primary.matching(spot).all(|(_, held)| held != payload)
            {
                self.insert_primary(spot, payload);
            }
            return;
        }
        let own = self.primary.matching(spot).find(|(_, held)| *held == u64::from(from.get()));
        if let Some((slot, _)) = own {
            self.primary.set_payload(slot, to.map_or(0, |to| to.get().into()));
            self.used -= usize::from(to.is_none());
        } else if !self.homeless.is_empty() {
            self.move_homeless(spot, from, to);
        }
    }

    fn move_homeless(&mut self, spot: Spot, from: SubLevel, to: Option<SubLevel>) {
        let spot = self.smaller(spot);
        let Some(held) = self.homeless.get_mut(&spot).filter(|held| held.contains(from)) else {
            return;
        };
        held.remove(from);
        if let Some(to) = to {
            held.insert(to);
        } else if held.is_empty() {
            self.homeless.remove(&spot);
        }
    }

    /// Forgets all keys whose newest row is in `level`, since it was merged away.
    pub fn forget(&mut self, level: SubLevel) {
        self.used -= self.primary.clear_payload(level.get().into());
        self.secondary.retain(|_, held| *held != level);
        self.secondary_bytes = self.secondary.keys().map(|key| key.len() + ENTRY_BYTES).sum();
        self.homeless.values_mut().for_each(|held| held.remove(level));
        self.homeless.retain(|_, held| !held.is_empty());
        self.levels.remove(level);
        if self.levels.is_empty() {
            (self.degraded, self.saturated) = (false, false);
        }
    }

    /// The fingerprints it has room for.
    pub fn capacity(&self) -> usize {
        self.primary.capacity()
    }

    /// Returns the fingerprints in it.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Returns whether a lookup may name more than one sub-level.
    pub fn is_degraded(&self) -> bool {
        self.degraded || self.saturated
    }

    /// Returns the number of keys in the secondary table.
    pub fn secondary_keys(&self) -> usize {
        self.secondary.len()
    }

    /// Bytes of memory the filter takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<MultiLevelFilter>()
            + self.primary.memory_bytes()
            + self.secondary_bytes
            + self.homeless.len() * ENTRY_BYTES
    }

    /// Appends the filter as it stands in the file of a map.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let flags = u8::from(self.degraded) | u8::from(self.saturated) << 1;
        let Widths { fingerprint_bits, level_bits } = self.widths;
        out.extend_from_slice(&[fingerprint_bits, level_bits, flags, 0]);
        self.primary.encode(out);
        out.extend_from_slice(&self.levels.bits().to_le_bytes());
        put_varint(out, self.secondary.len() as u64);
        for (key, level) in &self.secondary {
            put_string(out, key);
            out.push(level.get());
        }
        put_varint(out, self.homeless.len() as u64);
        for ((bucket, fingerprint), held) in &self.homeless {
            put_varint(out, *bucket as u64);
            put_varint(out, *fingerprint);
            out.extend_from_slice(&held.bits().to_le_bytes());
        }
    }

    /// Reads what [`MultiLevelFilter::encode`] appended.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> FormatResult<MultiLevelFilter> {
        let start = reader.pos();
        let (fingerprint_bits, level_bits) = (reader.u8()?, reader.u8()?);
        let width = check_width(fingerprint_bits, 4..=32, start)?;
        let payload = check_width(level_bits, 1..=6, start + 1)?;
        let flags = reader.u8()?;
        if flags > 3 {
            return Err(
                reader.error(Problem::Unknown { what: "state of a filter", id: flags.into() })
            );
        }
        check_zero(reader)?;
        let primary = Buckets::decode(reader, width, payload)?;
        let widths = Widths { fingerprint_bits, level_bits };
        let level_max = (1 << level_bits) - 1;
        let levels = SubLevels::decode(reader, level_max)?;
        let used = primary.used();
        let (degraded, saturated) = (flags & 1 != 0, flags & 2 != 0);
        let (secondary, homeless, secondary_bytes) = (BTreeMap::new(), BTreeMap::new(), 0);
        let mut filter = MultiLevelFilter {
            primary,
            widths,
            secondary,
            secondary_bytes,
            homeless,
            levels,
            used,
            degraded,
            saturated,
        };
        filter.decode_secondary(reader)?;
        filter.decode_homeless(reader)?;
        Ok(filter)
    }

    fn decode_secondary(&mut self, reader: &mut Reader<'_>) -> FormatResult<()> {
        for _ in 0..reader.varint()? {
            let start = reader.pos();
            let key: Box<[u8]> = reader.string("key", KEY_BYTES_MAX)?.into();
            let number = SubLevel::new(reader.u8()?).filter(|n| n.get() <= self.level_max());
            let ascends = self.secondary.last_key_value().is_none_or(|(last, _)| *last < key);
            let Some(number) = number.filter(|_| ascends) else {
                let rule = "keys out of order, or one in a sub-level that cannot be";
                return Err(FormatError::new(start, Problem::Invalid(rule)));
            };
            self.secondary_bytes += key.len() + ENTRY_BYTES;
            self.secondary.insert(key, number);
        }
        Ok(())
    }

    fn decode_homeless(&mut self, reader: &mut Reader<'_>) -> FormatResult<()> {
        for _ in 0..reader.varint()? {
            let start = reader.pos();
            let bucket = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
            let fingerprint = reader.varint()?;
            let held = SubLevels::decode(reader, self.level_max())?;
            let ascends = self
                .homeless
                .last_key_value()
                .is_none_or(|(last, _)| *last < (bucket, fingerprint));
            if !ascends || !self.primary.has(Spot { fingerprint, bucket }) || held.is_empty() {
                let rule = "fingerprints out of order, or one that cannot be";
                return Err(FormatError::new(start, Problem::Invalid(rule)));
            }
            self.homeless.insert((bucket, fingerprint), held);
        }
        Ok(())
    }

    /// Puts in a key whose fingerprint another key, or the same as far as one knows, has already.
    fn insert_taken(&mut self, key: &[u8], spot: Spot, level: SubLevel) {
        let room = (self.primary.slot_count() as f64 * SECONDARY_BYTES_PER_SLOT) as usize;
        let bytes = self.secondary_bytes + key.len() + ENTRY_BYTES;
        if !self.degraded && bytes <= room.max(SECONDARY_BYTES_MIN) {
            self.secondary.insert(key.into(), level);
            self.secondary_bytes = bytes;
            return;
        }
        self.degraded = true;
        if self.primary.matching(spot).all(|(_, held)| held != u64::from(level.get())) {
            self.insert_primary(spot, level.get().into());
        }
    }

    fn insert_primary(&mut self, spot: Spot, payload: u64) {
        let Err(Homeless { spot, payload }) = self.primary.insert(spot, payload) else {
            self.used += 1;
            return;
        };
        let room = (self.primary.slot_count() as f64 * HOMELESS_PER_SLOT) as usize;
        if self.homeless.len() >= room.max(HOMELESS_MIN) {
            self.saturated = true;
        } else {
            let held = self.homeless.entry(self.smaller(spot)).or_default();
            *held = held.union(SubLevels::from_bits(1 << payload));
        }
    }

    fn homeless_at(&self, spot: Spot) -> Option<SubLevels> {
        if self.homeless.is_empty() {
            return None;
        }
        self.homeless.get(&self.smaller(spot)).copied()
    }

    /// Returns the spot by its smaller bucket.
    fn smaller(&self, spot: Spot) -> (usize, u64) {
        (spot.bucket.min(self.primary.other(spot).bucket), spot.fingerprint)
    }
}
