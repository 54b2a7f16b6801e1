//! Rows of which there may be more than fit into one batch, or into memory: they are written a portion at a time, by whoever may
//! do so, as nobody sees them yet or each counts by itself.

use bytes::Bytes;
use varve_engine::{Batch, Store, StoreResult};
use varve_types::KeyspaceId;

/// Bytes of a portion, about.
const PORTION_BYTES: usize = if cfg!(test) { 256 } else { 1 << 20 };
/// Bytes that a row takes in memory besides its key and its value, about.
const ROW_BYTES: usize = 64;

/// Rows that are not written yet.
pub(crate) struct Portion {
    batch: Batch,
    bytes: usize,
    reclaims: bool,
}

impl Portion {
    /// Of rows that take room.
    pub(crate) fn new() -> Portion {
        Portion { batch: Batch::new(), bytes: 0, reclaims: false }
    }

    /// Of rows that are written though the disk be full ([`Batch::reclaims_space`]).
    pub(super) fn reclaiming() -> Portion {
        let mut portion = Portion { reclaims: true, ..Portion::new() };
        portion.take();
        portion
    }

    pub(crate) fn put(
        &mut self,
        keyspace: KeyspaceId,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
    ) {
        let (key, value) = (key.as_ref(), value.into());
        self.bytes += key.len() + value.len() + ROW_BYTES;
        self.batch.put(keyspace, key, value);
    }

    pub(super) fn delete(&mut self, keyspace: KeyspaceId, key: impl AsRef<[u8]>) {
        self.bytes += key.as_ref().len() + ROW_BYTES;
        self.batch.delete(keyspace, key);
    }

    /// All there is, if that is enough to be written.
    pub(super) fn take_if_full(&mut self) -> Option<Batch> {
        (self.bytes >= PORTION_BYTES).then(|| self.take())
    }

    /// All there is.
    pub(super) fn take(&mut self) -> Batch {
        let mut next = Batch::new();
        if self.reclaims {
            next.reclaims_space();
        }
        self.bytes = 0;
        std::mem::replace(&mut self.batch, next)
    }

    /// Writes what there is, if that is enough.
    pub(crate) fn write_if_full(&mut self, store: &dyn Store) -> StoreResult<()> {
        self.take_if_full().map_or(Ok(()), |batch| store.write(batch))
    }

    /// Writes what there is, if there is anything.
    pub(crate) fn write(mut self, store: &dyn Store) -> StoreResult<()> {
        if self.batch.is_empty() { Ok(()) } else { store.write(self.take()) }
    }
}
