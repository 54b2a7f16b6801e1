//! What a mount knows of the use of transactions: when each was used last, and which were aborted because nobody used them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use varve::Error;

/// The most aborted transactions that are remembered.
const TOLD_MAX: usize = 256;

/// See the module's comment.
#[derive(Default)]
pub(super) struct TransactionUsage {
    /// When each transaction was used last, or when this mount began.
    used: Mutex<HashMap<String, Instant>>,
    /// The transactions in which programs were at the last look.
    in_use: Mutex<HashSet<String>>,
    /// The ids of aborted transactions, each with its limit in seconds.
    aborted: Mutex<VecDeque<(String, u64)>>,
    /// Held while the kernel is asked whether a mount is in use: two threads that ask at once would unmount it.
    pub(super) asking: Mutex<()>,
    /// Wakes the thread that looks for unused transactions.
    pub(super) bell: Arc<Bell>,
}

/// Wakes the thread that looks.
#[derive(Default)]
pub(super) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until it rings, not longer than `wait_max`.
    pub(super) fn wait(&self, wait_max: Option<Duration>) {
        let mut rung = self.rung.lock();
        match wait_max {
            None => self.changed.wait_while(&mut rung, |rung| !*rung),
            Some(wait_max) => {
                self.changed.wait_while_for(&mut rung, |rung| !*rung, wait_max);
            }
        }
        *rung = false;
    }
}

impl Drop for TransactionUsage {
    fn drop(&mut self) {
        self.bell.ring();
    }
}

impl TransactionUsage {
    /// Notes that a transaction has begun.
    pub(super) fn begun(&self) {
        self.bell.ring();
    }

    /// Notes that the transaction `id` has not been used for `unused`.
    pub(super) fn note(&self, id: &str, unused: Duration) {
        let now = Instant::now();
        if let (Some(last), Some(used)) = (self.used.lock().get_mut(id), now.checked_sub(unused)) {
            *last = used.max(*last);
        }
    }

    /// Notes whether programs are in the transaction `id`. Returns true also if they were in it at the last look, as they may have left
    /// a moment ago.
    pub(super) fn note_in_use(&self, id: &str, in_use: bool) -> bool {
        let mut all = self.in_use.lock();
        if !in_use {
            return all.remove(id);
        }
        all.insert(id.to_owned());
        true
    }

    /// For how long the transaction `id` has not been used.
    pub(super) fn idle(&self, id: &str) -> Duration {
        self.used.lock().entry(id.to_owned()).or_insert_with(Instant::now).elapsed()
    }

    /// Forgets all transactions but those with these `ids`.
    pub(super) fn keep_only(&self, ids: &[String]) {
        self.used.lock().retain(|id, _| ids.contains(id));
        self.in_use.lock().retain(|id| ids.contains(id));
    }

    /// Notes that the transaction `id` was aborted after `limit_s` seconds without use.
    pub(super) fn note_aborted(&self, id: &str, limit_s: u64) {
        let mut aborted = self.aborted.lock();
        aborted.push_back((id.to_owned(), limit_s));
        if aborted.len() > TOLD_MAX {
            aborted.pop_front();
        }
    }

    /// Why the transaction `id` is gone, if it was aborted without use; else `error`.
    pub(super) fn explain(&self, id: &str, error: Error) -> Error {
        let aborted = self.aborted.lock();
        match aborted.iter().find(|(aborted, _)| aborted == id) {
            Some((_, seconds)) => Error::failed(format!(
                "transaction {id} was aborted, as no program had used it for {seconds} s"
            ))
            .hint("begin another transaction; `--idle-abort` sets the limit"),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_in_a_transaction_at_the_last_look_may_have_left_just_now() {
        let usage = TransactionUsage::default();
        let looks = [false, true, true, false, false];
        assert_eq!(
            looks.map(|in_use| usage.note_in_use("7", in_use)),
            [false, true, true, true, false]
        );
    }
}
