//! Rows that a load writes: sorted in memory, then inserted as tables. Reads see what is not inserted yet.

use std::collections::BTreeMap;

use bytes::Bytes;
use varve_schema::RowKey;
use varve_types::KeyspaceId;
use varve_vfs::FsResult;

use crate::error;
use crate::fsck::volume::Volume;

/// Bytes of memory of a row besides its value, nearly.
const ROW_BYTES: usize = 96;

/// See the module's comment.
pub(super) struct Rows<'a> {
    volume: &'a Volume,
    /// Bytes of memory at which rows are inserted.
    bytes_max: usize,
    waiting: BTreeMap<(KeyspaceId, RowKey), Bytes>,
    waiting_bytes: usize,
    claims_objects: bool,
}

impl<'a> Rows<'a> {
    /// No rows yet; about `bytes_max` bytes of them are kept in memory.
    pub(super) fn new(volume: &'a Volume, bytes_max: usize) -> Rows<'a> {
        let waiting = BTreeMap::new();
        Rows { volume, bytes_max, waiting, waiting_bytes: 0, claims_objects: false }
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
        if self.waiting_bytes >= self.bytes_max { self.write() } else { Ok(()) }
    }

    /// Notes that a row is about to claim an object, which has to be durable before it.
    pub(super) fn claims_object(&mut self) {
        self.claims_objects = true;
    }

    /// Inserts what waits.
    pub(super) fn write(&mut self) -> FsResult<()> {
        let external = std::mem::take(&mut self.claims_objects);
        let mut rows = std::mem::take(&mut self.waiting).into_iter().peekable();
        self.waiting_bytes = 0;
        while let Some(((keyspace, _), _)) = rows.peek() {
            let keyspace = *keyspace;
            let of_one = std::iter::from_fn(|| rows.next_if(|((other, _), _)| *other == keyspace));
            let mut pairs =
                of_one.map(|((_, key), value)| (Bytes::copy_from_slice(&key.to_bytes()), value));
            self.volume
                .store
                .insert_sorted(keyspace, &mut pairs, external)
                .map_err(error::store)?;
        }
        Ok(())
    }
}
