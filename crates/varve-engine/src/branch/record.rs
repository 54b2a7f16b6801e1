//! A branch as the read state and the manifest have it, and what its users share.
//!
//! Invariants:
//! - The key spaces of a record ascend by the store's key spaces that they stand over, so that one is found by search.
//! - Writes hold the gate shared; what ends a branch, or hands its changes on, holds it exclusively.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::RwLock;
use varve_types::{BranchId, KeyspaceId, SeqNo};

use crate::keyspace::Keyspace;
use crate::snapshot::Pin;
use crate::txn::held::Held;
use crate::txn::terms::LockOptions;
use crate::version::Version;
use crate::{StoreError, StoreResult};

/// A branch that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchInfo {
    /// Its number, larger than that of any branch before it.
    pub id: BranchId,
    /// The branch that it stands over; `None`: the store itself.
    pub parent: Option<BranchId>,
    /// The newest write of the parent that it sees.
    pub seq: SeqNo,
    /// What its maker said of it.
    pub info: Bytes,
}

/// A key space of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BranchSpace {
    /// The store's, which it stands over.
    pub(crate) base: KeyspaceId,
    /// The branch's own.
    pub(crate) id: KeyspaceId,
    /// It begins empty and is never committed.
    pub(crate) private: bool,
}

impl BranchSpace {
    /// The key space, without tables, of `branch` over `base`.
    pub(crate) fn keyspace(self, branch: BranchId, base: &Keyspace) -> Keyspace {
        Keyspace {
            id: self.id,
            name: Arc::clone(&base.name),
            options: base.options,
            version: Arc::new(Version::default()),
            branch: Some(branch),
            private: self.private,
        }
    }
}

/// What all users of a branch share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Held shared by writes, and exclusively by what ends the branch.
    pub(super) gate: RwLock<()>,
    pub(super) ended: AtomicBool,
    /// Its rows may depend on data outside the store.
    pub(super) external: AtomicBool,
    /// It locks what it reads and writes.
    pub(crate) locks: Option<LockOptions>,
    /// What of that it is known to hold, since it began.
    pub(crate) held: OnceLock<Held>,
    /// But not these.
    unlocked: Vec<(KeyspaceId, Bytes)>,
}

impl Shared {
    /// Whether the branch was committed or dropped.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Notes that the branch was there when the store was opened, perhaps ended.
    pub(crate) fn recovered(&self, ended: bool) {
        self.ended.store(ended, Ordering::Release);
        self.external.store(true, Ordering::Relaxed);
    }

    pub(super) fn check(&self) -> StoreResult<()> {
        if self.is_ended() { Err(StoreError::Ended) } else { Ok(()) }
    }

    /// Whether a row is read and written without locks.
    pub(crate) fn is_unlocked(&self, space: KeyspaceId, key: &[u8]) -> bool {
        let unlocked = |(unlocked, prefix): &(KeyspaceId, Bytes)| {
            *unlocked == space && (prefix.is_empty() || key.starts_with(prefix))
        };
        self.unlocked.iter().any(unlocked)
    }
}

/// A branch as the read state and the manifest have it.
#[derive(Clone, Debug)]
pub(crate) struct BranchRecord {
    pub(crate) id: BranchId,
    pub(crate) parent: Option<BranchId>,
    /// Keeps what it sees of the parent.
    pub(crate) base: Arc<Pin>,
    pub(crate) info: Bytes,
    /// Its key spaces, in the order of the store's.
    pub(crate) spaces: Vec<BranchSpace>,
    pub(crate) shared: Arc<Shared>,
}

impl BranchRecord {
    /// A branch that nobody uses yet.
    pub(crate) fn new(
        id: BranchId,
        parent: Option<BranchId>,
        base: Arc<Pin>,
        info: Bytes,
        mut spaces: Vec<BranchSpace>,
        locks: Option<LockOptions>,
        unlocked: Vec<(KeyspaceId, Bytes)>,
    ) -> BranchRecord {
        spaces.sort_unstable_by_key(|space| space.base);
        let shared = Arc::new(Shared { locks, unlocked, ..Shared::default() });
        BranchRecord { id, parent, base, info, spaces, shared }
    }

    /// Its own key space over the store's `base`.
    pub(crate) fn space(&self, base: KeyspaceId) -> Option<BranchSpace> {
        let at = self.spaces.binary_search_by_key(&base, |space| space.base).ok()?;
        Some(self.spaces[at])
    }

    pub(super) fn about(&self) -> BranchInfo {
        let BranchRecord { id, parent, base, info, .. } = self;
        BranchInfo { id: *id, parent: *parent, seq: base.seq(), info: info.clone() }
    }
}
