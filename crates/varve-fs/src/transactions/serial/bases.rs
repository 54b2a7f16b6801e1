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

/// Bases of a generation that are known in memory, of some 200 bytes each.
const GENERATION_MAX: usize = 4096;

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

/// Two generations: bases that were not used lately are forgotten together.
#[derive(Default)]
struct CachedBases {
    /// The bases that were used lately; `None`: the row has no base.
    bases: HashMap<RowKey, Option<Base>>,
    /// The bases that were used before.
    older: HashMap<RowKey, Option<Base>>,
    /// How often one has changed.
    changes: u64,
}

impl CachedBases {
    fn insert(&mut self, key: RowKey, base: Option<Base>) {
        // A row out of a table would keep all of its block in memory.
        let base = base.map(|base| Base { row: Bytes::copy_from_slice(&base.row), ..base });
        self.older.remove(&key);
        self.keep(key, base);
    }

    /// REQUIRES: it is not among the older ones.
    fn keep(&mut self, key: RowKey, base: Option<Base>) {
        if self.bases.len() >= GENERATION_MAX && !self.bases.contains_key(&key) {
            self.older = std::mem::take(&mut self.bases);
        }
        self.bases.insert(key, base);
    }

    fn get(&mut self, key: RowKey) -> Option<&mut Option<Base>> {
        if let Some(base) = self.older.remove(&key) {
            self.keep(key, base);
        }
        self.bases.get_mut(&key)
    }
}

/// The bases of a view. REQUIRES for a change: the view's own lock of the row, or that nobody else makes the base.
pub(super) struct Bases {
    /// The private key space.
    space: KeyspaceId,
    known: Mutex<CachedBases>,
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
            let mut known = self.known.lock();
            if let Some(base) = known.get(key) {
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

    /// The same for a row of the key space that is at hand.
    pub(super) fn of_row(&self, key: RowKey, value: &Bytes) -> Option<Base> {
        let known = self.known.lock().get(key).cloned();
        known.unwrap_or_else(|| Some(Base::decode(value)))
    }

    /// Adds to `batch` a write that makes `base` the base of `key`, which it is after [`Bases::written`].
    pub(super) fn put(&self, key: RowKey, base: &Base, batch: &mut Batch) {
        batch.put(self.space, key.to_bytes(), base.encode());
    }

    /// What was put of these has been written.
    pub(super) fn written(&self, bases: impl IntoIterator<Item = (RowKey, Base)>) {
        let mut known = self.known.lock();
        known.changes += 1;
        bases.into_iter().for_each(|(key, base)| known.insert(key, Some(base)));
    }

    /// The base of `key` was up to date when the store had changed `as_of` times.
    pub(super) fn seen(&self, key: RowKey, as_of: u64) {
        if let Some(Some(base)) = self.known.lock().get(key) {
            base.as_of = Some(as_of);
        }
    }
}

#[cfg(test)]
mod tests {
    use varve_types::InodeId;

    use super::*;

    /// Whoever walked through one directory more than were remembered forgot all of them.
    #[test]
    fn what_was_used_lately_stays_known() {
        let mut known = CachedBases::default();
        let key = |n: u64| RowKey::inode(InodeId::new(n));
        let base =
            |n: u64| Some(Base { changed: false, row: Bytes::from(n.to_string()), as_of: Some(n) });
        let max = GENERATION_MAX as u64;
        for n in 0..3 * max {
            known.insert(key(n), base(n));
            let first =
                known.get(key(0)).as_deref().and_then(Option::as_ref).map(|base| base.as_of);
            assert_eq!(first, Some(Some(0)), "it is used all the time");
            assert!(known.bases.len() <= GENERATION_MAX && known.older.len() <= GENERATION_MAX);
            assert!(known.bases.keys().all(|key| !known.older.contains_key(key)));
        }
        assert!(known.get(key(1)).is_none(), "two generations ago");
        for n in 2 * max + 2..3 * max {
            assert_eq!(known.get(key(n)).unwrap().as_ref().unwrap().row, n.to_string());
        }
        known.insert(key(3 * max - 1), None);
        assert!(known.get(key(3 * max - 1)).unwrap().is_none());
    }
}
