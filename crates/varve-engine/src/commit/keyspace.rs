//! Makes and clears key spaces.
//!
//! Invariant: a key space is made or cleared while no flush runs, so that a name is given once and a flush sees the
//! list of key spaces that it began with.

use std::sync::Arc;

use varve_format::edit::KEYSPACE_NAME_BYTES_MAX;
use varve_types::KeyspaceId;

use super::write::Commits;
use crate::keyspace::Keyspace;
use crate::memtable::Memtable;
use crate::read_state::ReadState;
use crate::version::Version;
use crate::versions::changes::Changes;
use crate::{KeyspaceOptions, StoreError, StoreResult};

impl Commits {
    /// See [`crate::Store::keyspace`].
    pub(crate) fn keyspace(&self, name: &str, options: KeyspaceOptions) -> StoreResult<KeyspaceId> {
        self.health.check_open()?;
        if name.is_empty() || name.len() > KEYSPACE_NAME_BYTES_MAX {
            let message =
                format!("a key space name has 1 to {KEYSPACE_NAME_BYTES_MAX} bytes, not {name:?}");
            return Err(StoreError::Invalid(message));
        }
        // One at a time, so that a name is not given twice; flushes are kept off the list of spaces too.
        let _job = self.flusher.job.lock();
        let read_state = self.read_states.get();
        if let Some(space) = read_state.keyspaces.iter().find(|space| &*space.name == name) {
            return Ok(space.id);
        }
        let id = u32::try_from(read_state.keyspaces.len())
            .map(KeyspaceId::new)
            .map_err(|_| StoreError::Invalid("too many key spaces".to_owned()))?;
        let version = Arc::new(Version::default());
        let (name, branch, private) = (Arc::from(name), None, false);
        let created = Some(Keyspace { id, name, options, version, branch, private });
        self.versions.install(&Changes { created, ..Changes::default() })?;
        Ok(id)
    }

    /// See [`crate::Store::clear_keyspace`].
    ///
    /// The logs must not hold rows of the key space any more, so its memtable rows become tables first;
    /// and everything written before must be durable, since the clearing will be. Then one edit removes
    /// all its tables, while no writer can add to them.
    pub(crate) fn clear_keyspace(&self, keyspace: KeyspaceId) -> StoreResult<()> {
        self.health.check_open()?;
        let read_state = self.read_states.get();
        let has_rows = |memtable: &Memtable| memtable.rows(keyspace) > 0;
        if !read_state.memtables().any(|memtable| has_rows(memtable))
            && read_state.keyspace(keyspace)?.version.is_empty()
        {
            return Ok(());
        }
        drop(read_state);
        let meets_locks = !keyspace.is_of_branch();
        if meets_locks {
            self.locking.wait_until_unlocked(keyspace)?;
        }
        self.flusher.when_flushed(|_, read_state| {
            if meets_locks {
                self.locking.refuse_locked(keyspace)?;
            }
            let done = self.remove_tables(read_state, keyspace)?;
            self.log.locks.store_has_changed();
            Ok(done)
        })
    }

    /// Removes all tables that a key space has in `read_state`; false if a compaction that ended just now changed the list.
    pub(crate) fn remove_tables(
        &self,
        read_state: &ReadState,
        keyspace: KeyspaceId,
    ) -> StoreResult<bool> {
        let version = &read_state.keyspace(keyspace)?.version;
        let tables = version.tables();
        let removed = tables.map(|(place, table)| (keyspace, place, Arc::clone(table))).collect();
        let seen = vec![(keyspace, Arc::clone(version))];
        self.versions.install(&Changes { removed, seen, ..Changes::default() })
    }
}
