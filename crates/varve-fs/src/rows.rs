//! Rows of the store, typed; and the changes of one operation, which become one batch.

use bytes::Bytes;
use varve_engine::Batch;
use varve_schema::{
    CHUNK_BYTES, Content, EntryRow, Inode, META, Pending, RowKey, decode_inode_row,
    encode_inode_row,
};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::{FsError, FsResult};

use crate::error;
use crate::fs::{Keyspaces, VarveFs};

/// The writes of one operation.
pub(crate) struct Changes {
    pub(crate) batch: Batch,
    meta: KeyspaceId,
    data: KeyspaceId,
}

impl VarveFs {
    /// The names in the row `key`; an empty row if there is none.
    pub(crate) fn entry_row(&self, key: RowKey) -> FsResult<EntryRow> {
        match self.store.get(self.meta, &key.to_bytes()).map_err(error::store)? {
            Some(bytes) => EntryRow::decode(&bytes).map_err(|error| error::row(META, key, error)),
            None => Ok(EntryRow::default()),
        }
    }

    /// The inode in its own row.
    pub(crate) fn inode_row(&self, ino: InodeId) -> FsResult<Option<Inode>> {
        let key = RowKey::inode(ino);
        match self.store.get(self.meta, &key.to_bytes()).map_err(error::store)? {
            Some(bytes) => {
                decode_inode_row(&bytes).map(Some).map_err(|error| error::row(META, key, error))
            }
            None => Ok(None),
        }
    }

    /// The directory `dir`. `NotFound` if it was removed, `NotDirectory` if it is something else.
    pub(crate) fn dir_row(&self, dir: InodeId) -> FsResult<Inode> {
        match self.inode_row(dir)? {
            Some(inode) if matches!(inode.content, Content::Directory(_)) => Ok(inode),
            Some(_) => Err(FsError::NotDirectory),
            None => match self.read_inode(dir)?.content {
                Content::Directory(_) => Err(FsError::NotFound),
                _ => Err(FsError::NotDirectory),
            },
        }
    }

    /// One chunk of a small file; `None` if it is a hole.
    pub(crate) fn chunk(&self, ino: InodeId, index: u64) -> FsResult<Option<Bytes>> {
        let key = RowKey::chunk(ino, index).to_bytes();
        self.store.get(self.data, &key).map_err(error::store)
    }

    /// No changes yet.
    pub(crate) fn changes(&self) -> Changes {
        Changes { batch: Batch::new(), meta: self.meta, data: self.data }
    }

    /// Writes all of `changes` or nothing.
    pub(crate) fn commit(&self, changes: Changes) -> FsResult<()> {
        self.store.write(changes.batch).map_err(error::store)
    }
}

impl Changes {
    /// No changes yet, for a store whose file system is not open.
    pub(crate) fn new(keyspaces: &Keyspaces) -> Changes {
        Changes { batch: Batch::new(), meta: keyspaces.meta, data: keyspaces.data }
    }

    /// Writes the names of a row; without names, removes it.
    pub(crate) fn put_entry_row(&mut self, key: RowKey, row: &EntryRow) {
        if row.is_empty() {
            self.batch.delete(self.meta, bytes_of(key));
        } else {
            self.batch.put(self.meta, bytes_of(key), row.encode());
        }
    }

    /// Writes an inode's own row.
    pub(crate) fn put_inode(&mut self, inode: &Inode) {
        self.batch.put(self.meta, bytes_of(RowKey::inode(inode.ino)), encode_inode_row(inode));
    }

    /// Removes an inode's own row.
    pub(crate) fn delete_inode(&mut self, ino: InodeId) {
        self.batch.delete(self.meta, bytes_of(RowKey::inode(ino)));
    }

    /// Notes pending work on an inode.
    pub(crate) fn put_pending(&mut self, ino: InodeId, pending: Pending) {
        let value = Bytes::copy_from_slice(&pending.encode());
        self.batch.put(self.meta, bytes_of(RowKey::pending(ino)), value);
    }

    /// Notes that nothing is pending on an inode.
    pub(crate) fn delete_pending(&mut self, ino: InodeId) {
        self.batch.delete(self.meta, bytes_of(RowKey::pending(ino)));
    }

    /// Writes a row of the key space `data`.
    pub(crate) fn put_data(&mut self, key: RowKey, value: impl Into<Bytes>) {
        self.batch.put(self.data, bytes_of(key), value);
    }

    /// Removes a row of the key space `data`.
    pub(crate) fn delete_data(&mut self, key: RowKey) {
        self.batch.delete(self.data, bytes_of(key));
    }

    /// Removes the chunks of a file of `size` bytes from chunk `first` on.
    pub(crate) fn delete_chunks(&mut self, ino: InodeId, first: u64, size: u64) {
        for index in first..size.div_ceil(CHUNK_BYTES as u64) {
            self.delete_data(RowKey::chunk(ino, index));
        }
    }
}

fn bytes_of(key: RowKey) -> Bytes {
    Bytes::copy_from_slice(&key.to_bytes())
}
