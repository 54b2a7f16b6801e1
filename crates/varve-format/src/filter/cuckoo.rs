//! Cuckoo filters: a hash table of fingerprints (SlimDB 5.3.2; Fan, Andersen, Kaminsky and Mitzenmacher,
//! Cuckoo filter: practically better than Bloom, 2014).
//!
//! 1. A key's hash gives its fingerprint and one bucket of four slots; bucket and fingerprint give the
//!    other bucket, and it and the fingerprint give back the first. So a fingerprint can be moved between
//!    its two buckets without the key.
//! 2. A fingerprint goes into a free slot of either bucket. If there is none it takes the place of
//!    another, which moves to its own other bucket, and so on.
//! 3. A key may be contained if either bucket has its fingerprint.
//!
//! [`Buckets`] is the table, whose slots may hold a *payload* beside the fingerprint (see
//! [`super::multi_level`], [`super::parent`]); [`CuckooFilter`] is the filter of a sorted table.
//!
//! ```text
//! bytes  field
//!     1  filter: 3 cuckoo
//!     1  bits of a fingerprint, 4 to 32
//!     2  zero
//!     4  number of buckets
//!   8*n  slots, four to a bucket, an array of that width; 0 is free
//! ```
//!
//! Departure from the paper: the other bucket is at the fingerprint's hash minus the first instead of their
//! exclusive or, so that the number of buckets need not be a power of two.

use super::{FilterKind, check_width, mixed};
use crate::bits::low_mask;
use crate::bits::packed::Packed;
use crate::codec::Reader;
use crate::{FormatResult, Problem};

/// Slots of a bucket. With four, 98 of 100 slots can be filled, the last of them slowly.
const SLOTS: usize = 4;
/// How often a fingerprint may push out another before the table counts as full.
const KICKS_MAX: usize = 500;
/// The part of the slots that is planned to be filled, in percent.
const FILL_PERCENT: u64 = 96;

/// A fingerprint and one of its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) fingerprint: u64,
    pub(super) bucket: usize,
}

/// A content that found no slot: its spot and its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Homeless {
    pub(super) spot: Spot,
    pub(super) payload: u64,
}

/// See the module's comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Buckets {
    slots: Packed,
    count: usize,
    fingerprint_bits: u32,
    payload_bits: u32,
}

impl Buckets {
    /// Free slots for `keys` fingerprints.
    pub(super) fn for_keys(keys: usize, fingerprint_bits: u32, payload_bits: u32) -> Buckets {
        let slots = (keys as u64 * 100).div_ceil(FILL_PERCENT);
        let count = slots.div_ceil(SLOTS as u64).clamp(1, u32::MAX.into()) as usize;
        Buckets::empty(count, fingerprint_bits, payload_bits)
    }

    fn empty(count: usize, fingerprint_bits: u32, payload_bits: u32) -> Buckets {
        let slots = Packed::zeros(count * SLOTS, fingerprint_bits + payload_bits);
        Buckets { slots, count, fingerprint_bits, payload_bits }
    }

    /// Reads the number of buckets and the slots. `fingerprint_bits` and `payload_bits` are 64 together at most.
    pub(super) fn decode(
        reader: &mut Reader<'_>,
        fingerprint_bits: u32,
        payload_bits: u32,
    ) -> FormatResult<Buckets> {
        let count = reader.u32()?;
        if count == 0 {
            return Err(reader.error(Problem::Invalid("a cuckoo filter without buckets")));
        }
        let slots = u64::from(count) * SLOTS as u64;
        let slots = Packed::decode(reader, slots, fingerprint_bits + payload_bits)?;
        let buckets = Buckets { slots, count: count as usize, fingerprint_bits, payload_bits };
        let is_wrong = |content: u64| content != 0 && content & low_mask(payload_bits) == 0;
        if payload_bits > 0 && (0..buckets.slot_count()).any(|at| is_wrong(buckets.slots.get(at))) {
            return Err(reader.error(Problem::Invalid("a fingerprint without a payload")));
        }
        Ok(buckets)
    }

    /// Appends what [`Buckets::decode`] reads.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.count as u32).to_le_bytes());
        self.slots.encode(out);
    }

    /// Returns the number of slots that are taken.
    pub(super) fn used(&self) -> usize {
        (0..self.slot_count()).filter(|at| self.slots.get(*at) != 0).count()
    }

    /// Returns whether a fingerprint and a bucket are of those that there may be.
    pub(super) fn has(&self, spot: Spot) -> bool {
        spot.bucket < self.count && spot.fingerprint <= low_mask(self.fingerprint_bits)
    }

    /// Returns the number of slots.
    pub(super) fn slot_count(&self) -> usize {
        self.count * SLOTS
    }

    /// The fingerprints it was made for.
    pub(super) fn capacity(&self) -> usize {
        (self.slot_count() as u64 * FILL_PERCENT / 100) as usize
    }

    /// Returns where a hash belongs.
    #[inline]
    pub(super) fn spot(&self, hash: u64) -> Spot {
        let fingerprint = hash & low_mask(self.fingerprint_bits);
        // A slot of 0 is free, so without a payload no fingerprint is 0.
        let fingerprint = if self.payload_bits == 0 { fingerprint.max(1) } else { fingerprint };
        let bucket = (((hash >> 32) * self.count as u64) >> 32) as usize;
        Spot { fingerprint, bucket }
    }

    /// The same fingerprint's other bucket.
    #[inline]
    pub(super) fn other(&self, spot: Spot) -> Spot {
        let sum = (((mixed(spot.fingerprint) >> 32) * self.count as u64) >> 32) as usize;
        let bucket =
            if sum >= spot.bucket { sum - spot.bucket } else { sum + self.count - spot.bucket };
        Spot { bucket, ..spot }
    }

    /// Returns the slots with the fingerprint of `spot`, and their payloads.
    #[inline]
    pub(super) fn matching(&self, spot: Spot) -> impl Iterator<Item = (usize, u64)> + '_ {
        let other = self.other(spot).bucket;
        let buckets = [Some(spot.bucket), (other != spot.bucket).then_some(other)];
        buckets
            .into_iter()
            .flatten()
            .flat_map(|bucket| bucket * SLOTS..(bucket + 1) * SLOTS)
            .filter_map(move |slot| {
                let content = self.slots.get(slot);
                let is_own = content != 0 && content >> self.payload_bits == spot.fingerprint;
                is_own.then_some((slot, content & low_mask(self.payload_bits)))
            })
    }

    /// Replaces the payload of a slot that is not free; 0 frees it.
    pub(super) fn set_payload(&mut self, slot: usize, payload: u64) {
        let fingerprint = self.slots.get(slot) >> self.payload_bits;
        let content = if payload == 0 { 0 } else { fingerprint << self.payload_bits | payload };
        self.slots.set(slot, content);
    }

    /// Frees the slots with this payload; returns how many there were.
    pub(super) fn clear_payload(&mut self, payload: u64) -> usize {
        let mask = low_mask(self.payload_bits);
        let mut freed = 0;
        for slot in 0..self.slot_count() {
            let content = self.slots.get(slot);
            if content != 0 && content & mask == payload {
                self.slots.set(slot, 0);
                freed += 1;
            }
        }
        freed
    }

    /// Takes a bit out of all payloads; what has none left is freed.
    pub(super) fn clear_payload_bit(&mut self, bit: u64) {
        for slot in 0..self.slot_count() {
            let content = self.slots.get(slot);
            if content & low_mask(self.payload_bits) & bit != 0 {
                self.set_payload(slot, content & low_mask(self.payload_bits) & !bit);
            }
        }
    }

    /// Puts a fingerprint and its payload into a slot. Fails with what was pushed out last, which may be
    /// another than was to be put in.
    ///
    /// REQUIRES: a payload that is not 0, if there are any.
    pub(super) fn insert(&mut self, spot: Spot, payload: u64) -> Result<(), Homeless> {
        let (mut spot, mut payload) = (spot, payload);
        let mut turn = mixed(spot.fingerprint ^ (spot.bucket as u64) << 32);
        for kick in 0..KICKS_MAX {
            let content = spot.fingerprint << self.payload_bits | payload;
            if self.take_free(spot.bucket, content) {
                return Ok(());
            }
            let other = self.other(spot);
            // From the second kick on the other bucket is the one it was pushed out of.
            if kick == 0 && self.take_free(other.bucket, content) {
                return Ok(());
            }
            turn = turn
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let slot = spot.bucket * SLOTS + (turn >> 62) as usize;
            let victim = self.slots.get(slot);
            self.slots.set(slot, content);
            let fingerprint = victim >> self.payload_bits;
            payload = victim & low_mask(self.payload_bits);
            spot = self.other(Spot { fingerprint, bucket: spot.bucket });
        }
        Err(Homeless { spot, payload })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
    }

    fn take_free(&mut self, bucket: usize, content: u64) -> bool {
        let mut slots = bucket * SLOTS..(bucket + 1) * SLOTS;
        let free = slots.find(|slot| self.slots.get(*slot) == 0);
        free.inspect(|slot| self.slots.set(*slot, content)).is_some()
    }
}

/// The filter of a table.
#[derive(Debug, PartialEq, Eq)]
pub struct CuckooFilter {
    buckets: Buckets,
}

impl CuckooFilter {
    /// A filter that contains `hashes`, which may repeat. `fingerprint_bits` counts as 4 to 32.
    pub fn build(hashes: &[u64], fingerprint_bits: u8) -> CuckooFilter {
        let width = u32::from(fingerprint_bits.clamp(4, 32));
        let mut buckets = Buckets::for_keys(hashes.len(), width, 0);
        while !fill(&mut buckets, hashes) {
            let more = buckets.count + buckets.count / 64 + 1;
            buckets = Buckets::empty(more, width, 0);
        }
        CuckooFilter { buckets }
    }

    pub(super) fn decode(content: &[u8]) -> FormatResult<CuckooFilter> {
        let mut reader = Reader::new(content);
        reader.u8()?;
        let width = check_width(reader.u8()?, 4..=32, 1)?;
        if reader.bytes(2)? != [0; 2] {
            return Err(reader.error(Problem::Invalid("reserved bytes that are not zero")));
        }
        let buckets = Buckets::decode(&mut reader, width, 0)?;
        reader.finish()?;
        Ok(CuckooFilter { buckets })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let width = self.buckets.fingerprint_bits as u8;
        out.extend_from_slice(&[FilterKind::Cuckoo as u8, width, 0, 0]);
        self.buckets.encode(out);
    }

    /// See [`super::Filter::may_contain`].
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        self.buckets.matching(self.buckets.spot(hash)).next().is_some()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.buckets.memory_bytes()
    }
}

/// Puts all in; false if the table is too full for that.
fn fill(buckets: &mut Buckets, hashes: &[u64]) -> bool {
    hashes.iter().all(|&hash| {
        let spot = buckets.spot(hash);
        buckets.matching(spot).next().is_some() || buckets.insert(spot, 0).is_ok()
    })
}
