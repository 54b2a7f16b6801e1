//! Everything a reader looks at, as one immutable object.
//!
//! A [`ReadState`] lists the memtables and the table files of every key space, the named snapshots and the branches.
//! Readers take an `Arc` of the present one, or find what they want in its memtables at once; rotation, flush and
//! compaction put a new one in its place. All rows not newer than the moment a read state was taken are in it, so a reader
//! never misses one that moves from memtable to table.
//!
//! What a reader of a branch sees of a key space is a stack of [`Layer`]s: the branch's own rows, below them the rows of
//! the branch it stands over as of its beginning, and so on down to the store's.
//!
//! Invariants, checked by [`ReadState::check`] in debug builds before a read state is published:
//! - a key space of the store has its place in the list as its number;
//! - a branch and its key spaces name each other, and the branch that it stands over is there and older;
//! - memtables stand newest first, by their logs.
//!
//! Source: RocksDB's superversion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use smallvec::SmallVec;
use varve_types::{BranchId, FileNo, KeyspaceId, SeqNo};

use crate::branch::record::BranchRecord;
use crate::keyspace::Keyspace;
use crate::memtable::Memtable;
use crate::row_versions::RowVersions;
use crate::snapshot::Pin;
use crate::version::Version;
use crate::{StoreError, StoreResult};

/// The rows of one key space up to some moment, within a stack of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer<'a> {
    pub(crate) space: &'a Keyspace,
    pub(crate) seq: SeqNo,
}

/// Layers, uppermost first.
pub(crate) type Layers<'a> = SmallVec<[Layer<'a>; 2]>;

/// See the module's comment.
#[derive(Clone, Debug)]
pub(crate) struct ReadState {
    /// Takes the writes.
    pub(crate) active: Arc<Memtable>,
    /// Wait for their flush; newest first.
    pub(crate) immutables: Vec<Arc<Memtable>>,
    /// The store's own, by number.
    pub(crate) keyspaces: Vec<Keyspace>,
    /// The key spaces of branches.
    pub(crate) branch_spaces: BTreeMap<KeyspaceId, Keyspace>,
    /// Named states.
    pub(crate) snapshots: BTreeMap<Arc<str>, Arc<Pin>>,
    pub(crate) branches: BTreeMap<BranchId, Arc<BranchRecord>>,
}

impl ReadState {
    /// The key space with this number.
    pub(crate) fn keyspace(&self, id: KeyspaceId) -> StoreResult<&Keyspace> {
        let space = match id.is_of_branch() {
            true => self.branch_spaces.get(&id),
            false => self.keyspaces.get(id.get() as usize),
        };
        space.ok_or_else(|| StoreError::Invalid(format!("there is no key space {id}")))
    }

    /// Gives a key space another version.
    pub(crate) fn set_version(&mut self, id: KeyspaceId, version: Version) {
        let space = match id.is_of_branch() {
            true => self.branch_spaces.get_mut(&id),
            false => self.keyspaces.get_mut(id.get() as usize),
        };
        if let Some(space) = space {
            space.version = Arc::new(version);
        }
    }

    /// All key spaces, the store's own first.
    pub(crate) fn spaces(&self) -> impl Iterator<Item = &Keyspace> {
        self.keyspaces.iter().chain(self.branch_spaces.values())
    }

    /// The branch, unless it has ended.
    pub(crate) fn branch(&self, id: BranchId) -> StoreResult<&Arc<BranchRecord>> {
        let record = self.branches.get(&id).filter(|record| !record.shared.is_ended());
        record.ok_or(StoreError::Ended)
    }

    /// What a reader of `tree` (`None`: the store itself) as of `seq` sees of the store's key space `base`.
    pub(crate) fn layers(
        &self,
        tree: Option<BranchId>,
        base: KeyspaceId,
        seq: SeqNo,
    ) -> StoreResult<Layers<'_>> {
        let (mut layers, mut seq, mut next) = (Layers::new(), seq, tree);
        while let Some(id) = next {
            let record = self.branch(id)?;
            if let Some(own) = record.space(base) {
                layers.push(Layer { space: self.keyspace(own.id)?, seq });
                if own.private {
                    return Ok(layers);
                }
            }
            // What a locking branch reads of the store cannot change, and is the newest.
            seq = if record.shared.locks.is_some() { seq } else { record.base.seq() };
            next = record.parent;
        }
        layers.push(Layer { space: self.keyspace(base)?, seq });
        Ok(layers)
    }

    /// The memtables, newest first.
    pub(crate) fn memtables(&self) -> impl DoubleEndedIterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(&self.immutables)
    }

    /// The first invariant that does not hold, if any.
    fn check(&self) -> Result<(), String> {
        if let Some((at, space)) = self.keyspaces.iter().zip(0..).find_map(|(space, at)| {
            (space.id.get() != at || space.branch.is_some()).then_some((at, space))
        }) {
            return Err(format!("key space {} of the store stands at place {at}", space.id));
        }
        for (id, space) in &self.branch_spaces {
            let record = space.branch.and_then(|branch| self.branches.get(&branch));
            let names_it =
                record.is_some_and(|record| record.spaces.iter().any(|own| own.id == *id));
            if space.id != *id || !names_it {
                return Err(format!("key space {id} is of a branch that does not name it"));
            }
        }
        for record in self.branches.values() {
            if record.spaces.iter().any(|own| !self.branch_spaces.contains_key(&own.id)) {
                return Err(format!("branch {} names a key space that is not there", record.id));
            }
            let is_older =
                |parent: BranchId| parent < record.id && self.branches.contains_key(&parent);
            if !record.parent.is_none_or(is_older) {
                return Err(format!("branch {} stands over one that is not there", record.id));
            }
        }
        let logs: Vec<FileNo> = self.memtables().map(|memtable| memtable.first_log()).collect();
        // One log that was recovered may have filled several.
        match logs.is_sorted_by(|newer, older| newer >= older) {
            true => Ok(()),
            false => Err(format!("memtables stand in the order of logs {logs:?}")),
        }
    }

    /// The oldest log that holds rows which are in no table yet.
    pub(crate) fn oldest_log(&self) -> FileNo {
        self.immutables.last().unwrap_or(&self.active).first_log()
    }
}

/// The present read state.
#[derive(Debug)]
pub(crate) struct ReadStates {
    present: RwLock<Arc<ReadState>>,
    /// How often another was put in its place.
    changes: AtomicU64,
    /// Writes to the rows that it shows, counted by who applies a batch.
    pub(crate) writes: RowVersions,
}

impl ReadStates {
    pub(crate) fn new(read_state: ReadState) -> ReadStates {
        let (changes, writes) = (AtomicU64::new(0), RowVersions::new());
        ReadStates { present: RwLock::new(Arc::new(read_state)), changes, writes }
    }

    /// How often another read state was published. If the number is what it was before a caller asked for a read state, the
    /// caller has the present one.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The present read state.
    pub(crate) fn get(&self) -> Arc<ReadState> {
        Arc::clone(&self.present.read())
    }

    /// What `look` finds in the present read state, which stays the present one meanwhile: for what takes a moment, and neither
    /// reads a file nor asks for a read state again, nor waits for a lock but those of memtables, whose writers wait for no read state.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&Arc<ReadState>) -> T) -> T {
        look(&self.present.read())
    }

    /// Publishes what `change` makes of the present read state; returns the one before. The drop of the last user of a table
    /// removes its file, and that of a pin takes a lock that stands before this one: a caller that holds the lock must not
    /// drop what this returns.
    pub(crate) fn update(&self, change: impl FnOnce(&mut ReadState)) -> Arc<ReadState> {
        let mut current = self.present.write();
        let mut next = ReadState::clone(&current);
        change(&mut next);
        debug_assert_eq!(next.check(), Ok(()));
        // A caller that sees this number waits for the lock, and so for the new read state.
        self.changes.fetch_add(1, Ordering::Release);
        std::mem::replace(&mut *current, Arc::new(next))
    }
}
