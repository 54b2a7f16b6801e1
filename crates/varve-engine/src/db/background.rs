//! The threads: one flushes, one compacts, one syncs every few seconds.
//!
//! In a deterministic environment there are none: the writer that rotates the memtable flushes and
//! compacts before it returns.
//!
//! On a device that is nearly full or small every third sync has the room of what was removed looked for, if there may be some.
//!
//! A device without room stops none of them: they try again after a while, and writers are told
//! `NoSpace` meanwhile. Nor does a want of descriptors or memory. Any other failure, or a panic, poisons the store.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_env::{JoinHandle, is_passing};

use super::Inner;
use crate::{StoreError, StoreResult};

/// How long a worker that found no room waits before it tries again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// A store is at rest when no memtable was filled for so long, and hardly anything written.
const REST_INTERVAL: Duration = Duration::from_secs(3);
/// At rest less than one part in so many of a memtable is written meanwhile. Where memtables are large or the machine slow,
/// one takes longer than the interval to fill.
const REST_WRITTEN_SHARE: u64 = 64;

/// On a device that is nearly full or small room is got back each so many syncs.
const ROOM_TICKS: u64 = 3;

/// The work of one thread.
type Worker = fn(&Inner);

#[derive(Debug, Default)]
struct Due {
    stop: bool,
    flush: bool,
    compaction: bool,
    /// Room is to be looked for.
    room: bool,
}

/// What is still to be done for the room of what was removed, where nobody asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoomWork {
    /// Flush what deletes, once, and then the rest.
    Flush,
    /// Write tables again, one after the other.
    Tables,
    Nothing,
}

/// What the threads are told.
#[derive(Debug, Default)]
pub(crate) struct Work {
    due: Mutex<Due>,
    changed: Condvar,
    /// Told of the end only, so that other news does not make a pause longer.
    stopped: Condvar,
    /// The last flush failed for want of room.
    flush_blocked: AtomicBool,
}

impl Work {
    /// Whether the last flush failed for want of room.
    pub(crate) fn is_flush_blocked(&self) -> bool {
        self.flush_blocked.load(Ordering::Relaxed)
    }

    /// Says whether the last flush failed for want of room.
    pub(crate) fn set_flush_blocked(&self, blocked: bool) {
        self.flush_blocked.store(blocked, Ordering::Relaxed);
    }

    fn tell(&self, change: impl FnOnce(&mut Due)) {
        change(&mut self.due.lock());
        self.changed.notify_all();
    }

    /// Tells that room is to be looked for.
    fn room_is_due(&self) {
        self.tell(|due| (due.compaction, due.room) = (true, true));
    }

    /// Takes what is to be done for room.
    fn take_room(&self) -> RoomWork {
        match std::mem::take(&mut self.due.lock().room) {
            true => RoomWork::Flush,
            false => RoomWork::Nothing,
        }
    }

    /// Tells of a memtable that waits for its flush.
    pub(crate) fn flush_is_due(&self) {
        self.tell(|due| due.flush = true);
    }

    /// Tells the threads to end.
    pub(crate) fn stop(&self) {
        self.tell(|due| due.stop = true);
        self.stopped.notify_all();
    }

    /// Waits until `take` finds something due; false if the store closes.
    fn wait(&self, take: impl Fn(&mut Due) -> bool) -> bool {
        let mut due = self.due.lock();
        while !due.stop && !take(&mut due) {
            self.changed.wait(&mut due);
        }
        !due.stop
    }

    /// Waits until `take` finds something due (`Some(true)`) or `patience` is over (`Some(false)`); `None` if the
    /// store closes.
    fn wait_for(&self, patience: Duration, take: impl Fn(&mut Due) -> bool) -> Option<bool> {
        let mut due = self.due.lock();
        let mut expired = false;
        while !due.stop && !expired {
            if take(&mut due) {
                return Some(true);
            }
            expired = self.changed.wait_for(&mut due, patience).timed_out();
        }
        if due.stop { None } else { Some(take(&mut due)) }
    }

    /// Waits for `duration`; false if the store closes.
    fn pause(&self, duration: Duration) -> bool {
        let mut due = self.due.lock();
        while !due.stop {
            if self.stopped.wait_for(&mut due, duration).timed_out() {
                break;
            }
        }
        !due.stop
    }
}

/// Tells a store that rests from one that fills its memtables slowly.
struct Rest {
    /// Bytes of logs at the last question.
    log_bytes: u64,
}

impl Rest {
    /// Whether hardly anything was written since the last question, `log_bytes` having been written to logs by now.
    fn is_quiet(&mut self, log_bytes: u64, memtable_bytes: usize) -> bool {
        let written = log_bytes - std::mem::replace(&mut self.log_bytes, log_bytes);
        written < memtable_bytes as u64 / REST_WRITTEN_SHARE
    }
}

/// Poisons the store if the thread that holds it panics, and wakes the writers that wait for it.
struct PoisonOnPanic<'a> {
    inner: &'a Inner,
    worker: &'static str,
}

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.inner.health.poison.set(&format_args!("{} panicked", self.worker));
            self.inner.flushed_for_good();
        }
    }
}

impl Inner {
    /// Has full memtables flushed and levels compacted: by the threads, or here if there are none.
    pub(crate) fn work_is_due(&self) {
        if !self.env.is_deterministic() {
            self.work.tell(|due| (due.flush, due.compaction) = (true, true));
            return;
        }
        let outcome = self.flush_pending().and_then(|()| {
            while self.compact_one(false)? {}
            Ok(())
        });
        // The write that brought this about succeeded; what failed here is tried again, or poisons.
        if let Err(error) = outcome {
            self.note_failure("work after a rotation", error);
        }
    }

    /// Starts the threads, unless the environment is deterministic.
    pub(crate) fn start_threads(self: &Arc<Inner>) -> io::Result<Vec<Box<dyn JoinHandle>>> {
        if self.env.is_deterministic() {
            return Ok(Vec::new());
        }
        let workers: [(&'static str, Worker); 3] = [
            ("varve-flush", Inner::flush_loop),
            ("varve-compact", Inner::compaction_loop),
            ("varve-sync", Inner::sync_loop),
        ];
        let mut threads = Vec::new();
        for (name, body) in workers {
            let inner = Arc::clone(self);
            let run = move || {
                let guard = PoisonOnPanic { inner: &inner, worker: name };
                body(guard.inner);
            };
            match self.env.spawn(name, Box::new(run)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    self.work.stop();
                    threads.into_iter().for_each(|thread| {
                        let _ = thread.join();
                    });
                    return Err(error);
                }
            }
        }
        Ok(threads)
    }

    fn flush_loop(&self) {
        while self.work.wait(|due| std::mem::take(&mut due.flush)) {
            while let Err(error) = self.flush_pending() {
                if !self.note_failure("flush", error) || !self.work.pause(RETRY_INTERVAL) {
                    return self.flushed_for_good();
                }
            }
            self.work.tell(|due| due.compaction = true);
        }
        self.flushed_for_good();
    }

    /// No flush will come: writers that wait for one must not.
    fn flushed_for_good(&self) {
        drop(self.writer.lock());
        self.flushed.notify_all();
    }

    fn compaction_loop(&self) {
        let take = |due: &mut Due| std::mem::take(&mut due.compaction);
        let (mut rested, mut rest) = (false, Rest { log_bytes: 0 });
        loop {
            // Once what can be done at rest is done, there is nothing to wake up for but news.
            let told = match rested {
                true => self.work.wait(take).then_some(true),
                false => self.work.wait_for(REST_INTERVAL, take),
            };
            let Some(told) = told else { return };
            let is_quiet = rest.is_quiet(self.metrics.log_bytes.get(), self.options.memtable_bytes);
            rested = !told && is_quiet;
            let mut room = self.work.take_room();
            loop {
                let done = self.compact_one(rested);
                let outcome = done.and_then(|did| Ok(did || self.get_unasked_room(&mut room)?));
                match outcome {
                    Ok(true) => {}
                    Ok(false) => {
                        if rested {
                            self.maps.save();
                        }
                        break;
                    }
                    Err(error) => {
                        if !self.note_failure("compaction", error)
                            || !self.work.pause(RETRY_INTERVAL)
                        {
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Gets some room back that nobody asks for, as large files and other programs take it without a word: on a device that is nearly
    /// full all that can be had, on a small one that of what was removed, if `work` says so. False if there is no more.
    fn get_unasked_room(&self, work: &mut RoomWork) -> StoreResult<bool> {
        if self.space.is_scarce()? {
            return self.get_room();
        }
        if *work == RoomWork::Flush {
            // Once, or else what is removed meanwhile would be flushed in ever smaller pieces.
            *work = RoomWork::Tables;
            if self.flush_deletions()? {
                return Ok(true);
            }
        }
        Ok(*work == RoomWork::Tables && self.get_removed_room()?)
    }

    /// Whether [`Inner::get_unasked_room`] is to be tried.
    fn may_get_room(&self) -> StoreResult<bool> {
        Ok(self.space.is_scarce()? || (self.space.is_small()? && self.may_get_removed_room()?))
    }

    fn sync_loop(&self) {
        for ticks in 0_u64.. {
            if !self.work.pause(self.options.sync_interval) {
                return;
            }
            self.reserve.refill();
            if ticks % ROOM_TICKS == 0 && self.may_get_room().unwrap_or(false) {
                self.work.room_is_due();
            }
            if let Err(error) = self.sync()
                && !self.note_failure("periodic sync", error)
            {
                return;
            }
        }
    }

    /// Judges a failure of background work: true if trying again makes sense, else the store is poisoned
    /// or closed.
    fn note_failure(&self, work: &str, error: StoreError) -> bool {
        match error {
            // A call may be wrong for a while, as where rows wait for the external sync to be set.
            StoreError::NoSpace { .. } | StoreError::Invalid(_) => {
                log::warn!("{work}: {error}; it is tried again");
                true
            }
            StoreError::Closed | StoreError::Poisoned { .. } => false,
            StoreError::Io { source, .. } if is_passing(&source) => {
                log::warn!("{work}: {source}; it is tried again");
                true
            }
            error => {
                self.health.poison.set(&format_args!("{work}: {error}"));
                false
            }
        }
    }

    /// Ends the threads' work: marks the store closed and wakes everybody who waits.
    pub(crate) fn stop(&self) -> StoreResult<()> {
        self.health.close()?;
        self.work.stop();
        self.flushed_for_good();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use varve_env::sim::SimEnv;

    use super::*;
    use crate::{Batch, Db, DbOptions, KeyspaceOptions, Store};

    const ROWS: u64 = 400;

    /// Does what is done for room that nobody asks for; says whether that was anything.
    fn get_room(db: &Db) -> bool {
        let mut work = RoomWork::Flush;
        let may_be = db.inner.may_get_room().unwrap();
        let mut did = false;
        while may_be && db.inner.get_unasked_room(&mut work).unwrap() {
            did = true;
        }
        did
    }

    /// Room that was removed came back only once the device was nearly full, or merges came by.
    #[test]
    fn a_small_device_gets_back_what_was_removed_and_does_nothing_else() {
        for (device_bytes, is_small) in [(1 << 30, true), (20 << 30, false)] {
            let env = SimEnv::new(1);
            env.set_capacity(device_bytes);
            let db = Db::open(env.clone(), Path::new("/store"), DbOptions::default()).unwrap();
            let options = KeyspaceOptions { prefixed: false, compressed: false };
            let space = db.keyspace("rows", options).unwrap();
            let write = |rows: std::ops::Range<u64>, change: fn(&mut Batch, _, u64)| {
                for row in rows {
                    let mut batch = Batch::new();
                    change(&mut batch, space, row);
                    db.write(batch).unwrap();
                }
            };
            let empty = env.used_bytes();
            write(0..ROWS, |batch, space, row| {
                batch.put(space, row.to_be_bytes(), vec![7; 16 << 10]);
            });
            db.flush().unwrap();
            let full = env.used_bytes();
            let (flushes, read) = (&db.inner.metrics.flushes, &db.inner.metrics.device_read_bytes);
            // A look at what has nothing removed: once, and then none.
            assert!(!get_room(&db));
            let (flushes_before, read_before) = (flushes.get(), read.get());
            assert!(!db.inner.may_get_room().unwrap());
            // Fewer than a half, and of those few that are not flushed yet none is looked at.
            write(0..ROWS / 8, |batch, space, row| batch.delete(space, row.to_be_bytes()));
            assert!(!get_room(&db));
            assert_eq!((flushes.get(), read.get()), (flushes_before, read_before));
            write(ROWS / 8..ROWS, |batch, space, row| batch.delete(space, row.to_be_bytes()));
            assert_eq!(get_room(&db), is_small);
            assert!(!get_room(&db), "again");
            let left = env.used_bytes() - empty;
            assert_eq!(left < (full - empty) / 20, is_small, "{full} bytes, then {left}");
        }
    }

    /// Each rotation of the memtable made the pause before the next periodic sync begin anew, so that
    /// under a steady load it never came.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "what is tested is real time")]
    fn news_does_not_make_a_pause_longer() {
        let work = Work::default();
        let paused = AtomicBool::new(true);
        let told_to_the_end = std::thread::scope(|scope| {
            let teller = scope.spawn(|| {
                for _ in 0..1000 {
                    work.tell(|due| due.flush = true);
                    std::thread::sleep(Duration::from_millis(2));
                    if !paused.load(Ordering::Relaxed) {
                        return false;
                    }
                }
                true
            });
            assert!(work.pause(Duration::from_millis(100)));
            paused.store(false, Ordering::Relaxed);
            teller.join().unwrap()
        });
        assert!(!told_to_the_end, "the pause lasted as long as the news");
    }

    /// A load that filled a memtable in more than the interval was merged again and again, as if the store rested.
    #[test]
    fn a_store_that_is_filled_slowly_does_not_rest() {
        let mut rest = Rest { log_bytes: 0 };
        assert!(rest.is_quiet(0, 6400));
        assert!(!rest.is_quiet(100, 6400));
        assert!(rest.is_quiet(199, 6400));
        assert!(!rest.is_quiet(5000, 6400));
        assert!(rest.is_quiet(5000, 6400));
    }

    #[test]
    fn the_end_cuts_a_pause_short() {
        let work = Work::default();
        std::thread::scope(|scope| {
            let paused = scope.spawn(|| work.pause(Duration::from_secs(3600)));
            work.stop();
            assert!(!paused.join().unwrap());
        });
    }
}
