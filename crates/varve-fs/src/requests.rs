//! The key space of rows about requests of clients, and of clients ([`varve_schema::REQUESTS`]).
//!
//! The main tree alone has it: no snapshot, transaction, clone, dump or stream looks at it, and a rollback leaves it as it is.
//! It is made when a store is first served. Which number it got is in the superblock, for a repair of a store that has lost its
//! manifest and must know the key spaces by their order. There is one row for each client, and for each slot of one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use varve_engine::{KeyspaceOptions, Store, StoreResult};
use varve_env::Env;
use varve_schema::REQUESTS;
use varve_types::KeyspaceId;
use varve_vfs::FsResult;

use crate::error;
use crate::superblock::Superblock;

/// What the key space is made with.
pub(crate) const OPTIONS: KeyspaceOptions = KeyspaceOptions { prefixed: false, compressed: false };

/// The key space of a store.
pub(crate) struct Requests {
    env: Arc<dyn Env>,
    dir: PathBuf,
    store: Arc<dyn Store>,
    space: OnceLock<KeyspaceId>,
    making: Mutex<()>,
}

impl Requests {
    /// Those of the store in `dir`, which the caller has locked.
    pub(crate) fn open(
        env: Arc<dyn Env>,
        dir: &Path,
        store: Arc<dyn Store>,
        superblock: &Superblock,
        read_only: bool,
    ) -> StoreResult<Requests> {
        let dir = dir.to_path_buf();
        let requests = Requests { env, dir, store, space: OnceLock::new(), making: Mutex::new(()) };
        if let Some(space) = find(requests.store.as_ref())? {
            let space = *requests.space.get_or_init(|| space);
            if superblock.requests_keyspace != Some(space.get()) && !read_only {
                requests.note_in_superblock(space);
            }
        }
        Ok(requests)
    }

    /// The key space, if there is one.
    pub(crate) fn known_space(&self) -> Option<KeyspaceId> {
        self.space.get().copied()
    }

    /// The key space, which is made if there is none.
    pub(crate) fn space(&self) -> FsResult<KeyspaceId> {
        if let Some(space) = self.space.get() {
            return Ok(*space);
        }
        let _making = self.making.lock();
        if let Some(space) = self.space.get() {
            return Ok(*space);
        }
        let space = self.store.keyspace(REQUESTS, OPTIONS).map_err(error::store)?;
        self.note_in_superblock(space);
        Ok(*self.space.get_or_init(|| space))
    }

    /// A failure is no reason to refuse requests: the next mount tries again.
    fn note_in_superblock(&self, space: KeyspaceId) {
        let noted = Superblock::read(self.env.as_ref(), &self.dir).and_then(|superblock| {
            let requests_keyspace = Some(space.get());
            Superblock { requests_keyspace, ..superblock }.write(self.env.as_ref(), &self.dir)
        });
        if let Err(error) = noted {
            log::warn!("the superblock does not say which key space has requests: {error}");
        }
    }
}

/// The key space of a store, if it was ever served.
pub(crate) fn find(store: &dyn Store) -> StoreResult<Option<KeyspaceId>> {
    let is_there = store.keyspace_names()?.iter().any(|name| name == REQUESTS);
    is_there.then(|| store.keyspace(REQUESTS, OPTIONS)).transpose()
}
