//! What is asked of a store.

use std::error::Error;

use crate::workload::Key;

/// The outcome of anything.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// What a store may take of memory, about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Bytes of the cache of blocks, indexes and filters.
    pub(crate) cache_bytes: usize,
    /// Bytes of one memtable.
    pub(crate) memtable_bytes: usize,
}

impl Memory {
    /// `mib` of each.
    pub(crate) fn of_mib(mib: usize) -> Memory {
        Memory { cache_bytes: mib << 20, memtable_bytes: mib << 20 }
    }
}

/// A store of rows. No write is synced, no row compressed.
pub(crate) trait Store {
    /// Whether the key is there.
    fn get(&self, key: &Key) -> Outcome<bool>;

    /// Writes a row.
    fn put(&self, key: &Key, value: &[u8]) -> Outcome<()>;

    /// Reads all rows of a directory; returns how many there are.
    fn scan(&self, directory: u64) -> Outcome<u64>;

    /// Turns what is in memory into tables, if the store can be told to.
    fn flush(&self) -> Outcome<()>;

    /// Bytes that it has written through mapped files, which the machine does not count.
    fn mapped_bytes(&self) -> u64 {
        0
    }

    /// Bytes of memory that all indexes and filters take, if the store says.
    fn index_bytes(&self) -> Option<u64>;

    /// What the store says of itself.
    fn details(&self) -> String;
}
