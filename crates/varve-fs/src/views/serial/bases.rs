//! What a serializable view takes the rows of directories to be in the store ([`super`]), by row.
//!
//! They are rows of the private key space, so that there may be any number of them. Some are known in memory as well, with
//! when they were last seen to be up to date: as long as nothing in the store changes, that need not be looked at again.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;
use varve_engine::{Batch, Branch, Store, StoreResult};
use varve_schema::RowKey;
use varve_types::KeyspaceId;

/// Bases that are known in memory, of some 200 bytes each.
const KNOWN_MAX: usize = 4096;

/// The base of a row.
#[derive(Clone)]
pub(super) struct Base {
    /// The view has a row of its own.
    pub(super) changed: bool,
    /// The store's row; empty if it had none.
    pub(super) row: Bytes,
    /// What [`varve_engine::Db::store_changes`] was before that was last read from the store, if it is known.
    pub(super) as_of: Option<u64>,
}

impl Base {
    fn encode(&self) -> Bytes {
        [&[u8::from(self.changed)], self.row.as_ref()].concat().into()
    }

    fn decode(value: &Bytes) -> Base {
        let changed = value.first() == Some(&1);
        Base { changed, row: value.slice(1.min(value.len())..), as_of: None }
    }
}

#[derive(Default)]
struct Known {
    /// `None`: there is none.
    bases: HashMap<RowKey, Option<Base>>,
    /// How often one has changed.
    changes: u64,
}

impl Known {
    fn insert(&mut self, key: RowKey, base: Option<Base>) {
        if self.bases.len() >= KNOWN_MAX {
            self.bases.clear();
        }
        // A row out of a table would keep all of its block in memory.
        let base = base.map(|base| Base { row: Bytes::copy_from_slice(&base.row), ..base });
        self.bases.insert(key, base);
    }
}

/// The bases of a view. REQUIRES of who changes one: the view's own lock of its row, or that nobody else makes it.
pub(super) struct Bases {
    /// The private key space.
    space: KeyspaceId,
    known: Mutex<Known>,
}

impl Bases {
    pub(super) fn new(space: KeyspaceId) -> Bases {
        Bases { space, known: Mutex::default() }
    }

    /// The key space that they are in.
    pub(super) fn space(&self) -> KeyspaceId {
        self.space
    }

    pub(super) fn get(&self, branch: &Branch, key: RowKey) -> StoreResult<Option<Base>> {
        branch.check()?;
        let changes = {
            let known = self.known.lock();
            if let Some(base) = known.bases.get(&key) {
                return Ok(base.clone());
            }
            known.changes
        };
        let found = branch.get(self.space, &key.to_bytes())?.as_ref().map(Base::decode);
        let mut known = self.known.lock();
        // What was found may be old otherwise.
        if known.changes == changes {
            known.insert(key, found.clone());
        }
        Ok(found)
    }

    /// Adds to `batch` what makes `base` that of `key`; it is, once [`Bases::written`] is told so.
    pub(super) fn put(&self, key: RowKey, base: &Base, batch: &mut Batch) {
        batch.put(self.space, Bytes::copy_from_slice(&key.to_bytes()), base.encode());
    }

    /// What was put of these has been written.
    pub(super) fn written(&self, bases: impl IntoIterator<Item = (RowKey, Base)>) {
        let mut known = self.known.lock();
        known.changes += 1;
        bases.into_iter().for_each(|(key, base)| known.insert(key, Some(base)));
    }

    /// The base of `key` was up to date when the store had changed `as_of` times.
    pub(super) fn seen(&self, key: RowKey, as_of: u64) {
        if let Some(Some(base)) = self.known.lock().bases.get_mut(&key) {
            base.as_of = Some(as_of);
        }
    }
}
