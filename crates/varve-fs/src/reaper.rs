//! Removes object files whose inodes are gone, and propagates pending usage of directories.
//!
//! 1. The batch that removes the last name also writes a pending row `ObjectDelete`; then the id is queued
//!    here ([`Reaper::enqueue`]).
//! 2. After a sync of the store the object file is removed and its directory synced
//!    ([`Reaper::sync_and_drain`]): never before, or a power cut could bring the name back without its
//!    bytes. Only one that no power cut can bring a name back of goes at once ([`Objects::remove_made`]).
//! 3. Then the pending row goes.
//!
//! Who removes looks at the pending rows first, and nobody else removes meanwhile: an id that waits twice, or that came
//! back with a received snapshot ([`Reaper::remove_all`]), may have another object by then.
//!
//! Every sync a caller asks for drains the queue; a thread does it every few seconds and when three quarters of the queue
//! are full, and who finds it full, with [`QUEUE_MAX`] ids, beyond which it does not grow, does it on the spot.
//!
//! What an earlier process left is found by its pending rows: the thread goes through them once, a step at a
//! time, so that nobody waits for it ([`Reaper::remove_earlier`]). On a deterministic machine there is no thread, and
//! the start does it.
//!
//! The storage below may take long to remove a file, as where it discards blocks at once. From [`Reaper::stop`] on
//! no removal begins after [`CLOSING_MAX`]; the rest keeps its pending rows.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_engine::{Batch, Store};
use varve_env::{Env, JoinHandle};
use varve_schema::{Pending, RowKey};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::{FsError, FsResult};

use crate::error;
use crate::objects::{Left, Objects};
use crate::rows::{pending_rows, read_pending_row};
use crate::usage::Accounts;

/// Ids that may wait.
const QUEUE_MAX: usize = 16_384;
/// How long an id waits if nobody asks for a sync.
const INTERVAL: Duration = Duration::from_secs(6);
/// Pending rows of earlier processes taken care of at a time.
const EARLIER_STEP: usize = 64;
/// How long removals go on once the store is being closed.
const CLOSING_MAX: Duration = Duration::from_secs(1);

/// The queue of object files to remove.
pub(crate) struct Reaper {
    env: Arc<dyn Env>,
    store: Arc<dyn Store>,
    meta: KeyspaceId,
    objects: Arc<Objects>,
    accounts: Arc<Accounts>,
    state: Mutex<State>,
    changed: Condvar,
    /// The thread, while it runs.
    thread: Mutex<Option<Box<dyn JoinHandle>>>,
    /// Held from the look at pending rows to their end.
    removing: Mutex<()>,
    /// On the monotonic clock; set when the store is being closed.
    give_up_at: OnceLock<Duration>,
}

#[derive(Default)]
struct State {
    queue: Vec<InodeId>,
    /// Directories are to be let tell now.
    propagate: bool,
    /// The queue is to be drained now.
    drain: bool,
    stopping: bool,
}

impl Reaper {
    pub(crate) fn new(
        env: Arc<dyn Env>,
        store: Arc<dyn Store>,
        meta: KeyspaceId,
        objects: Arc<Objects>,
        accounts: Arc<Accounts>,
    ) -> Reaper {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let (removing, give_up_at) = (Mutex::default(), OnceLock::new());
        let thread = Mutex::new(None);
        Reaper { env, store, meta, objects, accounts, state, changed, thread, removing, give_up_at }
    }

    /// Starts the thread, unless background work must run on the callers' threads.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        if self.env.is_deterministic() {
            let mut earlier = Some(InodeId::new(0));
            while let Some(from) = earlier {
                earlier = self.remove_earlier(from);
            }
            return Ok(());
        }
        let reaper = Arc::clone(self);
        let thread = self.env.spawn("varve-reaper", Box::new(move || reaper.run()))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    fn run(&self) {
        let mut earlier = Some(InodeId::new(0));
        let mut due = self.env.monotonic().saturating_add(INTERVAL);
        loop {
            let (busy, propagate, drain) = {
                let mut state = self.state.lock();
                if !state.stopping && !state.propagate && !state.drain && earlier.is_none() {
                    let wait = due.saturating_sub(self.env.monotonic());
                    self.changed.wait_for(&mut state, wait);
                }
                if state.stopping {
                    return;
                }
                let propagate = std::mem::take(&mut state.propagate);
                let drain = std::mem::take(&mut state.drain);
                (!state.queue.is_empty(), propagate, drain)
            };
            let is_due = self.env.monotonic() >= due;
            if propagate {
                self.accounts.propagate_all();
            } else if is_due {
                self.accounts.propagate_news();
            }
            if (busy && (is_due || drain) || is_due && self.objects.has_unclaimed())
                && let Err(error) = self.sync_and_drain()
            {
                log::warn!("files of removed inodes stay for now: {error}");
            }
            if is_due {
                due = self.env.monotonic().saturating_add(INTERVAL);
            }
            earlier = earlier.and_then(|from| self.remove_earlier(from));
        }
    }

    /// Asks the thread, if there is one, to propagate pending usage.
    pub(crate) fn propagate_soon(&self) {
        self.state.lock().propagate = true;
        self.changed.notify_all();
    }

    /// Ends the thread, and soon all removals.
    pub(crate) fn stop(&self) {
        self.give_up_at.get_or_init(|| self.env.monotonic().saturating_add(CLOSING_MAX));
        self.state.lock().stopping = true;
        self.changed.notify_all();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::warn!("the thread that removes files of removed inodes panicked");
        }
    }

    /// Queues an object for removal, after the batch with its pending row.
    /// In a view nothing is removed: what it no longer has goes when it ends, from the store if it is committed.
    pub(crate) fn enqueue(&self, ino: InodeId) {
        if self.objects.preimages().is_none() {
            return;
        }
        self.remove_made(ino);
        let full = {
            let mut state = self.state.lock();
            state.queue.push(ino);
            if state.queue.len() == QUEUE_MAX - QUEUE_MAX / 4 {
                state.drain = true;
                self.changed.notify_all();
            }
            state.queue.len() >= QUEUE_MAX
        };
        if full && let Err(error) = self.sync_and_drain() {
            log::warn!("files of removed inodes stay for now: {error}");
        }
    }

    /// Removes an object that need not stay until a sync. Its pending row does.
    fn remove_made(&self, ino: InodeId) {
        // While others are being removed it would be a long wait.
        let Some(_alone) = self.removing.try_lock() else { return };
        let pending = read_pending_row(self.store.as_ref(), self.meta, ino);
        if matches!(pending, Ok(Some(Pending::ObjectDelete)))
            && let Err(error) = self.objects.remove_made(ino)
        {
            log::debug!("an object stays until the next sync: {error}");
        }
    }

    /// Removes what waits, for who needs its room; false if nothing does.
    pub(crate) fn drain_for_room(&self) -> FsResult<bool> {
        let is_busy = !self.state.lock().queue.is_empty();
        if is_busy {
            self.sync_and_drain()?;
        }
        Ok(is_busy)
    }

    /// Makes the store durable, with all large files that nobody writes to, and removes the objects queued before the call. An error means that the
    /// store could not be synced; objects that cannot be removed stay queued.
    pub(crate) fn sync_and_drain(&self) -> FsResult<()> {
        let ready = std::mem::take(&mut self.state.lock().queue);
        let unclaimed = self.objects.sync_unclaimed();
        let synced = unclaimed.and_then(|()| self.store.sync().map_err(error::store));
        self.queue_again(if synced.is_ok() { self.remove(ready) } else { ready });
        synced
    }

    /// Removes every object that is to be removed, whoever queued it, or fails: none of these ids has an object then.
    pub(crate) fn remove_all(&self) -> FsResult<()> {
        let mut next = Some(InodeId::new(0));
        while let Some(from) = next {
            let (inos, rest) = self.pending_removals(from)?;
            if let Some((_, failed)) = self.try_remove(&inos)?.into_iter().next() {
                return Err(failed.unwrap_or(FsError::Stale));
            }
            next = rest;
        }
        Ok(())
    }

    /// Removes the objects of the first pending rows from that of `from` on; returns where to go on.
    fn remove_earlier(&self, from: InodeId) -> Option<InodeId> {
        let (inos, rest) = self.pending_removals(from).unwrap_or_else(|error| {
            log::warn!("files of removed inodes stay until the next mount: {error}");
            (Vec::new(), None)
        });
        self.queue_again(self.remove(inos));
        rest
    }

    /// The removals among the first pending rows from that of `from` on, durable, and where the others begin. Rows written
    /// meanwhile may be among them, as whatever is pending may be finished twice.
    fn pending_removals(&self, from: InodeId) -> FsResult<(Vec<InodeId>, Option<InodeId>)> {
        let (rows, rest) = pending_rows(self.store.as_ref(), self.meta, from, EARLIER_STEP)?;
        let removals = rows.iter().filter(|(_, pending)| *pending == Pending::ObjectDelete);
        let inos: Vec<InodeId> = removals.map(|(ino, _)| *ino).collect();
        if !inos.is_empty() {
            self.store.sync().map_err(error::store)?;
        }
        Ok((inos, rest))
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

    /// Removes objects and then their pending rows; returns those that are left. REQUIRES: the store was synced after the
    /// pending rows were written.
    fn remove(&self, inos: Vec<InodeId>) -> Vec<InodeId> {
        let left = match self.try_remove(&inos) {
            Ok(left) => left,
            Err(error) => {
                log::warn!("files of removed inodes stay for now: {error}");
                return inos;
            }
        };
        if let Some(error) = left.iter().find_map(|(_, failed)| failed.as_ref()) {
            log::warn!("{} files of removed inodes stay for now: {error}", left.len());
        } else if !left.is_empty() {
            log::info!("{} files of removed inodes are left for later", left.len());
        }
        left.into_iter().map(|(ino, _)| ino).collect()
    }

    fn try_remove(&self, inos: &[InodeId]) -> FsResult<Left> {
        if inos.is_empty() {
            return Ok(Left::new());
        }
        let _alone = self.removing.lock();
        let mut due = Vec::new();
        for ino in inos {
            let pending = read_pending_row(self.store.as_ref(), self.meta, *ino)?;
            if pending == Some(Pending::ObjectDelete) {
                due.push(*ino);
            }
        }
        let in_time = || self.give_up_at.get().is_none_or(|at| self.env.monotonic() < *at);
        let left = self.objects.remove_while(&due, &in_time)?;
        let there: HashSet<InodeId> = left.iter().map(|(ino, _)| *ino).collect();
        due.retain(|ino| !there.contains(ino));
        if !due.is_empty() {
            let mut batch = Batch::new();
            batch.reclaims_space();
            for ino in &due {
                batch.delete(self.meta, RowKey::pending(*ino).to_bytes());
            }
            self.store.write(batch).map_err(error::store)?;
        }
        Ok(left)
    }

    /// How many ids wait.
    pub(crate) fn queued(&self) -> usize {
        self.state.lock().queue.len()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use varve_env::os::OsEnv;
    use varve_env::sim::SimEnv;
    use varve_types::FileName;
    use varve_vfs::{Caller, Vfs};

    use super::*;
    use crate::{FormatOptions, MountOptions, VarveFs};

    const ROOM: usize = 16;

    fn made(env: Arc<dyn Env>, dir: &Path) -> (VarveFs, Vec<InodeId>) {
        crate::format(&env, dir, &FormatOptions::default()).unwrap();
        let options = MountOptions { marked_dirs_max: ROOM, ..MountOptions::default() };
        let fs = VarveFs::open(env, dir, options).unwrap();
        let make = |n| fs.mkdir(Caller::ROOT, InodeId::ROOT, name(&format!("d{n}")), 0o755);
        let dirs = (0..ROOM).map(|n| make(n).unwrap().attr.ino).collect();
        (fs, dirs)
    }

    fn name(text: &str) -> FileName<'_> {
        FileName::new(text.as_bytes()).unwrap()
    }

    fn make_file(fs: &VarveFs, dir: InodeId, text: &str) {
        fs.mknod(Caller::ROOT, dir, name(text), 0o100_644, 0).unwrap();
    }

    /// On a deterministic machine there is no thread, so what it is asked for stays to be seen.
    #[test]
    fn the_thread_is_asked_once_before_there_is_no_more_room() {
        let (fs, dirs) = made(SimEnv::new(1), Path::new("/store"));
        let take_asked = || std::mem::take(&mut fs.reaper.state.lock().propagate);
        for text in ["one", "two"] {
            for (marked, dir) in dirs.iter().enumerate() {
                make_file(&fs, *dir, text);
                assert_eq!(take_asked(), marked == ROOM - ROOM / 4 + 1, "{marked}");
            }
            fs.accounts.propagate_all();
        }
    }

    #[test]
    fn the_thread_is_asked_to_drain_before_the_queue_is_full() {
        let (fs, _) = made(SimEnv::new(1), Path::new("/store"));
        let soon = QUEUE_MAX - QUEUE_MAX / 4;
        for queued in 1..=QUEUE_MAX {
            // None of these has a pending row, so nothing is removed.
            fs.reaper.enqueue(InodeId::new(1 << 40 | queued as u64));
            let asked = std::mem::take(&mut fs.reaper.state.lock().drain);
            assert_eq!(asked, queued == soon, "{queued}");
            assert_eq!(fs.reaper.queued(), if queued < QUEUE_MAX { queued } else { 0 });
        }
    }

    /// Nobody has to wait for directories, as the thread lets them tell each time in between.
    #[test]
    fn the_thread_propagates_pending_usage() {
        const ROUNDS: u32 = 20;
        let (dir, env) = (tempfile::tempdir().unwrap(), OsEnv::new());
        let (fs, dirs) = made(env.clone(), &dir.path().join("store"));
        let begun = env.monotonic();
        for round in 0..ROUNDS {
            for dir in &dirs[..=ROOM - ROOM / 4 + 1] {
                make_file(&fs, *dir, &format!("f{round}"));
            }
            varve_testkit::eventually("usage is propagated", || fs.accounts.marked() <= ROOM / 4);
        }
        assert!(env.monotonic() - begun < INTERVAL * ROUNDS / 2, "they waited for its interval");
        fs.close().unwrap();
    }
}
