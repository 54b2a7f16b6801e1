//! Step 3 of a commit, and how it is taken back.
//!
//! Nobody sees these rows before the branch commits, with all of them. So those of large files, of which there may be any number,
//! come a portion at a time, and marks and limits behind them at once. What a crash leaves of them stays in the transaction, and its
//! next commit writes them anew.

use bytes::Bytes;
use varve_engine::{Batch, Branch, Store, StoreResult};
use varve_schema::{Mark, Pending, RowKey};
use varve_types::InodeId;

use super::portion::Portion;
use crate::fs::VarveFs;
use crate::views::plan::Plan;
use crate::views::txn::Transaction;

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
    marked: Vec<InodeId>,
    /// Takes back what came at once.
    undo: Batch,
}

impl<'a> Joining<'a> {
    pub(super) fn new(
        fs: &'a VarveFs,
        branch: &'a Branch,
        txn: &'a Transaction,
        plan: &'a Plan,
        installs: &'a [InodeId],
    ) -> Joining<'a> {
        let (before, marked, undo) = (Vec::new(), Vec::new(), Batch::new());
        Joining { fs, branch, txn, plan, installs, before, marked, undo }
    }

    /// Writes them. Where that fails, or the commit does, [`Joining::take_back`] is due.
    pub(super) fn write(&mut self) -> StoreResult<()> {
        self.write_pending()?;
        self.write_marks()
    }

    fn write_pending(&mut self) -> StoreResult<()> {
        let (meta, mut portion) = (self.fs.meta, Portion::new());
        let install = Pending::ObjectInstall { view: self.txn.epoch }.encode();
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
        let (meta, accounts, mut batch) = (self.fs.meta, &self.fs.accounts, Batch::new());
        for (key, value) in &self.plan.marks {
            batch.delete(meta, key.to_bytes());
            self.undo.put(meta, key.to_bytes(), value.clone());
        }
        // Limits that a directory has got meanwhile go with it.
        let gone = self.plan.left.iter().filter(|inode| accounts.is_top(inode.ino));
        gone.for_each(|dir| batch.delete(meta, RowKey::limits(dir.ino).to_bytes()));
        for dir in &self.plan.untold {
            if let Some(slot) = accounts.begin_mark(*dir) {
                let key = RowKey::mark(slot).to_bytes();
                batch.put(meta, key, Mark(*dir).encode());
                self.undo.delete(meta, key);
                self.marked.push(*dir);
            }
        }
        if batch.is_empty() { Ok(()) } else { self.branch.write(batch) }
    }

    /// The transaction goes on as it was, though the disk be full.
    pub(super) fn take_back(mut self) -> StoreResult<()> {
        for dir in &self.marked {
            let _ = self.fs.accounts.end_mark(*dir);
        }
        self.undo.reclaims_space();
        let undo = std::mem::take(&mut self.undo);
        let undone = if undo.is_empty() { Ok(()) } else { self.branch.write(undo) };
        // Whatever becomes of the one, the other is tried.
        let taken_back = self.take_back_pending();
        undone.and(taken_back)
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
