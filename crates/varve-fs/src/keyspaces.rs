//! The key spaces that every store has.

use varve_engine::{KeyspaceOptions, Store, StoreResult};
use varve_schema::{DATA, DICTIONARIES, META};
use varve_types::KeyspaceId;

use crate::spill::LOOKUPS;

/// The key spaces that every store has.
#[derive(Clone, Copy)]
pub(crate) struct Keyspaces {
    pub(crate) meta: KeyspaceId,
    pub(crate) data: KeyspaceId,
    pub(crate) lookups: KeyspaceId,
    pub(crate) dictionaries: KeyspaceId,
}

impl Keyspaces {
    /// Their names and options, in the order in which they are made.
    pub(crate) fn all(compression: bool) -> [(&'static str, KeyspaceOptions); 4] {
        let plain = KeyspaceOptions { prefixed: true, compressed: false };
        let data = KeyspaceOptions { prefixed: true, compressed: compression };
        let names = KeyspaceOptions { prefixed: false, compressed: false };
        [(META, plain), (DATA, data), (LOOKUPS, plain), (DICTIONARIES, names)]
    }

    pub(crate) fn open(store: &dyn Store, compression: bool) -> StoreResult<Keyspaces> {
        let [meta, data, lookups, dictionaries] =
            Keyspaces::all(compression).map(|(name, options)| store.keyspace(name, options));
        let (meta, data) = (meta?, data?);
        Ok(Keyspaces { meta, data, lookups: lookups?, dictionaries: dictionaries? })
    }
}
