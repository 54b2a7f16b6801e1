//! The engine of a store without the file system above it, for programs that look at rows or tables.

use std::path::Path;
use std::sync::Arc;

use varve_engine::{Db, DbOptions, Store, StoreError, StoreResult};
use varve_env::Env;

use crate::engine::EngineKind;
use crate::files::exists;
use crate::objects::Objects;
use crate::options::MountOptions;
use crate::superblock::{Superblock, engine_dir, objects_dir};

/// The engine alone of the store in `dir`, which must not be in use, with so much memory. Closing it makes durable what recovery found
/// in the log, and the large files that it refers to before it.
pub fn open_engine(env: Arc<dyn Env>, dir: &Path, memory_bytes: usize) -> StoreResult<Db> {
    let mut options =
        DbOptions { create_if_missing: false, ..DbOptions::with_memory_budget(memory_bytes) };
    let (superblock, _) = Superblock::read_or_copy(env.as_ref(), dir)?;
    if superblock.engine != EngineKind::Varve {
        let text = format!("{} is not on Varve's engine, which this is about", dir.display());
        return Err(StoreError::Invalid(text));
    }
    superblock.design.apply(&mut options);
    let open_max = MountOptions::default().open_objects_max();
    let objects = Arc::new(Objects::new(Arc::clone(&env), dir, open_max)?);
    let files = objects_dir(dir);
    // A copy of a store without large files may lack them.
    let has_files = exists(env.as_ref(), &files).map_err(|source| StoreError::Io {
        action: "look at",
        path: files,
        source,
    })?;
    let db = Db::open(env, &engine_dir(dir), options)?;
    objects.cover_left(&db, dir)?;
    let sync = move || if has_files { objects.sync_claimed() } else { Ok(()) };
    db.set_external_sync(Box::new(sync));
    Ok(db)
}
