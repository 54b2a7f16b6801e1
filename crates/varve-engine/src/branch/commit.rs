//! Hands what a branch changed to its parent, as a whole.
//!
//! 1. The branch takes no more writes.
//! 2. What others changed as well is merged by the caller's hook, or the commit fails and the branch goes on
//!    ([`super::clash`]).
//! 3. Under the writer's lock the same is asked of what was written since step 2. Then the changes are logged as one
//!    batch that also says that the branch has ended, and applied: a crash leaves both or neither. What is too large
//!    for that joins by reference instead ([`super::join`]).
//!
//! The locks of the branch, and those that the commit takes, are kept until the caller says that the rest of the commit is
//! done, too ([`KeptLocks`]).
//!
//! A commit by batch is durable as any other write: once the store is synced, together with all that came before it. One
//! by reference is durable when it returns.
//!
//! Source: KVFS (thesis 3.3): optimistic commit of a transaction's tree.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use varve_types::{BranchId, KeyspaceId, SeqNo};

use super::clash::{Clashes, MergeHook, check_locks, top_space};
use super::handle::Branch;
use super::handle::Branches;
use super::record::BranchRecord;
use crate::read_state::{Layer, ReadState};
use crate::table::cache::Admission;
use crate::{Batch, Blocked, GaveWay, KeyRange, Op, StoreError, StoreResult};

/// Bytes that a row takes in a batch besides its key and value, at most.
const ROW_OVERHEAD_BYTES: usize = 16;
/// The most bytes of a commit by batch.
const BATCH_COMMIT_BYTES_MAX: usize = 8 << 20;
/// How often a commit by reference takes locks that others take away from it, before it is refused.
const ROUNDS_MAX: usize = 8;
/// Branches that ended and wait for a flush to be forgotten; one more has it done at once.
const ENDED_MAX: usize = 64;

/// Whether a row, by the store's key space and its key, is changed in a way that commutes with what others do to it.
pub type Commuting<'a> = dyn Fn(KeyspaceId, &[u8]) -> bool + 'a;

/// A row that a branch changed: the store's key space, the key, a copy of the value unless it was deleted.
type ChangedRow = (KeyspaceId, Bytes, Option<Bytes>);

impl Branch {
    /// Makes all that the branch changed part of its parent at once, and ends it. Where others changed a key that it
    /// changed, `merge` decides; it may be asked of a key more than once, the last answer counting, and runs while
    /// writers wait. What it makes of keys is held in memory until the end.
    ///
    /// [`StoreError::Conflict`] names keys of which `merge` made none; then, as after any other error, nothing has
    /// happened and the branch goes on. A serializable branch has no clashes, but fails with [`StoreError::GaveWay`]
    /// if it did. Costs the number of changed rows; large changes cost no copy of them, but the
    /// flush of what is in memory. Durable once the store is synced.
    pub fn commit(&self, merge: &mut MergeHook<'_>) -> StoreResult<()> {
        self.commit_beside(merge, &|_, _| false)
    }

    /// The same, where changes of keys that `commutes` names commute with those of others, for their locks.
    pub fn commit_beside(
        &self,
        merge: &mut MergeHook<'_>,
        commutes: &Commuting<'_>,
    ) -> StoreResult<()> {
        self.commit_and(merge, commutes, false).map(drop)
    }

    /// The same for who has more to do for the commit than to change rows: other serializable branches wait for what this one
    /// has locked until what is returned is dropped. A branch that takes no locks of its own takes some of what it has changed
    /// if it `takes` them, and there are such branches.
    pub fn commit_keeping_locks(
        &self,
        merge: &mut MergeHook<'_>,
        commutes: &Commuting<'_>,
        takes: bool,
    ) -> StoreResult<KeptLocks> {
        self.commit_and(merge, commutes, takes)
    }

    fn commit_and(
        &self,
        merge: &mut MergeHook<'_>,
        commutes: &Commuting<'_>,
        takes: bool,
    ) -> StoreResult<KeptLocks> {
        let _gate = self.shared.gate.write();
        self.shared.check()?;
        self.check_childless()?;
        let read_state = self.branches.reads.read_states.get();
        let record = read_state.branch(self.id)?;
        check_locks(&self.branches.locks, record)?;
        let parent = record.parent.map(|id| read_state.branch(id)).transpose()?.cloned();
        let _parent_gate = parent.as_ref().map(|parent| parent.shared.gate.read());
        if let Some(parent) = &parent {
            parent.shared.check()?;
            let (branches, shared) = (Arc::clone(&self.branches), Arc::clone(&parent.shared));
            let parent = Branch { branches, id: parent.id, shared };
            let bases = record.spaces.iter().filter(|own| !own.private).map(|own| own.base);
            parent.with_spaces(bases.collect())?;
        }
        let mut clashes = Clashes::new(&self.branches.reads, &self.branches.locks, record, merge);
        let bytes_max = BATCH_COMMIT_BYTES_MAX.min(self.branches.options.memtable_bytes / 4);
        let rows = self.branches.changed_rows(&read_state, record, bytes_max)?;
        let by_batch = rows.is_some();
        let committed = match rows {
            Some(rows) if rows.is_empty() => self.drop_changes().map(|()| false),
            Some(rows) => self.log(&read_state, (record, takes), rows, &mut clashes, commutes),
            None => self.join(&read_state, record, &mut clashes, commutes),
        };
        let locked = committed.inspect_err(|_| self.branches.locks.keep_no_more(self.id))?;
        self.end();
        let is_locked = locked || self.shared.locks.is_some();
        let kept = KeptLocks { branches: Arc::clone(&self.branches), id: self.id, is_locked };
        match by_batch {
            true => self.branches.forget_ended(),
            false => self.branches.metrics.branches_joined.add(1),
        }
        Ok(kept)
    }

    /// Commits by batch. If it `takes` them, what a branch changed that takes no locks of its own is locked from before that on, if
    /// there are other locks; says whether it is.
    fn log(
        &self,
        read_state: &ReadState,
        (record, takes): (&BranchRecord, bool),
        rows: Vec<ChangedRow>,
        clashes: &mut Clashes<'_, '_>,
        commutes: &Commuting<'_>,
    ) -> StoreResult<bool> {
        let locked = takes && self.meets_locks_of_others(record);
        let taken = match locked {
            true => self.branches.lock_changes_of(read_state, record, commutes),
            false => Ok(()),
        };
        let external = self.shared.external.load(Ordering::Relaxed);
        let logged = taken.and_then(|()| {
            self.branches.log_commit((record, locked), rows, external, clashes, commutes)
        });
        match logged {
            Ok(()) => {
                self.branches.metrics.branches_logged.add(1);
                Ok(locked)
            }
            Err(error) if locked => {
                self.branches.locks.end(self.id);
                Err(self.refusal(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a commit of it takes locks for as long as it takes.
    fn meets_locks_of_others(&self, record: &BranchRecord) -> bool {
        record.parent.is_none() && record.shared.locks.is_none() && self.branches.locks.is_used()
    }

    /// What becomes of a commit that has failed as `error`, and had taken locks for itself which have gone.
    fn refusal(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::GaveWay { why } => StoreError::Blocked(self.branches.locks.refusal(why)),
            // Its own went after that.
            StoreError::Blocked(blocked) => {
                StoreError::Blocked(Blocked { released: blocked.released + 1, ..blocked })
            }
            error => error,
        }
    }

    /// Commits by reference. What a branch changed that takes no locks of its own is locked meanwhile, if there are other
    /// locks; where these were taken away before it was committed, all begins anew, and after [`ROUNDS_MAX`] rounds it is
    /// refused. Says whether it is locked still.
    fn join(
        &self,
        read_state: &ReadState,
        record: &BranchRecord,
        clashes: &mut Clashes<'_, '_>,
        commutes: &Commuting<'_>,
    ) -> StoreResult<bool> {
        let mut rounds = 0;
        loop {
            rounds += 1;
            let locked = self.meets_locks_of_others(record);
            let taken = match locked {
                true => self.branches.lock_changes_of(read_state, record, commutes),
                false => Ok(()),
            };
            let joined = taken.and_then(|()| self.branches.join_branch(record, clashes, locked));
            let error = match joined {
                Ok(()) => return Ok(locked),
                Err(error) if !locked => return Err(error),
                Err(error) => error,
            };
            self.branches.locks.end(self.id);
            match error {
                StoreError::GaveWay { .. } if rounds < ROUNDS_MAX => {}
                error => return Err(self.refusal(error)),
            }
        }
    }
}

/// What a committed branch still has locked, until this is dropped, for what else belongs to its commit. Nobody takes these locks
/// away.
pub struct KeptLocks {
    branches: Arc<Branches>,
    id: BranchId,
    is_locked: bool,
}

impl KeptLocks {
    /// Writes to the store what belongs to the commit: the locks are not in its way. Where others have locked any of it, they
    /// give way, as the commit cannot wait for them: they may wait for it.
    pub fn write(&self, batch: &Batch) -> StoreResult<()> {
        loop {
            let batch = batch.clone();
            match self.branches.commits.write_beside(batch, self.is_locked.then_some(self.id)) {
                Err(StoreError::Blocked(blocked)) => {
                    for holder in &blocked.holders {
                        self.branches.locks.overrule(*holder, GaveWay::Committed(self.id));
                    }
                }
                written => return written,
            }
        }
    }
}

impl Drop for KeptLocks {
    fn drop(&mut self) {
        if self.is_locked {
            self.branches.locks.end(self.id);
        }
    }
}

impl fmt::Debug for KeptLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptLocks").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Branches {
    /// Locks what a branch changed that takes no locks of its own. Costs the number of rows.
    fn lock_changes_of(
        &self,
        read_state: &ReadState,
        record: &BranchRecord,
        commutes: &Commuting<'_>,
    ) -> StoreResult<()> {
        self.locking.lock_changes(record.id, |lock| {
            for own in record.spaces.iter().filter(|own| !own.private) {
                let layer = Layer { space: read_state.keyspace(own.id)?, seq: SeqNo::MAX };
                let mut walk = self.reads.changes(read_state, layer, &KeyRange::all())?;
                while let Some((key, _)) = walk.next_found()? {
                    lock(own.base, key.as_slice(), commutes(own.base, key.as_slice()))?;
                }
            }
            Ok(())
        })
    }

    /// The rows that a branch changed, copied, as writers would wait while a batch does it; `None` if they have more than
    /// `bytes_max` bytes.
    fn changed_rows(
        &self,
        read_state: &ReadState,
        record: &BranchRecord,
        bytes_max: usize,
    ) -> StoreResult<Option<Vec<ChangedRow>>> {
        let (mut rows, mut bytes) = (Vec::new(), 0);
        for own in record.spaces.iter().filter(|own| !own.private) {
            let layer = Layer { space: read_state.keyspace(own.id)?, seq: SeqNo::MAX };
            let mut walk = self.reads.changes(read_state, layer, &KeyRange::all())?;
            while let Some((key, found)) = walk.next_found()? {
                let key = Bytes::copy_from_slice(key.as_slice());
                let value = self.reads.cache.value_of(found, Admission::Pass)?;
                bytes += key.len() + value.as_ref().map_or(0, Bytes::len) + ROW_OVERHEAD_BYTES;
                if bytes > bytes_max {
                    return Ok(None);
                }
                rows.push((own.base, key, value.map(|value| Bytes::copy_from_slice(&value))));
            }
        }
        Ok(Some(rows))
    }

    /// Writes `rows`, merged where others changed them, as one batch that ends the branch, which keeps its locks from then on: those
    /// that it takes itself, or what it changed is `locked` by.
    fn log_commit(
        &self,
        (record, locked): (&BranchRecord, bool),
        mut rows: Vec<ChangedRow>,
        external: bool,
        clashes: &mut Clashes<'_, '_>,
        commutes: &Commuting<'_>,
    ) -> StoreResult<()> {
        let checked = self.snapshots.last_seq();
        clashes.look_first(checked)?;
        let bytes =
            rows.iter().map(|(_, key, value)| key.len() + value.as_ref().map_or(0, Bytes::len));
        self.commits.write_made(bytes.sum::<usize>() as u64, false, Some(record.id), |refused| {
            // A batch that met locks gives back what it was given.
            let given = refused.into_iter().flat_map(Batch::into_ops);
            for ((_, _, value), op) in rows.iter_mut().zip(given) {
                if let Op::Put { value: given, .. } = op {
                    *value = Some(given);
                }
            }
            if locked || record.shared.locks.is_some() {
                self.locks.keep(record.id)?;
            }
            clashes.look(checked)?;
            let read_state = self.reads.read_states.get();
            let mut batch = Batch::new();
            for (base, key, value) in &mut rows {
                let space =
                    top_space(&read_state, record.parent, *base)?.ok_or(StoreError::Ended)?.id;
                let value = match clashes.merged.get(&(*base, key.clone())) {
                    Some(merged) => self.reads.cache.value_of(merged.clone(), Admission::Pass)?,
                    None => value.take(),
                };
                match value {
                    Some(value) if commutes(*base, key) => batch.put_commuting(space, key, value),
                    Some(value) => batch.put(space, key, value),
                    None => batch.delete(space, key),
                }
            }
            if external && self.external.is_set() {
                batch.depends_on_external();
            }
            batch.ends(record.id);
            self.commits.check_batch(&batch)?;
            Ok(batch)
        })
    }

    /// Has branches that ended forgotten if there are many. The commit went through; what fails here is tried again by the
    /// next flush, and so is no error of it.
    fn forget_ended(&self) {
        let read_state = self.reads.read_states.get();
        let ended = read_state.branches.values().filter(|record| record.shared.is_ended()).count();
        if ended > ENDED_MAX
            && let Err(error) = self.flusher.flush_all()
        {
            log::warn!("{ended} branches that ended wait for a flush to be forgotten: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use varve_env::sim::SimEnv;

    use super::*;
    use crate::{BranchOptions, Clash, Db, DbOptions, KeyspaceOptions, Merged, Store};

    /// All writers waited while the batch of a commit took up to 8 MiB of copies.
    #[test]
    fn a_batch_takes_the_rows_of_a_commit_as_they_are() {
        let db = Db::open(SimEnv::new(1), Path::new("/store"), DbOptions::default()).unwrap();
        let options = KeyspaceOptions { prefixed: false, compressed: false };
        let space = db.keyspace("rows", options).unwrap();
        let branch = db.branch(&BranchOptions::default()).unwrap();
        let mut batch = Batch::new();
        batch.put(space, b"row", vec![7; 1000]);
        branch.write(batch).unwrap();
        let inner = &db.inner.branches;
        let read_state = inner.reads.read_states.get();
        let record = read_state.branch(branch.id()).unwrap();
        let rows = inner.changed_rows(&read_state, record, 1 << 20).unwrap().unwrap();
        let at = rows[0].2.as_ref().unwrap().as_ptr();
        let mut merge = |_: &Clash<'_>| Merged::Conflict;
        let mut clashes = Clashes::new(&inner.reads, &inner.locks, record, &mut merge);
        inner.log_commit((record, false), rows, false, &mut clashes, &|_, _| false).unwrap();
        assert_eq!(db.get(space, b"row").unwrap().unwrap().as_ptr(), at);
    }
}
