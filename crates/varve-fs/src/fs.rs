//! The file system's parts, and how it is formatted, opened and closed.
//!
//! Opening costs the same however many files there are: it takes the lock, opens the engine, clears the
//! volatile key space and finishes the work that pending rows name ([`crate::recover`]). A process that takes
//! over from another does neither of the last two ([`crate::handover`]).

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use varve_engine::options::DbOptions;
use varve_engine::paths::WritePaths;
use varve_engine::{KeyspaceOptions, Reserve, Store, StoreError, StoreResult};
use varve_env::{Env, File, FileLock, JoinHandle, OpenMode, ShadowEnv, is_no_space};
use varve_namespace::Changes;
use varve_schema::key::STORE_ID;
use varve_schema::{
    Content, DATA, DICTIONARIES, DirInfo, FileKind, Inode, META, NameHasher, Times,
};
use varve_session::Session;
use varve_types::{FileFlags, InodeId, KeyspaceId};
use varve_vfs::FsError;

use crate::clones::{SourceParts, Sources};
use crate::data::Unsettled;
use crate::dictionaries::Dictionaries;
use crate::dir_rows::DirRows;
use crate::engine::{Engine, EngineKind};
use crate::ids::IdAllocator;
use crate::kept::exists;
use crate::locks::RowLocks;
use crate::lost::Lost;
use crate::objects::Objects;
use crate::options::{FormatOptions, MountOptions};
use crate::reaper::Reaper;
use crate::rows::whole_batch;
use crate::spill::{LOOKUPS, Spill};
use crate::superblock::{
    COPY_NAME, LARGE_FILE_THRESHOLDS, SUPERBLOCK_NAME, Superblock, engine_dir, kept_dir, lock_path,
    objects_dir, views_dir,
};
use crate::transactions::{SerialStore, cover_left};
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
    /// Counts the operations that changed the place of an inode, when they have written and still hold
    /// their locks: who scans rows and then locks one knows by it whether the row may have changed.
    pub(crate) moves: AtomicU64,
    /// Files may end elsewhere than the front end believes, as they change by commits, or in the main view beside a view.
    pub(crate) ends_move: AtomicBool,
    /// The views of this file system; `None` in a view, and where the engine has none.
    pub(crate) views: Option<Views>,
    /// The store, if this is a serializable view.
    pub(crate) serial: Option<Arc<SerialStore>>,
    /// The states that clones read from; `None` if the store has no views.
    pub(crate) sources: Option<Arc<Sources>>,
    /// What of this view a repair could not save; the rows of the main view say it themselves.
    pub(crate) lost: Lost,
    pub(crate) lookups: KeyspaceId,
    /// When somebody last asked for something of a view, as [`Env::monotonic`] tells the time, in milliseconds.
    pub(crate) used: AtomicU64,
    reaper_thread: Mutex<Option<Box<dyn JoinHandle>>>,
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
}

/// The key spaces that every store has.
#[derive(Clone, Copy)]
pub(crate) struct Keyspaces {
    pub(crate) meta: KeyspaceId,
    pub(crate) data: KeyspaceId,
    pub(crate) lookups: KeyspaceId,
    pub(crate) dictionaries: KeyspaceId,
}

impl Keyspaces {
    /// Their names and options, in the order in which they are made.
    pub(crate) fn all(compression: bool) -> [(&'static str, KeyspaceOptions); 4] {
        let plain = KeyspaceOptions { prefixed: true, compressed: false };
        let data = KeyspaceOptions { prefixed: true, compressed: compression };
        let names = KeyspaceOptions { prefixed: false, compressed: false };
        [(META, plain), (DATA, data), (LOOKUPS, plain), (DICTIONARIES, names)]
    }

    pub(crate) fn open(store: &dyn Store, compression: bool) -> StoreResult<Keyspaces> {
        let [meta, data, lookups, dictionaries] =
            Keyspaces::all(compression).map(|(name, options)| store.keyspace(name, options));
        let (meta, data) = (meta?, data?);
        Ok(Keyspaces { meta, data, lookups: lookups?, dictionaries: dictionaries? })
    }
}

/// Makes a store in `dir`, durably, and says what it is. The directory is made if it does not exist.
/// Refuses a directory that holds a store or parts of one, and one that holds anything else unless `options.force`.
pub fn format(env: &Arc<dyn Env>, dir: &Path, options: &FormatOptions) -> StoreResult<Superblock> {
    options.engine.check()?;
    let _lock = begin_store(env.as_ref(), dir, options)?;
    let superblock = Superblock::new(env.as_ref(), options);
    let store = options.engine.open(env, &engine_dir(dir), DbOptions::default())?.store;
    write_root(env.as_ref(), store.as_ref(), &superblock, options)?;
    store.close()?;
    complete_store(env.as_ref(), dir, &superblock)?;
    Ok(superblock)
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = path.to_path_buf();
    move |source| StoreError::Io { action, path, source }
}

/// Makes the directories of a store that is to be in `dir`, and locks it.
pub(crate) fn begin_store(
    env: &dyn Env,
    dir: &Path,
    options: &FormatOptions,
) -> StoreResult<Box<dyn FileLock>> {
    if !LARGE_FILE_THRESHOLDS.contains(&options.large_file_threshold_bytes) {
        let text = "the large-file threshold must lie between 4096 and 16777216 bytes";
        return Err(StoreError::Invalid(text.into()));
    }
    // `.` and `..` are there, and are no names that could be made.
    if dir.file_name().is_some() {
        create_dir(env, dir)?;
    }
    env.confine(dir).map_err(io("open", dir))?;
    let is_empty = is_empty(env, dir)?;
    check_nothing_left(env, dir)?;
    if !is_empty && !options.force {
        let text = format!(
            "{} is not empty; choose another directory (`varve format --force` takes it as it is)",
            dir.display()
        );
        return Err(StoreError::Invalid(text));
    }
    let lock = take_lock(env, dir, None)?;
    for sub in [engine_dir(dir), objects_dir(dir)] {
        create_dir(env, &sub)?;
    }
    Ok(lock)
}

/// Refuses a directory with parts of a store, as a load that failed leaves: its rows and large files would be among those of the
/// new one.
fn check_nothing_left(env: &dyn Env, dir: &Path) -> StoreResult<()> {
    for part in [engine_dir(dir), objects_dir(dir), views_dir(dir), kept_dir(dir)] {
        match env.list(&part) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            items if items.as_ref().is_ok_and(Vec::is_empty) => {}
            items => {
                items.map_err(io("list", &part))?;
                let text = format!(
                    "{} is left of a store that is none; remove it first, or choose another directory",
                    part.display()
                );
                return Err(StoreError::Invalid(text));
            }
        }
    }
    Ok(())
}

/// Whether nothing is in `dir`. Refuses one that holds a store.
pub(crate) fn is_empty(env: &dyn Env, dir: &Path) -> StoreResult<bool> {
    let items = env.list(dir).map_err(io("list", dir))?;
    if items.iter().any(|item| [SUPERBLOCK_NAME, COPY_NAME].iter().any(|name| item.name == *name)) {
        let text = format!("{} holds a store already; choose another directory", dir.display());
        return Err(StoreError::Invalid(text));
    }
    Ok(items.is_empty())
}

/// Makes the store in `dir`, all of whose rows are durable, one that can be opened.
pub(crate) fn complete_store(
    env: &dyn Env,
    dir: &Path,
    superblock: &Superblock,
) -> StoreResult<()> {
    env.sync_dir(dir).map_err(io("sync", dir))?;
    superblock.write(env, dir)?;
    match dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => env.sync_dir(parent).map_err(io("sync", parent)),
        None => Ok(()),
    }
}

fn create_dir(env: &dyn Env, dir: &Path) -> StoreResult<()> {
    match env.create_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(StoreError::Io { action: "create", path: dir.to_path_buf(), source }),
        Ok(()) => Ok(()),
    }
}

/// Makes the directory of large files, durably, which a copy of a store without any may lack.
fn make_objects_dir(env: &dyn Env, dir: &Path) -> StoreResult<()> {
    let objects = objects_dir(dir);
    if exists(env, &objects).map_err(io("stat", &objects))? {
        return Ok(());
    }
    create_dir(env, &objects)?;
    env.sync_dir(dir).map_err(io("sync", dir))
}

fn write_root(
    env: &dyn Env,
    store: &dyn Store,
    superblock: &Superblock,
    options: &FormatOptions,
) -> StoreResult<()> {
    let keyspaces = Keyspaces::open(store, superblock.compression)?;
    let (uid, gid) = options.root_owner;
    let mut changes = Changes::new();
    if let Some(id) = superblock.store_id() {
        changes.put_meta(STORE_ID, id.encode());
    }
    changes.put_inode(&Inode {
        ino: InodeId::ROOT,
        kind: FileKind::Directory,
        perm: 0o755,
        nlink: 2,
        uid,
        gid,
        rdev: 0,
        size: 0,
        times: Times::all(env.now()),
        has_xattrs: false,
        flags: FileFlags::default(),
        home: None,
        content: Content::Directory(DirInfo::new(InodeId::ROOT, None)),
    });
    store.write(whole_batch(changes, (keyspaces.meta, keyspaces.data)))
}

/// Takes the lock of the store in `dir`, or says who holds it.
pub(crate) fn take_lock(
    env: &dyn Env,
    dir: &Path,
    mount_point: Option<&Path>,
) -> StoreResult<Box<dyn FileLock>> {
    let path = lock_path(dir);
    let io = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::ReadOnlyFilesystem => StoreError::Invalid(format!(
            "{} is on a read-only file system; a mount must be able to write there, also with -o ro, for \
             its log: make it writable or mount a copy",
            dir.display()
        )),
        _ => StoreError::Io { action: "lock", path: path.clone(), source },
    };
    match env.lock(&path).map_err(io)? {
        Some(lock) => {
            match write_note(lock.as_ref(), mount_point) {
                // Who opens the store finds room for it.
                Err(error) if is_no_space(&error) => {}
                written => written.map_err(io)?,
            }
            Ok(lock)
        }
        None => {
            let holder = holder(env, dir).unwrap_or_else(|| "it does not say which".into());
            Err(StoreError::Locked { path: dir.to_path_buf(), holder })
        }
    }
}

/// Notes at a lock who holds it.
fn write_note(lock: &dyn FileLock, mount_point: Option<&Path>) -> std::io::Result<()> {
    let note =
        serde_json::json!({ "pid": std::process::id(), "mount_point": mount_point.written() });
    lock.write_note(note.to_string().as_bytes())
}

/// The most bytes of a lock's note that are read; the longest path, which may have four for each of its own, fits.
const NOTE_BYTES_MAX: usize = 32 << 10;

/// What the process that has the store in `dir` open says of itself: a JSON object with `pid` and
/// `mount_point`. An old note stays when nobody has it open.
pub fn holder(env: &dyn Env, dir: &Path) -> Option<String> {
    let file = env.open(&lock_path(dir), OpenMode::Read).ok()?;
    let mut note = vec![0; NOTE_BYTES_MAX];
    let len = file.read_at(&mut note, 0).ok()?;
    note.truncate(len);
    String::from_utf8(note).ok().filter(|note| !note.is_empty())
}

/// A failure of the file system while its store is opened.
pub(crate) fn invalid(error: FsError) -> StoreError {
    StoreError::Invalid(error.to_string())
}

/// The same of the store in `dir`, and whether it was for want of room.
fn unopened(dir: &Path) -> impl Fn(FsError) -> StoreError {
    move |error| match error {
        FsError::NoSpace(_) => StoreError::NoSpace { path: dir.to_path_buf() },
        error => invalid(error),
    }
}

/// A lock that is held until the last of those who share it lets go.
#[derive(Debug)]
struct SharedLock(Arc<Box<dyn FileLock>>);

impl FileLock for SharedLock {
    fn write_note(&self, note: &[u8]) -> std::io::Result<()> {
        self.0.write_note(note)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
}

impl VarveFs {
    /// Opens the store in `dir`. `NotAStore`, `Locked`, `NewerFormat` and `Damaged` say why not, `Io` what the storage answered, and
    /// `Invalid`, among others, that the storage is read-only, which `read_only` does not make do.
    pub fn open(env: Arc<dyn Env>, dir: &Path, options: MountOptions) -> StoreResult<VarveFs> {
        Superblock::read(env.as_ref(), dir)?;
        let lock = take_lock(env.as_ref(), dir, options.mount_point.as_deref())?;
        VarveFs::open_locked(env, dir, options, lock)
    }

    /// Takes the lock of the store in `dir`, for [`VarveFs::open_locked`].
    pub fn lock(env: &dyn Env, dir: &Path) -> StoreResult<Box<dyn FileLock>> {
        Superblock::read(env, dir)?;
        take_lock(env, dir, None)
    }

    /// [`VarveFs::open`] for who has the store's lock.
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
            // It only helps others to name who has the store open.
            Err(error) if is_no_space(&error) => {
                log::warn!("cannot say who has {} open: {error}", dir.display())
            }
            written => written.map_err(io("lock", dir))?,
        }
        let lock = Arc::new(lock);
        let open_on = |env: Arc<dyn Env>| {
            let (db_env, db_options) = (Arc::clone(&env), db_options.clone());
            let open = |engine_dir: &Path| engine.open(&db_env, engine_dir, db_options);
            let lock = Box::new(SharedLock(Arc::clone(&lock)));
            VarveFs::open_on(env, dir, options.clone(), lock, open)
        };
        match open_on(Arc::clone(&env)) {
            // Who only reads needs none.
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
        // As in every mount, who made the call waits.
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
        if let Err(error) = fs.dictionaries.list() {
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
        if let (Some(db), Some(kept)) = (&db, objects.kept()) {
            kept.free_by(db.freeing_env());
        }
        let keyspaces = Keyspaces::open(store.as_ref(), superblock.compression)?;
        superblock.check_rows(store.as_ref(), keyspaces.meta, dir)?;
        let ids = IdAllocator::open(Arc::clone(&store), keyspaces.meta).map_err(unopened(dir))?;
        let ids = Arc::new(ids);
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
            let (db, env, dir, options) =
                (Arc::clone(db), Arc::clone(&env), dir.clone(), options.clone());
            let (superblock, objects) = (superblock.clone(), Arc::clone(&objects));
            let ids = Arc::clone(&ids);
            let ground =
                SourceParts { db, env, dir, options, superblock, objects, ids, keyspaces, random };
            Arc::new(Sources::new(ground))
        });
        if let (Some(db), Some(sources)) = (&db, &sources) {
            cover_left(db, &|epoch, sees| sources.objects_of(epoch, sees))?;
        }
        let views = db.map(|db| Views::new(db, random));
        let lock = Mutex::new(Some(lock));
        let serial = None;
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
            serial,
            sources,
            lost: Lost::default(),
        };
        VarveFs::build(parts, &keyspaces, spill)
    }

    /// A file system of these parts.
    pub(crate) fn build(parts: Parts, keyspaces: &Keyspaces, spill: Spill) -> StoreResult<VarveFs> {
        let Parts { env, dir, options, lock, locks, store, superblock, .. } = parts;
        let Parts { objects, ids, dictionaries, views, sources, serial, lost, .. } = parts;
        let hook = Arc::clone(&objects);
        store.set_external_sync(Box::new(move || hook.sync_claimed()));
        let meta = keyspaces.meta;
        let (both, marks_max) = ((meta, keyspaces.data), options.marked_dirs_max);
        let marks = match objects.kept() {
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
            ends_move: AtomicBool::new(serial.is_some()),
            used,
            reaper_thread: Mutex::new(None),
            lost,
            lookups: keyspaces.lookups,
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

    /// Starts to remove the object files of removed inodes in the background, if anything may change.
    pub(crate) fn start_reaper(&self) -> StoreResult<()> {
        if self.options.read_only {
            return Ok(());
        }
        let thread = self.reaper.start();
        let thread = thread.map_err(|source| StoreError::Io {
            action: "start a thread for",
            path: self.dir.clone(),
            source,
        })?;
        *self.reaper_thread.lock() = thread;
        Ok(())
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

    /// The store's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Syncs everything and lets go of the store. Later calls fail.
    pub fn close(&self) -> StoreResult<()> {
        self.shut_down(true).1
    }

    /// Syncs everything and closes the store; if it `ends` here, what only open handles kept goes. Gives the
    /// lock, which is let go of when it is dropped.
    pub(crate) fn shut_down(&self, ends: bool) -> (Option<Box<dyn FileLock>>, StoreResult<()>) {
        self.stop_reaper();
        if let Some(views) = &self.views {
            views.close();
        }
        let covered = if self.options.read_only { Ok(()) } else { self.sync_open_objects() };
        if ends && !self.options.read_only {
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

    /// Of the main view: lets go of the states that clones read from.
    fn close_sources(&self) {
        if let (Some(_), Some(sources)) = (&self.views, &self.sources) {
            sources.close();
        }
    }

    fn stop_reaper(&self) {
        self.reaper.stop();
        if let Some(thread) = self.reaper_thread.lock().take()
            && thread.join().is_err()
        {
            log::warn!("the thread that removes files of removed inodes panicked");
        }
    }
}

impl Drop for VarveFs {
    fn drop(&mut self) {
        self.stop_reaper();
        self.close_sources();
    }
}

impl std::fmt::Debug for VarveFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VarveFs({})", self.dir.display())
    }
}
