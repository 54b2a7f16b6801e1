//! Finding names.

use varve_schema::{Body, Content, EntryRow, FileKind, Named, RowKey};
use varve_types::{FileName, InodeId};
use varve_vfs::{Entry, FsError, FsResult};

use crate::fs::VarveFs;
use crate::locator::Place;
use crate::views::is_made_up_below;

impl VarveFs {
    pub(crate) fn do_lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        if let Some(found) = self.look_up_made_up(parent, name) {
            return found;
        }
        match self.look_up_stored(parent, name) {
            Err(FsError::NotFound) if is_made_up_below(name) => self.look_up_below(parent),
            found => found,
        }
    }

    fn look_up_stored(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        let key = RowKey::entry(parent, self.hasher.entry(name.as_bytes()));
        loop {
            let mut guards = self.lock_rows(&[key])?;
            let ended = self.sources.as_ref().map(|sources| sources.unfoldings_ended());
            let row = self.locked_entry_row(&guards, key)?;
            if let Some(named) = row.find(name.as_bytes()) {
                return self.found(key, named);
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
            let row = match unfolds.is_some_and(|(sources, ended)| sources.unfolds_since(ended)) {
                // It may have come between the two reads, with the last names of a folded directory.
                true => self.entry_row(key)?,
                false => row,
            };
            if let Some(named) = row.find(name.as_bytes()) {
                return self.found(key, named);
            }
            // Nor will unfolding bring it, which takes no locks of names.
            if row.is_empty() {
                guards.note_absent(key);
            }
            return Err(FsError::NotFound);
        }
    }

    /// Counts a lookup of what `named` stands for and gives its attributes. REQUIRES: the lock of `key`.
    pub(crate) fn found(&self, key: RowKey, named: &Named) -> FsResult<Entry> {
        let (attr, place) = match &named.body {
            Body::Inline(inode) => (self.attr(inode)?, Place::Entry { key, slot: named.slot }),
            Body::Reference { ino, .. } => {
                let inode = self.inode_row(*ino)?.ok_or_else(|| dangling(key, named))?;
                (self.attr(&inode)?, Place::Own)
            }
        };
        self.locator.note_lookup(attr.ino, place)?;
        Ok(Entry { attr })
    }

    pub(crate) fn do_lookup_parent(&self, dir: InodeId) -> FsResult<Entry> {
        let inode = self.dir_row(dir)?;
        let Content::Directory(info) = inode.content else { return Err(FsError::NotDirectory) };
        let _guards = self.lock_rows(&[RowKey::inode(info.parent)])?;
        let attr = self.attr(&self.dir_row(info.parent)?)?;
        self.locator.note_lookup(attr.ino, Place::Own)?;
        Ok(Entry { attr })
    }
}

/// A name whose inode has no row.
pub(crate) fn dangling(key: RowKey, named: &Named) -> FsError {
    FsError::Storage(format!(
        "the entry {} of directory {} stands for inode {}, which has no row; run `varve fsck`",
        named.name.escape_ascii(),
        key.prefix(),
        named.body.ino()
    ))
}

/// The failure of adding a name to a row in which every slot is taken.
pub(crate) fn row_full(row: &EntryRow) -> FsError {
    FsError::NoSpace(format!("{} names of one directory share a hash", row.names().len()))
}
