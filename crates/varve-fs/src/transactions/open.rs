//! Which transactions somebody has open, and when somebody last asked for their pairs of dictionaries.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use varve_vfs::FsResult;

use crate::epoch::Epoch;
use crate::usage::Accounts;

/// The transactions that are open, by their epochs.
#[derive(Default)]
pub(crate) struct OpenTransactions {
    /// Each opening, by what it alone has.
    opened: Mutex<Vec<(Epoch, Weak<Accounts>)>>,
    /// When somebody last asked for pairs, in milliseconds of the monotonic clock.
    pairs_used: Mutex<BTreeMap<Epoch, u64>>,
}

impl OpenTransactions {
    /// Notes that a transaction is open, until its `accounts` are dropped. Calls `first` before that if nobody else has it open.
    pub(super) fn open(
        &self,
        epoch: Epoch,
        accounts: &Arc<Accounts>,
        first: impl FnOnce() -> FsResult<()>,
    ) -> FsResult<()> {
        let mut opened = self.opened.lock();
        opened.retain(|(_, accounts)| accounts.strong_count() > 0);
        if opened.iter().all(|(open, _)| *open != epoch) {
            first()?;
        }
        opened.push((epoch, Arc::downgrade(accounts)));
        Ok(())
    }

    /// Notes that somebody has asked for pairs of a transaction.
    pub(super) fn note_pairs_used(&self, epoch: Epoch, now_ms: u64) {
        self.pairs_used.lock().insert(epoch, now_ms);
    }

    /// When somebody last asked for pairs of a transaction; `None` if nobody has since the store was opened.
    pub(super) fn pairs_used_ms(&self, epoch: Epoch) -> Option<u64> {
        self.pairs_used.lock().get(&epoch).copied()
    }

    /// Forgets a transaction that has ended.
    pub(super) fn forget(&self, epoch: Epoch) {
        self.pairs_used.lock().remove(&epoch);
    }
}
