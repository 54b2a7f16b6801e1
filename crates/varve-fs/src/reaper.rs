//! Removes object files whose inodes are gone, and lets directories tell what changed below them.
//!
//! 1. The batch that removes the last name also writes a pending row `ObjectDelete`; then the id is queued
//!    here ([`Reaper::enqueue`]).
//! 2. After a sync of the store the object file is removed and its directory synced
//!    ([`Reaper::sync_and_drain`]): never before, or a power cut could bring the name back without its
//!    bytes.
//! 3. Then the pending row goes.
//!
//! Every sync a caller asks for drains the queue; a thread does it every few seconds, and the queue is
//! drained on the spot when it holds [`QUEUE_MAX`] ids, beyond which it does not grow. On a deterministic machine there is no thread.
//! What a crash leaves in the queue the next mount finds by its pending rows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use varve_engine::{Batch, Store};
use varve_env::{Env, JoinHandle};
use varve_schema::RowKey;
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::FsResult;

use crate::error;
use crate::objects::Objects;
use crate::usage::Accounts;

/// Ids that may wait.
const QUEUE_MAX: usize = 1024;
/// How long an id waits if nobody asks for a sync.
const INTERVAL: Duration = Duration::from_secs(6);

/// The queue of object files to remove.
pub(crate) struct Reaper {
    store: Arc<dyn Store>,
    meta: KeyspaceId,
    objects: Arc<Objects>,
    accounts: Arc<Accounts>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: Vec<InodeId>,
    stopping: bool,
}

impl Reaper {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        meta: KeyspaceId,
        objects: Arc<Objects>,
        accounts: Arc<Accounts>,
    ) -> Reaper {
        Reaper { store, meta, objects, accounts, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Starts the thread, unless background work must run on the callers' threads.
    pub(crate) fn start(
        self: &Arc<Self>,
        env: &dyn Env,
    ) -> std::io::Result<Option<Box<dyn JoinHandle>>> {
        if env.is_deterministic() {
            return Ok(None);
        }
        let reaper = Arc::clone(self);
        env.spawn("varve-reaper", Box::new(move || reaper.run())).map(Some)
    }

    fn run(&self) {
        loop {
            let busy = {
                let mut state = self.state.lock();
                if !state.stopping {
                    self.changed.wait_for(&mut state, INTERVAL);
                }
                if state.stopping {
                    return;
                }
                !state.queue.is_empty()
            };
            self.accounts.tell_news();
            if busy && let Err(error) = self.sync_and_drain() {
                log::warn!("files of removed inodes stay for now: {error}");
            }
        }
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_all();
    }

    /// Queues an object for removal, after the batch with its pending row.
    pub(crate) fn enqueue(&self, ino: InodeId) {
        let full = {
            let mut state = self.state.lock();
            state.queue.push(ino);
            state.queue.len() >= QUEUE_MAX
        };
        if full && let Err(error) = self.sync_and_drain() {
            log::warn!("files of removed inodes stay for now: {error}");
        }
    }

    /// Makes the store durable and removes the objects queued before the call. An error means that the
    /// store could not be synced; objects that cannot be removed stay queued.
    pub(crate) fn sync_and_drain(&self) -> FsResult<()> {
        let ready = std::mem::take(&mut self.state.lock().queue);
        let synced = self.store.sync().map_err(error::store);
        if synced.is_err() || ready.is_empty() {
            self.queue_again(ready);
            return synced;
        }
        if let Err(error) = self.remove(&ready) {
            log::warn!("files of removed inodes stay for now: {error}");
            self.queue_again(ready);
        }
        Ok(())
    }

    /// Puts ids back; those for which there is no room wait for the next mount, which finds their pending
    /// rows.
    fn queue_again(&self, ids: Vec<InodeId>) {
        let mut state = self.state.lock();
        let room = QUEUE_MAX.saturating_sub(state.queue.len());
        if ids.len() > room {
            log::warn!("{} files of removed inodes stay until the next mount", ids.len() - room);
        }
        state.queue.extend(ids.into_iter().take(room));
    }

    fn remove(&self, inos: &[InodeId]) -> FsResult<()> {
        self.objects.remove(inos)?;
        let mut batch = Batch::new();
        batch.reclaims_space();
        for ino in inos {
            batch.delete(self.meta, Bytes::copy_from_slice(&RowKey::pending(*ino).to_bytes()));
        }
        self.store.write(batch).map_err(error::store)
    }

    /// The ids that wait.
    pub(crate) fn waiting(&self) -> Vec<InodeId> {
        self.state.lock().queue.clone()
    }

    /// How many ids wait.
    pub(crate) fn queued(&self) -> usize {
        self.state.lock().queue.len()
    }
}
