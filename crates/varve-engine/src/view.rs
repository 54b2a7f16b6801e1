//! Everything a reader looks at, as one immutable object.
//!
//! A [`View`] lists the memtables and the table files of every key space. Readers take an `Arc` of the
//! present one; rotation, flush and compaction put a new one in its place. All rows not newer than the
//! moment a view was taken are in it, so a reader never misses one that moves from memtable to table.

use std::sync::Arc;

use parking_lot::RwLock;
use varve_types::{FileNo, KeyspaceId};

use crate::memtable::Memtable;
use crate::version::Version;
use crate::{KeyspaceOptions, StoreError, StoreResult};

/// A key space and its tables.
#[derive(Clone, Debug)]
pub(crate) struct Keyspace {
    pub(crate) id: KeyspaceId,
    pub(crate) name: Arc<str>,
    pub(crate) options: KeyspaceOptions,
    pub(crate) version: Arc<Version>,
}

/// See the module's comment.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Takes the writes.
    pub(crate) active: Arc<Memtable>,
    /// Wait for their flush; newest first.
    pub(crate) immutables: Vec<Arc<Memtable>>,
    /// By number.
    pub(crate) keyspaces: Vec<Keyspace>,
}

impl View {
    /// The key space with this number.
    pub(crate) fn keyspace(&self, id: KeyspaceId) -> StoreResult<&Keyspace> {
        self.keyspaces
            .get(id.get() as usize)
            .ok_or_else(|| StoreError::Invalid(format!("there is no key space {id}")))
    }

    /// The memtables, newest first.
    pub(crate) fn memtables(&self) -> impl DoubleEndedIterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(&self.immutables)
    }

    /// The oldest log that holds rows which are in no table yet.
    pub(crate) fn oldest_log(&self) -> FileNo {
        self.immutables.last().unwrap_or(&self.active).first_log()
    }
}

/// The present view.
#[derive(Debug)]
pub(crate) struct Views(RwLock<Arc<View>>);

impl Views {
    pub(crate) fn new(view: View) -> Views {
        Views(RwLock::new(Arc::new(view)))
    }

    /// The present view.
    pub(crate) fn get(&self) -> Arc<View> {
        Arc::clone(&self.0.read())
    }

    /// Puts in force what `change` makes of the present view.
    pub(crate) fn update(&self, change: impl FnOnce(&mut View)) {
        let mut current = self.0.write();
        let mut next = View::clone(&current);
        change(&mut next);
        let previous = std::mem::replace(&mut *current, Arc::new(next));
        // Letting go of the last user of a table removes its file, which must not happen under the lock.
        drop(current);
        drop(previous);
    }
}
