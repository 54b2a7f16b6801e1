//! fjall, as its crate makes it, but without compression. Tables are as large as a memtable, which is its default too.

use std::path::Path;
use std::sync::Arc;

use fjall::compaction::Leveled;
use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions};

use crate::store::{Memory, Outcome, Store};
use crate::workload::Key;

pub(crate) struct Fjall {
    keyspace: Keyspace,
    /// Keeps the store's threads going.
    database: Database,
}

impl Fjall {
    pub(crate) fn open(dir: &Path, memory: Memory) -> Outcome<Fjall> {
        let database = Database::builder(dir)
            .cache_size(memory.cache_bytes as u64)
            .journal_compression(CompressionType::None)
            .open()?;
        let tables = Leveled::default().with_table_target_size(memory.memtable_bytes as u64);
        let strategy = Arc::new(tables);
        let options = move || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(memory.memtable_bytes as u64)
                .compaction_strategy(strategy)
                .data_block_compression_policy(CompressionPolicy::disabled())
                .index_block_compression_policy(CompressionPolicy::disabled())
        };
        let keyspace = database.keyspace("rows", options)?;
        Ok(Fjall { keyspace, database })
    }
}

impl Store for Fjall {
    fn get(&self, key: &Key) -> Outcome<bool> {
        Ok(self.keyspace.get(key)?.is_some())
    }

    fn put(&self, key: &Key, value: &[u8]) -> Outcome<()> {
        Ok(self.keyspace.insert(key, value)?)
    }

    fn scan(&self, directory: u64) -> Outcome<u64> {
        let mut rows = 0;
        for row in self.keyspace.prefix(directory.to_be_bytes()) {
            row.into_inner()?;
            rows += 1;
        }
        Ok(rows)
    }

    fn flush(&self) -> Outcome<()> {
        Ok(self.keyspace.rotate_memtable_and_wait()?)
    }

    fn index_bytes(&self) -> Option<u64> {
        None
    }

    fn details(&self) -> String {
        let (tables, compactions) =
            (self.keyspace.table_count(), self.database.compactions_completed());
        format!("{tables} tables, {compactions} compactions")
    }
}
