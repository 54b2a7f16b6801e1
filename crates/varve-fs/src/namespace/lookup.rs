//! Finding names.

use bytes::Bytes;
use varve_namespace::directory::dangling;
use varve_schema::{Body, Content, EntryRow, FileKind, InodeLocation, META, Named, RowKey};
use varve_types::{FileName, InodeId};
use varve_vfs::{Entry, FsError, FsResult};

use crate::error;
use crate::fs::VarveFs;
use crate::synthetic::is_synthetic_below;

impl VarveFs {
    pub(crate) fn do_lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        if let Some(found) = self.look_up_synthetic(parent, name) {
            return found;
        }
        match self.look_up_stored(parent, name) {
            Err(FsError::NotFound) if is_synthetic_below(name) => self.look_up_below(parent),
            found => found,
        }
    }

    fn look_up_stored(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        let key = RowKey::entry(parent, self.hasher.entry(name.as_bytes()));
        loop {
            let mut guards = self.lock_rows(&[key])?;
            let ended = self.sources.as_ref().map(|sources| sources.unfoldings_ended());
            let row = if guards.know_absent(key) { None } else { self.stored_entry_row(key)? };
            if let Some(entry) = self.find(key, row.as_ref(), name)? {
                return Ok(entry);
            }
            let dir = self.inode_row(parent)?.filter(|dir| dir.kind == FileKind::Directory);
            let Some(dir) = dir else {
                drop(guards);
                self.dir_row(parent)?;
                return Err(FsError::NotFound);
            };
            if dir.source().is_some() {
                drop(guards);
                self.unfold(parent)?;
                continue;
            }
            let unfolds = self.sources.as_ref().zip(ended);
            let again = match unfolds.is_some_and(|(sources, ended)| sources.unfolds_since(ended)) {
                // It may have come between the two reads, with the last names of a folded directory.
                true => self.stored_entry_row(key)?,
                false => None,
            };
            if let Some(entry) = self.find(key, again.as_ref(), name)? {
                return Ok(entry);
            }
            // Nor will unfolding bring it, which takes no locks of names.
            if row.is_none() && again.is_none() {
                guards.note_absent(key);
            }
            return Err(FsError::NotFound);
        }
    }

    /// Counts a lookup of what `name` stands for in `row`, which is that of `key`, and gives its attributes. REQUIRES: the
    /// lock of `key`.
    fn find(
        &self,
        key: RowKey,
        row: Option<&Bytes>,
        name: FileName<'_>,
    ) -> FsResult<Option<Entry>> {
        let Some(row) = row else { return Ok(None) };
        let damaged = |error| error::unreadable(META, key, error);
        match EntryRow::only(row).transpose().map_err(damaged)? {
            Some(only) if only.name == name.as_bytes() => self.found(key, &only).map(Some),
            Some(_) => Ok(None),
            None => {
                let row = EntryRow::decode(row).map_err(damaged)?;
                row.find(name.as_bytes()).map(|named| self.found(key, named)).transpose()
            }
        }
    }

    /// Counts a lookup of what `named` stands for and gives its attributes. REQUIRES: the lock of `key`.
    pub(crate) fn found<Name: AsRef<[u8]>>(
        &self,
        key: RowKey,
        named: &Named<Name>,
    ) -> FsResult<Entry> {
        let (attr, place) = match &named.body {
            Body::Inline(inode) => {
                (self.attr(inode)?, InodeLocation::Entry { key, slot: named.slot })
            }
            Body::Reference { ino, .. } => {
                let inode = self.inode_row(*ino)?.ok_or_else(|| dangling(key, named))?;
                (self.attr(&inode)?, InodeLocation::Own)
            }
        };
        self.session.inodes.note_lookup(attr.ino, place)?;
        Ok(Entry::of(attr))
    }

    pub(crate) fn do_lookup_parent(&self, dir: InodeId) -> FsResult<Entry> {
        let inode = self.dir_row(dir)?;
        let Content::Directory(info) = inode.content else { return Err(FsError::NotDirectory) };
        let _guards = self.lock_rows(&[RowKey::inode(info.parent)])?;
        let attr = self.attr(&self.dir_row(info.parent)?)?;
        self.session.inodes.note_lookup(attr.ino, InodeLocation::Own)?;
        Ok(Entry::of(attr))
    }
}
