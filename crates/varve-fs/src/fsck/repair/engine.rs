//! Repairs the files of the engine below a file system: tables, logs, the manifest.
//!
//! Comes before the rows can be looked at. What it had to leave out shows in the rows as names without inodes and
//! the like, which the rest of the repair mends.

use std::path::Path;
use std::sync::Arc;

use varve_engine::options::DbOptions;
use varve_engine::repair::{EngineRepair, RepairOptions, repair_telling};
use varve_engine::{KeyspaceOptions, StoreError, StoreResult};
use varve_env::Env;
use varve_schema::{DICTIONARIES_MAX, DictionaryRow, REQUESTS};

use super::aside::ASIDE_DIR;
use crate::EngineKind;
use crate::dictionaries::pairs_options;
use crate::fsck::CheckOptions;
use crate::keyspaces::Keyspaces;
use crate::lost::{LOST_NAME, Lost};
use crate::requests;
use crate::store_lock::take_lock;
use crate::superblock::{Superblock, engine_dir};
use crate::transactions::Transaction;
use crate::views::ViewName;

/// The transactions that a repair of the engine has dropped, as far as that is known.
pub fn dropped_views(repaired: &EngineRepair) -> Vec<ViewName> {
    repaired.branches_dropped.iter().filter_map(|info| Transaction::name_in(info)).collect()
}

/// Repairs the engine's files of the store in `dir`, which nobody may have open.
pub fn repair_engine(
    env: &Arc<dyn Env>,
    dir: &Path,
    options: &CheckOptions,
) -> StoreResult<EngineRepair> {
    let superblock = Superblock::read(env.as_ref(), dir)?;
    if superblock.engine != EngineKind::Varve {
        let text = "the engine's files are not Varve's and cannot be repaired; restore a backup";
        return Err(StoreError::Invalid(text.to_owned()));
    }
    let _lock = take_lock(env.as_ref(), dir, None)?;
    let compression = superblock.compression;
    let files = Keyspaces::all(compression).map(|(name, options)| (name.to_owned(), options));
    let dictionaries = (0..DICTIONARIES_MAX)
        .map(|number| (DictionaryRow::found(number).keyspace(), pairs_options(compression)));
    let mut keyspaces: Vec<(String, KeyspaceOptions)> =
        files.into_iter().chain(dictionaries).collect();
    if let Some(number) = superblock.requests_keyspace {
        let at = keyspaces.len().min(number as usize);
        keyspaces.insert(at, (REQUESTS.to_owned(), requests::OPTIONS));
    }
    let options = RepairOptions {
        db: DbOptions::with_memory_budget(options.engine_bytes()),
        keyspaces,
        aside: dir.join(ASIDE_DIR),
    };
    repair_telling(env, &engine_dir(dir), &options, &mut |repaired| {
        Lost::note(env.as_ref(), dir, repaired).map_err(|source| StoreError::Io {
            action: "write",
            path: dir.join(LOST_NAME),
            source,
        })
    })
}
