//! Hands what a branch changed to its parent, as a whole.
//!
//! 1. The branch takes no more writes.
//! 2. What others changed as well is merged by the caller's hook, or the commit fails and the branch goes on
//!    ([`super::clash`]).
//! 3. Under the writer's lock the same is asked of what was written since step 2. Then the changes are logged as one
//!    batch that also says that the branch has ended, and applied: a crash leaves both or neither. What is too large
//!    for that joins by reference instead ([`super::join`]).
//!
//! A commit by batch is durable as any other write: once the store is synced, together with all that came before it. One
//! by reference is durable when it returns.
//!
//! Source: KVFS (thesis 3.3): optimistic commit of a transaction's tree.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use varve_types::{KeyspaceId, SeqNo};

use super::clash::{Clashes, MergeHook, top_space};
use super::{Branch, BranchRecord};
use crate::db::Inner;
use crate::table::Admission;
use crate::view::{Layer, View};
use crate::{Batch, Blocked, KeyRange, Op, StoreError, StoreResult};

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
        let _gate = self.shared.gate.write();
        self.shared.check()?;
        self.check_childless()?;
        let view = self.inner.views.get();
        let record = view.branch(self.id)?;
        self.inner.check_locks(record)?;
        let parent = record.parent.map(|id| view.branch(id)).transpose()?.cloned();
        let _parent_gate = parent.as_ref().map(|parent| parent.shared.gate.read());
        if let Some(parent) = &parent {
            parent.shared.check()?;
            let (inner, shared) = (Arc::clone(&self.inner), Arc::clone(&parent.shared));
            let parent = Branch { inner, id: parent.id, shared };
            let bases = record.spaces.iter().filter(|own| !own.private).map(|own| own.base);
            parent.with_spaces(bases.collect())?;
        }
        let mut clashes = Clashes::new(&self.inner, record, merge);
        let bytes_max = BATCH_COMMIT_BYTES_MAX.min(self.inner.options.memtable_bytes / 4);
        match self.inner.changed_rows(&view, record, bytes_max)? {
            Some(rows) if rows.is_empty() => self.drop_changes(),
            Some(rows) => {
                let external = self.shared.external.load(Ordering::Relaxed);
                self.inner.log_commit(record, rows, external, &mut clashes, commutes)?;
                self.inner.metrics.branches_logged.add(1);
                self.end();
                self.inner.forget_ended();
                Ok(())
            }
            None => {
                self.join(&view, record, &mut clashes, commutes)?;
                self.inner.metrics.branches_joined.add(1);
                self.end();
                Ok(())
            }
        }
    }

    /// Commits by reference. What a branch changed that takes no locks of its own is locked meanwhile, if there are other
    /// locks; where these were taken away before it was committed, all begins anew, and after [`ROUNDS_MAX`] rounds it is
    /// refused.
    fn join(
        &self,
        view: &View,
        record: &BranchRecord,
        clashes: &mut Clashes<'_, '_>,
        commutes: &Commuting<'_>,
    ) -> StoreResult<()> {
        let meets_locks = record.parent.is_none() && record.shared.locks.is_none();
        let mut rounds = 0;
        loop {
            rounds += 1;
            let locked = meets_locks && self.inner.locks.is_used();
            let taken = match locked {
                true => self.inner.lock_changes_of(view, record, commutes),
                false => Ok(()),
            };
            let joined = taken.and_then(|()| self.inner.join_branch(record, clashes, locked));
            if locked {
                self.inner.locks.end(self.id);
            }
            match joined {
                Err(StoreError::GaveWay { .. }) if locked && rounds < ROUNDS_MAX => {}
                Err(StoreError::GaveWay { why }) if locked => {
                    return Err(StoreError::Blocked(self.inner.locks.refusal(why)));
                }
                // Its own went after that.
                Err(StoreError::Blocked(blocked)) if locked => {
                    let released = blocked.released + 1;
                    return Err(StoreError::Blocked(Blocked { released, ..blocked }));
                }
                joined => return joined,
            }
        }
    }
}

impl Inner {
    /// Fails if a branch that takes locks has lost them. Once nobody else can write until it is committed, they count as kept:
    /// whoever is given them then reads what it has written.
    pub(super) fn check_locks(&self, record: &BranchRecord) -> StoreResult<()> {
        match record.shared.locks {
            Some(_) => self.locks.check(record.id),
            None => Ok(()),
        }
    }

    /// Locks what a branch changed that takes no locks of its own. Costs the number of rows.
    fn lock_changes_of(
        &self,
        view: &View,
        record: &BranchRecord,
        commutes: &Commuting<'_>,
    ) -> StoreResult<()> {
        self.lock_changes(record.id, |lock| {
            for own in record.spaces.iter().filter(|own| !own.private) {
                let layer = Layer { space: view.keyspace(own.id)?, seq: SeqNo::MAX };
                let mut walk = self.changes(view, layer, &KeyRange::all())?;
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
        view: &View,
        record: &BranchRecord,
        bytes_max: usize,
    ) -> StoreResult<Option<Vec<ChangedRow>>> {
        let (mut rows, mut bytes) = (Vec::new(), 0);
        for own in record.spaces.iter().filter(|own| !own.private) {
            let layer = Layer { space: view.keyspace(own.id)?, seq: SeqNo::MAX };
            let mut walk = self.changes(view, layer, &KeyRange::all())?;
            while let Some((key, found)) = walk.next_found()? {
                let key = Bytes::copy_from_slice(key.as_slice());
                let value = self.cache.value_of(found, Admission::Pass)?;
                bytes += key.len() + value.as_ref().map_or(0, Bytes::len) + ROW_OVERHEAD_BYTES;
                if bytes > bytes_max {
                    return Ok(None);
                }
                rows.push((own.base, key, value.map(|value| Bytes::copy_from_slice(&value))));
            }
        }
        Ok(Some(rows))
    }

    /// Writes `rows`, merged where others changed them, as one batch that ends the branch.
    fn log_commit(
        &self,
        record: &BranchRecord,
        mut rows: Vec<ChangedRow>,
        external: bool,
        clashes: &mut Clashes<'_, '_>,
        commutes: &Commuting<'_>,
    ) -> StoreResult<()> {
        let checked = self.snapshots.last_seq();
        clashes.look_first(checked)?;
        let bytes =
            rows.iter().map(|(_, key, value)| key.len() + value.as_ref().map_or(0, Bytes::len));
        self.write_made(bytes.sum::<usize>() as u64, false, Some(record.id), |refused| {
            // A batch that met locks gives back what it was given.
            let given = refused.into_iter().flat_map(Batch::into_ops);
            for ((_, _, value), op) in rows.iter_mut().zip(given) {
                if let Op::Put { value: given, .. } = op {
                    *value = Some(given);
                }
            }
            self.check_locks(record)?;
            clashes.look(checked)?;
            let view = self.views.get();
            let mut batch = Batch::new();
            for (base, key, value) in &mut rows {
                let space = top_space(&view, record.parent, *base)?.ok_or(StoreError::Ended)?.id;
                let value = match clashes.merged.get(&(*base, key.clone())) {
                    Some(merged) => self.cache.value_of(merged.clone(), Admission::Pass)?,
                    None => value.take(),
                };
                match value {
                    Some(value) if commutes(*base, key) => batch.put_commuting(space, key, value),
                    Some(value) => batch.put(space, key, value),
                    None => batch.delete(space, key),
                }
            }
            if external && self.external_sync.get().is_some() {
                batch.depends_on_external();
            }
            batch.ends(record.id);
            self.check_batch(&batch)?;
            Ok(batch)
        })
    }

    /// Has branches that ended forgotten if there are many. The commit went through; what fails here is tried again by the
    /// next flush, and so is no error of it.
    fn forget_ended(&self) {
        let view = self.views.get();
        let ended = view.branches.values().filter(|record| record.shared.is_ended()).count();
        if ended > ENDED_MAX
            && let Err(error) = self.flush_all()
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
        let (inner, view) = (&db.inner, db.inner.views.get());
        let record = view.branch(branch.id()).unwrap();
        let rows = inner.changed_rows(&view, record, 1 << 20).unwrap().unwrap();
        let at = rows[0].2.as_ref().unwrap().as_ptr();
        let mut merge = |_: &Clash<'_>| Merged::Conflict;
        let mut clashes = Clashes::new(inner, record, &mut merge);
        inner.log_commit(record, rows, false, &mut clashes, &|_, _| false).unwrap();
        assert_eq!(db.get(space, b"row").unwrap().unwrap().as_ptr(), at);
    }
}
