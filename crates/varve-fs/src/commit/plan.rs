//! What a commit means for the main tree, found out from the rows that the transaction changed.
//!
//! What becomes of such a row is compared with what the main tree has: where others have changed it too, neither is what the
//! transaction has. A row that the transaction has only written as it was leaves that of the main tree alone, whatever is in it now.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use varve_engine::{Branch, KeyRange, Merged, SnapshotStore};
use varve_namespace::directory::differ_by_counts;
use varve_schema::key::MetaRow;
use varve_schema::{
    Body, Content, EntryRow, Inode, InodeLocation, META, Named, Pending, RowKey, decode_inode_row,
};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::attributes::Attributes;
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::transactions::{Isolation, Transaction};

/// What the kernel may know of the main tree that a commit has changed.
#[derive(Debug, Default)]
pub struct Committed {
    /// Names, each in its directory.
    pub names: Vec<(InodeId, Bytes)>,
    /// Files and directories.
    pub inodes: BTreeSet<InodeId>,
}

/// What a commit means for the main tree.
#[derive(Default)]
pub(super) struct Plan {
    pub(crate) told: Committed,
    /// Where inodes of the main tree are to be found.
    pub(crate) arrived: BTreeMap<InodeId, InodeLocation>,
    /// The inodes among them that have no name.
    pub(crate) nameless: BTreeSet<InodeId>,
    /// Inodes that left a place, which are gone if they arrive nowhere: directories, and what the kernel knows.
    pub(crate) left: Vec<Inode>,
    /// Directories that may have something pending afterwards: in the transaction, or when it began, as the main tree may
    /// have told that since.
    pub(crate) pending: Vec<InodeId>,
    /// Directories whose parent is another.
    pub(crate) moved: BTreeMap<InodeId, InodeId>,
    pub(crate) removed_objects: Vec<InodeId>,
    /// Files that the main tree may know and that are large.
    pub(crate) large: BTreeSet<InodeId>,
    /// Directories that were there when it began and get limits.
    pub(crate) limited: Vec<InodeId>,
    /// Large files that are small again, as a rollback has them.
    pub(crate) shrunk: Vec<InodeId>,
    pub(crate) orphans: BTreeSet<InodeId>,
    /// Sources of loans that the main tree has no more.
    pub(crate) returned: BTreeSet<Epoch>,
    /// Files of which the view has an object that is half made.
    pub(crate) begun: HashSet<InodeId>,
    /// Rows of directories that change in no other way than by what they count, and whose extended attributes do not change.
    pub(crate) counted: HashSet<RowKey>,
    /// What becomes of the attributes of directories of which both may have changed something besides what they count.
    attributes: HashMap<InodeId, Attributes>,
    /// The view's own mark rows.
    pub(crate) marks: BTreeMap<RowKey, Bytes>,
    /// Large files in changed rows that do not tell how large they are: where those of the view and of the main tree are.
    pub(crate) behind: [BTreeMap<InodeId, InodeLocation>; 2],
}

impl Plan {
    fn note_large(&mut self, inode: &Inode) {
        if inode.content.is_object() {
            self.large.insert(inode.ino);
        }
    }

    /// Notes the rows of an inode, in the view and in the main tree, that are behind its object.
    fn note_behind(&mut self, rows: [Option<&Inode>; 2], place: &InodeLocation) {
        for (inode, behind) in rows.into_iter().zip(&mut self.behind) {
            if let Some(inode) = inode.filter(|inode| inode.content.is_dirty() && inode.nlink > 0) {
                behind.insert(inode.ino, place.clone());
            }
        }
    }

    /// What becomes of a row of metadata that `merged` is both sides' changes of, by all else that the commit brings.
    pub(crate) fn settled(&self, key: &[u8], merged: Merged) -> Merged {
        match (RowKey::from_bytes(key).map(RowKey::meta_kind), merged) {
            (Some(MetaRow::Inode(dir)), Merged::Value(row)) => match self.attributes.get(&dir) {
                Some(attributes) => attributes.settle(&row),
                None => Merged::Value(row),
            },
            (Some(MetaRow::Limits(dir)), _) if self.left.iter().any(|gone| gone.ino == dir) => {
                Merged::Deleted
            }
            (_, merged) => merged,
        }
    }
}

impl VarveFs {
    /// What the commit of `branch` means, whose file system is `view`. REQUIRES: all row locks.
    pub(super) fn plan(
        &self,
        txn: &Transaction,
        branch: &Branch,
        view: &VarveFs,
    ) -> FsResult<Plan> {
        let (mut plan, mut failed) = (Plan::default(), None);
        let all = KeyRange::all();
        let base = branch.base().map_err(error::store)?;
        let walked = branch.changes_of(self.meta, &all, &mut |_, key, ours| {
            let Some(key) = RowKey::from_bytes(key) else { return true };
            failed = self.plan_row(&mut plan, (txn, branch, &base, view), key, ours).err();
            failed.is_none()
        });
        walked.map_err(error::store)?;
        if let Some(error) = failed {
            return Err(error);
        }
        let Plan { left, arrived, orphans, removed_objects, shrunk, behind, told, .. } = &mut plan;
        behind[1].retain(|ino, _| told.inodes.contains(ino));
        // What only programs in the transaction still had is gone with it.
        orphans.iter().for_each(|ino| drop(arrived.remove(ino)));
        left.retain(|inode| !arrived.contains_key(&inode.ino));
        shrunk.extend(removed_objects.extract_if(.., |ino| arrived.contains_key(ino)));
        Ok(plan)
    }

    fn plan_row(
        &self,
        plan: &mut Plan,
        (txn, branch, base, view): (&Transaction, &Branch, &SnapshotStore, &VarveFs),
        key: RowKey,
        ours: Option<Bytes>,
    ) -> FsResult<()> {
        let unreadable = |error| error::unreadable(META, key, error);
        let theirs = || self.store.get(self.meta, &key.to_bytes()).map_err(error::store);
        let comes_to = |plan: &Plan, theirs: &Option<Bytes>| {
            let rows = [theirs.clone(), ours.clone()];
            self.comes_to(txn, (branch, base), plan, key, rows)
        };
        match key.meta_kind() {
            MetaRow::Entry(dir, _) => {
                let is_old = txn.base_epoch().knows(dir);
                let theirs = if is_old { theirs()? } else { None };
                if theirs == ours {
                    return Ok(());
                }
                let after = if is_old { comes_to(plan, &theirs)? } else { ours.clone() };
                let names = |row: Option<Bytes>| -> FsResult<EntryRow> {
                    let row = row.as_ref().map(EntryRow::decode).transpose();
                    Ok(row.map_err(unreadable)?.unwrap_or_default())
                };
                let rows = [names(theirs)?, names(ours)?, names(after)?];
                self.plan_names(plan, txn, (dir, key), rows)?;
            }
            MetaRow::Inode(ino) => {
                let is_old = txn.base_epoch().knows(ino);
                let theirs = if is_old { theirs()? } else { None };
                let after = if is_old { comes_to(plan, &theirs)? } else { ours.clone() };
                let inode = |row: Option<Bytes>| {
                    row.as_ref().map(decode_inode_row).transpose().map_err(unreadable)
                };
                let rows = [inode(theirs)?, inode(ours)?, inode(after)?];
                self.plan_inode(plan, (txn, branch, view), ino, rows)?;
            }
            MetaRow::Pending(ino) => match ours.as_ref().map(Pending::decode).transpose() {
                Ok(Some(Pending::ObjectDelete)) => plan.removed_objects.push(ino),
                Ok(Some(Pending::Orphan)) => {
                    plan.orphans.insert(ino);
                }
                Ok(Some(Pending::ObjectMaking | Pending::OrphanObjectMaking)) => {
                    plan.begun.insert(ino);
                }
                _ => {}
            },
            MetaRow::Limits(dir) if ours.is_some() && txn.epoch.knows(dir) => {
                plan.limited.push(dir)
            }
            MetaRow::CloneReference(source, _) if ours.is_none() => {
                plan.returned.insert(Epoch::of(source));
            }
            MetaRow::Mark(_) => plan.marks.extend(ours.map(|value| (key, value))),
            _ => {}
        }
        Ok(())
    }

    fn plan_names(
        &self,
        plan: &mut Plan,
        txn: &Transaction,
        (dir, key): (InodeId, RowKey),
        [theirs, ours, after]: [EntryRow; 3],
    ) -> FsResult<()> {
        for named in ours.names() {
            if let Body::Inline(inode) = &named.body {
                plan.note_behind(
                    [Some(inode), None],
                    &InodeLocation::Entry { key, slot: named.slot },
                );
            }
        }
        if theirs == after {
            return Ok(());
        }
        let is_old = txn.base_epoch().knows(dir);
        if dir == InodeId::ROOT || (is_old && self.session.inodes.place(dir)?.is_some()) {
            let differs = |one: &EntryRow, other: &EntryRow| -> Vec<(InodeId, Bytes)> {
                let named = one.names().iter();
                let named = named.filter(|named| {
                    other.find(&named.name).is_none_or(|other| other.body.ino() != named.body.ino())
                });
                // A part of the row would keep all of it in memory.
                named.map(|named| (dir, Bytes::copy_from_slice(&named.name))).collect()
            };
            plan.told.names.extend(differs(&theirs, &after));
            plan.told.names.extend(differs(&after, &theirs));
        }
        // A name that stays what it is is no part of the commit.
        let only_in = |one: &EntryRow, other: &EntryRow| -> Vec<(u8, Inode)> {
            let named = one.names().iter().filter(|named| {
                let same = |other: &Named| other.slot == named.slot && other.body == named.body;
                !other.names().iter().any(same)
            });
            let inline = named.filter_map(|named| match &named.body {
                Body::Inline(inode) => Some((named.slot, inode.clone())),
                Body::Reference { .. } => None,
            });
            inline.collect()
        };
        for (slot, inode) in only_in(&theirs, &after) {
            plan.note_behind([None, Some(&inode)], &InodeLocation::Entry { key, slot });
            plan.told.inodes.insert(inode.ino);
            let stays =
                |named: &Named| matches!(&named.body, Body::Inline(own) if own.ino == inode.ino);
            if !after.names().iter().any(stays) {
                self.note_left(plan, &inode)?;
            }
        }
        for (slot, inode) in only_in(&after, &theirs) {
            if self.may_know(txn, inode.ino)? {
                plan.note_large(&inode);
                plan.told.inodes.insert(inode.ino);
                plan.arrived.insert(inode.ino, InodeLocation::Entry { key, slot });
            }
        }
        Ok(())
    }

    fn plan_inode(
        &self,
        plan: &mut Plan,
        (txn, branch, view): (&Transaction, &Branch, &VarveFs),
        ino: InodeId,
        [theirs, ours, after]: [Option<Inode>; 3],
    ) -> FsResult<()> {
        plan.note_behind([ours.as_ref(), theirs.as_ref()], &InodeLocation::Own);
        if let Some(ours) = &ours {
            self.plan_directory(plan, (txn, branch, view), (theirs.as_ref(), ours))?;
        }
        if theirs == after {
            return Ok(());
        }
        let may_know = self.may_know(txn, ino)?;
        if may_know {
            plan.told.inodes.insert(ino);
        }
        let Some(after) = after else {
            return theirs.iter().try_for_each(|inode| self.note_left(plan, inode));
        };
        if let Content::Directory(info) = &after.content {
            let before = theirs.map(|inode| inode.content);
            if !matches!(before, Some(Content::Directory(before)) if before.parent == info.parent) {
                plan.moved.insert(ino, info.parent);
            }
        }
        if may_know {
            plan.note_large(&after);
            if after.nlink == 0 {
                plan.nameless.insert(ino);
            }
            plan.arrived.insert(ino, InodeLocation::Own);
        }
        Ok(())
    }

    /// What a changed row says if it is one of a directory, whatever becomes of it.
    fn plan_directory(
        &self,
        plan: &mut Plan,
        (txn, branch, view): (&Transaction, &Branch, &VarveFs),
        (theirs, ours): (Option<&Inode>, &Inode),
    ) -> FsResult<()> {
        let (Content::Directory(info), ino) = (&ours.content, ours.ino) else { return Ok(()) };
        if !info.pending.is_zero() || (theirs.is_some() && view.accounts.is_marked(ino)) {
            plan.pending.push(ino);
        }
        let is_alike = theirs.is_some_and(|theirs| differ_by_counts(theirs, ours));
        if is_alike && !(ours.has_xattrs && self.changes_xattrs(branch, ino)?) {
            plan.counted.insert(RowKey::inode(ino));
        } else if txn.isolation == Isolation::Snapshot
            && let Some(theirs) = theirs
            && (theirs.has_xattrs || ours.has_xattrs)
        {
            // A serializable one has seen what others have changed.
            plan.attributes.insert(ino, self.merged_attributes(branch, ino)?);
        }
        Ok(())
    }

    fn note_left(&self, plan: &mut Plan, inode: &Inode) -> FsResult<()> {
        let is_dir = matches!(inode.content, Content::Directory(_));
        if is_dir || self.session.inodes.place(inode.ino)?.is_some() {
            plan.left.push(inode.clone());
        }
        Ok(())
    }

    /// Whether the transaction has changed extended attributes of a directory.
    fn changes_xattrs(&self, branch: &Branch, dir: InodeId) -> FsResult<bool> {
        let range = KeyRange::prefix(&RowKey::prefix_bytes(dir));
        Ok(branch.count_changes(self.data, &range, 1).map_err(error::store)? > 0)
    }

    /// Whether the kernel may know an inode that the transaction has changed.
    fn may_know(&self, txn: &Transaction, ino: InodeId) -> FsResult<bool> {
        Ok(txn.epoch.knows(ino)
            || (txn.base_epoch().knows(ino) && self.session.inodes.place(ino)?.is_some()))
    }
}
