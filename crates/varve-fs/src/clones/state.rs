//! A state of the store that gets a branch once something is unfolded in it: to read it takes no room.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use varve_engine::{
    Batch, Branch, BranchOptions, Db, Direction, KeyIter, KeyRange, KeyspaceOptions, ScanIter,
    SnapshotStore, Store, StoreError, StoreResult, StoreSnapshot,
};
use varve_types::KeyspaceId;

use crate::epoch::Epoch;
use crate::keyspaces::Keyspaces;
use crate::snapshots::stored_name::parse_name;

/// What the info of a branch begins with in which a state is unfolded; its epoch follows.
const UNFOLDED: &str = "unfolded ";

type ExternalSync = Box<dyn Fn() -> std::io::Result<()> + Send + Sync>;

/// What the store calls the named snapshot of the epoch `epoch`.
pub(super) fn name_of(db: &Db, epoch: Epoch) -> Option<String> {
    let is_it = |name: &str| parse_name(name).is_some_and(|(known, _)| known == epoch);
    db.snapshots().into_iter().find(|stored| is_it(&stored.name)).map(|stored| stored.name)
}

/// The info of the branch in which the state of the epoch `epoch` is unfolded.
pub(super) fn info_of(epoch: Epoch) -> Bytes {
    format!("{UNFOLDED}{}", epoch.get()).into_bytes().into()
}

/// A named snapshot, and the branch over it once there is one. REQUIRES: there is one of these for each epoch.
pub(super) struct State {
    db: Arc<Db>,
    epoch: Epoch,
    keyspaces: Keyspaces,
    snapshot: SnapshotStore,
    branch: OnceLock<Branch>,
    /// Held while the branch begins. The hook of a view that was opened before.
    hook: Mutex<Option<ExternalSync>>,
}

impl State {
    /// The state of the epoch `epoch`, which is that of `snapshot`.
    pub(super) fn open(
        db: &Arc<Db>,
        epoch: Epoch,
        keyspaces: Keyspaces,
        snapshot: SnapshotStore,
    ) -> StoreResult<State> {
        let (db, branch, hook) = (Arc::clone(db), OnceLock::new(), Mutex::default());
        let info = info_of(epoch);
        if let Some(begun) = db.branches().iter().find(|branch| branch.info == info) {
            let _ = branch.set(db.open_branch(begun.id)?);
        }
        Ok(State { db, epoch, keyspaces, snapshot, branch, hook })
    }

    fn now(&self) -> &dyn Store {
        match self.branch.get() {
            Some(branch) => branch,
            None => &self.snapshot,
        }
    }

    /// The branch, begun if it is not.
    fn begun(&self) -> StoreResult<&Branch> {
        let mut hook = self.hook.lock();
        if let Some(branch) = self.branch.get() {
            return Ok(branch);
        }
        // A user may have deleted the snapshot, which then has another name.
        let snapshot = name_of(&self.db, self.epoch).ok_or(StoreError::Ended)?;
        let branch = self.db.branch(&BranchOptions {
            snapshot: Some(snapshot),
            private: vec![self.keyspaces.lookups],
            written: vec![self.keyspaces.meta, self.keyspaces.data],
            info: info_of(self.epoch),
            ..BranchOptions::default()
        })?;
        if let Some(hook) = hook.take() {
            branch.set_external_sync(hook);
        }
        Ok(self.branch.get_or_init(|| branch))
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Store for State {
    fn keyspace(&self, name: &str, options: KeyspaceOptions) -> StoreResult<KeyspaceId> {
        self.now().keyspace(name, options)
    }

    fn keyspace_names(&self) -> StoreResult<Vec<String>> {
        self.now().keyspace_names()
    }

    fn clear_keyspace(&self, keyspace: KeyspaceId) -> StoreResult<()> {
        self.begun()?.clear_keyspace(keyspace)
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>> {
        self.now().get(keyspace, key)
    }

    fn write(&self, batch: Batch) -> StoreResult<()> {
        self.begun()?.write(batch)
    }

    fn sync(&self) -> StoreResult<()> {
        self.now().sync()
    }

    fn syncs_begun(&self) -> Option<u64> {
        self.now().syncs_begun()
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>> {
        self.now().scan(keyspace, range, direction)
    }

    fn keys(&self, keyspace: KeyspaceId, range: KeyRange) -> StoreResult<KeyIter<'_>> {
        self.now().keys(keyspace, range)
    }

    fn snapshot(&self) -> StoreResult<Box<dyn StoreSnapshot + '_>> {
        self.now().snapshot()
    }

    fn set_external_sync(&self, hook: ExternalSync) {
        let mut later = self.hook.lock();
        match self.branch.get() {
            Some(branch) => branch.set_external_sync(hook),
            None => *later = Some(hook),
        }
    }

    fn is_room_scarce(&self) -> bool {
        self.db.is_room_scarce()
    }

    fn get_room(&self) -> StoreResult<bool> {
        self.db.get_room()
    }

    fn metrics_json(&self) -> String {
        self.now().metrics_json()
    }

    fn close(&self) -> StoreResult<()> {
        self.now().close()
    }
}
