//! Makes a store: its directories, its superblock, and the row of its root.

use std::path::Path;
use std::sync::Arc;

use varve_engine::options::DbOptions;
use varve_engine::{Store, StoreError, StoreResult};
use varve_env::{Env, FileLock};
use varve_namespace::Changes;
use varve_schema::key::STORE_ID;
use varve_schema::{Content, DirInfo, FileKind, Inode, Times};
use varve_types::{FileFlags, InodeId};

use crate::files::exists;
use crate::keyspaces::Keyspaces;
use crate::options::FormatOptions;
use crate::rows::whole_batch;
use crate::store_lock::take_lock;
use crate::superblock::{
    COPY_NAME, LARGE_FILE_THRESHOLDS, SUPERBLOCK_NAME, Superblock, engine_dir, objects_dir,
    preimages_dir, views_dir,
};

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

/// Refuses a directory with parts of a store, as a load that failed leaves: its rows and large files would be taken for files of the
/// new store.
fn check_nothing_left(env: &dyn Env, dir: &Path) -> StoreResult<()> {
    for part in [engine_dir(dir), objects_dir(dir), views_dir(dir), preimages_dir(dir)] {
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
pub(crate) fn make_objects_dir(env: &dyn Env, dir: &Path) -> StoreResult<()> {
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
