//! Rows of the store, typed; and the changes of one operation, which become one batch.

use std::ops::Bound;

use bytes::Bytes;
use smallvec::SmallVec;
use varve_engine::{Batch, Direction, KeyRange, Store};
use varve_schema::{
    Body, CHUNK_BYTES, Content, DATA, EntryRow, EntrySuffix, Inlined, Inode, META, ParentPointer,
    ParentRow, Pending, RowKey, UsageChange, XattrRow, decode_inode_row, encode_inode_row,
    is_lost_chunk, lost_chunk,
};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::{FsError, FsResult};

use crate::error;
use crate::fs::{Keyspaces, VarveFs};
use crate::locks::RowGuards;

/// Directories above one another before they are taken for a loop.
pub(crate) const DEPTH_MAX: usize = 1 << 20;

/// The writes of one operation. Inodes of directories are kept apart until the commit, which adds to them what
/// the operation charges ([`crate::usage`]).
pub(crate) struct Changes {
    pub(crate) batch: Batch,
    /// Directories to write, each once.
    pub(crate) dirs: SmallVec<[Inode; 2]>,
    /// Changes of what lies directly in directories, each directory once.
    pub(crate) charges: SmallVec<[(InodeId, UsageChange); 2]>,
    /// What moves with directories between domains besides what is charged for them: what has not been told.
    pub(crate) brought: SmallVec<[(InodeId, UsageChange); 2]>,
    /// Directories that have nothing more to tell: removed, or they have told it.
    pub(crate) told: SmallVec<[InodeId; 1]>,
    /// How the charges meet limits.
    pub(crate) standing: Standing,
    /// Those of the directories whose change commutes with such of others ([`crate::views`]).
    pub(crate) counted: SmallVec<[InodeId; 2]>,
    /// Rows only say what has become of objects, which serializable transactions do not rely on while they are written to.
    pub(crate) settles: bool,
    /// Sources of loans that are returned: whether they are still needed is asked after the commit.
    returned: SmallVec<[InodeId; 1]>,
    meta: KeyspaceId,
    data: KeyspaceId,
}

/// How the charges of an operation meet limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Refused beyond a limit.
    Asked,
    /// They have happened and are only noted now.
    Happened,
    /// They only move from a directory's account to its parent's, and are counted already.
    Told,
}

/// Whether two states of a directory differ at most by what it counts and by times: such changes commute.
pub(crate) fn differ_by_counts(one: &Inode, other: &Inode) -> bool {
    let rest = |inode: &Inode| match &inode.content {
        Content::Directory(info) => {
            let Inode { perm, uid, gid, has_xattrs, flags, .. } = *inode;
            Some((perm, uid, gid, has_xattrs, flags, info.parent, info.suffix))
        }
        _ => None,
    };
    rest(one).is_some_and(|one| Some(one) == rest(other))
}

/// The rows from `key` on with the same prefix.
pub(crate) fn rows_from(key: RowKey) -> KeyRange {
    let start = Bound::Included(key.to_bytes().to_vec());
    KeyRange { start, ..KeyRange::prefix(&key.prefix().to_be_bytes()) }
}

/// The inode in its own row.
pub(crate) fn read_inode_row(
    store: &dyn Store,
    meta: KeyspaceId,
    ino: InodeId,
) -> FsResult<Option<Inode>> {
    let key = RowKey::inode(ino);
    match store.get(meta, &key.to_bytes()).map_err(error::store)? {
        Some(bytes) => {
            decode_inode_row(&bytes).map(Some).map_err(|error| error::row(META, key, error))
        }
        None => Ok(None),
    }
}

/// The names in the row `key`.
pub(crate) fn read_entry_row(
    store: &dyn Store,
    meta: KeyspaceId,
    key: RowKey,
) -> FsResult<EntryRow> {
    match store.get(meta, &key.to_bytes()).map_err(error::store)? {
        Some(bytes) => EntryRow::decode(&bytes).map_err(|error| error::row(META, key, error)),
        None => Ok(EntryRow::default()),
    }
}

/// Calls `visit` with the rows of the extended attributes of an inode, until it says false.
pub(crate) fn for_each_xattr_row(
    store: &dyn Store,
    data: KeyspaceId,
    ino: InodeId,
    visit: &mut dyn FnMut(RowKey, XattrRow) -> bool,
) -> FsResult<()> {
    let range = rows_from(RowKey::xattr(ino, 0));
    for row in store.scan(data, range, Direction::Forward).map_err(error::store)? {
        let (key, value) = row.map_err(error::store)?;
        let Some(key) = RowKey::from_bytes(&key) else { continue };
        let row = XattrRow::decode(&value).map_err(|error| error::row(DATA, key, error))?;
        if !visit(key, row) {
            break;
        }
    }
    Ok(())
}

/// What is pending of an inode.
pub(crate) fn read_pending_row(
    store: &dyn Store,
    meta: KeyspaceId,
    ino: InodeId,
) -> FsResult<Option<Pending>> {
    let key = RowKey::pending(ino);
    let row = store.get(meta, &key.to_bytes()).map_err(error::store)?;
    let pending = row.as_ref().map(Pending::decode).transpose();
    pending.map_err(|error| error::row(META, key, error))
}

/// Calls `each` with where the inode `ino`, which has a row of its own, has its names, until it says false.
pub(crate) fn for_each_pointer(
    store: &dyn Store,
    meta: KeyspaceId,
    ino: InodeId,
    each: &mut dyn FnMut(ParentPointer) -> FsResult<bool>,
) -> FsResult<()> {
    let range = rows_from(RowKey::parent(ino, 0));
    for row in store.scan(meta, range, Direction::Forward).map_err(error::store)? {
        let (key, value) = row.map_err(error::store)?;
        let Some(key) = RowKey::from_bytes(&key) else { continue };
        let row = ParentRow::decode(&value).map_err(|error| error::row(META, key, error))?;
        for pointer in row.pointers {
            if !each(pointer)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The path of a directory from the root on; `None` if it is being removed.
pub(crate) fn read_path(
    store: &dyn Store,
    meta: KeyspaceId,
    dir: InodeId,
) -> FsResult<Option<Vec<u8>>> {
    let (mut names, mut at) = (Vec::new(), dir);
    while at != InodeId::ROOT {
        let row = read_inode_row(store, meta, at)?.map(|inode| inode.content);
        let Some(Content::Directory(info)) = row else { return Ok(None) };
        let Some(suffix) = info.suffix else { return Ok(None) };
        let row = read_entry_row(store, meta, RowKey::entry(info.parent, suffix))?;
        let is_it = |body: &Body| matches!(body, Body::Reference { ino, .. } if *ino == at);
        let Some(named) = row.names().iter().find(|named| is_it(&named.body)) else {
            return Ok(None);
        };
        names.push(named.name.clone());
        at = info.parent;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    Ok(Some(if path.is_empty() { b"/".to_vec() } else { path }))
}

impl VarveFs {
    /// The names in the row `key`; an empty row if there is none.
    pub(crate) fn entry_row(&self, key: RowKey) -> FsResult<EntryRow> {
        read_entry_row(self.store.as_ref(), self.meta, key)
    }

    /// The names in the row `key`, whose lock is among `guards`; nothing was written to it under them yet.
    pub(crate) fn locked_entry_row(
        &self,
        guards: &RowGuards<'_>,
        key: RowKey,
    ) -> FsResult<EntryRow> {
        if guards.know_absent(key) { Ok(EntryRow::default()) } else { self.entry_row(key) }
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
        let found = Inlined::find(row, slot).map_err(|error| error::row(META, key, error))?;
        Ok(found.filter(|(inode, _)| inode.ino == ino))
    }

    /// The inode in its own row.
    pub(crate) fn inode_row(&self, ino: InodeId) -> FsResult<Option<Inode>> {
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

    /// No changes yet.
    pub(crate) fn changes(&self) -> Changes {
        Changes::in_keyspaces(self.meta, self.data)
    }

    /// Writes all of `changes`, which are done then, or nothing. REQUIRES: the locks of the rows in it, and of the
    /// inode rows of the directories charged.
    pub(crate) fn commit(&self, changes: &mut Changes) -> FsResult<()> {
        let returned = std::mem::take(&mut changes.returned);
        self.accounts.commit(changes)?;
        // No sooner: who is told looks for loans at once, and would still find this one.
        if let Some(sources) = &self.sources {
            returned.into_iter().for_each(|source| sources.note_returned(source));
        }
        Ok(())
    }
}

impl Changes {
    /// No changes yet, for a store whose file system is not open.
    pub(crate) fn new(keyspaces: &Keyspaces) -> Changes {
        Changes::in_keyspaces(keyspaces.meta, keyspaces.data)
    }

    /// No changes yet.
    pub(crate) fn in_keyspaces(meta: KeyspaceId, data: KeyspaceId) -> Changes {
        Changes {
            batch: Batch::new(),
            dirs: SmallVec::new(),
            charges: SmallVec::new(),
            brought: SmallVec::new(),
            told: SmallVec::new(),
            standing: Standing::Asked,
            counted: SmallVec::new(),
            settles: false,
            returned: SmallVec::new(),
            meta,
            data,
        }
    }

    /// Adds to what lies directly in `dir`.
    pub(crate) fn charge(&mut self, dir: InodeId, change: UsageChange) {
        match self.charges.iter_mut().find(|(charged, _)| *charged == dir) {
            Some((_, sum)) => *sum = sum.plus(change),
            None => self.charges.push((dir, change)),
        }
    }

    /// Moves `change` from one directory to another.
    pub(crate) fn move_charge(&mut self, from: InodeId, to: InodeId, change: UsageChange) {
        if from != to {
            self.charge(from, change.negated());
            self.charge(to, change);
        }
    }

    /// Notes that `change` moves along from one directory to another, besides what is charged.
    pub(crate) fn bring(&mut self, from: InodeId, to: InodeId, change: UsageChange) {
        self.brought.push((from, change.negated()));
        self.brought.push((to, change));
    }

    /// The batch of all writes.
    pub(crate) fn into_batch(mut self) -> Batch {
        self.put_dirs();
        self.batch
    }

    /// Adds the directories' rows to the batch.
    pub(crate) fn put_dirs(&mut self) {
        for dir in &self.dirs {
            let (key, row) = (RowKey::inode(dir.ino).to_bytes(), encode_inode_row(dir));
            match self.counted.contains(&dir.ino) {
                true => self.batch.put_commuting(self.meta, key, row),
                false => self.batch.put(self.meta, key, row),
            }
        }
    }

    /// Writes the names of a row; without names, removes it.
    pub(crate) fn put_entry_row(&mut self, key: RowKey, row: &EntryRow) {
        if row.is_empty() {
            self.batch.delete(self.meta, key.to_bytes());
        } else {
            self.put_row(key, row.encode().into());
        }
    }

    /// Writes a row of names or of an inode.
    pub(crate) fn put_row(&mut self, key: RowKey, row: Bytes) {
        match self.settles {
            true => self.batch.put_commuting(self.meta, key.to_bytes(), row),
            false => self.batch.put(self.meta, key.to_bytes(), row),
        }
    }

    /// Writes an inode's own row.
    pub(crate) fn put_inode(&mut self, inode: &Inode) {
        match inode.content {
            Content::Directory(_) => self.put_dir(inode.clone()),
            _ => self.put_row(RowKey::inode(inode.ino), encode_inode_row(inode).into()),
        }
    }

    /// Writes a directory's row.
    pub(crate) fn put_dir(&mut self, dir: Inode) {
        match self.dirs.iter_mut().find(|known| known.ino == dir.ino) {
            Some(known) => *known = dir,
            None => self.dirs.push(dir),
        }
    }

    /// Removes an inode's own row.
    pub(crate) fn delete_inode(&mut self, ino: InodeId) {
        self.batch.delete(self.meta, RowKey::inode(ino).to_bytes());
    }

    /// Notes pending work on an inode.
    pub(crate) fn put_pending(&mut self, ino: InodeId, pending: Pending) {
        self.put_meta(RowKey::pending(ino), pending.encode());
    }

    /// Notes whether the object of `inode`, which has a name and lies in the entry row `entry` or in a row of
    /// its own, knows better than its row how large it is.
    pub(crate) fn put_dirty(&mut self, inode: &Inode, entry: Option<RowKey>) {
        match inode.content {
            Content::Object { dirty: true, .. } => {
                let entry = entry.and_then(|key| {
                    Some((InodeId::new(key.prefix()), EntrySuffix::new(key.suffix())?))
                });
                self.put_pending(inode.ino, Pending::ObjectDirty { entry });
            }
            _ => self.delete_pending(inode.ino),
        }
    }

    /// Notes that nothing is pending on an inode.
    pub(crate) fn delete_pending(&mut self, ino: InodeId) {
        self.delete_meta(RowKey::pending(ino));
    }

    /// Notes that `inode` borrows nothing any more, if it did.
    pub(crate) fn return_loan(&mut self, inode: &Inode) {
        if let Content::Borrowed(borrowed) = inode.content {
            self.delete_meta(RowKey::loan(borrowed.source, inode.ino));
            self.returned.push(borrowed.source);
        }
    }

    /// Writes a row of the key space `meta`.
    pub(crate) fn put_meta(&mut self, key: RowKey, value: impl Into<Bytes>) {
        self.batch.put(self.meta, key.to_bytes(), value);
    }

    /// Removes a row of the key space `meta`.
    pub(crate) fn delete_meta(&mut self, key: RowKey) {
        self.batch.delete(self.meta, key.to_bytes());
    }

    /// Writes a row of the key space `data`.
    pub(crate) fn put_data(&mut self, key: RowKey, value: impl Into<Bytes>) {
        self.batch.put(self.data, key.to_bytes(), value);
    }

    /// Removes a row of the key space `data`.
    pub(crate) fn delete_data(&mut self, key: RowKey) {
        self.batch.delete(self.data, key.to_bytes());
    }

    /// Removes the chunks of a file of `size` bytes from chunk `first` on.
    pub(crate) fn delete_chunks(&mut self, ino: InodeId, first: u64, size: u64) {
        for index in first..size.div_ceil(CHUNK_BYTES as u64) {
            self.delete_data(RowKey::chunk(ino, index));
        }
    }
}
