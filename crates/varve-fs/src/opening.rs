//! How a store is opened.
//!
//! Opening costs the same however many files there are: it takes the lock, opens the engine, clears the
//! volatile key space and finishes the work that pending rows name ([`crate::recover`]). A process that takes
//! over from another does neither of the last two ([`crate::handover`]).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use varve_engine::options::DbOptions;
use varve_engine::{Reserve, Store, StoreError, StoreResult};
use varve_env::{Env, FileLock, ShadowEnv, is_no_space};

use crate::clones::{KeptBytes, SourceParts, Sources, UnwrittenStore};
use crate::dictionaries::Dictionaries;
use crate::engine::{Engine, EngineKind};
use crate::error::unopened;
use crate::format::make_objects_dir;
use crate::fs::{Parts, VarveFs};
use crate::ids::IdAllocator;
use crate::keyspaces::Keyspaces;
use crate::locks::RowLocks;
use crate::lost::Lost;
use crate::objects::Objects;
use crate::options::MountOptions;
use crate::requests::Requests;
use crate::spill::Spill;
use crate::store_lock::{SharedLock, take_lock, write_note};
use crate::superblock::{Superblock, engine_dir};
use crate::transactions::cover_left;
use crate::views::Views;

impl VarveFs {
    /// Opens the store in `dir`. `NotAStore`, `Locked`, `NewerFormat` and `Damaged` say why not, `Io` what the storage answered, and
    /// `Invalid`, among others, that the storage is read-only, which `read_only` does not make do.
    pub fn open(env: Arc<dyn Env>, dir: &Path, options: MountOptions) -> StoreResult<VarveFs> {
        Superblock::read(env.as_ref(), dir)?;
        let lock = take_lock(env.as_ref(), dir, options.mount_point.as_deref())?;
        VarveFs::open_locked(env, dir, options, lock)
    }

    /// Takes the lock of the store in `dir`, for [`VarveFs::open_locked`]. REQUIRES: its superblock was read.
    pub fn lock(env: &dyn Env, dir: &Path) -> StoreResult<Box<dyn FileLock>> {
        take_lock(env, dir, None)
    }

    /// [`VarveFs::open`] for a caller that has the store's lock.
    pub fn open_locked(
        env: Arc<dyn Env>,
        dir: &Path,
        options: MountOptions,
        lock: Box<dyn FileLock>,
    ) -> StoreResult<VarveFs> {
        let Superblock { engine, design, .. } = Superblock::read(env.as_ref(), dir)?;
        let db_options = options.engine(design);
        let reserve = Reserve::find(&env, &engine_dir(dir), db_options.space_reserve_bytes);
        let note = || write_note(lock.as_ref(), options.mount_point.as_deref());
        match reserve.with_room(note) {
            // The note only helps others to name the process that has the store open.
            Err(error) if is_no_space(&error) => {
                log::warn!("cannot say who has {} open: {error}", dir.display())
            }
            written => written.map_err(|source| StoreError::Io {
                action: "lock",
                path: dir.to_path_buf(),
                source,
            })?,
        }
        let lock = Arc::new(lock);
        let open_on = |env: Arc<dyn Env>| {
            let (db_env, db_options) = (Arc::clone(&env), db_options.clone());
            let open = |engine_dir: &Path| engine.open(&db_env, engine_dir, db_options);
            let lock = Box::new(SharedLock::of(&lock));
            VarveFs::open_on(env, dir, options.clone(), lock, open)
        };
        match open_on(Arc::clone(&env)) {
            // A mount that only reads needs no room.
            Err(StoreError::NoSpace { .. }) if options.read_only => {
                log::warn!(
                    "{} has no room for what opening it writes: that stays in memory",
                    dir.display()
                );
                open_on(ShadowEnv::new(env))
            }
            opened => opened,
        }
    }

    /// [`VarveFs::open`] for a store of Varve's own engine, opened with `engine` instead of what the memory budget and the store's
    /// design make of it.
    pub fn open_with(
        env: Arc<dyn Env>,
        dir: &Path,
        options: MountOptions,
        engine: DbOptions,
    ) -> StoreResult<VarveFs> {
        // As in every mount, the caller waits.
        let (db_env, engine) =
            (Arc::clone(&env), DbOptions { lock_wait: Duration::ZERO, ..engine });
        let open = |engine_dir: &Path| EngineKind::Varve.open(&db_env, engine_dir, engine);
        Superblock::read(env.as_ref(), dir)?;
        let lock = take_lock(env.as_ref(), dir, options.mount_point.as_deref())?;
        VarveFs::open_on(env, dir, options, lock, open)
    }

    fn open_on(
        env: Arc<dyn Env>,
        dir: &Path,
        options: MountOptions,
        lock: Box<dyn FileLock>,
        open_store: impl FnOnce(&Path) -> StoreResult<Engine>,
    ) -> StoreResult<VarveFs> {
        let fs_env = Arc::clone(&env);
        let fs = VarveFs::assemble(env, dir, options, lock, open_store)?;
        fs.store.clear_keyspace(fs.lookups)?;
        if !fs.options.read_only {
            make_objects_dir(fs_env.as_ref(), dir)?;
        }
        fs.begin_views()?;
        fs.finish_pending().map_err(unopened(dir))?;
        if !fs.options.read_only {
            fs.superblock.keep_copy(fs_env.as_ref(), dir);
            if let Some(error) = fs.name_received().map_err(unopened(dir))? {
                log::error!(
                    "all of a snapshot is received, but cannot be named: {error}; roll back to the last one, and receive it again"
                );
            }
        }
        fs.drop_unfinished().map_err(unopened(dir))?;
        fs.forget_ended_transactions().map_err(unopened(dir))?;
        fs.load_quotas().map_err(unopened(dir))?;
        // Finishes removals that a crash cut short. Files can be used whatever has become of dictionaries.
        if let Err(error) = fs.dictionaries().list() {
            log::warn!("{error}");
        }
        fs.start_reaper()?;
        Ok(fs)
    }

    /// Opens the locked store in `dir` as it is; [`VarveFs::begin_views`] comes before any object changes.
    pub(crate) fn assemble(
        env: Arc<dyn Env>,
        dir: &Path,
        options: MountOptions,
        lock: Box<dyn FileLock>,
        open_store: impl FnOnce(&Path) -> StoreResult<Engine>,
    ) -> StoreResult<VarveFs> {
        let superblock = Superblock::read(env.as_ref(), dir)?;
        let objects = Objects::new(Arc::clone(&env), dir, options.open_objects_max())?;
        let objects = Arc::new(objects);
        let Engine { store, db } = open_store(&engine_dir(dir))?;
        if let (Some(db), Some(preimages)) = (&db, objects.preimages()) {
            preimages.free_by(db.freeing_env());
        }
        let keyspaces = Keyspaces::open(store.as_ref(), superblock.compression)?;
        superblock.check_rows(store.as_ref(), keyspaces.meta, dir)?;
        let (unwritten, store) = over(store, db.is_some(), &options);
        let ids = IdAllocator::open(Arc::clone(&store), keyspaces.meta);
        let ids = Arc::new(ids.map_err(unopened(dir))?);
        let dictionaries = Dictionaries::new(
            Arc::clone(&store),
            keyspaces.dictionaries,
            superblock.compression,
            options.read_only,
            Arc::clone(&ids),
        );
        let spill = Spill::new(Arc::clone(&store), keyspaces.lookups);
        let random = env.random();
        let dir = dir.to_path_buf();
        let sources = db.as_ref().map(|db| {
            Sources::new(SourceParts {
                db: Arc::clone(db),
                env: Arc::clone(&env),
                dir: dir.clone(),
                options: options.clone(),
                superblock: superblock.clone(),
                objects: Arc::clone(&objects),
                ids: Arc::clone(&ids),
                unwritten,
                keyspaces,
                random,
            })
        });
        if let (Some(db), Some(sources)) = (&db, &sources) {
            cover_left(db, &|epoch, sees| sources.objects_of(epoch, sees))?;
        }
        let views = db.map(|db| Views::new(db, random));
        let lock = Mutex::new(Some(lock));
        let (machine, rows) = (Arc::clone(&env), Arc::clone(&store));
        let requests = Requests::open(machine, &dir, rows, &superblock, options.read_only)?;
        let parts = Parts {
            env,
            dir,
            options,
            lock,
            locks: Arc::new(RowLocks::new()),
            store,
            superblock,
            objects,
            ids,
            dictionaries,
            views,
            serial: None,
            sources,
            lost: Lost::default(),
            requests: Some(requests),
        };
        VarveFs::build(parts, &keyspaces, spill)
    }

    /// Starts to remove the object files of removed inodes in the background, if anything may change.
    pub(crate) fn start_reaper(&self) -> StoreResult<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.reaper.start().map_err(|source| StoreError::Io {
            action: "start a thread for",
            path: self.dir.clone(),
            source,
        })
    }
}

/// What keeps rows of clones in memory over `store`, and the store of the file system: that one if there are clones.
fn over(
    store: Arc<dyn Store>,
    has_clones: bool,
    options: &MountOptions,
) -> (Arc<UnwrittenStore>, Arc<dyn Store>) {
    let bytes = Arc::new(KeptBytes::new(options.kept_bytes_max()));
    let unwritten = Arc::new(UnwrittenStore::over(Arc::clone(&store), bytes));
    let over: Arc<dyn Store> = Arc::<UnwrittenStore>::clone(&unwritten);
    (unwritten, if has_clones { over } else { store })
}
