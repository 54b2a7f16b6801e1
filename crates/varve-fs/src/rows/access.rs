//! Rows as the modules of the file system read and write them.

use bytes::Bytes;
use varve_engine::Direction;
use varve_namespace::{Changes, Rows};
use varve_schema::{
    Content, DATA, EntryRow, Inlined, Inode, META, NameHasher, ParentRow, RowKey, XattrRow,
    is_lost_chunk, lost_chunk,
};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::{AlsoRow, for_each_xattr_row, read_entry_row, read_path, rows_from};
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;

impl VarveFs {
    /// The names in the row `key`; an empty row if there is none.
    pub(crate) fn entry_row(&self, key: RowKey) -> FsResult<EntryRow> {
        read_entry_row(self.store.as_ref(), self.meta, key)
    }

    /// The row `key` of names, as it is stored.
    pub(crate) fn stored_entry_row(&self, key: RowKey) -> FsResult<Option<Bytes>> {
        self.store.get(self.meta, &key.to_bytes()).map_err(error::store)
    }

    /// The inode `ino` in `slot` of the row `key`, if it is there.
    pub(crate) fn inode_in(&self, key: RowKey, slot: u8, ino: InodeId) -> FsResult<Option<Inode>> {
        Ok(self.inlined(key, slot, ino)?.map(|(inode, _)| inode))
    }

    /// The same, and where in the row it is.
    pub(crate) fn inlined(
        &self,
        key: RowKey,
        slot: u8,
        ino: InodeId,
    ) -> FsResult<Option<(Inode, Inlined)>> {
        let Some(row) = self.stored_entry_row(key)? else { return Ok(None) };
        let found =
            Inlined::find(row, slot).map_err(|error| error::unreadable(META, key, error))?;
        Ok(found.filter(|(inode, _)| inode.ino == ino))
    }

    /// The inode in its own row.
    pub(crate) fn inode_row(&self, ino: InodeId) -> FsResult<Option<Inode>> {
        // The first ids stand for rows that are none of inodes, and clients may ask for any.
        if ino < InodeId::FIRST_FREE && ino != InodeId::ROOT {
            return Ok(None);
        }
        self.dirs.read(ino)
    }

    /// The path of a directory from the root on; `None` if it is being removed.
    pub(crate) fn path_of(&self, dir: InodeId) -> FsResult<Option<Vec<u8>>> {
        read_path(self.store.as_ref(), self.meta, dir)
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

    /// One chunk of a small file; `None` if it is a hole. An error if it is lost.
    pub(crate) fn chunk(&self, ino: InodeId, index: u64) -> FsResult<Option<Bytes>> {
        let row = self.chunk_row(ino, index)?;
        if row.as_ref().is_some_and(|row| is_lost_chunk(row)) {
            return Err(error::lost_chunk(ino, index));
        }
        Ok(row)
    }

    /// The same, as its row, which may [stand for a lost one](varve_schema::lost_chunk).
    pub(crate) fn chunk_row(&self, ino: InodeId, index: u64) -> FsResult<Option<Bytes>> {
        let key = RowKey::chunk(ino, index).to_bytes();
        let row = self.store.get(self.data, &key).map_err(error::store)?;
        Ok(row.or_else(|| self.lost.hides(&key).then(lost_chunk)))
    }

    /// Writes all of `changes`, which are done then, or nothing. REQUIRES: the locks of the rows in it, and of the
    /// inode rows of the directories charged.
    pub(crate) fn commit(&self, changes: &mut Changes) -> FsResult<()> {
        self.commit_also(changes, None)
    }

    /// The same with one row more.
    pub(crate) fn commit_also(&self, changes: &mut Changes, also: Option<AlsoRow>) -> FsResult<()> {
        let released = std::mem::take(&mut changes.released_sources);
        self.accounts.commit_also(changes, also)?;
        // Not before: the source is looked at at once, and this reference would still be found.
        if let Some(sources) = &self.sources {
            released.into_iter().for_each(|source| sources.note_returned(Epoch::of(source)));
        }
        Ok(())
    }
}

impl Rows for VarveFs {
    type Error = FsError;

    fn hasher(&self) -> &NameHasher {
        &self.hasher
    }

    fn obeys_lists(&self) -> bool {
        self.options.acl
    }

    fn peek_inode(&self, ino: InodeId) -> FsResult<Option<Inode>> {
        self.inode_row(ino)
    }

    fn xattr_row(&self, key: RowKey) -> FsResult<XattrRow> {
        match self.store.get(self.data, &key.to_bytes()).map_err(error::store)? {
            Some(bytes) => {
                XattrRow::decode(&bytes).map_err(|error| error::unreadable(DATA, key, error))
            }
            None => Ok(XattrRow::default()),
        }
    }

    fn xattr_rows(
        &self,
        ino: InodeId,
        visit: &mut dyn FnMut(RowKey, XattrRow) -> bool,
    ) -> FsResult<()> {
        for_each_xattr_row(self.store.as_ref(), self.data, ino, visit)
    }

    fn xattr_keys(&self, ino: InodeId, visit: &mut dyn FnMut(RowKey) -> bool) -> FsResult<()> {
        let range = rows_from(RowKey::xattr(ino, 0));
        for key in self.store.keys(self.data, range).map_err(error::store)? {
            let key = RowKey::from_bytes(&key.map_err(error::store)?);
            if !key.is_none_or(&mut *visit) {
                break;
            }
        }
        Ok(())
    }

    fn parent_row(&self, key: RowKey) -> FsResult<ParentRow> {
        match self.store.get(self.meta, &key.to_bytes()).map_err(error::store)? {
            Some(value) => {
                ParentRow::decode(&value).map_err(|error| error::unreadable(META, key, error))
            }
            None => Ok(ParentRow::default()),
        }
    }

    fn parent_rows(
        &self,
        key: RowKey,
        visit: &mut dyn FnMut(RowKey, ParentRow) -> bool,
    ) -> FsResult<()> {
        let rows = self.store.scan(self.meta, rows_from(key), Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            let Some(key) = RowKey::from_bytes(&key) else { continue };
            let row =
                ParentRow::decode(&value).map_err(|error| error::unreadable(META, key, error))?;
            if !visit(key, row) {
                break;
            }
        }
        Ok(())
    }
}
