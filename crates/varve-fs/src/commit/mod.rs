//! Commit of a transaction into the main tree, and the merge of what both have changed.
//!
//! In: an open transaction and its file system. Out: the main tree with its changes, and what the kernel has to forget ([`Committed`]); or
//! why not ([`CommitError`]), and then nothing has changed. Never: waits for a lock of a row while it holds all others, or speaks to the
//! kernel itself.
//!
//! 1. Nothing else happens in either view: all row locks of both are held, in the order view, main tree. Large files
//!    that are still open for writing in one of them refuse it, and so do limits that it would exceed ([`limits`])
//!    and dictionaries that are gone ([`crate::transactions`]).
//!    Where programs may have changed small files in mapped memory that the commit changes, that is written first, as a change of the
//!    main tree like any other, and the commit begins again ([`maps`]).
//! 2. What the commit means for the main tree is found out from the rows that the transaction changed ([`Plan`]): names
//!    and inodes that the kernel may know, places of inodes, directories that move.
//!    Where rows of large files are behind their objects, as nothing could bring them up to date when the files were closed,
//!    that is done, and the commit begins again: others would seem not to have changed what they have written to.
//! 3. Rows join those changes: a mark for each directory that may have something pending then, and for each large file that the view has
//!    something of its own of a pending row `ObjectInstall`; for each that is small again `ObjectMaking` ([`joining`]).
//! 4. The branch commits, with [`merge`] for what both have changed. A conflict takes step 3 back; the
//!    transaction goes on.
//! 5. The store is synced, then the blocks that the view has changed are written to the objects, and files that it made
//!    take their places ([`crate::objects::Objects::install`]); whoever reads them waits. Serializable transactions wait for the
//!    locks of their rows, and so find rows and objects as they belong together: what the transaction has locked, or what
//!    it changed if it takes no locks, stays locked until step 6 is done. A crash before that leaves the
//!    pending rows, by which the next mount does it ([`VarveFs::install_pending`]). As everybody waits, what the view has
//!    written is synced before step 1, and each directory once.
//! 6. What is known in memory follows: places, and what the main tree has open of files that are gone, which stay as
//!    orphans.
//!
//! Where no objects are to be written or removed for step 5, which holds for all but large files, step 6 comes first and all locks are
//! released before the store is synced: commits that are under way at the same time wait for one sync together.
//!
//! Two commits that are each right may break together what the check looks for ([`crate::fsck`]). What keeps them from it:
//!
//! ```text
//! invariant                                what keeps it
//! ---------------------------------------  ------------------------------------------------------------------------------
//! no directory is above itself             rows of directories merge, so the ancestors of where directories are moved are
//!                                          walked over as the commit would leave them ([`checks`]); a serializable
//!                                          transaction has them locked since it moved the directory
//! entries have their directory             a name that comes or goes changes its directory's row; removed by the other, that
//!                                          row is in conflict
//! a name is there once                     the names of one hash are one row; two changes of what it holds are in conflict
//! an inode is in one place                 moved, it changes the rows of both names; what is gone follows from what the commit makes of
//!                                          rows, whatever the transaction has in them ([`Plan`])
//! a directory has one name, in its parent  its row says the parent: moved twice, it is in conflict
//! links are counted, parent pointers lead  a name more or less changes the row of a file, which does not merge
//!   to names, a file counts where it is
//! counts and totals of directories         both changes are added ([`merge`]); a directory that one has moved while
//!                                          what lies below it was summed up by the other is in conflict, and so is the same
//!                                          exchange by both
//! limits                                   summed up as the commit would leave them ([`limits`])
//! limits have their directory              looked for before the commit ([`checks`])
//! extended attributes and data fit their   a change of either changes the inode's row; rows of directories are settled by
//!   inode                                  all that the commit brings ([`merge`])
//! pairs have their dictionary              looked for before the commit, which no dictionary comes or goes during
//!                                          ([`crate::transactions`])
//! clones have their source, references     a source stays while any state of the store has a reference to it; what both have
//!   their inode                            unfolded is merged ([`merge`])
//! large files have their objects           checked before they are put in place ([`checks`])
//! ```
//!
//! A rollback is such a commit; what is received is committed only if nothing has changed. `tests/it/write_skew.rs` tries it.
//!
//! The caller, which must hold no locks then, tells the kernel. From the end of step 4 on it is committed: what fails later is
//! [`CommitError::Unfinished`], and the kernel has to forget all the same ([`finish`]).

mod attributes;
mod checks;
mod finish;
mod joining;
mod limits;
mod maps;
mod paths;
mod plan;
mod portion;

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use parking_lot::RwLockWriteGuard;
use varve_engine::{Branch, CONFLICT_KEYS_MAX, Clash, KeptLocks, Merged, Store, StoreError};
use varve_namespace::merge::{self, Sides, merge_rows};
use varve_schema::{Inode, Pending, RowKey};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use self::joining::Joining;
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::rows::{read_inode_row, read_pending_row};
use crate::superblock::view_dir;
use crate::transactions::{Purpose, Transaction};
use paths::names_in;
pub use plan::Committed;
use plan::Plan;
pub(crate) use portion::Portion;

/// How often a commit begins, at most: again as rows of large files are behind, or mapped memory is to be written first.
const ATTEMPTS: u32 = 8;
/// How often mapped memory is written before a commit. What is opened later is taken for opened after it.
const WRITE_BACKS_MAX: u32 = 2;

/// Why a transaction is not committed. It goes on, unless it is [`CommitError::Unfinished`].
#[derive(Debug)]
pub enum CommitError {
    /// It is committed, with these changes, and has ended; but something that belongs to it failed, and the error says what.
    Unfinished(Committed, FsError),
    /// Others have changed what it changed: the paths, and the pairs of dictionaries; where that is much, not all of it, which
    /// the last one says.
    Conflict(Vec<String>),
    /// Large files are open for writing: the paths.
    InUse(Vec<String>),
    /// More would lie below directories than their limits allow: the directories, and by what.
    OverLimits(Vec<String>),
    /// It has lost its locks, for this reason, and can only be aborted.
    DeadlockVictim(String),
    /// Anything else.
    Failed(FsError),
}

impl CommitError {
    /// What has changed all the same.
    pub fn committed(&self) -> Option<&Committed> {
        match self {
            CommitError::Unfinished(committed, _) => Some(committed),
            _ => None,
        }
    }
}

impl From<FsError> for CommitError {
    fn from(error: FsError) -> CommitError {
        match error {
            // Since the commit began.
            FsError::DeadlockVictim => {
                CommitError::DeadlockVictim("others needed what it had locked".to_owned())
            }
            other => CommitError::Failed(other),
        }
    }
}

/// What came of trying to commit.
enum Tried {
    Committed(Committed),
    /// Nothing: first rows of these files are to be brought up to date, those of the view and those of the main tree.
    Behind([Vec<InodeId>; 2]),
    /// Nothing: first is to be written what programs have changed in mapped memory of these files of the main tree.
    Mapped(Vec<InodeId>),
}

/// What happens at the end of a transaction besides, while nothing else can change anything.
#[derive(Default)]
pub(crate) struct Ending<'a> {
    /// Whether it is to be committed, if that is asked.
    pub(crate) check: Option<&'a mut dyn FnMut() -> bool>,
    /// Done when it is committed.
    pub(crate) then: Option<&'a dyn Fn() -> FsResult<()>>,
    /// Inodes from this one on are unknown to the main tree, if that is said.
    pub(crate) new_from: Option<Epoch>,
    /// Of which files of the main tree mapped memory was written.
    pub(crate) written_back: BTreeSet<InodeId>,
    /// How often.
    pub(crate) write_backs: u32,
}

impl VarveFs {
    /// Makes all that was changed in the transaction `id`, whose file system is `view`, part of this one at once, durably,
    /// and ends it. Costs the number of changes.
    pub fn commit_transaction(&self, id: &str, view: &VarveFs) -> Result<Committed, CommitError> {
        self.transaction(id)?;
        let committed = self.commit_with(id, view, Ending::default());
        if let Err(CommitError::Failed(why)) = &committed {
            // Whoever waits and commits again does so elsewhere.
            view.not_again(why);
        }
        committed
    }

    pub(crate) fn commit_with(
        &self,
        id: &str,
        view: &VarveFs,
        mut ending: Ending<'_>,
    ) -> Result<Committed, CommitError> {
        for _ in 0..ATTEMPTS {
            match self.try_commit(id, view, &mut ending)? {
                Tried::Committed(committed) => return Ok(committed),
                Tried::Behind([ours, theirs]) => {
                    let settled = view.settle_known(ours);
                    self.settle_known(theirs).and(settled)?;
                }
                Tried::Mapped(files) => {
                    self.write_mapped(&files)?;
                    ending.written_back.extend(files);
                    ending.write_backs += 1;
                }
            }
        }
        // Programs keep writing to the same large files.
        Err(FsError::TryAgain.into())
    }

    fn try_commit(
        &self,
        id: &str,
        view: &VarveFs,
        ending: &mut Ending<'_>,
    ) -> Result<Tried, CommitError> {
        let views = self.views()?;
        let changing = views.lock_changes();
        let txn = self.any_transaction(id)?;
        let branch = views.db().open_branch(txn.branch).map_err(error::store)?;
        if let Some(why) = self.why_locks_are_lost(&txn)? {
            return Err(CommitError::DeadlockVictim(why));
        }
        // Most of what step 5 needs to be durable, before everybody waits.
        view.objects.sync_claimed().map_err(error::sync)?;
        let quiet = view.locks.lock_all();
        let guards = self.locks.lock_all();
        self.store.write_kept(false).map_err(error::store)?;
        if let Some(serial) = &view.serial {
            serial.settle().map_err(error::store)?;
        }
        let known = txn.with_epoch(ending.new_from.unwrap_or(txn.epoch));
        // A pair that comes while it is found out what the commit means finds the dictionary that it is put into; and a state
        // that was is to be again with its dictionaries.
        let (held, _stopped) = match txn.purpose {
            Purpose::User | Purpose::Rollback => (Some(self.dictionaries().stand_still()?), None),
            Purpose::Receive => (None, Some(self.dictionaries().stop()?)),
        };
        let mut plan = self.plan(&known, &branch, view)?;
        if let Some(held) = held.as_ref().filter(|_| txn.purpose == Purpose::User) {
            self.check_dictionaries(held, &txn, &branch)?;
        }
        self.check_use(view, &plan)?;
        let installs = installs(view, &plan)?;
        if let Some(first) = self.first(&branch, view, &txn, (&mut plan, &installs), ending)? {
            return Ok(first);
        }
        if ending.check.as_mut().is_some_and(|check| !check()) {
            return Err(CommitError::Conflict(Vec::new()));
        }
        self.check_commit(&branch, view, (&txn, &known), &plan)?;
        let before = self.store.snapshot().map_err(error::store)?;
        let survivors = (self.survivors(&plan)?, &*before);
        let rows_alone = installs.is_empty() && plan.shrunk.is_empty() && ending.then.is_none();
        let (copied, nobody_reads, locked) =
            self.join_unread(&branch, view, &txn, &plan, (&installs, !rows_alone))?;
        if rows_alone {
            let followed = self.follow_rows(&mut plan, survivors, &locked);
            drop((locked, nobody_reads, before, held, guards, quiet));
            drop(changing);
            let done = followed.and_then(|()| self.finish_rows(&plan, txn.epoch));
            return Ok(Tried::Committed(ended(plan, done)?));
        }
        if let Some(preimages) = self.objects.preimages() {
            preimages.retire(txn.epoch);
        }
        let mut done = self.finish(&mut plan, (&installs, &copied), survivors, &txn, &locked);
        drop((nobody_reads, before));
        let is_finished = done.is_ok();
        if let Some(then) = ending.then.filter(|_| is_finished) {
            done = then();
        }
        drop((locked, guards, quiet));
        if is_finished {
            self.note_in_place();
            self.clear_away(&plan, txn.epoch);
            self.drop_sources_after_view(&changing);
        }
        Ok(Tried::Committed(ended(plan, done)?))
    }

    /// What has to be done before the commit begins again, if anything.
    fn first(
        &self,
        branch: &Branch,
        view: &VarveFs,
        txn: &Transaction,
        (plan, installs): (&mut Plan, &[InodeId]),
        ending: &Ending<'_>,
    ) -> FsResult<Option<Tried>> {
        if ending.write_backs < WRITE_BACKS_MAX
            && let Some(mapped) = self.mapped_before(txn, plan, &ending.written_back)?
        {
            return Ok(Some(Tried::Mapped(mapped)));
        }
        // A state that was is to be again with the rows that it had.
        match txn.purpose {
            Purpose::Rollback => Ok(None),
            _ => Ok(self.behind(branch, view, plan, installs)?.map(Tried::Behind)),
        }
    }

    /// The large files of the commit whose rows, in the view or in the main tree, do not tell yet what was written to them. They
    /// stay known until [`VarveFs::settle_known`]. REQUIRES: nobody has any of them open for writing.
    fn behind(
        &self,
        branch: &Branch,
        view: &VarveFs,
        plan: &mut Plan,
        installs: &[InodeId],
    ) -> FsResult<Option<[Vec<InodeId>; 2]>> {
        let [ours, theirs] = &mut plan.behind;
        for ino in installs {
            // It may have been so when the transaction began, and the row has not changed.
            if let Some(Pending::ObjectDirty { entry }) = read_pending_row(branch, self.meta, *ino)?
                && let Some(place) = view.place_left(*ino, entry)?
            {
                ours.insert(*ino, place);
            }
        }
        if ours.is_empty() && theirs.is_empty() {
            return Ok(None);
        }
        Ok(Some([view.keep_known(ours)?, self.keep_known(theirs)?]))
    }

    /// Steps 3 and 4, with all ready for step 5: the files that are copies, and who reads large ones waits, in serializable
    /// transactions for the locks of their rows, which this one takes for that if it has none and `takes_locks`.
    fn join_unread(
        &self,
        branch: &Branch,
        view: &VarveFs,
        txn: &Transaction,
        plan: &Plan,
        (installs, takes_locks): (&[InodeId], bool),
    ) -> Result<(BTreeSet<InodeId>, RwLockWriteGuard<'_, ()>, KeptLocks), CommitError> {
        let own = view_dir(&self.dir, txn.epoch);
        let copied = self.prepare_objects(view, plan, (installs, &own), txn.epoch)?;
        let nobody_reads = self.objects.installing.write();
        let joined = self.join(branch, view, txn, plan, (installs, takes_locks));
        if joined.is_err() {
            self.objects.drop_copies(&copied, &own);
        }
        joined.map(|locked| (copied, nobody_reads, locked))
    }

    fn join(
        &self,
        branch: &Branch,
        view: &VarveFs,
        txn: &Transaction,
        plan: &Plan,
        (installs, takes_locks): (&[InodeId], bool),
    ) -> Result<KeptLocks, CommitError> {
        let base = branch.base().map_err(error::store)?;
        let [base, theirs] =
            [&base as &dyn Store, self.store.as_ref()].map(|store| self.inodes_of(store));
        let sides = Sides { epoch: txn.epoch.id(), base: &base, theirs: &theirs };
        let mut joining = Joining::new(self, branch, txn, plan, installs);
        let joined = joining.write();
        let mut names = BTreeSet::new();
        let mut decide = |clash: &Clash<'_>| {
            let merged = self.decided(clash, (txn.purpose, &sides), plan);
            if merged == Merged::Conflict {
                names.extend(names_in(clash, self.meta));
            }
            merged
        };
        let counted = |keyspace, key: &[u8]| {
            keyspace == self.meta
                && RowKey::from_bytes(key).is_some_and(|key| plan.counted.contains(&key))
        };
        let committed =
            joined.and_then(|()| branch.commit_keeping_locks(&mut decide, &counted, takes_locks));
        let error = match committed {
            Ok(locked) => return Ok(locked),
            Err(error) => error,
        };
        joining.take_back().map_err(error::store)?;
        Err(match error {
            StoreError::Conflict { keys } => {
                let may_be_more = keys.len() >= CONFLICT_KEYS_MAX;
                let (rows, pairs): (Vec<_>, Vec<_>) =
                    keys.into_iter().partition(|(keyspace, _)| self.is_of_files(*keyspace));
                let mut told = self.told_pairs(branch, &pairs)?;
                if !rows.is_empty() {
                    told.extend(self.paths_of(view, &names, &rows));
                }
                told.extend(may_be_more.then(|| "and there may be more".to_owned()));
                CommitError::Conflict(told)
            }
            other => error::store(other).into(),
        })
    }

    /// Reads inodes in their own rows of a state of the store, for the rules of merges, which take what cannot be read for absent.
    fn inodes_of<'a>(&self, store: &'a dyn Store) -> impl Fn(InodeId) -> Option<Inode> + use<'a> {
        let meta = self.meta;
        move |ino| read_inode_row(store, meta, ino).ok().flatten()
    }

    /// What becomes of a row that both have changed.
    fn decided(
        &self,
        clash: &Clash<'_>,
        (purpose, sides): (Purpose, &Sides<'_>),
        plan: &Plan,
    ) -> Merged {
        let Clash { base, theirs, ours, .. } = clash;
        let meta = RowKey::from_bytes(clash.key).filter(|_| clash.keyspace == self.meta);
        let row = merge::Clash {
            meta: meta.map(RowKey::meta_kind),
            base: base.as_ref(),
            theirs: theirs.as_ref(),
            ours: ours.as_ref(),
        };
        let merged = match (self.is_of_files(clash.keyspace), purpose) {
            // Nothing but times of last access has changed beside it.
            (_, Purpose::Receive) => ours.clone().map_or(Merged::Deleted, Merged::Value),
            (true, Purpose::User) => of_branch(merge_rows(&row, sides)),
            (true, Purpose::Rollback) => of_branch(merge::merge(&row)),
            // The first to commit a pair wins, whatever both have made of it.
            (false, _) => Merged::Conflict,
        };
        if clash.keyspace == self.meta { plan.settled(clash.key, merged) } else { merged }
    }

    /// [`crate::objects::Objects::prepare`] for the commit of what lies in `own`.
    fn prepare_objects(
        &self,
        view: &VarveFs,
        plan: &Plan,
        (installs, own): (&[InodeId], &Path),
        epoch: Epoch,
    ) -> Result<BTreeSet<InodeId>, CommitError> {
        // What the kernel reads straight cannot wait until all is written.
        let straight =
            |ino| self.session.inodes.node(ino).is_some_and(|node| node.state().passthrough > 0);
        self.objects.prepare(installs, own, epoch, &straight).or_else(|error| {
            self.check_gone(view, plan, installs)?;
            Err(error.into())
        })
    }
}

/// The large files of which the view has something of its own that stays; it is durable then.
fn installs(view: &VarveFs, plan: &Plan) -> FsResult<Vec<InodeId>> {
    let own = view.objects.own_inodes()?;
    view.objects.sync_claimed().map_err(error::sync)?;
    let gone = plan.removed_objects.iter().chain(&plan.orphans).chain(&plan.begun);
    let gone: HashSet<&InodeId> = gone.collect();
    Ok(own.into_iter().filter(|ino| !gone.contains(ino)).collect())
}

/// The result of a commit that has happened, whether all of it is `done` or not.
fn ended(plan: Plan, done: FsResult<()>) -> Result<Committed, CommitError> {
    match done {
        Ok(()) => Ok(plan.told),
        Err(error) => Err(CommitError::Unfinished(plan.told, error)),
    }
}

/// What the engine is to make of a row.
fn of_branch(merged: merge::Merged) -> Merged {
    match merged {
        merge::Merged::Value(value) => Merged::Value(value),
        merge::Merged::Deleted => Merged::Deleted,
        merge::Merged::Conflict => Merged::Conflict,
    }
}
