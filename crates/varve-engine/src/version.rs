//! The table files of one key space at one moment, level by level.
//!
//! A [`Version`] never changes; a flush or a compaction makes the next one. Readers hold the one they
//! began with, and a table file is removed when the last version that lists it is let go.
//!
//! Invariants, checked by [`Version::check`] before a version is put in force:
//! - level 0 is ordered newest first; its tables may overlap;
//! - the tables of every other level are sorted by key and disjoint;
//! - of two levels that hold versions of one key, the upper holds the newer ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use varve_env::Env;
use varve_format::edit::TableMeta;
use varve_types::{FileNo, KeyspaceId};

use crate::files::StoreFile;

/// Levels of a key space. With a growth of 10 the last holds 400 TB beside a level 1 of 400 MB.
pub(crate) const LEVELS: usize = 7;

/// A table file.
#[derive(Debug)]
pub(crate) struct Table {
    meta: TableMeta,
    keyspace: KeyspaceId,
    path: PathBuf,
    env: Arc<dyn Env>,
    obsolete: AtomicBool,
}

impl Table {
    /// The table that `meta` describes, in the store at `dir`.
    pub(crate) fn new(
        env: Arc<dyn Env>,
        dir: &Path,
        keyspace: KeyspaceId,
        meta: TableMeta,
    ) -> Table {
        let path = StoreFile::Table(meta.file).path(dir);
        Table { meta, keyspace, path, env, obsolete: AtomicBool::new(false) }
    }

    pub(crate) fn meta(&self) -> &TableMeta {
        &self.meta
    }

    pub(crate) fn file_no(&self) -> FileNo {
        self.meta.file
    }

    pub(crate) fn keyspace(&self) -> KeyspaceId {
        self.keyspace
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Has the file removed when the last user lets go of it.
    ///
    /// REQUIRES: a durable manifest edit says that the table is gone.
    pub(crate) fn mark_obsolete(&self) {
        self.obsolete.store(true, Ordering::Release);
    }

    /// Whether the table may hold `key`, by its range.
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        *self.meta.smallest_key <= *key && *key <= *self.meta.largest_key
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if !self.obsolete.load(Ordering::Acquire) {
            return;
        }
        // What is left behind here is removed at the next open.
        if let Err(error) = self.env.remove_file(&self.path) {
            log::warn!("cannot remove the obsolete table {}: {error}", self.path.display());
        }
    }
}

/// See the module's comment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Version {
    levels: [Vec<Arc<Table>>; LEVELS],
}

impl Version {
    /// The tables of `level`.
    pub(crate) fn level(&self, level: usize) -> &[Arc<Table>] {
        &self.levels[level]
    }

    /// All tables with their levels.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        self.levels
            .iter()
            .enumerate()
            .flat_map(|(level, tables)| tables.iter().map(move |table| (level, table)))
    }

    /// True if there are no tables.
    pub(crate) fn is_empty(&self) -> bool {
        self.levels.iter().all(Vec::is_empty)
    }

    /// The descriptions of the tables, level by level.
    pub(crate) fn metas(&self) -> Vec<Vec<&TableMeta>> {
        self.levels.iter().map(|tables| tables.iter().map(|table| table.meta()).collect()).collect()
    }

    /// The table of `level` that may hold `key`.
    ///
    /// REQUIRES: `level` is not 0.
    pub(crate) fn find(&self, level: usize, key: &[u8]) -> Option<&Arc<Table>> {
        debug_assert!(level > 0, "level 0 has no order by key");
        let tables = &self.levels[level];
        let index = tables.partition_point(|table| *table.meta.largest_key < *key);
        tables.get(index).filter(|table| table.covers(key))
    }

    /// This version without the tables `removed` and with those `added`.
    pub(crate) fn changed(
        &self,
        removed: &[(usize, FileNo)],
        added: &[(usize, Arc<Table>)],
    ) -> Version {
        let mut next = self.clone();
        for (level, file) in removed {
            next.levels[*level].retain(|table| table.file_no() != *file);
        }
        for (level, table) in added {
            next.levels[*level].push(Arc::clone(table));
        }
        next.levels[0]
            .sort_by_key(|table| std::cmp::Reverse((table.meta.largest_seq, table.file_no())));
        for tables in &mut next.levels[1..] {
            tables.sort_by(|a, b| a.meta.smallest_key.cmp(&b.meta.smallest_key));
        }
        next
    }

    /// The first invariant that does not hold, if any.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (level, tables) in self.levels.iter().enumerate() {
            for pair in tables.windows(2) {
                let [above, below] = [pair[0].meta(), pair[1].meta()];
                if level == 0 && above.largest_seq < below.largest_seq {
                    return Err(format!(
                        "level 0: table {} stands before the newer table {}",
                        above.file, below.file
                    ));
                }
                if level > 0 && above.largest_key >= below.smallest_key {
                    return Err(format!(
                        "level {level}: tables {} and {} overlap",
                        above.file, below.file
                    ));
                }
            }
        }
        Ok(())
    }
}
