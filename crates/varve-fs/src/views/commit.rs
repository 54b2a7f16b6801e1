//! Commit of a transaction into the main view.
//!
//! 1. Nothing else happens in either view: all row locks of both are held, in the order view, main view. Large files
//!    that are still open for writing in one of them refuse it, and so do limits that it would exceed ([`super::limits`])
//!    and dictionaries that are gone ([`super::pairs`]).
//! 2. What the commit means for the main view is found out from the rows that the transaction changed ([`Plan`]): names
//!    and inodes that the kernel may know, places of inodes, directories that move.
//! 3. Rows join those changes: a mark for each directory that may have something untold then, and for each large file that the view has
//!    something of its own of a pending row `ObjectInstall`; for each that is small again `ObjectMaking`.
//! 4. The branch commits, with [`super::merge`] for what both have changed. A conflict takes step 3 back; the
//!    transaction goes on.
//! 5. The store is synced, then the blocks that the view has changed are written to the objects, and files that it made
//!    take their places ([`crate::objects::Objects::install`]); whoever reads them waits. A crash before that leaves the
//!    pending rows, by which the next mount does it ([`VarveFs::install_pending`]). As everybody waits, what the view has
//!    written is synced before step 1, and each directory once.
//! 6. What is known in memory follows: places, and what the main view has open of files that are gone, which stay as
//!    orphans.
//!
//! The kernel is told by the caller, who must hold no locks then.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use varve_engine::{Batch, Branch, Clash, Direction, KeyRange, Merged, Store, StoreError};
use varve_schema::{Content, Inode, Loan, Mark, Pending, RowKey, encode_inode_row};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::merge::{merge, merge_rows, taken};
use super::paths::names_in;
use super::plan::{Committed, Plan};
use super::txn::{Purpose, Transaction};
use crate::error;
use crate::fs::VarveFs;
use crate::locator::Place;
use crate::rows::DEPTH_MAX;
use crate::superblock::view_dir;

/// Why a transaction is not committed. It goes on.
#[derive(Debug)]
pub enum CommitError {
    /// Others have changed what it changed: the paths, and the pairs of dictionaries.
    Conflict(Vec<String>),
    /// Large files are open for writing: the paths.
    InUse(Vec<String>),
    /// More would lie below directories than their limits allow: the directories, and by what.
    OverLimits(Vec<String>),
    /// It has lost its locks, for this reason, and can only be aborted.
    GaveWay(String),
    /// Anything else.
    Failed(FsError),
}

impl From<FsError> for CommitError {
    fn from(error: FsError) -> CommitError {
        match error {
            // Since the commit began.
            FsError::GaveWay => CommitError::GaveWay("others needed what it had locked".to_owned()),
            other => CommitError::Failed(other),
        }
    }
}

/// What happens at the end of a transaction besides, while nothing else can change anything.
#[derive(Default)]
pub(super) struct Ending<'a> {
    /// Whether it is to be committed, if that is asked.
    pub(super) check: Option<&'a mut dyn FnMut() -> bool>,
    /// Done when it is committed.
    pub(super) then: Option<&'a dyn Fn() -> FsResult<()>>,
    /// Inodes from this one on are unknown to the main view, if that is said.
    pub(super) new_from: Option<InodeId>,
}

/// Rows of a file that the main view still knows, though its last name is gone.
struct Survivor {
    inode: Inode,
    data: Vec<(Bytes, Bytes)>,
}

impl VarveFs {
    /// Makes all that was changed in the transaction `id`, whose file system is `view`, part of this one at once, durably,
    /// and ends it. Costs the number of changes.
    pub fn commit_transaction(&self, id: &str, view: &VarveFs) -> Result<Committed, CommitError> {
        self.transaction(id)?;
        self.commit_with(id, view, Ending::default())
    }

    pub(super) fn commit_with(
        &self,
        id: &str,
        view: &VarveFs,
        ending: Ending<'_>,
    ) -> Result<Committed, CommitError> {
        let views = self.views()?;
        let changing = views.changing.lock();
        let txn = self.any_transaction(id)?;
        let branch = views.db.open_branch(txn.branch).map_err(error::store)?;
        if let Some(why) = self.gave_way(&txn)? {
            return Err(CommitError::GaveWay(why));
        }
        // Most of what step 5 needs to be durable, before everybody waits.
        view.objects.sync_claimed().map_err(error::sync)?;
        let quiet = view.locks.lock_all();
        let guards = self.locks.lock_all();
        if let Some(serial) = &view.serial {
            serial.settle().map_err(error::store)?;
        }
        let known = txn.with_new_from(ending.new_from.unwrap_or(txn.epoch));
        let mut plan = self.plan(&known, &branch, view)?;
        // A state that was is to be again with its dictionaries and its limits.
        let is_state = txn.purpose != Purpose::User;
        let (_held, _stopped) = match txn.purpose {
            Purpose::User => (Some(self.check_dictionaries(&txn, &branch, &plan)?), None),
            Purpose::Rollback => (Some(self.dictionaries().stand_still()?), None),
            Purpose::Receive => (None, Some(self.dictionaries().stop()?)),
        };
        if ending.check.is_some_and(|check| !check()) {
            return Err(CommitError::Conflict(Vec::new()));
        }
        self.check_use(view, &plan)?;
        if is_state {
            self.check_returning(view, &plan)?;
        }
        self.check_loops(view, &known, &plan)?;
        if !is_state {
            self.check_limits(&txn, &branch, &plan)?;
        }
        let own = view.objects.own_inodes()?;
        view.objects.sync_claimed().map_err(error::sync)?;
        let gone: HashSet<&InodeId> = plan.removed_objects.iter().chain(&plan.orphans).collect();
        let installs: Vec<InodeId> = own.into_iter().filter(|ino| !gone.contains(ino)).collect();
        let survivors = self.survivors(&plan)?;
        self.objects.prepare(&installs, &view_dir(&self.dir, txn.epoch), txn.epoch)?;
        let nobody_reads = self.objects.installing.write();
        self.join(&branch, view, &txn, &plan, &installs)?;
        if let Some(kept) = self.objects.kept() {
            kept.retire(txn.epoch);
        }
        self.finish(&mut plan, &installs, survivors, txn.epoch)?;
        drop(nobody_reads);
        ending.then.map_or(Ok(()), |then| then())?;
        drop((guards, quiet));
        plan.removed_objects.iter().for_each(|ino| self.reaper.enqueue(*ino));
        for ino in &plan.orphans {
            self.reap_orphan(*ino)?;
        }
        self.store.sync().map_err(error::store)?;
        self.forget_transaction(txn.epoch);
        self.drop_sources_after_view(&changing);
        Ok(plan.told)
    }

    /// Makes what is outside of the rows as a commit that has joined wants it, durably, then what is known in memory. Where it
    /// fails the store takes no more changes: what is missing is done again when it is opened, and nothing may come between.
    fn finish(
        &self,
        plan: &mut Plan,
        installs: &[InodeId],
        survivors: Vec<Survivor>,
        epoch: InodeId,
    ) -> FsResult<()> {
        let views = self.views()?;
        let finish = || {
            self.store.sync().map_err(error::store)?;
            // Before any of them can grow again.
            self.objects.remove(&plan.shrunk)?;
            self.install(installs, epoch)?;
            self.follow_commit(plan, installs, survivors)
        };
        finish().map_err(|error| {
            let cause = format!(
                "a transaction is committed, but not all of its large files are in place: {error}; mount the store \
                 again, which finishes that"
            );
            error::store(views.db.refuse_writes(&cause))
        })
    }

    /// The rows of step 3, what takes them back, and the directories that have marks among them.
    fn joining(
        &self,
        txn: &Transaction,
        plan: &Plan,
        installs: &[InodeId],
    ) -> (Batch, Batch, Vec<InodeId>) {
        let (mut batch, mut undo, mut marked) = (Batch::new(), Batch::new(), Vec::new());
        for (key, value) in &plan.marks {
            batch.delete(self.meta, bytes_of(*key));
            undo.put(self.meta, bytes_of(*key), value.clone());
        }
        for dir in &plan.untold {
            if let Some(slot) = self.accounts.begin_mark(*dir) {
                let key = bytes_of(RowKey::mark(slot));
                batch.put(self.meta, key.clone(), Mark(*dir).encode());
                undo.delete(self.meta, key);
                marked.push(*dir);
            }
        }
        for ino in installs {
            let key = bytes_of(RowKey::pending(*ino));
            batch.put(self.meta, key.clone(), Pending::ObjectInstall { view: txn.epoch }.encode());
            undo.delete(self.meta, key);
        }
        for ino in &plan.shrunk {
            let key = bytes_of(RowKey::pending(*ino));
            // Its object is as one that was begun: the next mount removes it before anybody comes.
            batch.put(self.meta, key.clone(), Pending::ObjectMaking.encode());
            undo.put(self.meta, key, Pending::ObjectDelete.encode());
        }
        (batch, undo, marked)
    }

    /// Steps 3 and 4.
    fn join(
        &self,
        branch: &Branch,
        view: &VarveFs,
        txn: &Transaction,
        plan: &Plan,
        installs: &[InodeId],
    ) -> Result<(), CommitError> {
        let (batch, undo, marked) = self.joining(txn, plan, installs);
        let committed = match batch.is_empty() {
            true => Ok(()),
            false => branch.write(batch),
        };
        let mut names = BTreeSet::new();
        let mut decide = |clash: &Clash<'_>| {
            let merged = match (self.is_of_files(clash.keyspace), txn.purpose) {
                // Nothing but times of last access has changed beside it.
                (_, Purpose::Receive) => taken(clash.ours.clone()),
                (true, Purpose::User) => merge_rows(clash, self.meta, txn.epoch),
                (true, Purpose::Rollback) => merge(clash, self.meta),
                // The first to commit a pair wins, whatever both have made of it.
                (false, _) => Merged::Conflict,
            };
            if merged == Merged::Conflict {
                names.extend(names_in(clash, self.meta));
            }
            merged
        };
        let counted = |keyspace, key: &[u8]| {
            keyspace == self.meta
                && RowKey::from_bytes(key).is_some_and(|key| plan.counted.contains(&key))
        };
        let committed = committed.and_then(|()| branch.commit_beside(&mut decide, &counted));
        let Err(error) = committed else { return Ok(()) };
        for dir in marked {
            let _ = self.accounts.end_mark(dir);
        }
        if !undo.is_empty() {
            branch.write(undo).map_err(error::store)?;
        }
        Err(match error {
            StoreError::Conflict { keys } => {
                let (rows, pairs): (Vec<_>, Vec<_>) =
                    keys.into_iter().partition(|(keyspace, _)| self.is_of_files(*keyspace));
                let mut told = self.told_pairs(branch, &pairs)?;
                if !rows.is_empty() {
                    told.extend(self.paths_of(view, &names, &rows));
                }
                CommitError::Conflict(told)
            }
            other => error::store(other).into(),
        })
    }

    /// Refuses while files are open for writing that are large and whose bytes would be lost or change without notice, or that
    /// would be large, as no row tells then that they are written to; and while files are open straight that would be small:
    /// the kernel opens no file through us that it has open straight.
    fn check_use(&self, view: &VarveFs, plan: &Plan) -> Result<(), CommitError> {
        let writing = view.handles.written_objects();
        let mut used: Vec<String> =
            writing.iter().map(|node| view.path_of_inode(node.ino)).collect();
        for node in self.handles.written() {
            let is_large = node.has_object() || plan.large.contains(&node.ino);
            if is_large && plan.told.inodes.contains(&node.ino) {
                used.push(self.path_of_inode(node.ino));
            }
        }
        for ino in &plan.shrunk {
            if self.locator.node(*ino).is_some_and(|node| node.state().passthrough > 0) {
                used.push(self.path_of_inode(*ino));
            }
        }
        in_use(used)
    }

    /// Refuses while somebody is in a removed directory that would come back, as the kernel takes it for dead until all have
    /// left. Only an earlier state brings one back; that a transaction has changed one is a conflict.
    fn check_returning(&self, view: &VarveFs, plan: &Plan) -> Result<(), CommitError> {
        let mut used = Vec::new();
        for ino in plan.arrived.keys() {
            if let Some(Place::Detached(inode)) = self.locator.place(*ino)?
                && let Content::Directory(_) = inode.content
            {
                used.push(view.path_of_inode(*ino));
            }
        }
        in_use(used)
    }

    /// A conflict if a directory would end up below itself, as another was moved in the main view meanwhile.
    fn check_loops(
        &self,
        view: &VarveFs,
        txn: &Transaction,
        plan: &Plan,
    ) -> Result<(), CommitError> {
        // Any loop goes through a directory that was there before.
        for (dir, parent) in plan.moved.range(..txn.own_from()) {
            let mut at = *parent;
            for _ in 0..DEPTH_MAX {
                if at == InodeId::ROOT {
                    break;
                }
                if at == *dir {
                    return Err(CommitError::Conflict(vec![view.path_of_inode(*dir)]));
                }
                at = match plan.moved.get(&at) {
                    Some(parent) => *parent,
                    None => match self.inode_row(at)?.map(|inode| inode.content) {
                        Some(Content::Directory(info)) => info.parent,
                        // Removed in the main view, which the commit itself finds out.
                        _ => break,
                    },
                };
            }
        }
        Ok(())
    }

    /// The inodes that are gone but that the main view still knows, with the rows that they may need. REQUIRES: the commit
    /// is not written yet.
    fn survivors(&self, plan: &Plan) -> FsResult<Vec<Survivor>> {
        let mut survivors = Vec::new();
        for inode in &plan.left {
            if self.locator.place(inode.ino)?.is_none() {
                continue;
            }
            let inode = Inode { nlink: 0, home: None, ..inode.clone() };
            let mut data = Vec::new();
            if inode.has_xattrs || matches!(inode.content, Content::Chunks) {
                let range = KeyRange::prefix(&RowKey::prefix_bytes(inode.ino));
                let rows = self.store.scan(self.data, range, Direction::Forward);
                for row in rows.map_err(error::store)? {
                    data.push(row.map_err(error::store)?);
                }
            }
            survivors.push(Survivor { inode, data });
        }
        Ok(survivors)
    }

    /// Step 6.
    fn follow_commit(
        &self,
        plan: &mut Plan,
        installs: &[InodeId],
        survivors: Vec<Survivor>,
    ) -> FsResult<()> {
        self.moves.fetch_add(1, Ordering::AcqRel);
        let mut batch = Batch::new();
        batch.reclaims_space();
        for (ino, place) in &plan.arrived {
            self.locator.moved(*ino, place.clone())?;
            match plan.nameless.contains(ino) {
                true => drop(self.locator.mark_orphan(*ino, true)?),
                false => self.locator.unmark_orphan(*ino),
            }
        }
        for ino in installs {
            batch.delete(self.meta, bytes_of(RowKey::pending(*ino)));
            if let Some(node) = self.locator.node(*ino) {
                node.state().object = None;
            }
        }
        for inode in &plan.left {
            if matches!(inode.content, Content::Directory(_))
                && let Some(slot) = self.accounts.end_mark(inode.ino)
            {
                batch.delete(self.meta, bytes_of(RowKey::mark(slot)));
            }
        }
        let mut orphans = HashSet::new();
        for Survivor { inode, data } in survivors {
            let ino = inode.ino;
            let elsewhere = matches!(inode.content, Content::Object { .. } | Content::Borrowed(_));
            let has_rows = elsewhere || !data.is_empty() || plan.orphans.contains(&ino);
            if !self.locator.mark_orphan(ino, has_rows)? {
                self.locator.detach(Box::new(inode))?;
                continue;
            }
            batch.put(self.meta, bytes_of(RowKey::inode(ino)), encode_inode_row(&inode));
            batch.put(self.meta, bytes_of(RowKey::pending(ino)), Pending::Orphan.encode());
            data.into_iter().for_each(|(key, value)| batch.put(self.data, key, value));
            if let Some(source) = inode.source() {
                batch.put(self.meta, bytes_of(RowKey::loan(source, ino)), Loan::File.encode());
            }
            orphans.insert(ino);
            self.locator.moved(ino, Place::Own)?;
        }
        plan.removed_objects.retain(|removed| !orphans.contains(removed));
        for ino in &plan.shrunk {
            batch.delete(self.meta, bytes_of(RowKey::pending(*ino)));
            if let Some(node) = self.locator.node(*ino) {
                let mut state = node.state();
                (state.object, state.has_object) = (None, false);
            }
        }
        self.dictionaries().expire_names();
        if !batch.is_empty() {
            self.store.write(batch).map_err(error::store)?;
        }
        self.reload_quotas()
    }

    fn install(&self, inos: &[InodeId], epoch: InodeId) -> FsResult<()> {
        let own = view_dir(&self.dir, epoch);
        // What the kernel reads straight cannot wait until all is written.
        let straight =
            |ino| self.locator.node(ino).is_some_and(|node| node.state().passthrough > 0);
        self.objects.install(inos, &own, &straight)
    }

    /// Finishes the commit of a transaction that had written to the large file `ino`. If that cannot be, as what it had
    /// written is gone, the pending row stays, for the check.
    pub(crate) fn install_pending(&self, ino: InodeId, view: InodeId) -> FsResult<()> {
        let own = view_dir(&self.dir, view);
        if !self.objects.is_staged(ino, &own)?
            && let Some(size) = self.missing_in_object(ino)?
        {
            log::error!(
                "{} is not what a commit has made of it: its row says {size}, and what was to be put there is not below {} any \
                 more; run `varve fsck`, restore the file from a backup",
                self.objects.path(ino).display(),
                own.display()
            );
            return Ok(());
        }
        self.install(&[ino], view)?;
        let mut changes = self.changes();
        changes.batch.reclaims_space();
        changes.delete_pending(ino);
        self.commit(changes)
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

fn bytes_of(key: RowKey) -> Bytes {
    Bytes::copy_from_slice(&key.to_bytes())
}

/// Refuses if these paths are any.
fn in_use(mut paths: Vec<String>) -> Result<(), CommitError> {
    paths.sort();
    paths.dedup();
    match paths.is_empty() {
        true => Ok(()),
        false => Err(CommitError::InUse(paths)),
    }
}
