//! Rows that a load writes: reads see what is not written yet.

use std::collections::BTreeMap;

use bytes::Bytes;
use varve_engine::Batch;
use varve_schema::RowKey;
use varve_types::KeyspaceId;
use varve_vfs::FsResult;

use crate::error;
use crate::fsck::volume::Volume;

/// Rows that are written together, in bytes.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of memory of a row besides its value, nearly.
const ROW_BYTES: usize = 96;

/// See the module's comment.
pub(super) struct Rows<'a> {
    volume: &'a Volume,
    waiting: BTreeMap<(KeyspaceId, RowKey), Bytes>,
    waiting_bytes: usize,
    claims_objects: bool,
}

impl<'a> Rows<'a> {
    pub(super) fn new(volume: &'a Volume) -> Rows<'a> {
        Rows { volume, waiting: BTreeMap::new(), waiting_bytes: 0, claims_objects: false }
    }

    pub(super) fn get(&self, keyspace: KeyspaceId, key: RowKey) -> FsResult<Option<Bytes>> {
        match self.waiting.get(&(keyspace, key)) {
            Some(value) => Ok(Some(value.clone())),
            None => self.volume.store.get(keyspace, &key.to_bytes()).map_err(error::store),
        }
    }

    pub(super) fn put(
        &mut self,
        keyspace: KeyspaceId,
        key: RowKey,
        value: Vec<u8>,
    ) -> FsResult<()> {
        self.waiting_bytes += value.len() + ROW_BYTES;
        self.waiting.insert((keyspace, key), value.into());
        if self.waiting_bytes >= BATCH_BYTES { self.write() } else { Ok(()) }
    }

    /// Notes that a row is about to claim an object, which has to be durable before it.
    pub(super) fn claims_object(&mut self) {
        self.claims_objects = true;
    }

    /// Writes what waits.
    pub(super) fn write(&mut self) -> FsResult<()> {
        let mut batch = Batch::new();
        for ((keyspace, key), value) in std::mem::take(&mut self.waiting) {
            batch.put(keyspace, Bytes::copy_from_slice(&key.to_bytes()), value);
        }
        if self.claims_objects {
            batch.depends_on_external();
        }
        (self.waiting_bytes, self.claims_objects) = (0, false);
        self.volume.store.write(batch).map_err(error::store)
    }
}
