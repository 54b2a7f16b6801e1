//! What a mount knows of the use of transactions: when each was used last, and which were aborted because nobody used them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use varve::Error;

/// Transactions that were aborted, at most, of which is known why.
const TOLD_MAX: usize = 256;

/// What is known of the use of transactions.
#[derive(Default)]
pub(super) struct Claims {
    /// When each was used last, or this mount began.
    used: Mutex<HashMap<String, Instant>>,
    /// Those in which programs were at the last look.
    in_use: Mutex<HashSet<String>>,
    /// The ids of those that were aborted, and after how many seconds.
    aborted: Mutex<VecDeque<(String, u64)>>,
    /// Held while the kernel is asked who is in a mount: two who ask at once would take it away.
    pub(super) asking: Mutex<()>,
    /// Rung when there is something new to look at.
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

    /// Waits for the bell, not longer than `wait_max`.
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

impl Drop for Claims {
    fn drop(&mut self) {
        self.bell.ring();
    }
}

impl Claims {
    /// A transaction has begun.
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

    /// Notes whether programs are in the transaction `id`. If they were at the last look, they may have left a moment ago,
    /// which counts as well.
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

    /// `error`, or what has become of the transaction `id`.
    pub(super) fn explain(&self, id: &str, error: Error) -> Error {
        let aborted = self.aborted.lock();
        match aborted.iter().find(|(aborted, _)| aborted == id) {
            Some((_, seconds)) => Error::failed(format!(
                "transaction {id} was aborted, as nobody had used it for {seconds} s"
            ))
            .hint("begin another one; `--idle-abort` says after how long"),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_in_a_transaction_at_the_last_look_may_have_left_just_now() {
        let claims = Claims::default();
        let looks = [false, true, true, false, false];
        assert_eq!(
            looks.map(|in_use| claims.note_in_use("7", in_use)),
            [false, true, true, true, false]
        );
    }
}
