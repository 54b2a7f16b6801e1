//! Branches: writable trees over a state of the store, or of another branch.
//!
//! 1. [`Db::branch`] notes in the manifest what the branch stands over and at which moment; nothing is copied, and
//!    nothing grows with the store. The moment is pinned, so that compaction keeps what the branch sees.
//! 2. Each key space of the store that the branch writes to gets one beside it for the rows that it changes, durably
//!    before the first of them is logged. They are logged, kept in the memtables, flushed, compacted and recovered as
//!    all others, so a branch may outgrow memory. A deletion stays in them as a row that hides what lies below
//!    ([`crate::read_state::Layer`]).
//! 3. [`Branch::commit`] hands the changes to the parent at once ([`commit`]), or [`Branch::abort`] drops them.
//!
//! ```text
//!            begin                commit, abort
//! (nothing) -------> open (gate) ---------------> ended ------> gone
//!                    reads, writes                 every call    when the end is in the manifest
//!                                                  fails
//! ```
//!
//! Invariants:
//! - What a branch changed is invisible outside of it until it is committed, and then visible as a whole.
//! - A branch with branches of its own neither commits nor aborts.
//! - After a crash a branch is there as of some prefix of the acknowledged writes, its own among them, or its commit is.
//!
//! Source: KVFS (thesis 3.3, 4.2): transactions as trees of their own over the store's. Departures: the rows of a
//! branch stand in the common log instead of one of its own, so that one sync serves all; begin costs one manifest edit.

mod changes;
mod clash;
mod commit;
mod join;
pub(crate) mod numbers;
pub(crate) mod record;
mod since;
mod store;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use varve_format::edit::BRANCH_INFO_BYTES_MAX;
use varve_types::{BranchId, KeyspaceId};

pub use changes::RowVisitor;
pub use clash::{CONFLICT_KEYS_MAX, Clash, Merged};
pub use commit::{Commuting, KeptLocks};
pub use record::BranchInfo;
use record::{BranchRecord, BranchSpace, Shared};
pub use store::SnapshotStore;

use crate::db::Inner;
use crate::keyspace::Keyspace;
use crate::read_state::ReadState;
use crate::txn::terms::LockOptions;
use crate::versions::changes::Changes;
use crate::{Db, StoreError, StoreResult};

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
    /// Kept with the branch for whoever finds it after a restart; at most 4096 bytes.
    pub info: Bytes,
}

/// A writable tree: a [`crate::Store`] of its own, with the numbers of the store's key spaces.
///
/// Many may be open for one branch. Dropping it neither commits nor aborts the branch, which stays until one of the
/// two happens, over restarts too; a call after that fails with [`StoreError::Ended`]. Closing it only syncs the store.
pub struct Branch {
    inner: Arc<Inner>,
    id: BranchId,
    shared: Arc<Shared>,
}

impl fmt::Debug for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Branch").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Db {
    /// Begins a branch of the store. Costs one manifest edit, durable when the call returns, however large the store
    /// is; it exists after a restart, as of the newest write that survived if that is older than its beginning.
    ///
    /// `Invalid` if the named snapshot is not there, or the info is too long.
    pub fn branch(&self, options: &BranchOptions) -> StoreResult<Branch> {
        begin(&self.inner, None, options)
    }

    /// The branches that were neither committed nor aborted, oldest first.
    pub fn branches(&self) -> Vec<BranchInfo> {
        let read_state = self.inner.read_states.get();
        let open = read_state.branches.values().filter(|record| !record.shared.is_ended());
        open.map(|record| record.about()).collect()
    }

    /// A branch that was begun before; `Ended` if there is none of this number.
    pub fn open_branch(&self, id: BranchId) -> StoreResult<Branch> {
        self.inner.health.check_open()?;
        let shared = Arc::clone(&self.inner.read_states.get().branch(id)?.shared);
        Ok(Branch { inner: Arc::clone(&self.inner), id, shared })
    }
}

impl Branch {
    /// Its number.
    pub fn id(&self) -> BranchId {
        self.id
    }

    /// Begins a branch over this one as it is now; see [`Db::branch`].
    pub fn branch(&self, options: &BranchOptions) -> StoreResult<Branch> {
        begin(&self.inner, Some(self.id), options)
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
            self.inner.locks.end(self.id);
        }
        Ok(())
    }

    /// REQUIRES: the gate is held exclusively. Then the branch ends.
    fn drop_changes(&self) -> StoreResult<()> {
        self.inner
            .versions
            .install(&Changes { ended: vec![self.id], ..Changes::default() })
            .map(drop)
    }

    /// Releases the branch, but none of its locks.
    fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        self.inner.external.remove_branch(self.id);
    }

    /// Fails while the branch has branches of its own. One that has ended must be gone from the manifest, too, before
    /// its parent is.
    fn check_childless(&self) -> StoreResult<()> {
        let children = |read_state: &ReadState, ended: bool| {
            let mine = read_state.branches.values().filter(|record| record.parent == Some(self.id));
            mine.filter(|record| record.shared.is_ended() == ended).count()
        };
        if children(&self.inner.read_states.get(), true) > 0 {
            self.inner.flush_all()?;
        }
        let read_state = self.inner.read_states.get();
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
    fn with_spaces(&self, mut bases: Vec<KeyspaceId>) -> StoreResult<Arc<BranchRecord>> {
        bases.sort_unstable();
        bases.dedup();
        let mut numbers = self.inner.space_numbers(bases.len())?;
        let read_state = self.inner.read_states.get();
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
        self.inner.versions.install(&Changes { branch, branch_spaces, ..Changes::default() })?;
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

/// See [`Db::branch`].
fn begin(
    inner: &Arc<Inner>,
    parent: Option<BranchId>,
    options: &BranchOptions,
) -> StoreResult<Branch> {
    inner.health.check_open()?;
    inner.health.poison.check()?;
    if options.info.len() > BRANCH_INFO_BYTES_MAX {
        let message = format!("a branch's info has at most {BRANCH_INFO_BYTES_MAX} bytes");
        return Err(StoreError::Invalid(message));
    }
    let read_state = inner.read_states.get();
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
        None => Arc::new(inner.snapshots.pin(|| ()).0),
    };
    let id = BranchId::new(inner.file_numbers.take().get());
    let is_private = |base: &KeyspaceId| options.private.contains(base);
    let bases: BTreeSet<KeyspaceId> =
        options.private.iter().chain(&options.written).copied().collect();
    let mut numbers = inner.space_numbers(bases.len())?;
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
    inner.versions.install(&Changes { branch, branch_spaces, ..Changes::default() })?;
    numbers.used(count);
    drop(numbers);
    if let Some(locks) = options.locks {
        shared.held.get_or_init(|| inner.locks.begin(id, locks, &options.apart));
    }
    inner.metrics.branches_begun.add(1);
    Ok(Branch { inner: Arc::clone(inner), id, shared })
}

#[cfg(test)]
mod tests;
