//! Which store is underneath: Varve's engine, or another behind the same trait.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use varve_engine::{Db, DbOptions, Store, StoreError, StoreResult};
use varve_env::Env;

use crate::kept::exists;
use crate::objects::Objects;
use crate::options::MountOptions;
use crate::superblock::{Superblock, engine_dir, objects_dir};

/// The store that keeps the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// Varve's own.
    #[default]
    Varve,
    /// fjall, in programs that were built with it; without snapshots, transactions, check and repair of its files.
    Fjall,
}

/// An open store.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    /// The same, if it is one that can have views.
    pub(crate) db: Option<Arc<Db>>,
}

impl EngineKind {
    /// Opens the store in `dir`. `Invalid` if this program was built without its kind.
    pub(crate) fn open(
        self,
        env: &Arc<dyn Env>,
        dir: &Path,
        options: DbOptions,
    ) -> StoreResult<Engine> {
        match self {
            EngineKind::Varve => {
                let db = Arc::new(Db::open(Arc::clone(env), dir, options)?);
                Ok(Engine { store: Arc::<Db>::clone(&db), db: Some(db) })
            }
            #[cfg(feature = "engine-fjall")]
            EngineKind::Fjall => {
                let store = varve_engine::fjall::FjallStore::open(env, dir, &options)?;
                Ok(Engine { store: Arc::new(store), db: None })
            }
            #[cfg(not(feature = "engine-fjall"))]
            EngineKind::Fjall => Err(self.missing()),
        }
    }

    /// Fails if this program cannot open stores of this kind.
    pub(crate) fn check(self) -> StoreResult<()> {
        match self {
            #[cfg(not(feature = "engine-fjall"))]
            EngineKind::Fjall => Err(self.missing()),
            _ => Ok(()),
        }
    }

    #[cfg(not(feature = "engine-fjall"))]
    fn missing(self) -> varve_engine::StoreError {
        let text = "this program was built without fjall; build it with `--features engine-fjall`";
        varve_engine::StoreError::Invalid(text.to_owned())
    }
}

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
