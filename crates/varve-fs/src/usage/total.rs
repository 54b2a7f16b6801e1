//! The usage of a tree: that of its top, and the pending usage of directories below.
//!
//! Everything is read from one snapshot, so that no change is seen half propagated. The marks lead to the directories
//! that have something to tell; each is followed up to see below what it lies, and what is learned on the way is
//! kept for the next, and for other tops: asking for many trees costs them and the marks, not the one times the other. Large files that are being written add what their objects have beyond their rows.

use std::collections::HashMap;

use bytes::Bytes;
use varve_engine::{Direction, KeyRange, StoreSnapshot};
use varve_namespace::directory::DEPTH_MAX;
use varve_namespace::{Changes, Standing};
use varve_schema::{
    Body, Content, DirInfo, EntryRow, Inode, InodeLocation, META, Mark, RowKey, Usage, UsageChange,
    decode_inode_row,
};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::{FsError, FsResult, TreeUsage};

use crate::error;
use crate::fs::VarveFs;

/// Gives rows of `meta`, all as of one moment.
pub(crate) type Rows<'a> = dyn Fn(RowKey) -> FsResult<Option<Bytes>> + 'a;

/// The directories, as of one moment.
struct Tree<'a> {
    rows: &'a Rows<'a>,
    /// Those that were looked at.
    known: HashMap<InodeId, Option<DirInfo>>,
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
        self.usage_below(ino, true)
    }

    /// What lies below the directory `dir` by the rows alone.
    pub(crate) fn recorded_usage(&self, dir: InodeId) -> FsResult<Usage> {
        self.usage_below(dir, false)
    }

    /// The same of several.
    pub(super) fn recorded_usages(&self, dirs: &[InodeId]) -> FsResult<HashMap<InodeId, Usage>> {
        let snapshot = self.store.snapshot().map_err(error::store)?;
        let rows = |key: RowKey| snapshot.get(self.meta, &key.to_bytes()).map_err(error::store);
        usages_by(&rows, dirs, &marked(snapshot.as_ref(), self.meta)?)
    }

    /// What lies below `dir`, with large files as their rows have them, or as they are now.
    fn usage_below(&self, dir: InodeId, as_they_are: bool) -> FsResult<Usage> {
        let snapshot = self.store.snapshot().map_err(error::store)?;
        let rows = |key: RowKey| snapshot.get(self.meta, &key.to_bytes()).map_err(error::store);
        let mut tree = Tree::new(&rows);
        let marked = marked(snapshot.as_ref(), self.meta)?;
        let mut usage = tree.recorded(&[dir], &marked)?.remove(&dir).unwrap_or_default();
        let growing = if as_they_are { self.session.handles.written_objects() } else { Vec::new() };
        for ino in growing.iter().map(|node| node.ino) {
            if let Some((holder, change)) = self.growth_since(&tree, ino)
                && tree.holds(dir, holder)?
            {
                usage = usage.plus(change);
            }
        }
        Ok(usage)
    }

    /// Brings the rows of large files that are open for writing up to date. Failures leave them as they are.
    pub(crate) fn settle_growing(&self) {
        for ino in self.session.handles.written_objects().iter().map(|node| node.ino) {
            if let Err(error) = self.settle_size(ino) {
                self.not_again(&error);
                log::debug!("the size that counts for inode {ino} stays: {error}");
            }
        }
    }

    fn settle_size(&self, ino: InodeId) -> FsResult<()> {
        let mut held = self.hold_counted(ino)?;
        if !held.inode.content.is_dirty() {
            return Ok(());
        }
        let len = self.object_stat(ino)?.len;
        if held.inode.size == len {
            return Ok(());
        }
        held.inode.size = len;
        let mut changes = Changes::new();
        changes.standing = Standing::Happened;
        self.stage(&mut changes, &mut held)?;
        self.commit(&mut changes)
    }

    /// Where a large file that is open for writing counts, and by how much its row was behind.
    fn growth_since(&self, tree: &Tree<'_>, ino: InodeId) -> Option<(InodeId, UsageChange)> {
        let place = self.session.inodes.place(ino).ok()?.unwrap_or(InodeLocation::Own);
        let inode = match &place {
            InodeLocation::Entry { key, slot } => tree.inode_at(*key, *slot).ok()??,
            _ => tree.inode(ino).ok()??,
        };
        let dirty = inode.ino == ino && inode.content.is_dirty();
        let dir = place.counted_in(&inode).filter(|_| dirty && inode.nlink > 0)?;
        let len = self.object_stat(ino).ok()?.len;
        Some((dir, UsageChange::size(inode.size, len)))
    }
}

/// What lies below each of `dirs` by these rows, where the directories `marked` are all that have something to tell.
pub(crate) fn usages_by(
    rows: &Rows<'_>,
    dirs: &[InodeId],
    marked: &[InodeId],
) -> FsResult<HashMap<InodeId, Usage>> {
    Tree::new(rows).recorded(dirs, marked)
}

/// The directories with marks.
fn marked(snapshot: &dyn StoreSnapshot, meta: KeyspaceId) -> FsResult<Vec<InodeId>> {
    let range = KeyRange::prefix(&RowKey::mark_prefix());
    let rows = snapshot.scan(meta, range, Direction::Forward).map_err(error::store)?;
    let mut dirs = Vec::new();
    for row in rows {
        let (key, value) = row.map_err(error::store)?;
        let Some(key) = RowKey::from_bytes(&key) else { continue };
        let Mark(dir) =
            Mark::decode(&value).map_err(|error| error::unreadable(META, key, error))?;
        dirs.push(dir);
    }
    // The main tree and a serializable one may both have marked it.
    dirs.sort_unstable();
    dirs.dedup();
    Ok(dirs)
}

impl<'a> Tree<'a> {
    fn new(rows: &'a Rows<'a>) -> Tree<'a> {
        Tree { rows, known: HashMap::new() }
    }

    /// What lies below each of `tops`; of one that is gone it says nothing.
    fn recorded(
        &mut self,
        tops: &[InodeId],
        marked: &[InodeId],
    ) -> FsResult<HashMap<InodeId, Usage>> {
        let mut usages = HashMap::with_capacity(tops.len());
        for top in tops {
            usages.extend(self.directory(*top)?.map(|info| (*top, info.usage)));
        }
        for dir in marked {
            let pending = self.directory(*dir)?.map(|info| info.pending);
            let Some(pending) = pending.filter(|pending| !pending.is_zero()) else { continue };
            self.above(*dir, &mut |above| {
                if let Some(usage) = usages.get_mut(&above) {
                    *usage = usage.plus(pending);
                }
                false
            })?;
        }
        Ok(usages)
    }

    fn inode(&self, ino: InodeId) -> FsResult<Option<Inode>> {
        let key = RowKey::inode(ino);
        let value = (self.rows)(key)?;
        let decode =
            |value| decode_inode_row(&value).map_err(|error| error::unreadable(META, key, error));
        value.map(decode).transpose()
    }

    /// The inode in a slot of an entry row.
    fn inode_at(&self, key: RowKey, slot: u8) -> FsResult<Option<Inode>> {
        let Some(value) = (self.rows)(key)? else { return Ok(None) };
        let row = EntryRow::decode(&value).map_err(|error| error::unreadable(META, key, error))?;
        Ok(row.at(slot).and_then(|named| match &named.body {
            Body::Inline(inode) => Some(inode.clone()),
            Body::Reference { .. } => None,
        }))
    }

    fn directory(&mut self, ino: InodeId) -> FsResult<Option<DirInfo>> {
        if let Some(known) = self.known.get(&ino) {
            return Ok(*known);
        }
        let info = self.inode(ino)?.and_then(|inode| match inode.content {
            Content::Directory(info) => Some(info),
            _ => None,
        });
        self.known.insert(ino, info);
        Ok(info)
    }

    /// Whether `dir` is `top` or lies below it.
    fn holds(&mut self, top: InodeId, dir: InodeId) -> FsResult<bool> {
        Ok(dir == top || self.above(dir, &mut |above| above == top)?)
    }

    /// Calls `is_it` with each directory above `dir`, from below, until it says yes; says whether it did.
    fn above(&mut self, dir: InodeId, is_it: &mut dyn FnMut(InodeId) -> bool) -> FsResult<bool> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == InodeId::ROOT {
                return Ok(false);
            }
            let Some(info) = self.directory(at)? else { return Ok(false) };
            at = info.parent;
            if is_it(at) {
                return Ok(true);
            }
        }
        let text = format!("the parents of directory {dir} form a loop; run `varve fsck`");
        Err(FsError::Storage(text))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use varve_schema::{FileKind, Times, encode_inode_row};
    use varve_types::{FileFlags, Timestamp};

    use super::*;

    /// The directory `ino` as it lies in `parent`, with bytes below it of which `pending` are not counted there.
    fn row(ino: InodeId, parent: InodeId, bytes: u64, pending: u64) -> Bytes {
        let mut info = DirInfo::new(parent, None);
        info.usage = info.usage.plus(UsageChange::file(bytes));
        info.pending = if pending > 0 { UsageChange::file(pending) } else { info.pending };
        let inode = Inode {
            ino,
            kind: FileKind::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            times: Times::all(Timestamp::EPOCH),
            has_xattrs: false,
            flags: FileFlags::default(),
            home: None,
            content: Content::Directory(info),
        };
        encode_inode_row(&inode).into()
    }

    /// Each commit looked at every mark once for each limit.
    #[test]
    fn many_trees_cost_the_directories_with_marks_and_limits_once() {
        const TREES: u64 = 300;
        let (top, below) =
            (|n: u64| InodeId::new(1000 + n), |n: u64| InodeId::new(1000 + TREES + n));
        let read = Cell::new(0);
        let rows = |key: RowKey| {
            read.set(read.get() + 1);
            let ino = InodeId::new(key.prefix());
            let n = (ino.get() - 1000) % TREES;
            // The first tree lies in the second, which lies in the root as all others do.
            let above = if n == 0 { below(1) } else { InodeId::ROOT };
            Ok(Some(if ino == top(n) { row(ino, above, 7, 7) } else { row(ino, top(n), n, n) }))
        };
        let tops: Vec<InodeId> = (0..TREES).map(top).collect();
        let marked: Vec<InodeId> = (0..TREES).flat_map(|n| [top(n), below(n)]).collect();
        let usages = usages_by(&rows, &tops, &marked).unwrap();
        assert_eq!(usages.len() as u64, TREES);
        for n in 0..TREES {
            let more = if n == 1 { 7 } else { 0 };
            assert_eq!(usages[&top(n)].bytes, 7 + n + more, "{n}");
        }
        assert_eq!(read.get(), 2 * TREES);
    }
}
