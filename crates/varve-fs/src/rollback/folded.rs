//! Directories of clones ([`crate::clones`]) that had yet to copy names at the time of the snapshot and have copied some
//! since.
//!
//! With the rows of then they are folded again, and their names would get the same inodes when somebody looks. That does
//! not go for what is known by now: inodes that have a row or are open, and directories whose names the kernel
//! remembers, those too that it remembers not to be there. So whatever is known, or has something known below, is unfolded
//! in the transaction that takes the store back, which gives its names the inodes that they have. The rest is folded
//! again: a clone that came and went as a whole costs nothing.

use std::collections::{BTreeMap, BTreeSet};

use varve_engine::{SnapshotStore, Store};
use varve_schema::key::MetaRow;
use varve_schema::{CloneReference, EntryRow, InodeLocation, META, RowKey};
use varve_types::InodeId;
use varve_vfs::FsResult;

use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;

/// Folded directories, and the inode ids that are set aside for what lies below each.
#[derive(Default)]
pub(super) struct FoldedThen {
    dirs: BTreeSet<InodeId>,
    /// Where each such range begins and ends; they do not overlap.
    ranges: BTreeMap<InodeId, InodeId>,
}

impl FoldedThen {
    /// Adds `dir`, of which `reference` is the reference at the time of the snapshot.
    pub(super) fn add(&mut self, dir: InodeId, loan: CloneReference) {
        if let CloneReference::Directory(folded) = loan {
            self.dirs.insert(dir);
            if folded.next < folded.end {
                self.ranges.insert(folded.next, folded.end);
            }
        }
    }

    /// Whether `ino` is one of them, or of an inode below.
    pub(super) fn concerns(&self, ino: InodeId) -> bool {
        let below = self.ranges.range(..=ino).next_back().is_some_and(|(_, end)| ino < *end);
        below || self.dirs.contains(&ino)
    }
}

impl VarveFs {
    /// Unfolds in `view`, which is as `before` by now, the directories of `folded` that the kernel knows.
    pub(super) fn unfold_known(
        &self,
        view: &VarveFs,
        (before, now): (&SnapshotStore, &SnapshotStore),
        folded: FoldedThen,
    ) -> FsResult<()> {
        if folded.dirs.is_empty() {
            return Ok(());
        }
        let known = self.known_of(&folded, before, now)?;
        let mut left: Vec<InodeId> = folded.dirs.into_iter().collect();
        while let Some(dir) = left.pop() {
            let Some(source) = view.inode_row(dir)?.and_then(|row| row.source()) else { continue };
            let Some(CloneReference::Directory(below)) =
                view.clone_reference(Epoch::of(source), dir)?
            else {
                continue;
            };
            let key = RowKey::clone_reference(source, dir);
            let loan = now.get(self.meta, &key.to_bytes()).map_err(error::store)?;
            let loan = loan.map(|loan| CloneReference::decode(&loan)).transpose();
            let is_same = loan.map_err(|error| error::unreadable(META, key, error))?
                == Some(CloneReference::Directory(below));
            let is_known =
                known.contains(&dir) || known.range(below.next..below.end).next().is_some();
            if is_known && !is_same {
                view.unfold(dir)?;
                left.extend(view.folded_in(dir)?);
            }
        }
        Ok(())
    }

    /// The inodes that `folded` concerns and that have a row or are known in memory.
    fn known_of(
        &self,
        folded: &FoldedThen,
        before: &SnapshotStore,
        now: &SnapshotStore,
    ) -> FsResult<BTreeSet<InodeId>> {
        let (mut known, mut failed) = (BTreeSet::new(), None);
        let walked = now.changes_since(before, &[self.meta], &mut |_, key, row| {
            let (Some(key), Some(row)) = (RowKey::from_bytes(key), row) else { return true };
            match key.meta_kind() {
                MetaRow::Inode(ino) => known.extend(folded.concerns(ino).then_some(ino)),
                MetaRow::Entry(..) => match EntryRow::decode(&row) {
                    Ok(row) => {
                        let inodes = row.names().iter().map(|named| named.body.ino());
                        known.extend(inodes.filter(|ino| folded.concerns(*ino)));
                    }
                    Err(error) => failed = Some(error::unreadable(META, key, error)),
                },
                _ => {}
            }
            failed.is_none()
        });
        walked.map_err(error::store)?;
        self.session.inodes.for_each(&mut |ino, entry| {
            let is_nameless = entry.orphan || matches!(entry.place, InodeLocation::Detached(_));
            known.extend((is_nameless && folded.concerns(ino)).then_some(ino));
        });
        failed.map_or(Ok(known), Err)
    }
}
