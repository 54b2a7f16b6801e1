//! Keeps requests that the locks of transactions block.
//!
//! The thread that takes a request must not wait for a lock, because the program that will release the lock may need
//! that thread. So a request that was refused ([`FsError::Blocked`]) is kept as it came, and a separate thread serves
//! it again when locks have been released:
//!
//! 1. [`Parked::add`] keeps it. At most [`PARKED_MAX`] requests are kept, and of each ring no more than
//!    `transport::held` allows; one more is decided at once ([`insist`]).
//! 2. [`serve`] waits until locks are released, and serves the requests again that they may have blocked. A request
//!    that is refused again goes on waiting. If permissions have changed meanwhile, the kernel has to check the
//!    request again (`adapter/checked.rs`).
//! 3. A request fails with EINTR if a signal is about to end its caller ([`signals`]).
//! 4. A request that has waited as long as it may (`Vfs::lock_wait_max`) is served a last time: either the
//!    transactions that block it lose their locks, or it fails with EBUSY, as the file system decides.
//!
//! Invariant: every request gets one answer, even if the code that serves it panics. When the session ends, all waits
//! are over.
#![allow(clippy::disallowed_methods, reason = "times waits of programs, not the store")]

mod signals;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use varve_vfs::{Blocked, FsError};

use crate::adapter::{Adapter, Checked, deliver};
use crate::answer::{Answer, unless_it_panics};
use crate::protocol::reply::Reply;
use crate::protocol::request::Header;
use crate::transport::{Hold, Origin, Until};

/// The most requests that wait at a time.
const PARKED_MAX: usize = 40;
/// How many of the latest signals are remembered. Few of their requests wait or will wait.
const SIGNALLED_MAX: usize = 1024;
/// The longest wait before the clock is looked at.
const MOMENT: Duration = Duration::from_millis(50);

/// A request that waits.
struct Waiting {
    origin: Origin,
    header: Header,
    body: Vec<u8>,
    since: Instant,
    blocked: Blocked,
    /// The attributes by which the kernel allowed it.
    checked: Checked,
    /// Its caller has got a signal.
    is_signalled: bool,
    _hold: Hold,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// The numbers of requests whose callers have got signals. A signal may be reported before its request is here.
    signalled: VecDeque<u64>,
    /// The number of requests that wait or are served again.
    count: usize,
    closed: bool,
}

impl Queue {
    /// Takes all requests that wait, and marks those whose callers have got signals.
    fn take(&mut self) -> Vec<Waiting> {
        let mut waiting = std::mem::take(&mut self.waiting);
        for one in &mut waiting {
            one.is_signalled |= self.signalled.contains(&one.header.unique);
        }
        waiting
    }
}

/// The waiting requests of one session.
#[derive(Default)]
pub(crate) struct Parked {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Parked {
    /// Keeps a request that was refused as `blocked`, and that the kernel allowed by `checked`. False if there are
    /// too many, or no thread to serve it.
    pub(crate) fn add(
        &self,
        origin: &Origin,
        (header, body): (&Header, &[u8]),
        blocked: &Blocked,
        checked: Checked,
    ) -> bool {
        let mut queue = self.queue.lock();
        if queue.closed || queue.count >= PARKED_MAX {
            return false;
        }
        let Some(hold) = origin.hold(Until::Unlocked) else { return false };
        queue.count += 1;
        let (since, body) = (Instant::now(), body.to_vec());
        let (origin, header, blocked) = (origin.clone(), *header, blocked.clone());
        queue.waiting.push(Waiting {
            origin,
            header,
            body,
            since,
            blocked,
            checked,
            is_signalled: false,
            _hold: hold,
        });
        self.changed.notify_one();
        true
    }

    /// Notes that the caller of the request `unique` has got a signal. The request need not wait here. The kernel
    /// reports only the first signal.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut queue = self.queue.lock();
        if queue.signalled.len() >= SIGNALLED_MAX {
            queue.signalled.pop_front();
        }
        queue.signalled.push_back(unique);
    }

    /// Returns whether the caller of the request `unique` has lately got a signal.
    pub(crate) fn is_signalled(&self, unique: u64) -> bool {
        self.queue.lock().signalled.contains(&unique)
    }

    /// Refuses further requests; [`serve`] ends all waits and returns.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.changed.notify_one();
    }
}

/// Serves waiting requests until the session ends.
pub(crate) fn serve(adapter: &Adapter) {
    let parked = adapter.parked();
    let mut reply = Reply::new();
    loop {
        let mut queue = parked.queue.lock();
        while queue.waiting.is_empty() && !queue.closed {
            parked.changed.wait(&mut queue);
        }
        let (mut waiting, closed) = (queue.take(), queue.closed);
        drop(queue);
        if waiting.is_empty() {
            return;
        }
        let before = waiting.len();
        // Only the first of them waits.
        let mut wait_max = MOMENT;
        waiting.retain_mut(|waiting| {
            let wait_max = std::mem::take(&mut wait_max);
            !is_answered(adapter, waiting, (wait_max, closed), &mut reply)
        });
        let mut queue = parked.queue.lock();
        queue.count -= before - waiting.len();
        queue.waiting.extend(waiting);
    }
}

/// Serves a waiting request again. Returns whether it has its answer.
fn is_answered(
    adapter: &Adapter,
    waiting: &mut Waiting,
    (wait_max, closed): (Duration, bool),
    reply: &mut Reply,
) -> bool {
    let opcode = waiting.header.opcode;
    let served = || again(adapter, waiting, (wait_max, closed), reply);
    let answer = match unless_it_panics(opcode, served) {
        Ok(Some(answer)) => answer,
        Ok(None) => return false,
        Err(panicked) => {
            let end_wait = || adapter.vfs().wait_is_over(&waiting.blocked);
            unless_it_panics(opcode, end_wait).err().unwrap_or(panicked)
        }
    };
    adapter.meters().answered(opcode, waiting.since.elapsed(), &answer);
    deliver(adapter.vfs(), &waiting.origin, waiting.header.unique, answer, reply);
    true
}

/// Waits at most `wait_max` until locks are released, and serves a request again. `None` if the request goes on
/// waiting.
fn again(
    adapter: &Adapter,
    waiting: &mut Waiting,
    (wait_max, closed): (Duration, bool),
    reply: &mut Reply,
) -> Option<Answer> {
    let vfs = adapter.vfs();
    if waiting.is_signalled && signals::is_to_end(waiting.header.pid) {
        vfs.wait_is_over(&waiting.blocked);
        return Some(Answer::Errno(libc::EINTR));
    }
    let is_over = closed || waiting.since.elapsed() >= vfs.lock_wait_max();
    if !is_over && !vfs.wait_for_locks(&waiting.blocked, wait_max) {
        return None;
    }
    vfs.wait_is_over(&waiting.blocked);
    let Waiting { origin, header, body, checked, .. } = &*waiting;
    if !adapter.is_still_allowed(origin, checked) {
        return Some(adapter.failed(header, &FsError::Stale));
    }
    match adapter.serve_now(origin, header, body, reply) {
        Err(blocked) if !is_over => {
            waiting.blocked = blocked;
            None
        }
        Err(blocked) => Some(insist(adapter, (origin, header, body), blocked, reply)),
        Ok(answer) => Some(answer),
    }
}

/// Serves a request that was refused as `blocked` for the last time.
pub(crate) fn insist(
    adapter: &Adapter,
    (origin, header, body): (&Origin, &Header, &[u8]),
    blocked: Blocked,
    reply: &mut Reply,
) -> Answer {
    let call = || adapter.serve_now(origin, header, body, reply);
    let insist = || varve_vfs::insist(adapter.vfs(), blocked, call);
    match unless_it_panics(header.opcode, insist) {
        Ok(served) => {
            served.unwrap_or_else(|blocked| adapter.failed(header, &FsError::Blocked(blocked)))
        }
        Err(panicked) => panicked,
    }
}
