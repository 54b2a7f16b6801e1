//! Hands what a branch changed to its parent: the first to commit a key wins.
//!
//! 1. The branch takes no more writes.
//! 2. Of each key that it changed, is there a version in the parent that is newer than the branch's beginning? Then
//!    the caller's hook may make one of the two, else the commit fails and the branch goes on.
//! 3. Under the writer's lock the same is asked of what was written since step 2. The changes are logged as one batch
//!    that also says that the branch has ended, and applied: a crash leaves both or neither.
//!
//! The commit is durable as any other write: once the store is synced, together with all that came before it.
//!
//! Source: KVFS (thesis 3.3): optimistic commit of a transaction's tree.

use bytes::Bytes;
use varve_types::limits::BATCH_BYTES_MAX;
use varve_types::{BranchId, KeyspaceId, SeqNo};

use super::{Branch, BranchRecord};
use crate::db::Inner;
use crate::memtable::Found;
use crate::view::{Keyspace, Layer, View};
use crate::{Batch, Direction, KeyRange, StoreError, StoreResult};

/// Keys that an error of conflict names.
const CONFLICT_KEYS_MAX: usize = 64;
/// Bytes that a row takes in a batch besides its key and value, at most.
const ROW_OVERHEAD_BYTES: usize = 16;

/// A key that a branch and another writer of its parent both changed since the branch began.
#[derive(Debug)]
pub struct Clash<'a> {
    /// The store's key space.
    pub keyspace: KeyspaceId,
    /// The key.
    pub key: &'a [u8],
    /// Its value when the branch began.
    pub base: Option<Bytes>,
    /// Its value in the parent now.
    pub theirs: Option<Bytes>,
    /// Its value in the branch.
    pub ours: Option<Bytes>,
}

/// What becomes of a [`Clash`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merged {
    /// Both changes are in this value.
    Value(Bytes),
    /// Both are in the row's absence.
    Deleted,
    /// They exclude each other.
    Conflict,
}

/// Decides about clashes.
type MergeHook<'a> = dyn FnMut(&Clash<'_>) -> Merged + 'a;

/// A row that a branch changed.
#[derive(Clone, Debug)]
struct ChangedRow {
    /// The store's key space.
    base: KeyspaceId,
    key: Bytes,
    found: Found,
}

impl Branch {
    /// Makes all that the branch changed part of its parent at once, and ends it. Where others changed a key that it
    /// changed, `merge` decides; it may be asked of a key more than once, and runs while writers wait.
    ///
    /// [`StoreError::Conflict`] names keys of which `merge` made none; then, as after any other error, nothing has
    /// happened and the branch goes on. Costs the number of changed rows. Durable once the store is synced.
    pub fn commit(&self, merge: &mut MergeHook<'_>) -> StoreResult<()> {
        let _gate = self.shared.gate.write();
        self.shared.check()?;
        self.check_childless()?;
        let view = self.inner.views.get();
        let record = view.branch(self.id)?;
        let parent = record.parent.map(|id| view.branch(id)).transpose()?.cloned();
        let _parent_gate = parent.as_ref().map(|parent| parent.shared.gate.read());
        parent.as_ref().map_or(Ok(()), |parent| parent.shared.check())?;
        let Some(rows) = self.inner.changed_rows(&view, record, BATCH_BYTES_MAX)? else {
            let message = "the branch changed more than fits one batch".to_owned();
            return Err(StoreError::Invalid(message));
        };
        if rows.is_empty() {
            return self.drop_changes();
        }
        if let Some(parent) = &parent {
            let inner = std::sync::Arc::clone(&self.inner);
            let parent =
                Branch { inner, id: parent.id, shared: std::sync::Arc::clone(&parent.shared) };
            rows.iter().try_for_each(|row| parent.own_space(row.base).map(drop))?;
        }
        let mut commit = Commit { inner: &self.inner, record, merge, rows, conflicts: Vec::new() };
        commit.log(self.shared.external.load(std::sync::atomic::Ordering::Relaxed))?;
        self.end();
        Ok(())
    }

    /// The rows that the branch changed: key spaces in their order, then keys; `None` for one that it deleted.
    pub fn changes(&self) -> StoreResult<Vec<(KeyspaceId, Bytes, Option<Bytes>)>> {
        let view = self.inner.views.get();
        let rows = self.inner.changed_rows(&view, view.branch(self.id)?, usize::MAX)?;
        let rows = rows.unwrap_or_default().into_iter();
        Ok(rows.map(|row| (row.base, row.key, row.found.into_value())).collect())
    }
}

impl Inner {
    /// The rows that a branch changed; `None` if they have more than `bytes_max` bytes.
    fn changed_rows(
        &self,
        view: &View,
        record: &BranchRecord,
        bytes_max: usize,
    ) -> StoreResult<Option<Vec<ChangedRow>>> {
        let (mut rows, mut bytes) = (Vec::new(), 0);
        for own in record.spaces.iter().filter(|own| !own.private) {
            let layer = Layer { space: view.keyspace(own.id)?, seq: SeqNo::MAX };
            let mut walk = self.rows(view, &[layer], &KeyRange::all(), Direction::Forward)?;
            while let Some((key, found)) = walk.next_found()? {
                let key = Bytes::copy_from_slice(key.as_slice());
                bytes += key.len() + found.len() + ROW_OVERHEAD_BYTES;
                if bytes > bytes_max {
                    return Ok(None);
                }
                rows.push(ChangedRow { base: own.base, key, found });
            }
        }
        Ok(Some(rows))
    }

    /// The key space in which `tree` (`None`: the store itself) has its own rows of `base`.
    fn top_space<'a>(
        &self,
        view: &'a View,
        tree: Option<BranchId>,
        base: KeyspaceId,
    ) -> StoreResult<Option<&'a Keyspace>> {
        let Some(tree) = tree else { return view.keyspace(base).map(Some) };
        view.branch(tree)?.space(base).map(|own| view.keyspace(own.id)).transpose()
    }

    /// What `key` became in `space` after the write `after`, if it changed. Only memtables and tables with newer
    /// writes are looked at.
    fn changed_after(
        &self,
        view: &View,
        space: &Keyspace,
        key: &[u8],
        after: SeqNo,
    ) -> StoreResult<Option<Found>> {
        for memtable in view.memtables() {
            if let Some((seq, found)) = memtable.newest(space.id, key) {
                return Ok((seq > after).then_some(found));
            }
        }
        let hash = varve_format::filter::filter_hash(key);
        for table in space.version.sublevels().filter_map(|(_, sublevel)| sublevel.find(key)) {
            if table.meta().largest_seq > after
                && let Some((seq, found)) = self.cache.newest(table, key, hash)?
            {
                return Ok((seq > after).then_some(found));
            }
        }
        Ok(None)
    }
}

/// The commit of a branch as one batch.
struct Commit<'a, 'm> {
    inner: &'a Inner,
    record: &'a BranchRecord,
    merge: &'a mut MergeHook<'m>,
    /// What the branch made of the rows.
    rows: Vec<ChangedRow>,
    conflicts: Vec<(KeyspaceId, Bytes)>,
}

impl Commit<'_, '_> {
    /// Steps 2 and 3.
    fn log(&mut self, external: bool) -> StoreResult<()> {
        let checked = self.inner.snapshots.last_seq();
        let mut merged = vec![None; self.rows.len()];
        self.merge_after(self.record.base.seq(), &mut merged)?;
        let bytes = self.rows.iter().map(|row| row.key.len() + row.found.len()).sum::<usize>();
        let inner = self.inner;
        inner.write_made(bytes as u64, false, || {
            self.merge_after(checked, &mut merged)?;
            let batch = self.batch(&merged, external)?;
            inner.check_batch(&batch)?;
            Ok(batch)
        })
    }

    /// Has the rows merged that the parent changed after the write `after`.
    fn merge_after(&mut self, after: SeqNo, merged: &mut [Option<Found>]) -> StoreResult<()> {
        let view = self.inner.views.get();
        let parent = self.record.parent;
        for (row, merged) in self.rows.iter().zip(merged) {
            let Some(space) = self.inner.top_space(&view, parent, row.base)? else { continue };
            let Some(theirs) = self.inner.changed_after(&view, space, &row.key, after)? else {
                continue;
            };
            let clash = Clash {
                keyspace: row.base,
                key: &row.key,
                base: self.inner.get(parent, row.base, &row.key, self.record.base.seq())?,
                theirs: theirs.into_value(),
                ours: row.found.clone().into_value(),
            };
            match (self.merge)(&clash) {
                Merged::Value(value) => *merged = Some(Found::Value(value)),
                Merged::Deleted => *merged = Some(Found::Tombstone),
                Merged::Conflict => self.conflicts.push((row.base, row.key.clone())),
            }
            if self.conflicts.len() >= CONFLICT_KEYS_MAX {
                break;
            }
        }
        match std::mem::take(&mut self.conflicts) {
            keys if keys.is_empty() => Ok(()),
            keys => Err(StoreError::Conflict { keys }),
        }
    }

    fn batch(&self, merged: &[Option<Found>], external: bool) -> StoreResult<Batch> {
        let view = self.inner.views.get();
        let mut batch = Batch::new();
        for (row, merged) in self.rows.iter().zip(merged) {
            let space = self.inner.top_space(&view, self.record.parent, row.base)?;
            let keyspace = space.ok_or(StoreError::Ended)?.id;
            match merged.as_ref().unwrap_or(&row.found) {
                Found::Value(value) => batch.put(keyspace, row.key.clone(), value.clone()),
                Found::Tombstone => batch.delete(keyspace, row.key.clone()),
            }
        }
        if external && self.inner.external_sync.get().is_some() {
            batch.depends_on_external();
        }
        batch.ends(self.record.id);
        Ok(batch)
    }
}
