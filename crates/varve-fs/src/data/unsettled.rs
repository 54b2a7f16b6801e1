//! Large files whose rows could not follow them when they were closed, as a transaction had locked what that changes.
//!
//! 1. Such a file waits here, and stays known as if it was looked up, so that its row is found ([`VarveFs::settle_unwritten`]).
//! 2. Once locks have gone, who next changes anything brings the row up to date ([`VarveFs::settle_waiting`]).
//!
//! Until then it counts with the size that it had before. What still waits when the store is closed, and what there is no room
//! for here, is left to the next writer's release or the next mount, which finds the pending row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use varve_schema::Place;
use varve_types::InodeId;
use varve_vfs::{Blocked, FsError, FsResult};

use crate::fs::VarveFs;

/// Files that may wait.
const UNSETTLED_MAX: usize = 1024;

/// Files that wait.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    any: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    inos: BTreeSet<InodeId>,
    /// What the one of them that was refused first met.
    blocked: Option<Blocked>,
}

impl Unsettled {
    /// False if it waits already.
    fn add(&self, ino: InodeId, blocked: &Blocked) -> bool {
        let mut waiting = self.waiting.lock();
        let is_new = waiting.inos.insert(ino);
        waiting.blocked.get_or_insert_with(|| blocked.clone());
        self.any.store(true, Ordering::Relaxed);
        is_new
    }

    fn take(&self) -> BTreeSet<InodeId> {
        let mut waiting = self.waiting.lock();
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *waiting).inos
    }
}

impl VarveFs {
    /// Brings the row of a file up to date to which perhaps nobody writes any more. If that fails it stays dirty, which is right
    /// as well; if locks of others are why, it is done once they have gone.
    pub(crate) fn settle_unwritten(&self, ino: InodeId) {
        let settled = self.settle_object(ino);
        // Without a row there is nothing to bring up to date.
        if let Ok(()) | Err(FsError::Stale) = settled {
            return;
        }
        self.objects.note_unclaimed();
        let waits = match settled {
            Err(FsError::Blocked(blocked)) if self.serial.is_none() => {
                self.settle_later(ino, &blocked)
            }
            settled => settled,
        };
        if let Err(error) = waits {
            log::warn!("the row of inode {ino} stays dirty: {error}");
        }
    }

    fn settle_later(&self, ino: InodeId, blocked: &Blocked) -> FsResult<()> {
        let held = self.hold(ino)?;
        if self.unsettled.waiting.lock().inos.len() >= UNSETTLED_MAX {
            return Err(FsError::TryAgain);
        }
        // Each that waits has one lookup, whoever adds it.
        self.locator.note_lookup(ino, held.place())?;
        if !self.unsettled.add(ino, blocked) {
            self.locator.forget(ino, 1)?;
        }
        Ok(())
    }

    /// Brings up to date what waits for that, if locks have gone. REQUIRES: the caller holds no row lock.
    pub(crate) fn settle_waiting(&self) {
        if !self.unsettled.any.load(Ordering::Relaxed) {
            return;
        }
        let blocked = self.unsettled.waiting.lock().blocked.clone();
        if blocked.is_none_or(|blocked| !self.do_wait_for_locks(&blocked, Duration::ZERO)) {
            return;
        }
        for ino in self.unsettled.take() {
            match self.settle_object(ino) {
                Err(FsError::Blocked(blocked)) => {
                    if !self.unsettled.add(ino, &blocked) {
                        self.waits_no_more(ino, Ok(()));
                    }
                }
                settled => self.waits_no_more(ino, settled),
            }
        }
    }

    /// Keeps files known until [`VarveFs::settle_known`]; gives them. REQUIRES: the locks of their rows, which are there.
    pub(crate) fn keep_known(&self, files: &BTreeMap<InodeId, Place>) -> FsResult<Vec<InodeId>> {
        for (ino, place) in files {
            self.locator.note_lookup(*ino, place.clone())?;
        }
        Ok(files.keys().copied().collect())
    }

    /// Brings the rows of these files up to date, those that are still there.
    pub(crate) fn settle_known(&self, inos: Vec<InodeId>) -> FsResult<()> {
        let settled = inos.into_iter().map(|ino| {
            let settled = match self.settle_object(ino) {
                Err(FsError::Stale) => Ok(()),
                settled => settled,
            };
            settled.and(self.do_forget(ino, 1))
        });
        settled.fold(Ok(()), FsResult::and)
    }

    /// Lets nothing wait any more.
    pub(crate) fn abandon_unsettled(&self) {
        self.unsettled.take().into_iter().for_each(|ino| self.waits_no_more(ino, Ok(())));
    }

    fn waits_no_more(&self, ino: InodeId, settled: FsResult<()>) {
        let forgotten = self.do_forget(ino, 1);
        if let Err(error) = settled.and(forgotten) {
            log::warn!("the row of inode {ino} stays dirty: {error}");
        }
    }
}
