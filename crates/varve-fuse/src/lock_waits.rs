//! Requests that wait for locks of files which the file system keeps ([`varve_vfs::Vfs::await_lock`]).
//!
//! ```text
//! begin --> the file system has the request --(granted, deadlock, ...)--> end: answered
//!              |  INTERRUPT: cancelled, and so answered with EINTR           ^
//!              \--------------------------------------------------------------/
//! ```
//!
//! 1. [`LockWaits::begin`] notes a request. Then the adapter hands it to the file system, and [`LockWaits::waits`]
//!    notes the number of its wait.
//! 2. [`LockWaits::interrupt`] ends the wait of a request whose caller has got a signal. The signal may be reported
//!    before the number is noted, so the thread that notes it asks for signals after that ([`crate::parked`]).
//! 3. [`LockWaits::end`] says whether the request is to be answered.
//! 4. [`LockWaits::close`] ends all waits with the session.
//!
//! Invariant: no thread waits for a lock, and a request is answered once.

use std::collections::HashMap;

use parking_lot::Mutex;
use varve_vfs::{LockWait, Vfs};

/// The most requests that wait at a time. One more fails with ENOLCK.
const WAITS_MAX: usize = 4096;

#[derive(Default)]
struct Waits {
    /// By the number of the request; with the number of the wait once it is known.
    waiting: HashMap<u64, Option<LockWait>>,
    /// The session is over. True if another goes on with its connection.
    closed: Option<bool>,
}

/// What becomes of a request whose wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It is answered with the result.
    Answer,
    /// It is answered with an error that does not mean a signal: the session pauses, and the next one does not know
    /// the request.
    Refuse,
    /// Nobody waits for an answer any more.
    Forget,
}

/// The requests of one session that wait.
#[derive(Default)]
pub(crate) struct LockWaits(Mutex<Waits>);

impl LockWaits {
    /// Notes a request. False if there are too many.
    pub(crate) fn begin(&self, unique: u64) -> bool {
        let mut waits = self.0.lock();
        let has_room = waits.closed.is_none() && waits.waiting.len() < WAITS_MAX;
        if has_room {
            waits.waiting.insert(unique, None);
        }
        has_room
    }

    /// Notes the number of a request's wait, if the wait has not ended.
    pub(crate) fn waits(&self, vfs: &dyn Vfs, unique: u64, wait: LockWait) {
        let mut waits = self.0.lock();
        if let Some(number) = waits.waiting.get_mut(&unique) {
            *number = Some(wait);
            if waits.closed.is_some() {
                drop(waits);
                vfs.cancel_lock(wait);
            }
        }
    }

    /// Ends the wait of a request whose caller has got a signal.
    pub(crate) fn interrupt(&self, vfs: &dyn Vfs, unique: u64) {
        let wait = self.0.lock().waiting.get(&unique).copied().flatten();
        if let Some(wait) = wait {
            vfs.cancel_lock(wait);
        }
    }

    /// Notes that a wait has ended, and says what becomes of the request.
    pub(crate) fn end(&self, unique: u64) -> End {
        let mut waits = self.0.lock();
        waits.waiting.remove(&unique);
        match waits.closed {
            None => End::Answer,
            Some(true) => End::Refuse,
            Some(false) => End::Forget,
        }
    }

    /// Ends all waits. `is_paused` says that another session goes on.
    pub(crate) fn close(&self, vfs: &dyn Vfs, is_paused: bool) {
        let mut waits = self.0.lock();
        waits.closed = Some(is_paused);
        let waiting: Vec<LockWait> = waits.waiting.values().filter_map(|wait| *wait).collect();
        drop(waits);
        for wait in waiting {
            vfs.cancel_lock(wait);
        }
    }
}
