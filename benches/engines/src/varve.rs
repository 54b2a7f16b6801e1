//! Varve's engine, without the file system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use varve_engine::design::{Compaction, StoreDesign};
use varve_engine::{
    Batch, Db, DbOptions, Direction, Inspection, KeyRange, KeyspaceOptions, Store as _, inspect,
};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_types::KeyspaceId;

use crate::store::{Memory, Outcome, Store};
use crate::workload::Key;

/// Memtables that stand in memory together at the most: the active one and those that wait for their flush.
const MEMTABLES: usize = 3;

pub(crate) struct Varve {
    env: Arc<dyn Env>,
    dir: PathBuf,
    db: Db,
    space: KeyspaceId,
}

impl Varve {
    /// A store of the default design, or with `compaction` instead of its.
    pub(crate) fn open(
        dir: &Path,
        memory: Memory,
        compaction: Option<Compaction>,
    ) -> Outcome<Varve> {
        let env: Arc<dyn Env> = OsEnv::new();
        let mut options =
            DbOptions::with_memory_budget(memory.cache_bytes + MEMTABLES * memory.memtable_bytes);
        options.memtable_bytes = memory.memtable_bytes;
        options.level_base_bytes = 4 * memory.memtable_bytes as u64;
        options.debt_soft_bytes = 4 * options.level_base_bytes;
        options.debt_hard_bytes = 16 * options.level_base_bytes;
        let default = StoreDesign::default();
        let compaction = compaction.unwrap_or(default.compaction);
        StoreDesign { compaction, ..default }.apply(&mut options);
        let db = Db::open(Arc::clone(&env), dir, options)?;
        let space = db.keyspace("rows", KeyspaceOptions { prefixed: true, compressed: false })?;
        Ok(Varve { env, dir: dir.to_path_buf(), db, space })
    }

    fn metrics(&self) -> serde_json::Value {
        serde_json::from_str(&self.db.metrics_json()).unwrap_or_default()
    }
}

impl Store for Varve {
    fn get(&self, key: &Key) -> Outcome<bool> {
        Ok(self.db.get(self.space, key)?.is_some())
    }

    fn put(&self, key: &Key, value: &[u8]) -> Outcome<()> {
        let mut batch = Batch::new();
        batch.put(self.space, key, Bytes::copy_from_slice(value));
        Ok(self.db.write(batch)?)
    }

    fn scan(&self, directory: u64) -> Outcome<u64> {
        let range = KeyRange::prefix(&directory.to_be_bytes());
        let mut rows = 0;
        for row in self.db.scan(self.space, range, Direction::Forward)? {
            row?;
            rows += 1;
        }
        Ok(rows)
    }

    fn flush(&self) -> Outcome<()> {
        Ok(self.db.flush()?)
    }

    fn mapped_bytes(&self) -> u64 {
        self.metrics()["counters"]["log_window_bytes"].as_u64().unwrap_or(0)
    }

    fn index_bytes(&self) -> Option<u64> {
        let tables = self.env.list(&self.dir).ok()?.into_iter().filter_map(|item| {
            match inspect(&*self.env, &self.dir.join(&item.name), false) {
                Ok(Inspection::Table(table)) => Some(table),
                _ => None,
            }
        });
        let sections = tables.flat_map(|table| table.sections);
        let kept = sections.filter(|section| section.name != "properties");
        Some(kept.map(|section| u64::from(section.length_bytes)).sum())
    }

    fn details(&self) -> String {
        let metrics = self.metrics();
        let levels = metrics["keyspaces"][0]["levels"].as_array().cloned().unwrap_or_default();
        let used = levels.iter().filter(|level| level["tables"] != 0).map(|level| {
            format!(
                "level {}: {} sub-levels, {} tables, {} MB\n",
                level["level"],
                level["sublevels"],
                level["tables"],
                level["bytes"].as_u64().unwrap_or(0) / 1_000_000,
            )
        });
        format!(
            "{}written by merges into each level: {}\n{}",
            used.collect::<String>(),
            metrics["compaction_write_bytes_by_level"],
            metrics["counters"],
        )
    }
}
