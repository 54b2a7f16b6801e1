//! The file system's parts, how it is put together from them, and how it is closed.
//!
//! Each part has its own locks and invariants and knows only parts below it. What operations do with them is in the other modules
//! ([`crate::opening`] begins).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use varve_engine::{Store, StoreError, StoreResult};
use varve_env::{Env, File, FileLock};
use varve_schema::NameHasher;
use varve_session::Session;
use varve_types::KeyspaceId;

use crate::clones::Sources;
use crate::data::Unsettled;
use crate::dictionaries::Dictionaries;
use crate::dir_rows::DirRows;
use crate::error::invalid;
use crate::ids::IdAllocator;
use crate::keyspaces::Keyspaces;
use crate::locks::RowLocks;
use crate::lost::Lost;
use crate::objects::Objects;
use crate::options::MountOptions;
use crate::reaper::Reaper;
use crate::requests::Requests;
use crate::spill::Spill;
use crate::superblock::Superblock;
use crate::transactions::SerialStore;
use crate::usage::{Accounts, MarksOf};
use crate::views::Views;
use crate::xattr::KnownXattrs;

/// A file system on a log-structured store.
pub struct VarveFs {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) dir: PathBuf,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) meta: KeyspaceId,
    pub(crate) data: KeyspaceId,
    pub(crate) superblock: Superblock,
    pub(crate) options: MountOptions,
    pub(crate) hasher: NameHasher,
    pub(crate) locks: Arc<RowLocks>,
    pub(crate) dirs: Arc<DirRows>,
    pub(crate) xattrs: KnownXattrs,
    pub(crate) accounts: Arc<Accounts>,
    /// What the front end knows.
    pub(crate) session: Session<Arc<dyn File>>,
    pub(crate) unsettled: Unsettled,
    pub(crate) ids: Arc<IdAllocator>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) reaper: Arc<Reaper>,
    dictionaries: Arc<Dictionaries>,
    /// Held while a directory moves to another parent, so that the tree above it stands still.
    pub(crate) tree: Mutex<()>,
    /// Counts the operations that changed the location of an inode, when they have written and still hold
    /// their locks: an operation that scans rows and then locks one sees by it whether the row may have changed.
    pub(crate) moves: AtomicU64,
    /// Files may end elsewhere than the front end believes, as they change by commits, by other front ends, or in the main tree
    /// beside a view.
    pub(crate) ends_move: AtomicBool,
    /// The views of this file system; `None` in a view, and where the engine has none.
    pub(crate) views: Option<Views>,
    /// The store, if this is a serializable view.
    pub(crate) serial: Option<Arc<SerialStore>>,
    /// The states that clones read from; `None` if the store has no views.
    pub(crate) sources: Option<Arc<Sources>>,
    /// What of this view a repair could not save; the rows of the main tree say it themselves.
    pub(crate) lost: Lost,
    pub(crate) lookups: KeyspaceId,
    /// The requests of clients; `None` in a view.
    pub(crate) requests: Option<Requests>,
    /// When somebody last asked for something of a view, as [`Env::monotonic`] tells the time, in milliseconds.
    pub(crate) used: AtomicU64,
    lock: Mutex<Option<Box<dyn FileLock>>>,
}

/// What a file system is made of, whether of a store or of a view.
pub(crate) struct Parts {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) dir: PathBuf,
    pub(crate) options: MountOptions,
    pub(crate) lock: Mutex<Option<Box<dyn FileLock>>>,
    pub(crate) locks: Arc<RowLocks>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) superblock: Superblock,
    pub(crate) objects: Arc<Objects>,
    pub(crate) ids: Arc<IdAllocator>,
    pub(crate) dictionaries: Dictionaries,
    pub(crate) views: Option<Views>,
    pub(crate) serial: Option<Arc<SerialStore>>,
    pub(crate) sources: Option<Arc<Sources>>,
    pub(crate) lost: Lost,
    pub(crate) requests: Option<Requests>,
}

impl VarveFs {
    /// A file system of these parts.
    pub(crate) fn build(parts: Parts, keyspaces: &Keyspaces, spill: Spill) -> StoreResult<VarveFs> {
        let Parts { env, dir, options, lock, locks, store, superblock, .. } = parts;
        let Parts { objects, ids, dictionaries, views, sources, serial, lost, .. } = parts;
        let requests = parts.requests;
        let hook = Arc::clone(&objects);
        store.set_external_sync(Box::new(move || hook.sync_claimed()));
        let meta = keyspaces.meta;
        let (both, marks_max) = ((meta, keyspaces.data), options.marked_dirs_max);
        let marks = match objects.preimages() {
            Some(_) => MarksOf::Main,
            None if serial.is_some() => MarksOf::SerialView,
            None => MarksOf::View,
        };
        let dirs = Arc::new(DirRows::new(Arc::clone(&store), meta));
        let xattrs = KnownXattrs::new(Arc::clone(&store), meta);
        let (books, rows) = (Arc::clone(&locks), Arc::clone(&dirs));
        let accounts = Accounts::open(Arc::clone(&store), both, books, rows, marks_max, marks);
        let accounts = Arc::new(accounts.map_err(invalid)?);
        let books = Arc::clone(&accounts);
        let reaper =
            Reaper::new(Arc::clone(&env), Arc::clone(&store), meta, Arc::clone(&objects), books);
        let used = AtomicU64::new(env.monotonic().as_millis() as u64);
        Ok(VarveFs {
            meta,
            data: keyspaces.data,
            hasher: superblock.name_hasher(),
            locks,
            dirs,
            xattrs,
            accounts,
            session: Session::new(Box::new(spill), options.located_inodes()),
            unsettled: Unsettled::default(),
            ids,
            reaper: Arc::new(reaper),
            dictionaries: Arc::new(dictionaries),
            tree: Mutex::new(()),
            moves: AtomicU64::new(0),
            ends_move: AtomicBool::new(serial.is_some() || options.many_front_ends),
            used,
            lost,
            lookups: keyspaces.lookups,
            requests,
            views,
            serial,
            sources,
            lock,
            dir,
            env,
            store,
            superblock,
            options,
            objects,
        })
    }

    /// What was fixed when the store was formatted.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// For how long nobody has asked for names, attributes or files of a view; nothing while files are open in it.
    pub fn unused_for(&self) -> Duration {
        if self.session.handles.count() > 0 {
            return Duration::ZERO;
        }
        let used = self.used.load(Ordering::Relaxed);
        Duration::from_millis(self.monotonic_ms().saturating_sub(used))
    }

    /// [`Env::monotonic`] in milliseconds.
    pub(crate) fn monotonic_ms(&self) -> u64 {
        self.env.monotonic().as_millis() as u64
    }

    /// The dictionaries of its users.
    pub fn dictionaries(&self) -> &Arc<Dictionaries> {
        &self.dictionaries
    }

    /// Gives an inode that the store holds back to its device, for a name that the caller makes beside the store. False if there is none to
    /// give.
    pub fn lend_inode(&self) -> bool {
        self.store.lend_inode()
    }

    /// The store's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Syncs everything and closes the store. Later calls fail.
    pub fn close(&self) -> StoreResult<()> {
        self.shut_down(true).1
    }

    /// Syncs everything and closes the store; if it `ends` here, inodes that only open handles kept are removed, unless
    /// they are to be kept for those who open them again. Returns the
    /// lock, which is released when it is dropped.
    pub(crate) fn shut_down(&self, ends: bool) -> (Option<Box<dyn FileLock>>, StoreResult<()>) {
        self.reaper.stop();
        if let Some(views) = &self.views {
            views.close();
        }
        let covered = if self.options.read_only { Ok(()) } else { self.sync_open_objects() };
        if ends && !self.options.read_only && !self.options.keep_orphans {
            self.drop_known_orphans();
        }
        let synced = covered.and_then(|()| self.reaper.sync_and_drain()).map_err(|error| {
            log::warn!("the last sync failed: {error}");
            StoreError::Poisoned { cause: error.to_string() }
        });
        self.close_sources();
        if ends
            && !self.options.read_only
            && synced.is_ok()
            && let Err(error) = self.store.empty_logs()
        {
            log::warn!("the log keeps its rows: {error}");
        }
        // Of two failures that of the store says more.
        let closed = self.store.close();
        (self.lock.lock().take(), closed.and(synced))
    }

    /// Of the main tree: closes the states that clones read from.
    fn close_sources(&self) {
        if let (Some(_), Some(sources)) = (&self.views, &self.sources) {
            sources.close();
        }
    }
}

impl Drop for VarveFs {
    fn drop(&mut self) {
        self.reaper.stop();
        self.close_sources();
    }
}

impl std::fmt::Debug for VarveFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VarveFs({})", self.dir.display())
    }
}
