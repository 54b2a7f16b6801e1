//! What has changed between two states, as paths: a transaction and the state that it began on, or a snapshot and a later
//! snapshot or the present.
//!
//! 1. The keys of `data` that changed, and the large files that were written to, tell whose bytes or extended
//!    attributes have changed: files that a transaction has copies of, and files with a preimage for the older snapshot
//!    or one between the two ([`crate::preimages`]).
//! 2. The rows of `meta` that changed tell names that came and went, and inodes that differ.
//! 3. Large files that were being written to all the while have no row that changed, but pending rows that name them.
//! 4. What went in one place and came in another is one rename.
//! 5. Paths are followed up in the state that has the name.
//!
//! Costs the number of changes, each with the directories above it. Changes that programs make meanwhile may be reported or not.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use bytes::Bytes;
use serde::Serialize;
use varve_engine::{RowVisitor, Store, StoreResult};
use varve_namespace::directory::DEPTH_MAX;
use varve_namespace::merge::is_untouched;
use varve_schema::key::{DataRow, MetaRow};
use varve_schema::{
    Body, Content, DirInfo, EntryRow, FileKind, Inode, META, ParentRow, Pending, RowKey,
    decode_inode_row,
};
use varve_types::{InodeId, KeyspaceId, Timestamp};
use varve_vfs::FsResult;

use super::Span;
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::rows::{read_entry_row, read_inode_row, read_path, read_pending_row};
use crate::superblock::view_dir;
use crate::transactions::Isolation;

/// About how many changes are reported. It looks at no more.
const CHANGES_MAX: usize = 100_000;

/// What has become of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// There was nothing.
    Added,
    /// There is nothing any more.
    Removed,
    /// Another file is there, or its bytes or attributes are others.
    Changed,
    /// What is there was elsewhere.
    Renamed,
}

/// A path with what has become of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PathChange {
    /// From the root of the file system on, in the later state; if removed, where it was.
    #[serde(with = "varve_engine::paths")]
    pub path: PathBuf,
    /// What has become of it.
    pub change: ChangeKind,
    /// Where it was, if it is renamed.
    #[serde(with = "varve_engine::paths", skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,
}

/// What has changed.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// In the order of paths.
    pub changes: Vec<PathChange>,
    /// False if there are more changes than these.
    pub complete: bool,
}

/// A name in its directory.
type Name = (InodeId, Bytes);

/// What a name that came or went stands for, and the row that has it.
#[derive(Clone, Copy)]
struct Held {
    ino: InodeId,
    key: RowKey,
}

/// A state whose rows are compared.
struct Side<'a> {
    store: &'a dyn Store,
    meta: KeyspaceId,
    /// The directory whose path was asked for last.
    last: Option<(InodeId, Option<PathBuf>)>,
}

impl<'a> Side<'a> {
    fn new(store: &'a dyn Store, meta: KeyspaceId) -> Side<'a> {
        Side { store, meta, last: None }
    }

    fn names(&self, key: RowKey) -> FsResult<EntryRow> {
        read_entry_row(self.store, self.meta, key)
    }

    fn inode(&self, ino: InodeId) -> FsResult<Option<Inode>> {
        read_inode_row(self.store, self.meta, ino)
    }

    fn inode_of(&self, body: &Body) -> FsResult<Option<Inode>> {
        match body {
            Body::Inline(inode) => Ok(Some(inode.clone())),
            Body::Reference { ino, .. } => self.inode(*ino),
        }
    }

    /// The path of a directory; `None` if it is removed.
    fn dir_path(&mut self, dir: InodeId) -> FsResult<Option<PathBuf>> {
        if let Some((_, path)) = self.last.as_ref().filter(|(last, _)| *last == dir) {
            return Ok(path.clone());
        }
        let path = read_path(self.store, self.meta, dir)?;
        let path = path.map(|path| PathBuf::from(OsString::from_vec(path)));
        self.last = Some((dir, path.clone()));
        Ok(path)
    }

    fn path(&mut self, (dir, name): &Name) -> FsResult<Option<PathBuf>> {
        let above = self.dir_path(*dir)?;
        Ok(above.map(|above| above.join(OsStr::from_bytes(name))))
    }
}

/// What has been found.
struct Walk<'a> {
    /// Inodes from this one on were not there before.
    epoch: Epoch,
    before: Side<'a>,
    after: Side<'a>,
    /// Inodes whose bytes or extended attributes were written to.
    written: BTreeSet<InodeId>,
    removed: BTreeMap<Name, Held>,
    added: BTreeMap<Name, Held>,
    changed: BTreeSet<Name>,
    /// Directories with other attributes.
    dirs: BTreeSet<InodeId>,
    /// What [`Walk::folded_before`] has said last, and of which directory.
    folded: Option<(InodeId, Option<Timestamp>)>,
}

/// Hands over the rows that changed.
type Rows<'a> = dyn Fn(&mut RowVisitor<'_>) -> StoreResult<()> + 'a;

impl VarveFs {
    /// What the transaction `id` has changed since it began.
    pub fn transaction_diff(&self, id: &str) -> FsResult<Diff> {
        let txn = self.transaction(id)?;
        let branch = self.views()?.db().open_branch(txn.branch).map_err(error::store)?;
        let begun;
        let base: &dyn Store = match txn.isolation {
            Isolation::Snapshot => {
                begun = branch.base().map_err(error::store)?;
                &begun
            }
            // What it has looked at and changed is as it was in the store.
            Isolation::Serializable => self.views()?.db().as_ref(),
        };
        let own = view_dir(&self.dir, txn.epoch);
        let own = self.objects.of_view(own, txn.sees_objects_of()).own_inodes()?;
        let mut walk =
            Walk::new(txn.base_epoch(), Side::new(base, self.meta), Side::new(&branch, self.meta));
        walk.written.extend(own);
        self.tell(walk, &|each| branch.changes(each))
    }

    /// What has changed since the snapshot `from` until the snapshot `to`, or until now. `NotFound` if there is no such
    /// snapshot, `Invalid` if `to` is the older one.
    pub fn snapshot_diff(&self, from: &str, to: Option<&str>) -> FsResult<Diff> {
        let Span { before, after, written } = self.span(from, to)?;
        // Files that are younger than the older snapshot are looked up in vain, which costs little.
        let new_from = Epoch::LAST;
        let mut walk =
            Walk::new(new_from, Side::new(&before, self.meta), Side::new(&after, self.meta));
        walk.written.extend(written);
        let spaces = [self.meta, self.data];
        self.tell(walk, &|each| {
            after.changes_since(&before, &spaces, &mut |keyspace, key, is| {
                // A write of a row as it was has changed nothing.
                let was = before.get(keyspace, key);
                was.is_ok_and(|was| was == is) || each(keyspace, key, is)
            })
        })
    }

    /// What a rollback to the snapshot `name` would do ([`VarveFs::roll_back`]).
    pub fn roll_back_diff(&self, name: &str) -> FsResult<Diff> {
        let Diff { mut changes, complete } = self.snapshot_diff(name, None)?;
        for told in &mut changes {
            match (told.change, &mut told.from) {
                (ChangeKind::Added, _) => told.change = ChangeKind::Removed,
                (ChangeKind::Removed, _) => told.change = ChangeKind::Added,
                (_, Some(from)) => std::mem::swap(from, &mut told.path),
                _ => {}
            }
        }
        changes.sort();
        Ok(Diff { changes, complete })
    }

    /// Steps 1 to 5.
    fn tell(&self, mut walk: Walk<'_>, rows: &Rows<'_>) -> FsResult<Diff> {
        let all_written = self.walk_written(rows, &mut walk)?;
        let all_rows = self.walk_rows(rows, &mut walk)?;
        walk.still_written()?;
        Ok(Diff { changes: walk.told()?, complete: all_written && all_rows })
    }

    /// Step 1; false if there was too much.
    fn walk_written(&self, rows: &Rows<'_>, walk: &mut Walk<'_>) -> FsResult<bool> {
        let walked = rows(&mut |keyspace, key, _| {
            if let Some(key) = RowKey::from_bytes(key).filter(|_| keyspace == self.data) {
                let (DataRow::Chunk(ino, _) | DataRow::Xattr(ino)) = key.data_kind();
                if walk.epoch.knows(ino) {
                    walk.written.insert(ino);
                }
            }
            walk.written.len() < CHANGES_MAX
        });
        walked.map_err(error::store)?;
        Ok(walk.written.len() < CHANGES_MAX)
    }

    /// Step 2; false if there was too much.
    fn walk_rows(&self, rows: &Rows<'_>, walk: &mut Walk<'_>) -> FsResult<bool> {
        let mut failed = None;
        let walked = rows(&mut |keyspace, key, ours| {
            let Some(key) = RowKey::from_bytes(key).filter(|_| keyspace == self.meta) else {
                return true;
            };
            failed = walk.row(key, ours).err();
            failed.is_none() && walk.found() < CHANGES_MAX
        });
        walked.map_err(error::store)?;
        failed.map_or(Ok(walk.found() < CHANGES_MAX), Err)
    }
}

impl<'a> Walk<'a> {
    fn new(epoch: Epoch, before: Side<'a>, after: Side<'a>) -> Walk<'a> {
        Walk {
            epoch,
            before,
            after,
            written: BTreeSet::new(),
            removed: BTreeMap::new(),
            added: BTreeMap::new(),
            changed: BTreeSet::new(),
            dirs: BTreeSet::new(),
            folded: None,
        }
    }

    /// Step 3.
    fn still_written(&mut self) -> FsResult<()> {
        for ino in self.written.clone() {
            match read_pending_row(self.after.store, self.after.meta, ino)? {
                Some(Pending::ObjectDirty { entry: Some((dir, suffix)) }) => {
                    let names = self.after.names(RowKey::entry(dir, suffix))?;
                    let named = names.names().iter().filter(|named| named.body.ino() == ino);
                    self.changed.extend(named.map(|named| (dir, named.name.clone())));
                }
                Some(Pending::ObjectDirty { entry: None }) => {
                    if let Some(is) = self.after.inode(ino)? {
                        self.linked(&is)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn found(&self) -> usize {
        self.removed.len() + self.added.len() + self.changed.len() + self.dirs.len()
    }

    fn row(&mut self, key: RowKey, ours: Option<Bytes>) -> FsResult<()> {
        let unreadable = |error| error::unreadable(META, key, error);
        match key.meta_kind() {
            MetaRow::Entry(dir, _) => {
                let ours = ours.as_ref().map(EntryRow::decode).transpose().map_err(unreadable)?;
                self.names(dir, key, &ours.unwrap_or_default())?;
            }
            MetaRow::Inode(ino) if self.epoch.knows(ino) => {
                if let Some(ours) = &ours {
                    self.inode(&decode_inode_row(ours).map_err(unreadable)?)?;
                }
            }
            MetaRow::Limits(dir) if self.epoch.knows(dir) => drop(self.dirs.insert(dir)),
            _ => {}
        }
        Ok(())
    }

    fn names(&mut self, dir: InodeId, key: RowKey, ours: &EntryRow) -> FsResult<()> {
        let base =
            if self.epoch.knows(dir) { self.before.names(key)? } else { EntryRow::default() };
        for was in base.names() {
            let name = (dir, was.name.clone());
            match ours.find(&was.name) {
                None => drop(self.removed.insert(name, Held { ino: was.body.ino(), key })),
                Some(is) if self.differ(&was.body, &is.body)? => drop(self.changed.insert(name)),
                Some(_) => {}
            }
        }
        for is in ours.names().iter().filter(|is| base.find(&is.name).is_none()) {
            let made = self.folded_before(dir)?;
            if made.is_some()
                && let Some(inode) = self.after.inode_of(&is.body)?
                && Some(inode.times.btime) == made
            {
                // It was there, though its directory did not have its name yet.
                if inode.kind != FileKind::Directory && !is_untouched(&inode) {
                    self.changed.insert((dir, is.name.clone()));
                }
                continue;
            }
            self.added.insert((dir, is.name.clone()), Held { ino: is.body.ino(), key });
        }
        Ok(())
    }

    /// If the directory `dir` was or lay in a folded one of a clone ([`crate::clones`]): when that was made.
    fn folded_before(&mut self, dir: InodeId) -> FsResult<Option<Timestamp>> {
        // Rows come directory by directory.
        if let Some((_, made)) = self.folded.filter(|(last, _)| *last == dir) {
            return Ok(made);
        }
        let made = self.when_folded(dir)?;
        self.folded = Some((dir, made));
        Ok(made)
    }

    fn when_folded(&self, dir: InodeId) -> FsResult<Option<Timestamp>> {
        let Some(is) = self.after.inode(dir)? else { return Ok(None) };
        let mut at = is.clone();
        for _ in 0..DEPTH_MAX {
            if let Some(was) = self.before.inode(at.ino)? {
                return Ok(was.source().map(|_| is.times.btime));
            }
            let Content::Directory(DirInfo { parent, .. }) = at.content else { break };
            let Some(above) = self.after.inode(parent)?.filter(|above| above.ino != at.ino) else {
                break;
            };
            at = above;
        }
        Ok(None)
    }

    /// Whether what one name stood for and stands for differ, as far as rows of their own do not tell it.
    fn differ(&self, was: &Body, is: &Body) -> FsResult<bool> {
        match (was, is) {
            _ if was.ino() != is.ino() => Ok(true),
            (Body::Reference { .. }, Body::Reference { .. }) => Ok(false),
            _ => match (self.before.inode_of(was)?, self.after.inode_of(is)?) {
                (Some(was), Some(is)) => Ok(self.is_changed(&was, &is)),
                _ => Ok(true),
            },
        }
    }

    /// An inode with a row of its own, which may have had one.
    fn inode(&mut self, is: &Inode) -> FsResult<()> {
        let Some(was) = self.before.inode(is.ino)? else { return Ok(()) };
        if !self.is_changed(&was, is) {
            return Ok(());
        }
        if is.kind == FileKind::Directory {
            self.dirs.insert(is.ino);
            return Ok(());
        }
        self.linked(is)
    }

    /// Notes the name by which an inode with a row of its own is reported.
    fn linked(&mut self, is: &Inode) -> FsResult<()> {
        if let Some(home) = is.home {
            let key = RowKey::parent(is.ino, home.hash);
            let row = self.after.store.get(self.after.meta, &key.to_bytes());
            let row = row.map_err(error::store)?.as_ref().map(ParentRow::decode).transpose();
            let row = row.map_err(|error| error::unreadable(META, key, error))?.unwrap_or_default();
            let names = row.pointers.into_iter().filter(|pointer| pointer.dir == home.dir);
            self.changed.extend(names.take(1).map(|pointer| (pointer.dir, pointer.name)));
        }
        Ok(())
    }

    fn is_changed(&self, was: &Inode, is: &Inode) -> bool {
        let kept = |i: &Inode| (i.kind, i.perm, i.uid, i.gid, i.rdev, i.has_xattrs, i.flags);
        let same_bytes = is.kind == FileKind::Directory
            || (was.size, was.times.mtime) == (is.size, is.times.mtime)
                && was.content == is.content;
        kept(was) != kept(is) || !same_bytes || self.written.contains(&is.ino)
    }

    /// Steps 4 and 5.
    fn told(mut self) -> FsResult<Vec<PathChange>> {
        let mut changes = Vec::new();
        for (name, from) in self.take_renamed()? {
            let (path, from) = (self.after.path(&name)?, self.before.path(&from)?);
            let change = ChangeKind::Renamed;
            changes.extend(path.map(|path| PathChange { path, change, from }));
        }
        let mut tell = |path: Option<PathBuf>, change| {
            changes.extend(path.map(|path| PathChange { path, change, from: None }));
        };
        for name in self.removed.keys() {
            tell(self.before.path(name)?, ChangeKind::Removed);
        }
        for name in self.added.keys() {
            tell(self.after.path(name)?, ChangeKind::Added);
        }
        for name in self.changed.iter().filter(|name| !self.added.contains_key(*name)) {
            tell(self.after.path(name)?, ChangeKind::Changed);
        }
        for dir in &self.dirs {
            tell(self.after.dir_path(*dir)?, ChangeKind::Changed);
        }
        changes.sort();
        Ok(changes)
    }

    /// Takes out what went in one place and came in another: the new name and the old.
    fn take_renamed(&mut self) -> FsResult<Vec<(Name, Name)>> {
        let mut went: BTreeMap<InodeId, Name> =
            self.removed.iter().map(|(name, held)| (held.ino, name.clone())).collect();
        let came = self.added.iter().filter_map(|(name, held)| {
            let from = went.remove(&held.ino)?;
            Some((name.clone(), from))
        });
        let renamed: Vec<(Name, Name)> = came.collect();
        for (name, from) in &renamed {
            let (Some(is), Some(was)) = (self.added.remove(name), self.removed.remove(from)) else {
                continue;
            };
            let (was, is) = (self.before.names(was.key)?, self.after.names(is.key)?);
            if let (Some(was), Some(is)) = (was.find(&from.1), is.find(&name.1))
                && self.differ(&was.body, &is.body)?
            {
                self.changed.insert(name.clone());
            }
        }
        Ok(renamed)
    }
}
