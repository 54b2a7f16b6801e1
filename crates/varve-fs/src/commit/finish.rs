//! What follows when a commit has joined: steps 5 and 6.
//!
//! From here on it is committed, whatever fails. What has to be done then is done again by the next mount, and until that
//! nothing may change, or it would come between.
//!
//! ```text
//! joined --finish--------> durable, objects in place, step 6 --locks let go of--> clear_away --> over
//! joined --follow_rows---> step 6 --locks let go of, finish_rows--> durable ----> clear_away --> over
//! ```
//!
//! The second is the way of a commit of rows alone. Behind its locks others see it as they see any change that is not durable
//! yet: what they make of it is later in the log, so no crash leaves that without it. Before it is durable a crash may bring the open
//! transaction back, so until then its view counts as one that sees large files, and files of its own stay; both are let go of with
//! [`crate::views::Views::lock_changes`] held, as whenever views end.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;

use varve_engine::{Direction, KeptLocks, KeyRange, StoreSnapshot};
use varve_namespace::Changes;
use varve_schema::{
    CloneReference, Content, Inode, InodeLocation, Pending, RowKey, encode_inode_row,
};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::plan::Plan;
use super::portion::Portion;
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::objects::Staged;
use crate::rows::rows_from;
use crate::superblock::view_dir;
use crate::transactions::Transaction;

/// Files that are gone but that the main tree still knows, without names, and the state before the commit, which has
/// their rows.
pub(super) type Survivors<'a> = (Vec<Inode>, &'a dyn StoreSnapshot);

impl VarveFs {
    /// Makes what is outside of the rows as a commit that has joined wants it, durably, then what is known in memory. Where it
    /// fails the store takes no more changes: what is missing is done again when it is opened, and nothing may come between.
    pub(super) fn finish(
        &self,
        plan: &mut Plan,
        (installs, copied): (&[InodeId], &BTreeSet<InodeId>),
        survivors: Survivors<'_>,
        txn: &Transaction,
        locked: &KeptLocks,
    ) -> FsResult<()> {
        self.make_durable()?;
        let finish = || {
            // Before any of them can grow again.
            self.objects.remove(&plan.shrunk)?;
            self.objects.install(installs, &view_dir(&self.dir, txn.epoch), copied)?;
            self.follow_commit(plan, installs, survivors, locked)
        };
        finish().or_else(|error| {
            self.unfinished(&format!(
                "not all of its large files are in place: {error}; mount the store again, which finishes that"
            ))
        })
    }

    /// Makes durable that large files are in place, or the next mount would look for what it is to put there when they have changed.
    pub(super) fn note_in_place(&self) {
        if let Err(error) = self.store.sync() {
            log::warn!("what follows a commit is not durable yet: {error}");
        }
    }

    /// Step 6 of a commit of rows alone, before it is durable. Where it fails the store takes no more changes.
    pub(super) fn follow_rows(
        &self,
        plan: &mut Plan,
        survivors: Survivors<'_>,
        locked: &KeptLocks,
    ) -> FsResult<()> {
        self.follow_commit(plan, &[], survivors, locked).or_else(|error| {
            self.make_durable()?;
            self.unfinished(&format!(
                "what follows is not all done: {error}; mount the store again, which finishes that"
            ))
        })
    }

    /// What comes after the locks of a commit of rows alone. All who are here at the same time share a sync. What a crash before
    /// it needs is there until it is done: the preimages of the view and its own files stay.
    pub(super) fn finish_rows(&self, plan: &Plan, epoch: Epoch) -> FsResult<()> {
        self.make_durable()?;
        // One at a time, as preimages go from one view to the next.
        let views = self.views()?;
        let changing = views.lock_changes();
        if views.is_closed() {
            // Another process may have the store by now, which has cleared away.
            return Ok(());
        }
        if let Some(preimages) = self.objects.preimages() {
            preimages.retire(epoch);
        }
        self.clear_away(plan, epoch);
        self.drop_sources_after_view(&changing);
        Ok(())
    }

    fn make_durable(&self) -> FsResult<()> {
        self.store.sync().map_err(error::store).or_else(|error| {
            self.unfinished(&format!(
                "whether that is durable is not known: {error}; see whether it is there when the store is mounted again"
            ))
        })
    }

    /// Makes the store refuse changes, as a transaction is committed but `what` has failed.
    fn unfinished(&self, what: &str) -> FsResult<()> {
        let cause = format!("a transaction is committed, but {what}");
        // Of several failures the store tells the first.
        let _ = self.views()?.db().refuse_writes(&cause);
        Err(FsError::Storage(cause))
    }

    /// Does what may as well come later.
    pub(super) fn clear_away(&self, plan: &Plan, epoch: Epoch) {
        plan.removed_objects.iter().for_each(|ino| self.reaper.enqueue(*ino));
        for ino in &plan.orphans {
            if let Err(error) = self.reap_orphan(*ino) {
                log::warn!("inode {ino}, which has no name, stays until the next mount: {error}");
            }
        }
        if let Some(sources) = &self.sources {
            plan.returned.iter().for_each(|source| sources.note_returned(*source));
        }
        self.forget_transaction(epoch);
    }

    /// The inodes that are gone but that the main tree still knows. REQUIRES: the commit is not written yet.
    pub(super) fn survivors(&self, plan: &Plan) -> FsResult<Vec<Inode>> {
        let mut survivors = Vec::new();
        for inode in &plan.left {
            if self.session.inodes.place(inode.ino)?.is_some() {
                survivors.push(Inode { nlink: 0, home: None, ..inode.clone() });
            }
        }
        Ok(survivors)
    }

    /// Step 6.
    fn follow_commit(
        &self,
        plan: &mut Plan,
        installs: &[InodeId],
        survivors: Survivors<'_>,
        locked: &KeptLocks,
    ) -> FsResult<()> {
        self.moves.fetch_add(1, Ordering::AcqRel);
        self.ends_move.store(true, Ordering::Release);
        let mut kept = Portion::reclaiming();
        for (ino, place) in &plan.arrived {
            self.session.inodes.moved(*ino, place.clone())?;
            match plan.nameless.contains(ino) {
                true => drop(self.session.inodes.mark_orphan(*ino, true)?),
                false => self.session.inodes.unmark_orphan(*ino),
            }
        }
        for ino in installs {
            kept.delete(self.meta, RowKey::pending(*ino).to_bytes());
            if let Some(node) = self.session.inodes.node(*ino) {
                let mut state = node.state();
                state.object = None;
                state.replaced |= state.passthrough > 0;
            }
            write_if_full(&mut kept, locked)?;
        }
        for inode in &plan.left {
            if matches!(inode.content, Content::Directory(_))
                && let Some(slot) = self.accounts.end_mark(inode.ino)
            {
                kept.delete(self.meta, RowKey::mark(slot).to_bytes());
                write_if_full(&mut kept, locked)?;
            }
        }
        let orphans = self.keep_survivors(plan, survivors, &mut kept, locked)?;
        plan.removed_objects.retain(|removed| !orphans.contains(removed));
        for ino in &plan.shrunk {
            kept.delete(self.meta, RowKey::pending(*ino).to_bytes());
            if let Some(node) = self.session.inodes.node(*ino) {
                let mut state = node.state();
                (state.object, state.has_object) = (None, false);
            }
            write_if_full(&mut kept, locked)?;
        }
        self.dictionaries().expire_names();
        locked.write(&kept.take()).map_err(error::store)?;
        self.reload_quotas()
    }

    /// Keeps what is known of files that are gone, as orphans if they have more than an inode; gives these. What that takes
    /// may be more than fits into memory, and is written as it comes: of each file what makes it an orphan before the rest
    /// of its rows, so that the next mount removes what a crash leaves.
    fn keep_survivors(
        &self,
        plan: &Plan,
        (survivors, before): Survivors<'_>,
        kept: &mut Portion,
        locked: &KeptLocks,
    ) -> FsResult<HashSet<InodeId>> {
        let mut orphans = HashSet::new();
        for inode in survivors {
            let ino = inode.ino;
            let range = KeyRange::prefix(&RowKey::prefix_bytes(ino));
            let mut rows = None;
            // A directory keeps no rows: programs that are in it find nothing there.
            let is_dir = matches!(inode.content, Content::Directory(_));
            if !is_dir && (inode.has_xattrs || matches!(inode.content, Content::Chunks)) {
                let scan = before.scan(self.data, range.clone(), Direction::Forward);
                rows = Some(scan.map_err(error::store)?.peekable());
            }
            let has_data = rows.as_mut().is_some_and(|rows| rows.peek().is_some());
            let elsewhere = matches!(inode.content, Content::Object { .. } | Content::Shared(_));
            let was_orphan = plan.orphans.contains(&ino);
            if !self.session.inodes.mark_orphan(ino, elsewhere || has_data || was_orphan)? {
                self.session.inodes.detach(Box::new(inode))?;
                continue;
            }
            kept.put(self.meta, RowKey::inode(ino).to_bytes(), encode_inode_row(&inode));
            kept.put(self.meta, RowKey::pending(ino).to_bytes(), Pending::Orphan.encode());
            if let Some(source) = inode.source() {
                kept.put(
                    self.meta,
                    RowKey::clone_reference(source, ino).to_bytes(),
                    CloneReference::File.encode(),
                );
            }
            if was_orphan {
                // Brought by the commit, which has made something else of it before it took its last name.
                for key in self.store.keys(self.data, range).map_err(error::store)? {
                    kept.delete(self.data, key.map_err(error::store)?);
                }
            }
            if inode.has_xattrs {
                // With the inode, which says that there are some: a request for them meanwhile waits for nobody.
                let found =
                    before.scan(self.data, rows_from(RowKey::xattr(ino, 0)), Direction::Forward);
                for row in found.map_err(error::store)? {
                    let (key, value) = row.map_err(error::store)?;
                    kept.put(self.data, key, value);
                }
            }
            for row in rows.into_iter().flatten() {
                let (key, value) = row.map_err(error::store)?;
                kept.put(self.data, key, value);
                write_if_full(kept, locked)?;
            }
            write_if_full(kept, locked)?;
            orphans.insert(ino);
            self.session.inodes.moved(ino, InodeLocation::Own)?;
        }
        Ok(orphans)
    }

    /// Finishes the commit of a transaction that had written to the large file `ino`. If that cannot be, as what it had
    /// written is gone or damaged, the pending row stays, for the check.
    pub(crate) fn install_pending(&self, ino: InodeId, view: Epoch) -> FsResult<()> {
        let own = view_dir(&self.dir, view);
        let path = self.objects.path(ino);
        match self.objects.staged(ino, &own)? {
            Staged::Ready(_) => self.objects.install(&[ino], &own, &BTreeSet::new())?,
            Staged::Damaged(detail) => {
                log::error!(
                    "{} is not what a commit has made of it: {detail}; run `varve fsck`, restore the file from a backup",
                    path.display()
                );
                return Ok(());
            }
            Staged::Nothing => {
                if let Some(size) = self.missing_in_object(ino)? {
                    log::error!(
                        "{} is not what a commit has made of it: its row says {size}, and what was to be put there is not \
                         below {} any more; run `varve fsck`, restore the file from a backup",
                        path.display(),
                        own.display()
                    );
                    return Ok(());
                }
            }
        }
        let mut changes = Changes::new();
        changes.reclaims_space = true;
        changes.delete_pending(ino);
        self.commit(&mut changes)
    }

    /// What the row of a large file claims that its object does not have. Of one whose row is in the entry of its name only
    /// the object is looked for; the rest is seen when it is opened.
    fn missing_in_object(&self, ino: InodeId) -> FsResult<Option<String>> {
        let claimed = match self.inode_row(ino)? {
            Some(Inode { size, content: Content::Object { dirty: false, .. }, .. }) => size,
            Some(Inode { content: Content::Object { .. }, .. }) | None => 0,
            Some(_) => return Ok(None),
        };
        Ok(match self.objects.find(ino)? {
            Some(object) if object.len >= claimed => None,
            Some(object) => Some(format!("{claimed} bytes, it has {}", object.len)),
            None => Some("that it is there".to_owned()),
        })
    }
}

/// Writes what is kept once that is much.
fn write_if_full(kept: &mut Portion, locked: &KeptLocks) -> FsResult<()> {
    let full = kept.take_if_full();
    full.map_or(Ok(()), |batch| locked.write(&batch).map_err(error::store))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use varve_engine::{BranchOptions, LockOptions, Store, StoreError};
    use varve_env::Env;
    use varve_env::sim::SimEnv;
    use varve_types::FileName;
    use varve_vfs::{Caller, OpenFlags, Vfs};

    use super::*;
    use crate::{FormatOptions, MountOptions, TransactionOptions};

    /// A serializable transaction that has locked more than rows of its own was in the way of what follows a commit, so the
    /// store took no more changes, and what was not kept yet of files that programs knew was lost.
    #[test]
    fn a_lock_in_the_way_of_what_follows_a_commit_gives_way() {
        let (env, dir) = (SimEnv::new(1), Path::new("/store"));
        let machine: Arc<dyn Env> = Arc::<SimEnv>::clone(&env);
        crate::format(&machine, dir, &FormatOptions::default()).unwrap();
        let fs = VarveFs::open(machine, dir, MountOptions::default()).unwrap();
        let (root, file) = (InodeId::ROOT, FileName::new(b"file").unwrap());
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let (entry, opened) = fs.create(Caller::ROOT, root, file, 0o600, flags).unwrap();
        let ino = entry.attr.ino;
        fs.write(ino, opened.handle, 0, &[7; 40_000], false).unwrap();
        let txn = fs.begin_transaction(root, &TransactionOptions::default()).unwrap();
        let view = fs.open_view(&txn).unwrap();
        view.unlink(root, file).unwrap();
        let locks = Some(LockOptions::default());
        let options = BranchOptions { locks, ..BranchOptions::default() };
        let branch = fs.views().unwrap().db().branch(&options).unwrap();
        let pending = KeyRange::prefix(&RowKey::pending_prefix());
        assert_eq!(branch.scan(fs.meta, pending, Direction::Forward).unwrap().count(), 0);
        fs.commit_transaction(&txn.name, &view).unwrap();
        assert!(matches!(branch.get(fs.meta, b"any"), Err(StoreError::GaveWay { .. })));
        drop(view);
        assert!(fs.read(ino, opened.handle, 0, 50_000).unwrap() == [7; 40_000][..]);
        fs.mkdir(Caller::ROOT, root, FileName::new(b"later").unwrap(), 0o700).unwrap();
        fs.release(ino, opened.handle).unwrap();
        fs.close().unwrap();
    }
}
