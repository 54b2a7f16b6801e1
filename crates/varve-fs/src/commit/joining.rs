//! Step 3 of a commit, and how it is taken back.
//!
//! Nobody sees these rows before the branch commits, with all of them. So they come a portion at a time, as there may be any
//! number: those of large files, marks that come, and then marks and limits that go. What a crash leaves of them stays in the
//! transaction, and its next commit writes them anew; until then a directory is without a mark if another has got the number of it.

use std::collections::BTreeMap;

use bytes::Bytes;
use varve_engine::{Branch, Store, StoreResult};
use varve_schema::{Mark, Pending, RowKey};
use varve_types::InodeId;

use super::plan::Plan;
use super::portion::Portion;
use crate::fs::VarveFs;
use crate::transactions::Transaction;

/// The rows that join what a transaction has changed.
pub(super) struct Joining<'a> {
    fs: &'a VarveFs,
    branch: &'a Branch,
    txn: &'a Transaction,
    plan: &'a Plan,
    installs: &'a [InodeId],
    /// What was pending of large files to be installed, as far as their rows may have come.
    before: Vec<(InodeId, Option<Bytes>)>,
    /// Directories that have got marks.
    marked: BTreeMap<RowKey, InodeId>,
}

impl<'a> Joining<'a> {
    pub(super) fn new(
        fs: &'a VarveFs,
        branch: &'a Branch,
        txn: &'a Transaction,
        plan: &'a Plan,
        installs: &'a [InodeId],
    ) -> Joining<'a> {
        Joining { fs, branch, txn, plan, installs, before: Vec::new(), marked: BTreeMap::new() }
    }

    /// Writes them. Where that fails, or the commit does, [`Joining::take_back`] is due.
    pub(super) fn write(&mut self) -> StoreResult<()> {
        self.write_pending()?;
        self.write_marks()
    }

    fn write_pending(&mut self) -> StoreResult<()> {
        let (meta, mut portion) = (self.fs.meta, Portion::new());
        let install = Pending::ObjectInstall { view: self.txn.epoch.id() }.encode();
        for ino in self.installs {
            let key = RowKey::pending(*ino).to_bytes();
            let before = self.branch.get(meta, &key)?.filter(|before| *before != install);
            self.before.push((*ino, before));
            portion.put(meta, key, install.clone());
            portion.write_if_full(self.branch)?;
        }
        for ino in &self.plan.shrunk {
            // Its object is as one that was begun: the next mount removes it before anybody comes.
            portion.put(meta, RowKey::pending(*ino).to_bytes(), Pending::ObjectMaking.encode());
            portion.write_if_full(self.branch)?;
        }
        portion.write(self.branch)
    }

    fn write_marks(&mut self) -> StoreResult<()> {
        let (meta, accounts, mut portion) = (self.fs.meta, &self.fs.accounts, Portion::new());
        for dir in &self.plan.pending {
            if let Some(slot) = accounts.begin_mark(*dir) {
                let key = RowKey::mark(slot);
                self.marked.insert(key, *dir);
                portion.put(meta, key.to_bytes(), Mark(*dir).encode());
                portion.write_if_full(self.branch)?;
            }
        }
        let marks = self.plan.marks.keys().filter(|key| !self.marked.contains_key(key)).copied();
        // Limits that a directory has got meanwhile go with it.
        let gone = self.plan.left.iter().filter(|inode| accounts.is_top(inode.ino));
        for key in marks.chain(gone.map(|dir| RowKey::limits(dir.ino))) {
            portion.delete(meta, key.to_bytes());
            portion.write_if_full(self.branch)?;
        }
        portion.write(self.branch)
    }

    /// The transaction goes on as it was, though the disk be full.
    pub(super) fn take_back(self) -> StoreResult<()> {
        for dir in self.marked.values() {
            let _ = self.fs.accounts.end_mark(*dir);
        }
        let undone = self.take_back_marks();
        // Whatever becomes of the one, the other is tried.
        let taken_back = self.take_back_pending();
        undone.and(taken_back)
    }

    fn take_back_marks(&self) -> StoreResult<()> {
        let (meta, mut portion) = (self.fs.meta, Portion::reclaiming());
        for (key, value) in &self.plan.marks {
            portion.put(meta, key.to_bytes(), value.clone());
            portion.write_if_full(self.branch)?;
        }
        for key in self.marked.keys().filter(|key| !self.plan.marks.contains_key(key)) {
            portion.delete(meta, key.to_bytes());
            portion.write_if_full(self.branch)?;
        }
        portion.write(self.branch)
    }

    fn take_back_pending(self) -> StoreResult<()> {
        let (meta, mut portion) = (self.fs.meta, Portion::reclaiming());
        for (ino, before) in self.before {
            let key = RowKey::pending(ino).to_bytes();
            match before {
                Some(before) => portion.put(meta, key, before),
                None => portion.delete(meta, key),
            }
            portion.write_if_full(self.branch)?;
        }
        for ino in &self.plan.shrunk {
            portion.put(meta, RowKey::pending(*ino).to_bytes(), Pending::ObjectDelete.encode());
            portion.write_if_full(self.branch)?;
        }
        portion.write(self.branch)
    }
}

#[cfg(test)]
mod tests;
