//! A store without its file system: what a check reads and a repair writes.
//!
//! Unlike a mount, opening it decodes no row, so that it opens whatever the rows hold.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use varve_engine::options::DbOptions;
use varve_engine::{Db, Store, StoreResult};
use varve_env::{Env, FileLock};
use varve_schema::{NameHasher, Pending, RowKey, StoreId};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::FsResult;

use crate::clones::epochs_of;
use crate::engine::Engine;
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::keyspaces::Keyspaces;
use crate::objects::Objects;
use crate::options::MountOptions;
use crate::requests::{self, Requests};
use crate::store_lock::take_lock;
use crate::superblock::{Superblock, engine_dir};
use crate::transactions::transactions_of;

/// An open store.
pub(crate) struct Volume {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) dir: PathBuf,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) meta: KeyspaceId,
    pub(crate) data: KeyspaceId,
    pub(crate) dictionaries: KeyspaceId,
    /// The key space of requests, if the store was ever served.
    pub(crate) requests: Option<KeyspaceId>,
    pub(crate) hasher: NameHasher,
    pub(crate) store_id: Option<StoreId>,
    pub(crate) objects: Arc<Objects>,
    /// The epochs of the named snapshots; `None` if the store has none.
    pub(crate) sources: Option<BTreeSet<Epoch>>,
    /// The epochs of the open transactions.
    pub(crate) transactions: Vec<Epoch>,
    /// The store, if it has snapshots and transactions.
    pub(crate) db: Option<Arc<Db>>,
    _lock: Option<Box<dyn FileLock>>,
}

/// What has to be durable before a row that depends on it, besides large files.
pub(crate) type AlsoSync = Arc<Mutex<Option<Arc<dyn varve_env::File>>>>;

impl Volume {
    /// The store of an open file system.
    pub(crate) fn of(fs: &VarveFs) -> Volume {
        Volume {
            env: Arc::clone(&fs.env),
            dir: fs.dir.clone(),
            store: Arc::clone(&fs.store),
            meta: fs.meta,
            data: fs.data,
            dictionaries: fs.dictionaries().names(),
            requests: fs.requests.as_ref().and_then(Requests::known_space),
            hasher: fs.hasher.clone(),
            store_id: fs.superblock.store_id(),
            objects: Arc::clone(&fs.objects),
            sources: fs.sources.as_ref().map(|sources| sources.epochs().into_iter().collect()),
            transactions: Vec::new(),
            db: fs.views.as_ref().map(|views| Arc::clone(views.db())),
            _lock: None,
        }
    }

    /// Opens the store in `dir`, which nobody else may have open, by the copy of its superblock if need be; the engine takes
    /// `engine_bytes` of memory. A sync also syncs the file in `also`, if there is one.
    pub(crate) fn open(
        env: Arc<dyn Env>,
        dir: &Path,
        engine_bytes: usize,
        also: AlsoSync,
    ) -> StoreResult<Volume> {
        let (superblock, _) = Superblock::read_or_copy(env.as_ref(), dir)?;
        let lock = take_lock(env.as_ref(), dir, None)?;
        Volume::assemble(env, dir, &superblock, lock, (engine_bytes, false), also)
    }

    /// Opens the locked store in `dir`, whose superblock may not be written yet. `engine` says how many bytes of
    /// memory the engine takes, and whether it makes its files.
    pub(crate) fn assemble(
        env: Arc<dyn Env>,
        dir: &Path,
        superblock: &Superblock,
        lock: Box<dyn FileLock>,
        engine: (usize, bool),
        also: AlsoSync,
    ) -> StoreResult<Volume> {
        let (engine_bytes, create_if_missing) = engine;
        let mut options =
            DbOptions { create_if_missing, ..DbOptions::with_memory_budget(engine_bytes) };
        superblock.design.apply(&mut options);
        let open_max = MountOptions::default().open_objects_max();
        let objects = Arc::new(Objects::new(Arc::clone(&env), dir, open_max)?);
        let Engine { store, db } = superblock.engine.open(&env, &engine_dir(dir), options)?;
        if let Some(db) = &db {
            objects.cover_left(db, dir)?;
        }
        let transactions = db.as_ref().map(|db| transactions_of(db)).unwrap_or_default();
        let sources = db.as_ref().map(|db| epochs_of(db));
        let hook = Arc::clone(&objects);
        store.set_external_sync(Box::new(move || {
            if let Some(file) = &*also.lock() {
                file.sync_data()?;
            }
            hook.sync_claimed()
        }));
        let keyspaces = Keyspaces::open(store.as_ref(), superblock.compression)?;
        let requests = requests::find(store.as_ref())?;
        let hasher = superblock.name_hasher();
        let Keyspaces { meta, data, dictionaries, .. } = keyspaces;
        let dir = dir.to_path_buf();
        let (store_id, _lock) = (superblock.store_id(), Some(lock));
        Ok(Volume {
            env,
            dir,
            store,
            meta,
            data,
            dictionaries,
            requests,
            hasher,
            store_id,
            objects,
            sources,
            transactions,
            db,
            _lock,
        })
    }

    /// What is pending of an inode; `None` if that cannot be read.
    pub(crate) fn pending(&self, ino: InodeId) -> FsResult<Option<Pending>> {
        let key = RowKey::pending(ino).to_bytes();
        let row = self.store.get(self.meta, &key).map_err(error::store)?;
        Ok(row.and_then(|row| Pending::decode(&row).ok()))
    }
}
