//! Keeps room on a nearly full device for what gives room back: removals, flushes and merges.
//!
//! 1. An ordinary write is refused unless the device has room for it beside the reserve and what the flush of all memtables
//!    takes: so that a flush always finds room, whatever is removed afterwards.
//! 2. The less room there is, the sooner a memtable counts as full ([`SpaceGuard::memtable_bytes_max`]): its log, and the
//!    table that it becomes, never take more than a part of the room.
//! 3. Room that the store holds for itself ([`crate::reserve`]) counts as room of the device, up to what is to be left.
//! 4. Before a write is refused the storage is asked to finish removals ([`SpaceGuard::settle`]): Btrfs counts what removed files took as
//!    used until it commits, which is up to 30 seconds later.
//! 5. The guard asks the operating system and then lets a part of the room found be written before it asks again: a question
//!    for each write would cost more than the write.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::files::io_error;
use crate::options::reserve_bytes;
use crate::reserve::Reserve;
use crate::{StoreError, StoreResult};

/// The most bytes written between two looks at the device, which others fill too.
const UNCHECKED_BYTES_MAX: u64 = 4 << 20;

/// A memtable may take one part in so many of the room: as much again goes to its log, and there may be three of them.
const MEMTABLE_SHARE: u64 = 8;

/// The fewest bytes of a memtable that is turned into tables for want of room.
const MEMTABLE_BYTES_MIN: u64 = 256 << 10;

/// A device is nearly full with room for so many reserves.
const SCARCE_RESERVES: u64 = 2;

/// Of what was removed from a device of fewer bytes the room is got back although there is more.
const SMALL_DEVICE_BYTES: u64 = 16 << 30;

/// Storage is asked to finish removals no more often.
const SETTLE_INTERVAL: Duration = Duration::from_secs(1);
/// With so many bytes more it is worth trying again.
const SETTLED_BYTES_MIN: u64 = 64 << 10;

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct SpaceGuard {
    reserve_bytes: u64,
    held: Arc<Reserve>,
    /// Bytes that may be written before the next look.
    unchecked: AtomicI64,
    /// Bytes of a memtable that fit the room at the last look.
    memtable_bytes_max: AtomicU64,
    /// When storage was asked to finish removals.
    settled: Mutex<Option<Duration>>,
}

/// Where a write finds room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// Beside the reserve.
    Room,
    /// In the reserve, which is for what frees room.
    Reserve,
    /// In what is left of the reserve, less than half.
    Scarcely,
}

/// What a look at the device showed, in bytes.
struct Look {
    /// Others can take them, too.
    free: u64,
    /// With what is held.
    available: u64,
    reserve: u64,
    /// What the device has in all.
    total: u64,
}

impl SpaceGuard {
    /// Of the engine that holds `held`.
    pub(crate) fn new(held: Arc<Reserve>, reserve_bytes: u64) -> SpaceGuard {
        let (unchecked, memtable_bytes_max) = (AtomicI64::new(0), AtomicU64::new(u64::MAX / 2));
        let settled = Mutex::new(None);
        SpaceGuard { reserve_bytes, held, unchecked, memtable_bytes_max, settled }
    }

    fn look(&self) -> StoreResult<Look> {
        let dir = self.held.dir();
        let space =
            self.held.below().space(dir).map_err(|error| io_error("measure", dir, error))?;
        let reserve = reserve_bytes(self.reserve_bytes, space.total_bytes);
        let free = space.available_bytes;
        let available = free + self.held.usable_bytes().min(reserve);
        Ok(Look { free, available, reserve, total: space.total_bytes })
    }

    /// Notes that `bytes` were written of which nobody had asked.
    pub(crate) fn wrote(&self, bytes: u64) {
        let counted = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.unchecked.fetch_sub(counted, Ordering::Relaxed);
    }

    /// Where a write of `bytes` finds room, when `unflushed` bytes of memtables have theirs for their flush; for none, whether
    /// what is written has left the reserve alone.
    pub(crate) fn admit(
        &self,
        bytes: u64,
        unflushed: impl FnOnce() -> u64,
    ) -> StoreResult<Admitted> {
        let counted = i64::try_from(bytes).unwrap_or(i64::MAX).max(1);
        if self.unchecked.fetch_sub(counted, Ordering::Relaxed) >= counted {
            return Ok(Admitted::Room);
        }
        let look = self.look()?;
        let memtable_bytes_max = (look.available / MEMTABLE_SHARE).max(MEMTABLE_BYTES_MIN);
        self.memtable_bytes_max.store(memtable_bytes_max, Ordering::Relaxed);
        // What is written takes room in the log, and later in a table.
        let taken = (look.reserve + unflushed()).saturating_add(bytes.saturating_mul(2));
        let Some(left) = look.available.checked_sub(taken) else {
            self.unchecked.store(0, Ordering::Relaxed);
            let scarcely = look.available < look.reserve / 2;
            return Ok(if scarcely { Admitted::Scarcely } else { Admitted::Reserve });
        };
        let allowed = (left / 4).min(UNCHECKED_BYTES_MAX);
        self.unchecked.store(allowed as i64, Ordering::Relaxed);
        Ok(Admitted::Room)
    }

    /// Bytes of a memtable that fit the room, at the last look.
    pub(crate) fn memtable_bytes_max(&self) -> u64 {
        self.memtable_bytes_max.load(Ordering::Relaxed)
    }

    /// Has the storage finish removals, at most once a second. False if that gives no room.
    pub(crate) fn settle(&self) -> StoreResult<bool> {
        let (below, dir) = (self.held.below(), self.held.dir());
        let now = below.monotonic();
        let mut settled = self.settled.lock();
        if settled.is_some_and(|last| now.saturating_sub(last) < SETTLE_INTERVAL) {
            return Ok(false);
        }
        *settled = Some(now);
        let before = self.look()?.free;
        if let Err(error) = below.watch(dir).and_then(|watch| below.sync_below(&watch, dir)) {
            log::warn!("cannot sync {} to get room: {error}", dir.display());
            return Ok(false);
        }
        Ok(self.look()?.free >= before + SETTLED_BYTES_MIN)
    }

    /// Whether the device is nearly full.
    pub(crate) fn is_scarce(&self) -> StoreResult<bool> {
        let look = self.look()?;
        Ok(look.available < SCARCE_RESERVES * look.reserve)
    }

    /// Whether the device is so small that what was removed from it is missed although it is not nearly full.
    pub(crate) fn is_small(&self) -> StoreResult<bool> {
        Ok(self.look()?.total < SMALL_DEVICE_BYTES)
    }

    /// Bytes that the device has room for, the reserve included.
    pub(crate) fn room(&self) -> StoreResult<u64> {
        Ok(self.look()?.available)
    }

    /// Bytes that the device has room for without the part of the reserve that is for removals and what gives room back table
    /// by table.
    pub(crate) fn room_of_merges(&self) -> StoreResult<u64> {
        let look = self.look()?;
        Ok(look.available.saturating_sub(look.reserve / 2))
    }

    /// Fails with `NoSpace` if the device has no room for `bytes`, without what is held.
    pub(crate) fn check_room(&self, bytes: u64) -> StoreResult<()> {
        if self.look()?.free < bytes {
            return Err(StoreError::NoSpace { path: self.held.dir().to_path_buf() });
        }
        Ok(())
    }
}
