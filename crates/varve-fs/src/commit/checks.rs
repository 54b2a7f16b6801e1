//! What refuses a commit besides rows in conflict.

use std::collections::HashSet;

use varve_engine::Branch;
use varve_schema::{Body, Content, Inode, InodeLocation, META, RowKey, decode_inode_row};
use varve_types::InodeId;

use super::CommitError;
use super::plan::Plan;
use crate::error;
use crate::fs::VarveFs;
use crate::objects::Own;
use crate::transactions::{Purpose, Transaction};

impl VarveFs {
    /// What step 1 refuses, besides what files that are in use and dictionaries are in the way of.
    pub(super) fn check_commit(
        &self,
        branch: &Branch,
        view: &VarveFs,
        (txn, known): (&Transaction, &Transaction),
        plan: &Plan,
    ) -> Result<(), CommitError> {
        // A state that was is to be again with its limits.
        let is_state = txn.purpose != Purpose::User;
        match is_state {
            true => self.check_returning(view, plan)?,
            false => self.check_limited(view, plan)?,
        }
        self.check_loops(branch, view, (txn, known), plan)?;
        if is_state { Ok(()) } else { self.check_limits(txn, (branch, view), plan) }
    }

    /// Refuses while files are open for writing, or mapped, that are large and whose bytes would be lost or change without
    /// notice, or open for writing that would be large, as no row tells then that they are written to; and while files are
    /// open straight that would be small: the kernel opens no file through us that it has open straight.
    pub(super) fn check_use(&self, view: &VarveFs, plan: &Plan) -> Result<(), CommitError> {
        let writing = view.session.handles.written_objects();
        let mut used: Vec<String> =
            writing.iter().map(|node| view.path_of_inode(node.ino)).collect();
        for node in self.session.handles.written() {
            let is_large = node.has_object() || plan.large.contains(&node.ino);
            if is_large && plan.told.inodes.contains(&node.ino) {
                used.push(self.path_of_inode(node.ino));
            }
        }
        for ino in self.mapped_files(|ino| plan.told.inodes.contains(&ino))? {
            used.push(self.path_of_inode(ino));
        }
        for ino in &plan.shrunk {
            if self.session.inodes.node(*ino).is_some_and(|node| node.state().passthrough > 0) {
                used.push(self.path_of_inode(*ino));
            }
        }
        refuse_over(used, CommitError::InUse)
    }

    /// Refuses while somebody is in a removed directory that would come back, as the kernel takes it for dead until all have
    /// left. Only an earlier state brings one back; that a transaction has changed one is a conflict.
    fn check_returning(&self, view: &VarveFs, plan: &Plan) -> Result<(), CommitError> {
        let mut used = Vec::new();
        for ino in plan.arrived.keys() {
            if let Some(InodeLocation::Detached(inode)) = self.session.inodes.place(*ino)?
                && let Content::Directory(_) = inode.content
            {
                used.push(view.path_of_inode(*ino));
            }
        }
        refuse_over(used, CommitError::InUse)
    }

    /// A conflict if a directory that gets limits was removed in the main tree, which none of its rows tells.
    fn check_limited(&self, view: &VarveFs, plan: &Plan) -> Result<(), CommitError> {
        let mut gone = Vec::new();
        for dir in plan.limited.iter().filter(|dir| !plan.moved.contains_key(dir)) {
            if self.inode_row(*dir)?.is_none() {
                gone.push(view.path_of_inode(*dir));
            }
        }
        refuse_over(gone, CommitError::Conflict)
    }

    /// A conflict if large files that the transaction has changed are gone in the main tree, with their objects.
    pub(super) fn check_gone(
        &self,
        view: &VarveFs,
        plan: &Plan,
        installs: &[InodeId],
    ) -> Result<(), CommitError> {
        let mut gone = Vec::new();
        for ino in installs {
            let is_large = |inode: &Inode| inode.content.is_object();
            let known = self.session.inodes.place(*ino)?;
            let claimed = match known.as_ref().or_else(|| plan.arrived.get(ino)) {
                Some(InodeLocation::Entry { key, .. }) => self.entry_row(*key)?.names().iter().any(|named| {
                    matches!(&named.body, Body::Inline(inode) if inode.ino == *ino && is_large(inode))
                }),
                _ => self.inode_row(*ino)?.as_ref().is_some_and(is_large),
            };
            let own = view.objects.own(*ino);
            let own = own.map_err(|error| view.object_error("open", *ino, error))?;
            if !claimed && matches!(own, Some(Own::Blocks(_))) && self.objects.find(*ino)?.is_none()
            {
                gone.push(view.path_of_inode(*ino));
            }
        }
        refuse_over(gone, CommitError::Conflict)
    }

    /// A conflict if a directory would end up below itself, as another was moved in the main tree meanwhile: the ancestors of
    /// where directories are moved are walked over as the commit would leave them, each once.
    fn check_loops(
        &self,
        branch: &Branch,
        view: &VarveFs,
        (txn, known): (&Transaction, &Transaction),
        plan: &Plan,
    ) -> Result<(), CommitError> {
        // Any loop goes through a directory that was there before.
        let base = known.base_epoch();
        let moved = plan.moved.iter().take_while(|(dir, _)| base.knows(**dir));
        let base = branch.base().map_err(error::store)?;
        let mut rooted = HashSet::from([InodeId::ROOT]);
        for (dir, _) in moved {
            let (mut way, mut at) = (HashSet::new(), *dir);
            while rooted.insert(at) {
                way.insert(at);
                let row = self.row_after(txn, (branch, &base), plan, RowKey::inode(at))?;
                let inode = row.as_ref().map(decode_inode_row).transpose();
                let inode =
                    inode.map_err(|error| error::unreadable(META, RowKey::inode(at), error))?;
                match inode.map(|inode| inode.content) {
                    Some(Content::Directory(info)) => at = info.parent,
                    // Removed in the main tree, which the commit itself finds out.
                    _ => break,
                }
                if way.contains(&at) {
                    return Err(CommitError::Conflict(vec![view.path_of_inode(*dir)]));
                }
            }
        }
        Ok(())
    }
}

/// Refuses for this reason if these paths are any.
fn refuse_over(
    mut paths: Vec<String>,
    why: fn(Vec<String>) -> CommitError,
) -> Result<(), CommitError> {
    paths.sort();
    paths.dedup();
    match paths.is_empty() {
        true => Ok(()),
        false => Err(why(paths)),
    }
}
