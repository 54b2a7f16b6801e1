//! Rows of the store, typed; and the changes of one operation, which become one batch.
//!
//! Here are the functions that need no more than a store; [`access`] has what the modules of the file system call.

mod access;

use std::ops::Bound;

use varve_engine::{Batch, Direction, KeyRange, Store};
use varve_namespace::{Changes, Space, Write};
use varve_schema::{
    Body, Content, DATA, EntryRow, Inode, META, ParentPointer, ParentRow, Pending, RowKey,
    XattrRow, decode_inode_row,
};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::FsResult;

use crate::error;

/// A row of another key space than those of files, to be written with changes of them.
pub(crate) struct AlsoRow {
    pub(crate) space: KeyspaceId,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// The batch that writes `changes` and its directories to the key spaces `meta` and `data`.
pub(crate) fn whole_batch(mut changes: Changes, spaces: (KeyspaceId, KeyspaceId)) -> Batch {
    changes.put_dirs();
    to_batch(&mut changes, spaces)
}

/// The batch of the writes of `changes`, which are taken out.
pub(crate) fn to_batch(changes: &mut Changes, (meta, data): (KeyspaceId, KeyspaceId)) -> Batch {
    let mut batch = Batch::new();
    for Write { space, key, value, commutes } in changes.writes.drain(..) {
        let (key, space) = (key.to_bytes(), if space == Space::Meta { meta } else { data });
        match value {
            Some(value) if commutes => batch.put_commuting(space, key, value),
            Some(value) => batch.put(space, key, value),
            None => batch.delete(space, key),
        }
    }
    if changes.reclaims_space {
        batch.reclaims_space();
    }
    if changes.depends_on_external {
        batch.depends_on_external();
    }
    batch
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
            decode_inode_row(&bytes).map(Some).map_err(|error| error::unreadable(META, key, error))
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
        Some(bytes) => {
            EntryRow::decode(&bytes).map_err(|error| error::unreadable(META, key, error))
        }
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
        let row = XattrRow::decode(&value).map_err(|error| error::unreadable(DATA, key, error))?;
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
    pending.map_err(|error| error::unreadable(META, key, error))
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
        let row = ParentRow::decode(&value).map_err(|error| error::unreadable(META, key, error))?;
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

/// Inodes of which something is pending.
pub(crate) type PendingRows = Vec<(InodeId, Pending)>;

/// Up to `max` pending rows from that of `from` on, in the order of ids, and where the rest begins, if any were found.
pub(crate) fn pending_rows(
    store: &dyn Store,
    meta: KeyspaceId,
    from: InodeId,
    max: usize,
) -> FsResult<(PendingRows, Option<InodeId>)> {
    let range = rows_from(RowKey::pending(from));
    let rows = store.scan(meta, range, Direction::Forward).map_err(error::store)?;
    let (mut found, mut rest) = (PendingRows::new(), None);
    for row in rows.take(max) {
        let (key, value) = row.map_err(error::store)?;
        let Some(key) = RowKey::from_bytes(&key) else { continue };
        let kind = Pending::decode(&value).map_err(|error| error::unreadable(META, key, error))?;
        found.push((InodeId::new(key.suffix()), kind));
        rest = key.suffix().checked_add(1).map(InodeId::new);
    }
    Ok((found, rest))
}
