//! Whether a row may have changed since somebody read it.
//!
//! What a key is depends on the read state and on the rows in its memtables. Whoever wants to use again what he has read asks
//! first for the [`RowVersion`] of the key, then reads; as long as the key has this version he would read the same.
//!
//! 1. Each write counts at one of [`STRIPES`] counters, by its key, under the lock of the memtable that takes it: who sees
//!    the count from before reads nothing that comes later, and who sees the new one waits for that lock.
//! 2. Whatever else changes what readers find puts a new read state in force, and counts at one counter for all keys.
//!
//! So a version may change though the row has not, but never the other way round. Counters take 32 KiB.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of counters of writes.
const STRIPES: usize = 4096;

/// A moment in the life of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowVersion {
    pub(crate) read_states: u64,
    pub(crate) writes: u64,
}

impl RowVersion {
    /// Whether between `before` and this nothing happened but one write, which may have been to this row.
    pub fn is_next_after(self, before: RowVersion) -> bool {
        self.read_states == before.read_states && self.writes == before.writes.wrapping_add(1)
    }
}

/// The counters of writes.
#[derive(Debug)]
pub(crate) struct RowVersions {
    writes: Box<[AtomicU64]>,
}

impl RowVersions {
    pub(crate) fn new() -> RowVersions {
        RowVersions { writes: (0..STRIPES).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts a write to the key with this filter hash. REQUIRES: called by one thread at a time.
    pub(crate) fn count(&self, hash: u64) {
        let writes = self.stripe(hash);
        writes.store(writes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// The writes so far to the key with this filter hash, and to keys that share its counter.
    pub(crate) fn of(&self, hash: u64) -> u64 {
        self.stripe(hash).load(Ordering::Acquire)
    }

    fn stripe(&self, hash: u64) -> &AtomicU64 {
        &self.writes[hash as usize % STRIPES]
    }
}
