//! The threads: one flushes, one compacts, one syncs every few seconds.
//!
//! In a deterministic environment there are none: the writer that rotates the memtable flushes and
//! compacts before it returns ([`crate::commit::room`]).
//!
//! On a device that is nearly full or small, every third sync wakes the thread that compacts, to look for the room of what was
//! removed, if there may be some.
//!
//! A device without room stops none of them: they try again after a while, and writes fail with `NoSpace` meanwhile. Nor
//! does a want of descriptors or memory. Any other failure, or a panic, poisons the store.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use varve_env::JoinHandle;

use super::Inner;
use crate::StoreResult;
use crate::commit::work::{Due, RoomWork};

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
            self.inner.log.no_flush_comes();
        }
    }
}

impl Inner {
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
            while let Err(error) = self.flusher.flush_pending() {
                if !self.commits.note_failure("flush", error) || !self.work.pause(RETRY_INTERVAL) {
                    return self.log.no_flush_comes();
                }
            }
            self.work.tell(|due| due.compaction = true);
        }
        self.log.no_flush_comes();
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
                let done = self.compactor.compact_one(rested);
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
                        if !self.commits.note_failure("compaction", error)
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
            return self.commits.get_room();
        }
        if *work == RoomWork::Flush {
            // Once, or else what is removed meanwhile would be flushed in ever smaller pieces.
            *work = RoomWork::Tables;
            if self.commits.flush_deletions()? {
                return Ok(true);
            }
        }
        Ok(*work == RoomWork::Tables && self.commits.get_removed_room()?)
    }

    /// Whether [`Inner::get_unasked_room`] is to be tried.
    fn may_get_room(&self) -> StoreResult<bool> {
        Ok(self.space.is_scarce()?
            || (self.space.is_small()? && self.commits.may_get_removed_room()?))
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
            if let Err(error) = self.log.sync()
                && !self.commits.note_failure("periodic sync", error)
            {
                return;
            }
        }
    }

    /// Ends the threads' work: marks the store closed and wakes everybody who waits.
    pub(crate) fn stop(&self) -> StoreResult<()> {
        self.health.close()?;
        self.work.stop();
        self.log.no_flush_comes();
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
}
