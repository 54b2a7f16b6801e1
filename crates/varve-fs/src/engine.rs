//! Which store is underneath: Varve's engine, or another behind the same trait.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use varve_engine::{Db, DbOptions, Store, StoreResult};
use varve_env::Env;

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
