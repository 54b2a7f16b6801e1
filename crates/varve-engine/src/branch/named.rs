//! Named snapshots: states of the store that are kept under a name, over restarts, until they are deleted.
//!
//! A snapshot is a sequence number in the manifest, pinned as long as the name exists; what it needs is kept by every
//! merge ([`crate::compaction::retain`]), and after its deletion the next merges give the room back.
//!
//! Invariant: what a snapshot sees is durable before its name is.

use std::sync::Arc;

use varve_format::edit::SNAPSHOT_NAME_BYTES_MAX;
use varve_types::SeqNo;

use super::handle::Branches;
use crate::read_state::ReadState;
use crate::snapshot::Pin;
use crate::versions::changes::Changes;
use crate::{StoreError, StoreResult};

/// A named snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// The newest write that it sees.
    pub seq: SeqNo,
}

impl ReadState {
    /// The pin of a named snapshot.
    pub(crate) fn snapshot(&self, name: &str) -> StoreResult<&Arc<Pin>> {
        let message = || StoreError::Invalid(format!("there is no snapshot called {name:?}"));
        self.snapshots.get(name).ok_or_else(message)
    }
}

impl Branches {
    /// Keeps the present state under `name` (1 to 255 bytes), durably. Costs a sync and a manifest edit, however large
    /// the store is. `Invalid` if there is one of this name.
    pub(crate) fn create_snapshot(&self, name: &str) -> StoreResult<SnapshotInfo> {
        self.health.check_open()?;
        if name.is_empty() || name.len() > SNAPSHOT_NAME_BYTES_MAX {
            let message = format!("a snapshot's name has 1 to {SNAPSHOT_NAME_BYTES_MAX} bytes");
            return Err(StoreError::Invalid(message));
        }
        let _naming = self.naming.lock();
        if self.reads.read_states.get().snapshots.contains_key(name) {
            let message = format!("there is a snapshot called {name:?} already");
            return Err(StoreError::Invalid(message));
        }
        let (pin, ()) = self.snapshots.pin(|| ());
        self.log.sync()?;
        let info = SnapshotInfo { name: name.to_owned(), seq: pin.seq() };
        let named = Some((Arc::from(name), Arc::new(pin)));
        self.versions.install(&Changes { named, ..Changes::default() })?;
        Ok(info)
    }

    /// The named snapshots, by name.
    pub(crate) fn named_snapshots(&self) -> Vec<SnapshotInfo> {
        let read_state = self.reads.read_states.get();
        let info = |(name, pin): (&Arc<str>, &Arc<Pin>)| SnapshotInfo {
            name: name.to_string(),
            seq: pin.seq(),
        };
        read_state.snapshots.iter().map(info).collect()
    }

    /// Gives the snapshot `name` the name `new` (1 to 255 bytes) instead, durably. `Invalid` if there is none of that name,
    /// or one that has the new one.
    pub(crate) fn rename_snapshot(&self, name: &str, new: &str) -> StoreResult<()> {
        self.health.check_open()?;
        let _naming = self.naming.lock();
        let read_state = self.reads.read_states.get();
        if new.is_empty()
            || new.len() > SNAPSHOT_NAME_BYTES_MAX
            || read_state.snapshots.contains_key(new)
        {
            return Err(StoreError::Invalid(format!("a snapshot cannot be called {new:?}")));
        }
        let named = Some((Arc::from(new), Arc::clone(read_state.snapshot(name)?)));
        let unnamed = Some(Arc::from(name));
        self.versions.install(&Changes { named, unnamed, ..Changes::default() })?;
        Ok(())
    }

    /// Forgets the name, durably. What only the snapshot saw goes with the next merges; branches that stand over it
    /// and readers keep what they see. `Invalid` if there is none of this name.
    pub(crate) fn delete_snapshot(&self, name: &str) -> StoreResult<()> {
        self.health.check_open()?;
        let _naming = self.naming.lock();
        self.reads.read_states.get().snapshot(name)?;
        self.versions.install(&Changes { unnamed: Some(Arc::from(name)), ..Changes::default() })?;
        Ok(())
    }
}
