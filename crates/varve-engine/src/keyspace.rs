//! A key space as readers and compactions see it: its options, and its tables at one moment.

use std::sync::Arc;

use varve_format::section::Compression;
use varve_types::{BranchId, KeyspaceId};

use crate::KeyspaceOptions;
use crate::version::Version;

/// A key space and its tables.
#[derive(Clone, Debug)]
pub(crate) struct Keyspace {
    pub(crate) id: KeyspaceId,
    /// Its name; that of the store's key space below, if it is a branch's.
    pub(crate) name: Arc<str>,
    pub(crate) options: KeyspaceOptions,
    pub(crate) version: Arc<Version>,
    /// The branch whose rows it holds; `None`: it is the store's own.
    pub(crate) branch: Option<BranchId>,
    /// It stands over none, although it is a branch's.
    pub(crate) private: bool,
}

impl Keyspace {
    /// How its blocks and values are compressed.
    pub(crate) fn compression(&self) -> Compression {
        if self.options.compressed { Compression::Lz4 } else { Compression::None }
    }
}
