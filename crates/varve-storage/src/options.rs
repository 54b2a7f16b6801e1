//! How a store on shared storage is reached and opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::objects::{Objects, Retry};

/// How [`crate::RemoteEnv`] reaches a store.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Where the objects are.
    pub objects: Arc<dyn Objects>,
    /// How a store is opened.
    pub options: StoreOptions,
    /// When requests are made again.
    pub retry: Retry,
    /// The cache on a local disk.
    pub cache: Option<CacheOptions>,
}

/// A local cache of the bytes of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// The directory. It is made if it is missing; what is in it belongs to the cache.
    pub dir: PathBuf,
    /// The most bytes in it.
    pub bytes_max: u64,
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// What the process does with the store, for people.
    pub purpose: String,
    /// Fences off an owner that is alive.
    pub take_over: bool,
    /// How long an owner may go on without hearing from the storage. A taker-over waits so long for one that did not
    /// close the store.
    pub lease: Duration,
    /// How long what was written and not synced stays in memory.
    pub flush_interval: Duration,
    /// How old the state may be that a reader still reads.
    pub reader_age: Duration,
    /// Bytes of memory for pieces of objects.
    pub memory_bytes: u64,
    /// How many records of the journal an open may have to read.
    pub checkpoint_records: u64,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            purpose: "varve".to_owned(),
            take_over: false,
            lease: Duration::from_secs(30),
            flush_interval: Duration::from_secs(5),
            reader_age: Duration::from_secs(600),
            memory_bytes: 64 << 20,
            checkpoint_records: 256,
        }
    }
}
