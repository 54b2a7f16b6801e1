//! Entries of the inode table that do not fit in memory, in the volatile key space `lookups`.
//!
//! ```text
//! key:   (inode id, 0)                                  of the main tree
//!        (number of the opening, inode id)              of a view
//! value: see [`LookupsRow`]
//! ```
//!
//! Each time a view is opened it has a number of its own, from a random one on, so that nothing is taken for its own that
//! an earlier opening left, or another at the same time. What it has there goes when it is closed; what that would take too
//! long for goes with the next view that is closed, or the next mount ([`Openings`]).
//!
//! A store that refuses writes, as after a failed sync, still answers reads: what is fetched from it then is taken over, and its row
//! stays and is passed over from then on.
//!
//! The key space is cleared at each mount, except by a process that takes over from another.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use varve_engine::{Batch, Store};
use varve_env::Env;
use varve_schema::{LookupsRow, RowKey};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::FsResult;

use crate::error;
use crate::rows::rows_from;

/// Name of the key space.
pub(crate) const LOOKUPS: &str = "lookups";
/// Rows of closed views that are removed at a time.
const SWEPT_ROWS: usize = 1024;
/// How long the closing of a view removes rows.
const SWEEPING_MAX: Duration = Duration::from_secs(1);

/// Writes and fetches entries.
pub(crate) struct Spill {
    store: Arc<dyn Store>,
    lookups: KeyspaceId,
    /// Of a view.
    opening: Option<Opening>,
    /// Entries that were fetched while the store refused to remove their rows, which mean nothing from then on.
    owed: Mutex<HashSet<InodeId>>,
}

/// One opening of a view.
struct Opening {
    all: Arc<Openings>,
    number: u64,
    /// It has written rows.
    spilled: AtomicBool,
}

/// The openings of views.
pub(crate) struct Openings {
    env: Arc<dyn Env>,
    store: Arc<dyn Store>,
    lookups: KeyspaceId,
    next: AtomicU64,
    /// First keys of the closed ones that may have rows left.
    closed: Mutex<Vec<RowKey>>,
}

impl Openings {
    /// None yet. `store` is that of the main tree; `random` is drawn anew each time.
    pub(crate) fn new(
        env: Arc<dyn Env>,
        store: Arc<dyn Store>,
        lookups: KeyspaceId,
        random: u64,
    ) -> Openings {
        let (next, closed) = (AtomicU64::new(random), Mutex::default());
        Openings { env, store, lookups, next, closed }
    }

    /// For a view that is being opened.
    pub(crate) fn begin(self: &Arc<Self>) -> Spill {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let opening = Opening { all: Arc::clone(self), number, spilled: AtomicBool::new(false) };
        let (store, lookups) = (Arc::clone(&self.store), self.lookups);
        Spill { store, lookups, opening: Some(opening), owed: Mutex::default() }
    }

    /// Removes rows of closed views, for a while.
    fn sweep(&self) {
        let until = self.env.monotonic().saturating_add(SWEEPING_MAX);
        while self.env.monotonic() < until {
            let Some(from) = self.closed.lock().pop() else { return };
            let swept = self.sweep_from(from);
            let rest = swept.as_ref().map_or(Some(from), |rest| *rest);
            self.closed.lock().extend(rest);
            if let Err(error) = swept {
                // As when the store is closed already.
                return log::debug!("places of a closed view stay: {error}");
            }
        }
    }

    /// Removes the first rows from `from` on; returns where the rest begins.
    fn sweep_from(&self, from: RowKey) -> FsResult<Option<RowKey>> {
        let mut batch = Batch::new();
        batch.reclaims_space();
        let mut last = None;
        let keys = self.store.keys(self.lookups, rows_from(from)).map_err(error::store)?;
        for key in keys.take(SWEPT_ROWS) {
            let key = key.map_err(error::store)?;
            last = RowKey::from_bytes(&key);
            batch.delete(self.lookups, key);
        }
        if !batch.is_empty() {
            self.store.write(batch).map_err(error::store)?;
        }
        Ok(last)
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if self.spilled.load(Ordering::Relaxed) {
            self.all.closed.lock().push(RowKey::chunk(InodeId::new(self.number), 1));
            self.all.sweep();
        }
    }
}

impl Spill {
    /// For the main tree.
    pub(crate) fn new(store: Arc<dyn Store>, lookups: KeyspaceId) -> Spill {
        Spill { store, lookups, opening: None, owed: Mutex::default() }
    }

    fn key(&self, ino: InodeId) -> Bytes {
        let key = match &self.opening {
            Some(Opening { number, .. }) => RowKey::chunk(InodeId::new(*number), ino.get()),
            None => RowKey::chunk(ino, 0),
        };
        Bytes::copy_from_slice(&key.to_bytes())
    }
}

impl varve_session::Spill for Spill {
    fn put(&self, entries: &[(InodeId, LookupsRow)]) -> FsResult<()> {
        if let Some(opening) = &self.opening {
            opening.spilled.store(true, Ordering::Relaxed);
        }
        let mut batch = Batch::new();
        for (ino, row) in entries {
            batch.put(self.lookups, self.key(*ino), row.encode());
        }
        self.store.write(batch).map_err(error::store)?;
        let mut owed = self.owed.lock();
        for (ino, _) in entries {
            owed.remove(ino);
        }
        Ok(())
    }

    /// The row stays if the store refuses to remove it.
    fn take(&self, ino: InodeId) -> FsResult<Option<LookupsRow>> {
        let key = self.key(ino);
        let Some(bytes) = self.store.get(self.lookups, &key).map_err(error::store)? else {
            return Ok(None);
        };
        if self.owed.lock().contains(&ino) {
            return Ok(None);
        }
        let row = LookupsRow::decode(&bytes)
            .map_err(|error| error::unreadable(LOOKUPS, RowKey::inode(ino), error))?;
        let mut batch = Batch::new();
        batch.delete(self.lookups, key);
        batch.reclaims_space();
        if let Err(error) = self.store.write(batch) {
            log::debug!("the row of inode {ino} stays in {LOOKUPS}: {error}");
            self.owed.lock().insert(ino);
        }
        Ok(Some(row))
    }

    fn remove_owed(&self) -> FsResult<()> {
        let mut owed = self.owed.lock();
        let mut batch = Batch::new();
        batch.reclaims_space();
        owed.iter().for_each(|ino| batch.delete(self.lookups, self.key(*ino)));
        if !batch.is_empty() {
            self.store.write(batch).map_err(error::store)?;
        }
        owed.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
