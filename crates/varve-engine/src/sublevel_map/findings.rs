//! What lookups found lately: in which table a key has a row. A write that follows a lookup of its key is not blind.

use bytes::Bytes;
use quick_cache::sync::Cache;
use varve_types::{FileNo, KeyspaceId};

/// What an entry takes, nearly, with keys of 16 bytes.
const ENTRY_BYTES: usize = 128;

/// See the module's comment. That a file holds a key stays true as long as the file exists.
#[derive(Debug)]
pub(crate) struct Findings(Cache<(KeyspaceId, Bytes), FileNo>);

impl Findings {
    /// Room for as many as fit into `bytes`.
    pub(crate) fn new(bytes: usize) -> Findings {
        Findings(Cache::new((bytes / ENTRY_BYTES).max(16)))
    }

    /// Notes that `file` holds `key`.
    pub(crate) fn note(&self, keyspace: KeyspaceId, key: &[u8], file: FileNo) {
        self.0.insert((keyspace, Bytes::copy_from_slice(key)), file);
    }

    /// The file that was noted last for `key`, which is forgotten.
    pub(super) fn take(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<FileNo> {
        self.0.remove(&(keyspace, Bytes::copy_from_slice(key))).map(|(_, file)| file)
    }
}
