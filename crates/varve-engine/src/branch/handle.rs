//! Begins branches, and ends them without a commit.
//!
//! Invariants:
//! - A branch is in the manifest before anybody has it, and out of it before its parent is.
//! - A write to a branch holds the branch's gate shared, and finds a key space of the branch for each row.
//! - The end of a branch holds the gate exclusively: no write is on its way, and none follows.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;
use varve_format::edit::BRANCH_INFO_BYTES_MAX;
use varve_types::{BranchId, KeyspaceId};

use super::numbers::SpaceNumbers;
use super::record::{BranchInfo, BranchRecord, BranchSpace, Shared};
use crate::base::Base;
use crate::commit::flush::Flusher;
use crate::commit::log::Log;
use crate::commit::write::Commits;
use crate::compaction::compactor::Compactor;
use crate::compaction::outputs::OutputMaker;
use crate::external::ExternalSyncs;
use crate::files::FileNumbers;
use crate::health::Health;
use crate::keyspace::Keyspace;
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::read_state::ReadState;
use crate::reads::Reads;
use crate::snapshot::Snapshots;
use crate::space::SpaceGuard;
use crate::txn::locking::Locking;
use crate::txn::manager::Locks;
use crate::txn::terms::LockOptions;
use crate::versions::VersionSet;
use crate::versions::changes::Changes;
use crate::{StoreError, StoreResult};

/// What a branch is made of.
#[derive(Clone, Debug, Default)]
pub struct BranchOptions {
    /// The named snapshot to stand over instead of the present state; only for branches of the store itself.
    pub snapshot: Option<String>,
    /// Key spaces that begin empty in the branch and are not committed: scratch space.
    pub private: Vec<KeyspaceId>,
    /// Key spaces that will be written to. The first write to any other costs a manifest edit.
    pub written: Vec<KeyspaceId>,
    /// Makes the branch serializable ([`crate::txn`]): what it reads and writes is locked until it ends, and it reads the
    /// newest state. Only for branches of the store as it is now, which none may stand over. A restart ends it.
    pub locks: Option<LockOptions>,
    /// Rows that such a branch reads and writes without locks, each a key space and what keys begin with: others do not
    /// change them, or need not be kept from it. So are those of `private`.
    pub unlocked: Vec<(KeyspaceId, Bytes)>,
    /// Prefixes of 8 bytes that such a branch does not lock in place of many of their keys: what shares them does not belong
    /// together, so that others change it all the time.
    pub apart: Vec<(KeyspaceId, Bytes)>,
    /// Kept with the branch, to be read after a restart; at most 4096 bytes.
    pub info: Bytes,
}

/// What begins, opens and ends branches, and names snapshots.
pub(crate) struct Branches {
    pub(crate) options: Arc<DbOptions>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) file_numbers: Arc<FileNumbers>,
    pub(crate) external: Arc<ExternalSyncs>,
    pub(crate) space: Arc<SpaceGuard>,
    pub(crate) locks: Arc<Locks>,
    pub(crate) reads: Arc<Reads>,
    pub(crate) maker: Arc<OutputMaker>,
    pub(crate) versions: Arc<VersionSet>,
    pub(crate) compactor: Arc<Compactor>,
    pub(crate) log: Arc<Log>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) locking: Arc<Locking>,
    pub(crate) commits: Arc<Commits>,
    /// Held to give a name to a state or to take it away.
    pub(super) naming: Mutex<()>,
    /// The numbers of the next key spaces of branches; taken under gates of branches, before all other locks.
    pub(super) space_numbers: Mutex<SpaceNumbers>,
}

/// A writable tree: a [`crate::Store`] of its own, with the numbers of the store's key spaces.
///
/// Many may be open for one branch. Dropping it neither commits nor aborts the branch, which stays until one of the
/// two happens, over restarts too; a call after that fails with [`StoreError::Ended`]. Closing it only syncs the store.
pub struct Branch {
    pub(super) branches: Arc<Branches>,
    pub(super) id: BranchId,
    pub(super) shared: Arc<Shared>,
}

impl fmt::Debug for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Branch").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Branches {
    /// The branches of the store to which `commits` writes.
    pub(crate) fn new(base: &Base, reads: Arc<Reads>, commits: Arc<Commits>) -> Branches {
        let Base { options, health, metrics, snapshots, file_numbers, read_states, .. } =
            base.clone();
        let (locking, compactor) = (Arc::clone(&commits.locking), Arc::clone(&commits.compactor));
        Branches {
            options,
            health,
            metrics,
            snapshots,
            file_numbers,
            external: Arc::clone(&commits.external),
            space: Arc::clone(&commits.space),
            locks: Arc::clone(&locking.locks),
            reads,
            maker: Arc::clone(&commits.maker),
            versions: Arc::clone(&commits.versions),
            compactor,
            log: Arc::clone(&commits.log),
            flusher: Arc::clone(&commits.flusher),
            locking,
            commits,
            naming: Mutex::new(()),
            space_numbers: Mutex::new(SpaceNumbers::new(&read_states.get())),
        }
    }

    /// The branches that were neither committed nor aborted, oldest first.
    pub(crate) fn open(&self) -> Vec<BranchInfo> {
        let read_state = self.reads.read_states.get();
        let open = read_state.branches.values().filter(|record| !record.shared.is_ended());
        open.map(|record| record.about()).collect()
    }
}

impl Branch {
    /// A branch that was begun before; `Ended` if there is none of this number.
    pub(crate) fn find(branches: &Arc<Branches>, id: BranchId) -> StoreResult<Branch> {
        branches.health.check_open()?;
        let shared = Arc::clone(&branches.reads.read_states.get().branch(id)?.shared);
        Ok(Branch { branches: Arc::clone(branches), id, shared })
    }

    /// Its number.
    pub fn id(&self) -> BranchId {
        self.id
    }

    /// Begins a branch over this one as it is now; see [`crate::Db::branch`].
    pub fn branch(&self, options: &BranchOptions) -> StoreResult<Branch> {
        begin(&self.branches, Some(self.id), options)
    }

    /// Drops the branch and all it changed, durably. Its files go when their last reader does.
    ///
    /// `Invalid` if it has branches of its own.
    pub fn abort(&self) -> StoreResult<()> {
        let _gate = self.shared.gate.write();
        self.shared.check()?;
        self.check_childless()?;
        self.drop_changes()?;
        self.end();
        if self.shared.locks.is_some() {
            self.branches.locks.end(self.id);
        }
        Ok(())
    }

    /// REQUIRES: the gate is held exclusively. Then the branch ends.
    pub(super) fn drop_changes(&self) -> StoreResult<()> {
        debug_assert!(self.shared.gate.is_locked_exclusive());
        self.branches
            .versions
            .install(&Changes { ended: vec![self.id], ..Changes::default() })
            .map(drop)
    }

    /// Releases the branch, but none of its locks.
    pub(super) fn end(&self) {
        debug_assert!(self.shared.gate.is_locked_exclusive());
        self.shared.ended.store(true, Ordering::Release);
        self.branches.external.remove_branch(self.id);
    }

    /// Fails while the branch has branches of its own. One that has ended must be gone from the manifest, too, before
    /// its parent is.
    pub(super) fn check_childless(&self) -> StoreResult<()> {
        let children = |read_state: &ReadState, ended: bool| {
            let mine = read_state.branches.values().filter(|record| record.parent == Some(self.id));
            mine.filter(|record| record.shared.is_ended() == ended).count()
        };
        if children(&self.branches.reads.read_states.get(), true) > 0 {
            self.branches.flusher.flush_all()?;
        }
        let read_state = self.branches.reads.read_states.get();
        match children(&read_state, false) + children(&read_state, true) {
            0 => Ok(()),
            count => {
                let message = format!("{count} branches stand over this one; end them first");
                Err(StoreError::Invalid(message))
            }
        }
    }

    /// The branch with key spaces of its own over `bases`; one edit makes those that it lacks.
    ///
    /// REQUIRES: the gate is held and the branch has not ended.
    pub(super) fn with_spaces(&self, mut bases: Vec<KeyspaceId>) -> StoreResult<Arc<BranchRecord>> {
        debug_assert!(self.shared.gate.is_locked());
        bases.sort_unstable();
        bases.dedup();
        let mut numbers = self.branches.space_numbers(bases.len())?;
        let read_state = self.branches.reads.read_states.get();
        let record = read_state.branch(self.id)?;
        bases.retain(|base| record.space(*base).is_none());
        if bases.is_empty() {
            return Ok(Arc::clone(record));
        }
        let (mut spaces, mut branch_spaces) = (record.spaces.clone(), Vec::new());
        for (base, number) in bases.into_iter().zip(numbers.first()..) {
            let space = BranchSpace { base, id: KeyspaceId::of_branch(number), private: false };
            branch_spaces.push(made(space, self.id, &read_state)?);
            spaces.push(space);
        }
        let count = branch_spaces.len();
        spaces.sort_unstable_by_key(|space| space.base);
        let record = Arc::new(BranchRecord { spaces, ..BranchRecord::clone(record) });
        let branch = Some(Arc::clone(&record));
        self.branches.versions.install(&Changes { branch, branch_spaces, ..Changes::default() })?;
        numbers.used(count);
        Ok(record)
    }
}

/// The key space `space` of `branch`, over one that the store has.
fn made(space: BranchSpace, branch: BranchId, read_state: &ReadState) -> StoreResult<Keyspace> {
    match space.base.is_of_branch() {
        true => Err(StoreError::Invalid(format!("{} is a branch's key space", space.base))),
        false => Ok(space.keyspace(branch, read_state.keyspace(space.base)?)),
    }
}

/// See [`crate::Db::branch`].
pub(crate) fn begin(
    branches: &Arc<Branches>,
    parent: Option<BranchId>,
    options: &BranchOptions,
) -> StoreResult<Branch> {
    branches.health.check_open()?;
    branches.health.poison.check()?;
    if options.info.len() > BRANCH_INFO_BYTES_MAX {
        let message = format!("a branch's info has at most {BRANCH_INFO_BYTES_MAX} bytes");
        return Err(StoreError::Invalid(message));
    }
    let read_state = branches.reads.read_states.get();
    let parent_shared = parent
        .map(|id| read_state.branch(id).map(|record| Arc::clone(&record.shared)))
        .transpose()?;
    // The parent must not end meanwhile.
    let _gate = parent_shared.as_ref().map(|shared| shared.gate.read());
    parent_shared.as_ref().map_or(Ok(()), |shared| shared.check())?;
    let over_locks = parent_shared.as_ref().is_some_and(|shared| shared.locks.is_some());
    if over_locks || (options.locks.is_some() && (parent.is_some() || options.snapshot.is_some())) {
        let message = "a serializable branch stands over the store as it is, and none over it";
        return Err(StoreError::Invalid(message.to_owned()));
    }
    let base = match &options.snapshot {
        Some(_) if parent.is_some() => {
            return Err(StoreError::Invalid(
                "snapshots are of the store, not of a branch".to_owned(),
            ));
        }
        Some(name) => Arc::clone(read_state.snapshot(name)?),
        None => Arc::new(branches.snapshots.pin(|| ()).0),
    };
    let id = BranchId::new(branches.file_numbers.take().get());
    let is_private = |base: &KeyspaceId| options.private.contains(base);
    let bases: BTreeSet<KeyspaceId> =
        options.private.iter().chain(&options.written).copied().collect();
    let mut numbers = branches.space_numbers(bases.len())?;
    let (mut spaces, mut branch_spaces) = (Vec::new(), Vec::new());
    for (base, number) in bases.into_iter().zip(numbers.first()..) {
        let space =
            BranchSpace { base, id: KeyspaceId::of_branch(number), private: is_private(&base) };
        branch_spaces.push(made(space, id, &read_state)?);
        spaces.push(space);
    }
    let count = branch_spaces.len();
    let info = options.info.clone();
    let mut unlocked = options.unlocked.clone();
    unlocked.extend(options.private.iter().map(|space| (*space, Bytes::new())));
    let record = BranchRecord::new(id, parent, base, info, spaces, options.locks, unlocked);
    let shared = Arc::clone(&record.shared);
    let branch = Some(Arc::new(record));
    branches.versions.install(&Changes { branch, branch_spaces, ..Changes::default() })?;
    numbers.used(count);
    drop(numbers);
    if let Some(locks) = options.locks {
        shared.held.get_or_init(|| branches.locks.begin(id, locks, &options.apart));
    }
    branches.metrics.branches_begun.add(1);
    Ok(Branch { branches: Arc::clone(branches), id, shared })
}
