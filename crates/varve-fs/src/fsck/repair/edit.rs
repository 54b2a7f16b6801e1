//! Changes to several rows that belong together: reads see them, one batch writes them.

use std::collections::{BTreeMap, BTreeSet};

use varve_namespace::Changes;
use varve_schema::{Body, Content, EntryRow, FileKind, Inode, Pending, RowKey, decode_inode_row};
use varve_types::InodeId;
use varve_vfs::FsResult;

use crate::error;
use crate::fsck::fact::Spot;
use crate::fsck::finding::At;
use crate::fsck::volume::Volume;
use crate::rows::whole_batch;

/// See the module's comment.
pub(super) struct Edit<'a> {
    volume: &'a Volume,
    entries: BTreeMap<RowKey, EntryRow>,
    /// Entry rows that cannot be read. They are left as they are until they are set aside.
    unreadable: BTreeSet<RowKey>,
    inodes: BTreeMap<InodeId, Option<Inode>>,
    pub(super) changes: Changes,
}

/// The key of the row a spot is in.
pub(super) fn row_key(spot: Spot) -> RowKey {
    RowKey::entry(InodeId::new(spot.dir), spot.suffix)
}

impl<'a> Edit<'a> {
    pub(super) fn new(volume: &'a Volume) -> Edit<'a> {
        let changes = Changes::new();
        Edit {
            volume,
            entries: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            inodes: BTreeMap::new(),
            changes,
        }
    }

    /// The names of a row; empty if there is none, or if it cannot be read.
    pub(super) fn row(&mut self, key: RowKey) -> FsResult<&mut EntryRow> {
        if !self.entries.contains_key(&key) {
            let value = self.volume.store.get(self.volume.meta, &key.to_bytes());
            let value = value.map_err(error::store)?;
            let row = value.map(|value| EntryRow::decode(&value));
            if matches!(row, Some(Err(_))) {
                self.unreadable.insert(key);
            }
            self.entries.insert(key, row.and_then(Result::ok).unwrap_or_default());
        }
        Ok(self.entries.entry(key).or_default())
    }

    /// What the name at `spot` stands for.
    pub(super) fn body(&mut self, spot: Spot) -> FsResult<Option<Body>> {
        Ok(self.row(row_key(spot))?.at(spot.slot).map(|named| named.body.clone()))
    }

    /// The inode within the entry at `spot`.
    pub(super) fn inline(&mut self, spot: Spot) -> FsResult<Option<Inode>> {
        Ok(self.body(spot)?.and_then(|body| match body {
            Body::Inline(inode) => Some(inode),
            Body::Reference { .. } => None,
        }))
    }

    /// The inode in its own row; `None` if there is none, or if it cannot be read. Its id is that of the row,
    /// whatever the row says.
    pub(super) fn inode(&mut self, ino: InodeId) -> FsResult<Option<&mut Inode>> {
        if !self.inodes.contains_key(&ino) {
            let key = RowKey::inode(ino).to_bytes();
            let value = self.volume.store.get(self.volume.meta, &key).map_err(error::store)?;
            let inode = value.and_then(|value| decode_inode_row(&value).ok());
            self.inodes.insert(ino, inode.map(|inode| Inode { ino, ..inode }));
        }
        Ok(self.inodes.get_mut(&ino).and_then(Option::as_mut))
    }

    /// The row of a directory; `None` if there is none, or if it is something else.
    pub(super) fn directory(&mut self, ino: InodeId) -> FsResult<Option<&mut Inode>> {
        Ok(self.inode(ino)?.filter(|inode| inode.kind == FileKind::Directory))
    }

    /// Gives an inode a row of its own.
    pub(super) fn put_inode(&mut self, inode: Inode) {
        self.inodes.insert(inode.ino, Some(inode));
    }

    /// Changes what the name at `spot` stands for.
    pub(super) fn set_body(&mut self, spot: Spot, body: Body) -> FsResult<()> {
        let was_directory = self.body(spot)?.is_some_and(|body| body.kind() == FileKind::Directory);
        let is_directory = body.kind() == FileKind::Directory;
        self.row(row_key(spot))?.set_body(spot.slot, body);
        self.count(InodeId::new(spot.dir), 0, i32::from(is_directory) - i32::from(was_directory))
    }

    /// The inode wherever it is: in its own row, or in the entry that `at` names.
    pub(super) fn inode_at(&mut self, ino: InodeId, at: &At) -> FsResult<Option<Inode>> {
        match at {
            At::Name(spot) => Ok(self.inline(*spot)?.filter(|inode| inode.ino == ino)),
            _ => Ok(self.inode(ino)?.cloned()),
        }
    }

    /// Writes the inode back to where [`Edit::inode_at`] found it.
    pub(super) fn put_inode_at(&mut self, inode: Inode, at: &At) -> FsResult<()> {
        match at {
            At::Name(spot) => self.set_body(*spot, Body::Inline(inode)),
            _ => {
                self.put_inode(inode);
                Ok(())
            }
        }
    }

    /// Removes the name at `spot` and says what it stood for. The inode is left alone.
    pub(super) fn remove_name(&mut self, spot: Spot) -> FsResult<Option<Body>> {
        let Some(named) = self.row(row_key(spot))?.remove_at(spot.slot) else { return Ok(None) };
        let is_directory = named.body.kind() == FileKind::Directory;
        self.count(InodeId::new(spot.dir), -1, -i32::from(is_directory))?;
        Ok(Some(named.body))
    }

    /// Gives `body` the name `name` in `dir`; `None` if that is taken or its row is full. A directory
    /// learns where its name is.
    pub(super) fn add_name(
        &mut self,
        dir: InodeId,
        name: &[u8],
        body: Body,
    ) -> FsResult<Option<Spot>> {
        let suffix = self.volume.hasher.entry(name);
        let (ino, kind) = (body.ino(), body.kind());
        let key = RowKey::entry(dir, suffix);
        let row = self.row(key)?;
        if row.find(name).is_some() || self.unreadable.contains(&key) {
            return Ok(None);
        }
        let row = self.row(key)?;
        let Some(slot) = row.insert(name, body) else { return Ok(None) };
        self.count(dir, 1, i32::from(kind == FileKind::Directory))?;
        if kind == FileKind::Directory
            && let Some(inode) = self.inode(ino)?
            && let Content::Directory(info) = &mut inode.content
        {
            (info.parent, info.suffix) = (dir, Some(suffix));
        }
        Ok(Some(Spot { dir: dir.get(), suffix, slot }))
    }

    /// Changes the counts of a directory, if it has a row. Counts that are wrong stay so until they are
    /// counted.
    fn count(&mut self, dir: InodeId, entries: i64, subdirs: i32) -> FsResult<()> {
        if let Some(inode) = self.inode(dir)?
            && let Content::Directory(info) = &mut inode.content
        {
            info.entries = info.entries.saturating_add_signed(entries);
            info.subdirs = info.subdirs.saturating_add_signed(subdirs);
            inode.nlink = info.subdirs.saturating_add(2);
        }
        Ok(())
    }

    /// Writes everything, and where the rows of dirty files are then.
    pub(super) fn commit(mut self) -> FsResult<()> {
        let mut dirty = Vec::new();
        for (key, row) in self.entries.iter().filter(|(key, _)| !self.unreadable.contains(key)) {
            self.changes.put_entry_row(*key, row);
            let inodes = row.names().iter().filter_map(|named| match &named.body {
                Body::Inline(inode) => Some((inode, Some(*key))),
                Body::Reference { .. } => None,
            });
            dirty.extend(inodes.filter(|(inode, _)| inode.content.is_dirty()));
        }
        for inode in self.inodes.values().flatten() {
            self.changes.put_inode(inode);
            dirty.extend(inode.content.is_dirty().then_some((inode, None)));
        }
        for (inode, key) in dirty {
            if let Some(Pending::ObjectDirty { .. }) = self.volume.pending(inode.ino)? {
                self.changes.put_dirty(inode, key);
            }
        }
        let batch = whole_batch(self.changes, (self.volume.meta, self.volume.data));
        self.volume.store.write(batch).map_err(error::store)
    }
}
