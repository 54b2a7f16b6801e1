//! Refuses ordinary writes while the device is nearly full, so that deletes, flushes and compactions,
//! which give room back, still find some.
//!
//! Asking the operating system for each write would cost more than the write. The guard asks, then
//! lets a part of the room found be written before it asks again.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use varve_env::Env;

use crate::files::io_error;
use crate::{StoreError, StoreResult};

/// The most bytes written between two looks at the device, which others fill too.
const UNCHECKED_BYTES_MAX: u64 = 4 << 20;

/// The reserve is at most this part of the device, so that small ones are of use at all.
const RESERVE_PART_MAX: u64 = 16;

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct SpaceGuard {
    env: Arc<dyn Env>,
    dir: PathBuf,
    reserve_bytes: u64,
    /// Bytes that may be written before the next look.
    unchecked: AtomicI64,
}

impl SpaceGuard {
    pub(crate) fn new(env: Arc<dyn Env>, dir: PathBuf, reserve_bytes: u64) -> SpaceGuard {
        SpaceGuard { env, dir, reserve_bytes, unchecked: AtomicI64::new(0) }
    }

    /// Fails with `NoSpace` if a write of `bytes` would eat into the reserve and does not free room.
    pub(crate) fn admit(&self, bytes: u64, reclaims: bool) -> StoreResult<()> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if self.unchecked.fetch_sub(bytes, Ordering::Relaxed) >= bytes || reclaims {
            return Ok(());
        }
        let space =
            self.env.space(&self.dir).map_err(|error| io_error("measure", &self.dir, error))?;
        let reserve = self.reserve_bytes.min(space.total_bytes / RESERVE_PART_MAX);
        let room = space.available_bytes.saturating_sub(reserve);
        if room < bytes as u64 {
            self.unchecked.store(0, Ordering::Relaxed);
            return Err(StoreError::NoSpace { path: self.dir.clone() });
        }
        let allowed = ((room - bytes as u64) / 2).min(UNCHECKED_BYTES_MAX);
        self.unchecked.store(allowed as i64, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes that the device has room for, the reserve included.
    pub(crate) fn room(&self) -> StoreResult<u64> {
        let space =
            self.env.space(&self.dir).map_err(|error| io_error("measure", &self.dir, error))?;
        Ok(space.available_bytes)
    }

    /// Fails with `NoSpace` if the device has no room for `bytes`, the reserve included.
    pub(crate) fn check_room(&self, bytes: u64) -> StoreResult<()> {
        if self.room()? < bytes {
            return Err(StoreError::NoSpace { path: self.dir.clone() });
        }
        Ok(())
    }
}
