//! The usage of a tree: that of its top, and what directories below have not told.
//!
//! Everything is read from one snapshot, so that no change is seen half told. The marks lead to the directories
//! that have something to tell; each is followed up to see whether it lies below, and what is learned on the way is
//! kept for the next. Large files that are being written add what their objects have beyond their rows.

use std::collections::HashMap;

use varve_engine::{Direction, KeyRange, StoreSnapshot};
use varve_schema::{
    Content, DirInfo, Inode, META, Mark, RowKey, Usage, UsageChange, decode_inode_row,
};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::{FsError, FsResult, TreeUsage};

use super::counted_in;
use crate::error;
use crate::fs::VarveFs;
use crate::locator::Place;

/// Levels that a directory may lie below the root before its parents are taken for a loop.
const DEPTH_MAX: usize = 1 << 20;

/// The tree below one directory, as of one snapshot.
struct Tree<'a> {
    snapshot: &'a dyn StoreSnapshot,
    meta: KeyspaceId,
    top: InodeId,
    /// Directories of which is known whether they are the top or lie below it.
    known: HashMap<InodeId, bool>,
}

impl VarveFs {
    /// What lies below the directory `dir`; of anything else, itself.
    pub(crate) fn total(&self, ino: InodeId) -> FsResult<TreeUsage> {
        let Usage { bytes, files, dirs } = self.usage_of(ino)?;
        Ok(TreeUsage { bytes, files, dirs })
    }

    fn usage_of(&self, ino: InodeId) -> FsResult<Usage> {
        let inode = self.read_inode(ino)?;
        if !matches!(inode.content, Content::Directory(_)) {
            return Ok(Usage::default().plus(UsageChange::file(self.attr(&inode)?.size)));
        }
        let growing = self.growing_files();
        let snapshot = self.store.snapshot().map_err(error::store)?;
        let known = HashMap::from([(ino, true), (InodeId::ROOT, ino == InodeId::ROOT)]);
        let mut tree = Tree { snapshot: snapshot.as_ref(), meta: self.meta, top: ino, known };
        let mut usage = match tree.directory(ino)? {
            Some(info) => info.usage,
            None => return Ok(Usage::default()),
        };
        for dir in tree.marked()? {
            let info = if dir == tree.top { None } else { tree.directory(dir)? };
            if let Some(info) = info.filter(|info| !info.untold.is_zero())
                && tree.holds(dir)?
            {
                usage = usage.plus(info.untold);
            }
        }
        for (dir, change) in growing {
            if tree.holds(dir)? {
                usage = usage.plus(change);
            }
        }
        Ok(usage)
    }

    /// Where large files that are open for writing count, and by how much their rows are behind.
    fn growing_files(&self) -> Vec<(InodeId, UsageChange)> {
        let mut growing = Vec::new();
        for ino in self.handles.written_objects().iter().map(|node| node.ino) {
            let Ok(inode) = self.read_inode(ino) else { continue };
            let entry = match self.locator.place(ino) {
                Ok(Some(Place::Entry { key, .. })) => Some(key),
                _ => None,
            };
            let dirty = matches!(inode.content, Content::Object { dirty: true, .. });
            if let Some(dir) = counted_in(&inode, entry).filter(|_| dirty && inode.nlink > 0)
                && let Ok(stat) = self.object_stat(ino)
            {
                growing.push((dir, UsageChange::size(inode.size, stat.len)));
            }
        }
        growing
    }
}

impl Tree<'_> {
    fn inode(&self, ino: InodeId) -> FsResult<Option<Inode>> {
        let key = RowKey::inode(ino);
        let value = self.snapshot.get(self.meta, &key.to_bytes()).map_err(error::store)?;
        let decode = |value| decode_inode_row(&value).map_err(|error| error::row(META, key, error));
        value.map(decode).transpose()
    }

    fn directory(&self, ino: InodeId) -> FsResult<Option<DirInfo>> {
        Ok(self.inode(ino)?.and_then(|inode| match inode.content {
            Content::Directory(info) => Some(info),
            _ => None,
        }))
    }

    fn marked(&self) -> FsResult<Vec<InodeId>> {
        let range = KeyRange::prefix(&RowKey::mark_prefix());
        let rows =
            self.snapshot.scan(self.meta, range, Direction::Forward).map_err(error::store)?;
        let mut dirs = Vec::new();
        for row in rows {
            let (key, value) = row.map_err(error::store)?;
            let Some(key) = RowKey::from_bytes(&key) else { continue };
            let Mark(dir) = Mark::decode(&value).map_err(|error| error::row(META, key, error))?;
            dirs.push(dir);
        }
        Ok(dirs)
    }

    /// Whether `dir` is the top or lies below it.
    fn holds(&mut self, dir: InodeId) -> FsResult<bool> {
        let (mut path, mut at) = (Vec::new(), dir);
        let held = loop {
            if let Some(known) = self.known.get(&at) {
                break *known;
            }
            if path.len() > DEPTH_MAX {
                let text = format!("the parents of directory {dir} form a loop; run `varve fsck`");
                return Err(FsError::Storage(text));
            }
            path.push(at);
            match self.directory(at)? {
                Some(info) => at = info.parent,
                None => break false,
            }
        };
        self.known.extend(path.into_iter().map(|dir| (dir, held)));
        Ok(held)
    }
}
