//! fjall, an LSM store of others, behind the trait [`Store`]: it proves that the file system asks of a store nothing that
//! only Varve's engine can give, and is a rival to measure on the same mount. TableFS asks for as much (thesis 4.1.2).
//!
//! Where fjall gives less than the trait says, the difference is made up here:
//! - It may make a write durable at any time, so data outside the store that a batch depends on is made durable before
//!   the batch is written, not before it is synced.
//! - It syncs only when told, which a thread does every few seconds.
//! - It has no order among the writes of a batch: of two on one key only the later is handed on.
//!
//! It has no snapshots that last, no branches, no check and no repair of its files, and it keeps to the machine's own file
//! system: there is no simulated one below it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use fjall::config::CompressionPolicy;
use fjall::{
    CompressionType, Database, Iter, Keyspace, KeyspaceCreateOptions, PersistMode, Readable,
};
use parking_lot::{Condvar, Mutex, RwLock};
use varve_env::{Env, JoinHandle};
use varve_types::KeyspaceId;

use crate::external::ExternalSync;
use crate::files::io_error;
use crate::memtable::is_empty_range;
use crate::poison::Poison;
use crate::{
    Batch, DbOptions, Direction, Key, KeyIter, KeyRange, KeyspaceOptions, Op, Pair, ScanIter,
    Store, StoreError, StoreResult, StoreSnapshot,
};

/// A store of fjall in a directory. Dropping it closes it.
pub struct FjallStore {
    inner: Arc<Inner>,
    syncer: Mutex<Option<Box<dyn JoinHandle>>>,
}

struct Inner {
    dir: PathBuf,
    memtable_bytes: u64,
    /// `None` once it is closed.
    open: RwLock<Option<Open>>,
    external_sync: OnceLock<ExternalSync>,
    poison: Poison,
    /// Whether the thread that syncs is to end.
    stopped: Mutex<bool>,
    stop: Condvar,
}

struct Open {
    database: Database,
    /// The key spaces that were asked for, by their numbers.
    spaces: Vec<(String, Keyspace)>,
}

impl FjallStore {
    /// Opens the store in `dir` within the memory that `options` give; makes it if they say so.
    pub fn open(env: &Arc<dyn Env>, dir: &Path, options: &DbOptions) -> StoreResult<FjallStore> {
        if env.is_deterministic() {
            return Err(StoreError::Invalid("fjall runs on the real machine only".to_owned()));
        }
        let is_empty = env.list(dir).map_or(true, |items| items.is_empty());
        if is_empty && !options.create_if_missing {
            return Err(StoreError::NotAStore { path: dir.to_path_buf() });
        }
        let database = Database::builder(dir).cache_size(options.cache_bytes() as u64).open();
        let database = database.map_err(|error| store_error(dir, error))?;
        let inner = Arc::new(Inner {
            dir: dir.to_path_buf(),
            memtable_bytes: options.memtable_bytes as u64,
            open: RwLock::new(Some(Open { database, spaces: Vec::new() })),
            external_sync: OnceLock::new(),
            poison: Poison::default(),
            stopped: Mutex::new(false),
            stop: Condvar::new(),
        });
        let (shared, interval) = (Arc::clone(&inner), options.sync_interval);
        let body = move || {
            let mut stopped = shared.stopped.lock();
            while !*stopped {
                if shared.stop.wait_for(&mut stopped, interval).timed_out()
                    && let Err(error) = shared.sync()
                {
                    log::error!("syncing {}: {error}", shared.dir.display());
                }
            }
        };
        let syncer = env
            .spawn("varve-sync", Box::new(body))
            .map_err(|error| io_error("start a thread for", dir, error))?;
        Ok(FjallStore { inner, syncer: Mutex::new(Some(syncer)) })
    }
}

impl Inner {
    /// Does `work` with the open database.
    fn with<T>(&self, work: impl FnOnce(&Open) -> StoreResult<T>) -> StoreResult<T> {
        work(self.open.read().as_ref().ok_or(StoreError::Closed)?)
    }

    fn error(&self, error: fjall::Error) -> StoreError {
        store_error(&self.dir, error)
    }

    fn space(&self, id: KeyspaceId) -> StoreResult<Keyspace> {
        self.with(|open| open.space(id).cloned())
    }

    fn run_external_sync(&self) -> StoreResult<()> {
        let Some(hook) = self.external_sync.get() else { return Ok(()) };
        let failed = |error| self.poison.sync_failed("sync the data outside of", &self.dir, error);
        hook().map_err(failed)
    }

    fn sync(&self) -> StoreResult<()> {
        self.poison.check()?;
        self.run_external_sync()?;
        self.with(|open| open.database.persist(PersistMode::SyncAll).map_err(|e| self.error(e)))
    }
}

impl Open {
    fn space(&self, id: KeyspaceId) -> StoreResult<&Keyspace> {
        let found = self.spaces.get(id.get() as usize).map(|(_, space)| space);
        found.ok_or_else(|| StoreError::Invalid(format!("there is no key space {id}")))
    }
}

fn store_error(dir: &Path, error: fjall::Error) -> StoreError {
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
            io_error("use", &dir.join("fjall"), source)
        }
        fjall::Error::Poisoned => {
            StoreError::Poisoned { cause: "a write of fjall failed".to_owned() }
        }
        fjall::Error::Locked => {
            StoreError::Locked { path: dir.to_path_buf(), holder: "unknown".to_owned() }
        }
        other => StoreError::Damaged {
            path: dir.to_path_buf(),
            offset: 0,
            detail: format!("fjall says: {other}"),
        },
    }
}

/// The rows of a walk, until an error.
fn rows(dir: &Path, iter: Iter, direction: Direction) -> ScanIter<'static> {
    let (dir, mut iter) = (dir.to_path_buf(), Some(iter));
    Box::new(std::iter::from_fn(move || {
        let walk = iter.as_mut()?;
        let next = match direction {
            Direction::Forward => walk.next(),
            Direction::Reverse => walk.next_back(),
        };
        let row: StoreResult<Pair> = match next?.into_inner() {
            Ok((key, value)) => Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value))),
            Err(error) => {
                iter = None;
                Err(store_error(&dir, error))
            }
        };
        Some(row)
    }))
}

fn is_empty(range: &KeyRange) -> bool {
    let (start, end) = (range.start.as_ref(), range.end.as_ref());
    is_empty_range((start.map(Vec::as_slice), end.map(Vec::as_slice)))
}

impl Store for FjallStore {
    fn keyspace(&self, name: &str, options: KeyspaceOptions) -> StoreResult<KeyspaceId> {
        let mut open = self.inner.open.write();
        let open = open.as_mut().ok_or(StoreError::Closed)?;
        if let Some(at) = open.spaces.iter().position(|(known, _)| known == name) {
            return Ok(KeyspaceId::new(at as u32));
        }
        let kind = if options.compressed { CompressionType::Lz4 } else { CompressionType::None };
        let create = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(self.inner.memtable_bytes)
                .data_block_compression_policy(CompressionPolicy::all(kind))
        };
        let space = open.database.keyspace(name, create).map_err(|e| self.inner.error(e))?;
        open.spaces.push((name.to_owned(), space));
        Ok(KeyspaceId::new(open.spaces.len() as u32 - 1))
    }

    fn keyspace_names(&self) -> StoreResult<Vec<String>> {
        let names = self.inner.with(|open| Ok(open.database.list_keyspace_names()))?;
        Ok(names.iter().map(ToString::to_string).collect())
    }

    fn clear_keyspace(&self, keyspace: KeyspaceId) -> StoreResult<()> {
        self.inner.space(keyspace)?.clear().map_err(|e| self.inner.error(e))?;
        self.inner.sync()
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>> {
        self.inner.with(|open| {
            let found = open.space(keyspace)?.get(key).map_err(|e| self.inner.error(e))?;
            Ok(found.map(|value| Bytes::copy_from_slice(&value)))
        })
    }

    fn write(&self, batch: Batch) -> StoreResult<()> {
        self.inner.poison.check()?;
        if batch.is_external() {
            self.inner.run_external_sync()?;
        }
        let mut last: BTreeMap<(KeyspaceId, &Key), Option<&Bytes>> = BTreeMap::new();
        for op in batch.ops() {
            match op {
                Op::Put { keyspace, key, value } => last.insert((*keyspace, key), Some(value)),
                Op::Delete { keyspace, key } => last.insert((*keyspace, key), None),
            };
        }
        self.inner.with(|open| {
            let mut writes = open.database.batch().durability(Some(PersistMode::Buffer));
            for ((keyspace, key), value) in last {
                let space = open.space(keyspace)?;
                match value {
                    Some(value) => writes.insert(space, &key[..], &value[..]),
                    None => writes.remove(space, &key[..]),
                }
            }
            writes.commit().map_err(|e| self.inner.error(e))
        })
    }

    fn sync(&self) -> StoreResult<()> {
        self.inner.sync()
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>> {
        if is_empty(&range) {
            return Ok(Box::new(std::iter::empty()));
        }
        let iter = self.inner.space(keyspace)?.range((range.start, range.end));
        Ok(rows(&self.inner.dir, iter, direction))
    }

    fn keys(&self, keyspace: KeyspaceId, range: KeyRange) -> StoreResult<KeyIter<'_>> {
        let rows = self.scan(keyspace, range, Direction::Forward)?;
        Ok(Box::new(rows.map(|row| row.map(|(key, _)| key))))
    }

    fn snapshot(&self) -> StoreResult<Box<dyn StoreSnapshot + '_>> {
        let snapshot = self.inner.with(|open| Ok(open.database.snapshot()))?;
        Ok(Box::new(FjallSnapshot { inner: &self.inner, snapshot }))
    }

    fn set_external_sync(&self, hook: ExternalSync) {
        if self.inner.external_sync.set(hook).is_err() {
            log::error!("the external sync is set twice; the first stays");
        }
    }

    fn metrics_json(&self) -> String {
        let bytes =
            self.inner.with(|open| open.database.disk_space().map_err(|e| self.inner.error(e)));
        serde_json::json!({
            "engine": "fjall",
            "bytes": bytes.ok(),
            "poisoned": self.inner.poison.cause(),
        })
        .to_string()
    }

    fn close(&self) -> StoreResult<()> {
        *self.inner.stopped.lock() = true;
        self.inner.stop.notify_all();
        let syncer = self.syncer.lock().take().ok_or(StoreError::Closed)?;
        if syncer.join().is_err() {
            log::error!("the thread that syncs {} panicked", self.inner.dir.display());
        }
        let synced = self.inner.sync();
        drop(self.inner.open.write().take());
        synced
    }
}

impl Drop for FjallStore {
    fn drop(&mut self) {
        match self.close() {
            Ok(()) | Err(StoreError::Closed) => {}
            Err(error) => log::error!("closing {}: {error}", self.inner.dir.display()),
        }
    }
}

impl std::fmt::Debug for FjallStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallStore").field("dir", &self.inner.dir).finish_non_exhaustive()
    }
}

/// A pinned state.
struct FjallSnapshot<'a> {
    inner: &'a Inner,
    snapshot: fjall::Snapshot,
}

impl StoreSnapshot for FjallSnapshot<'_> {
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>> {
        let space = self.inner.space(keyspace)?;
        let found = self.snapshot.get(&space, key).map_err(|e| self.inner.error(e))?;
        Ok(found.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>> {
        if is_empty(&range) {
            return Ok(Box::new(std::iter::empty()));
        }
        let space = self.inner.space(keyspace)?;
        let iter = self.snapshot.range(&space, (range.start, range.end));
        Ok(rows(&self.inner.dir, iter, direction))
    }
}
