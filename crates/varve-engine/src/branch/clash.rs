//! Which rows of a branch were changed in its parent, too: the first to commit a key wins.
//!
//! Of each key that the branch changed: is there a version in the parent that is newer than some write? The side that
//! changed less is walked, the other asked. Of the parent only memtables and tables with newer writes count, so the
//! question costs the changes, not the store.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use varve_format::filter::filter_hash;
use varve_types::{BranchId, KeyspaceId, SeqNo};

use super::handle::Branch;
use super::record::{BranchRecord, BranchSpace};
use crate::iter::Source;
use crate::iter::memory::MemorySource;
use crate::iter::merge::Merge;
use crate::iter::newer::NewerSource;
use crate::keyspace::Keyspace;
use crate::memtable::Found;
use crate::read_state::{Layer, ReadState};
use crate::reads::Reads;
use crate::table::cache::Admission;
use crate::txn::manager::Locks;
use crate::{Direction, KeyRange, StoreError, StoreResult};

/// Keys that an error of conflict names at most: with so many there may be more.
pub const CONFLICT_KEYS_MAX: usize = 64;

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
pub(super) type MergeHook<'a> = dyn FnMut(&Clash<'_>) -> Merged + 'a;

/// The clashes of a branch that is about to be committed.
pub(super) struct Clashes<'a, 'm> {
    reads: &'a Reads,
    locks: &'a Locks,
    record: &'a BranchRecord,
    merge: &'a mut MergeHook<'m>,
    /// What the hook made of them, by the store's key space.
    pub(super) merged: BTreeMap<(KeyspaceId, Bytes), Found>,
    conflicts: Vec<(KeyspaceId, Bytes)>,
}

impl<'a, 'm> Clashes<'a, 'm> {
    pub(super) fn new(
        reads: &'a Reads,
        locks: &'a Locks,
        record: &'a BranchRecord,
        merge: &'a mut MergeHook<'m>,
    ) -> Clashes<'a, 'm> {
        Clashes { reads, locks, record, merge, merged: BTreeMap::new(), conflicts: Vec::new() }
    }

    /// Looks at what the parent changed since the branch began; `now` is its newest write. What a locking branch
    /// changed nobody else did since it had the locks, and it has read what was changed before.
    pub(super) fn look_first(&mut self, now: SeqNo) -> StoreResult<()> {
        let locks = self.record.shared.locks.is_some();
        self.look_unless_lost(if locks { now } else { self.record.base.seq() })
    }

    /// [`Clashes::look`] for a branch that may lose its locks meanwhile: then it meets those who got them, and says so.
    pub(super) fn look_unless_lost(&mut self, after: SeqNo) -> StoreResult<()> {
        let looked = self.look(after);
        looked.map_err(|error| check_locks(self.locks, self.record).err().unwrap_or(error))
    }

    /// Has the rows merged that the parent changed after the write `after`. `Conflict` if one cannot be.
    ///
    /// REQUIRES: the branch takes no writes.
    pub(super) fn look(&mut self, after: SeqNo) -> StoreResult<()> {
        let read_state = self.reads.read_states.get();
        for own in self.record.spaces.iter().filter(|own| !own.private) {
            let Some(theirs) = top_space(&read_state, self.record.parent, own.base)? else {
                continue;
            };
            let ours = read_state.keyspace(own.id)?;
            if rows_after(&read_state, theirs, after) < rows_after(&read_state, ours, SeqNo::ZERO) {
                self.walk_theirs(&read_state, *own, theirs, ours, after)?;
            } else {
                self.walk_ours(&read_state, *own, theirs, ours, after)?;
            }
        }
        match std::mem::take(&mut self.conflicts) {
            keys if keys.is_empty() => Ok(()),
            keys => Err(StoreError::Conflict { keys }),
        }
    }

    fn walk_ours(
        &mut self,
        read_state: &ReadState,
        own: BranchSpace,
        theirs: &Keyspace,
        ours: &Keyspace,
        after: SeqNo,
    ) -> StoreResult<()> {
        if rows_after(read_state, theirs, after) == 0 {
            return Ok(());
        }
        let layer = Layer { space: ours, seq: SeqNo::MAX };
        let mut walk =
            self.reads.rows(read_state, &[layer], &KeyRange::all(), Direction::Forward)?;
        while let Some((key, found)) = walk.next_found()? {
            if let Some(theirs) =
                self.reads.changed_after(read_state, theirs, key.as_slice(), after)?
            {
                self.meet(own.base, key.as_slice(), theirs, found)?;
            }
        }
        Ok(())
    }

    fn walk_theirs(
        &mut self,
        read_state: &ReadState,
        own: BranchSpace,
        theirs: &Keyspace,
        ours: &Keyspace,
        after: SeqNo,
    ) -> StoreResult<()> {
        let mut walk = self.reads.newer_versions(read_state, theirs, after, SeqNo::MAX)?;
        let mut last: Option<Vec<u8>> = None;
        while walk.valid() {
            // The first version of a key is its newest.
            if last.as_deref() != Some(walk.key()) {
                last = Some(walk.key().to_vec());
                let layer = Layer { space: ours, seq: SeqNo::MAX };
                let key = walk.key();
                if walk.seq() > after
                    && let Some(found) =
                        self.reads.find(read_state, layer, key, filter_hash(key))?
                {
                    self.meet(own.base, key, walk.found()?, found)?;
                }
            }
            walk.advance()?;
        }
        Ok(())
    }

    /// Asks the hook about one key.
    fn meet(
        &mut self,
        keyspace: KeyspaceId,
        key: &[u8],
        theirs: Found,
        ours: Found,
    ) -> StoreResult<()> {
        if self.conflicts.len() >= CONFLICT_KEYS_MAX {
            return Ok(());
        }
        let seq = self.record.base.seq();
        let base = self.reads.get(self.record.parent, keyspace, key, seq)?;
        let value = |found| self.reads.cache.value_of(found, Admission::Pass);
        let (theirs, ours) = (value(theirs)?, value(ours)?);
        let merged = match (self.merge)(&Clash { keyspace, key, base, theirs, ours }) {
            Merged::Value(value) => Found::Value(value),
            Merged::Deleted => Found::Tombstone,
            Merged::Conflict => {
                self.conflicts.push((keyspace, Bytes::copy_from_slice(key)));
                return Ok(());
            }
        };
        self.merged.insert((keyspace, Bytes::copy_from_slice(key)), merged);
        Ok(())
    }
}

/// Fails if a branch that takes locks has lost them.
pub(super) fn check_locks(locks: &Locks, record: &BranchRecord) -> StoreResult<()> {
    match record.shared.locks {
        Some(_) => locks.check(record.id),
        None => Ok(()),
    }
}

/// The key space in which `tree` (`None`: the store itself) has its own rows of `base`.
pub(super) fn top_space(
    read_state: &ReadState,
    tree: Option<BranchId>,
    base: KeyspaceId,
) -> StoreResult<Option<&Keyspace>> {
    let Some(tree) = tree else { return read_state.keyspace(base).map(Some) };
    read_state.branch(tree)?.space(base).map(|own| read_state.keyspace(own.id)).transpose()
}

/// Versions, at most, that a walk over those newer than `after` passes.
fn rows_after(read_state: &ReadState, space: &Keyspace, after: SeqNo) -> u64 {
    let in_memory: usize = read_state.memtables().map(|memtable| memtable.rows(space.id)).sum();
    let metas = space.version.tables().map(|(_, table)| table.meta());
    let newer = metas.filter(|meta| meta.largest_seq > after);
    in_memory as u64 + newer.map(|meta| meta.entries).sum::<u64>()
}

impl Branch {
    /// Whether the branch has written to a row of the store, be it what the row was.
    pub fn has_written(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<bool> {
        let read_state = self.branches.reads.read_states.get();
        let own = read_state.branch(self.id)?.space(keyspace);
        let Some(own) = own.filter(|own| !own.private) else { return Ok(false) };
        let layer = Layer { space: read_state.keyspace(own.id)?, seq: SeqNo::MAX };
        Ok(self.branches.reads.find(&read_state, layer, key, filter_hash(key))?.is_some())
    }

    /// Whether others have written to a row of the store since the branch began. So a commit asks of it, if the branch has, too.
    pub fn others_have_written(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<bool> {
        let read_state = self.branches.reads.read_states.get();
        let record = read_state.branch(self.id)?;
        let Some(theirs) = top_space(&read_state, record.parent, keyspace)? else {
            return Ok(false);
        };
        let after = record.base.seq();
        Ok(self.branches.reads.changed_after(&read_state, theirs, key, after)?.is_some())
    }
}

impl Reads {
    /// What `key` became in `space` after the write `after`, if it changed.
    fn changed_after(
        &self,
        read_state: &ReadState,
        space: &Keyspace,
        key: &[u8],
        after: SeqNo,
    ) -> StoreResult<Option<Found>> {
        let hash = filter_hash(key);
        for memtable in read_state.memtables() {
            if let Some((seq, found)) = memtable.newest(space.id, key, hash) {
                return Ok((seq > after).then_some(found));
            }
        }
        for table in space.version.sublevels().filter_map(|(_, sublevel)| sublevel.find(key)) {
            if table.meta().largest_seq > after
                && let Some((seq, found)) = self.cache.newest(table, key, hash)?
            {
                return Ok((seq > after).then_some(found));
            }
        }
        Ok(None)
    }

    /// The versions of `space` in memtables, of each row in one the newest as of `upto`, and in blocks of tables that hold
    /// some newer than `after`.
    pub(super) fn newer_versions(
        &self,
        read_state: &ReadState,
        space: &Keyspace,
        after: SeqNo,
        upto: SeqNo,
    ) -> StoreResult<Merge> {
        let (all, forward) = ((Bound::Unbounded, Bound::Unbounded), Direction::Forward);
        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        for memtable in read_state.memtables() {
            let memtable = Arc::clone(memtable);
            let source = MemorySource::new(memtable, space.id, upto, all, forward);
            sources.push(Box::new(source));
        }
        for (_, sublevel) in space.version.sublevels() {
            let source = NewerSource::new(&self.cache, sublevel.tables(), after)?;
            sources.push(Box::new(source));
        }
        Ok(Merge::new(sources, forward))
    }
}
