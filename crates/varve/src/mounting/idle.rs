//! Which transactions somebody uses, and the end of those that nobody claims any more.
//!
//! 1. Every [`INTERVAL`] a thread looks at the open transactions, if there are any. One is in use while programs have files open in its
//!    mount or their working directory there, which the kernel knows; it was used if its mount or its pairs were asked for
//!    anything since the last look.
//! 2. One that was begun to be aborted without use (`varve txn begin --idle-abort`), and has not been used for so long, is,
//!    unless a program turns out to be in it. The log says so, and whoever names it later is told.
//!
//! When a mount begins, so does the time without use. It is counted in memory alone.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde_json::Value;
use varve_fs::{Transaction, ViewName};
use varve_fuse::UnmountMode;

use super::views::ViewDesk;
use crate::Error;

/// How often to look while transactions may have to be aborted.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often else.
const REST: Duration = Duration::from_secs(5);
/// Transactions that were aborted, at most, of which is known why.
const TOLD_MAX: usize = 256;

/// What is known of the use of transactions.
#[derive(Default)]
pub(super) struct Claims {
    /// When each was used last, or this mount began.
    used: Mutex<HashMap<String, Instant>>,
    /// The ids of those that were aborted, and after how many seconds.
    aborted: Mutex<VecDeque<(String, u64)>>,
    /// Held while the kernel is asked who is in a mount: two who ask at once would take it away.
    asking: Mutex<()>,
    bell: Arc<Bell>,
}

/// Wakes the thread that looks.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for the bell, not longer than `wait_max`.
    fn wait(&self, wait_max: Option<Duration>) {
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

/// Looks after the transactions of `desk` until it is gone.
pub(super) fn watch(desk: &Arc<ViewDesk>) {
    let (weak, bell) = (Arc::downgrade(desk), Arc::clone(&desk.claims.bell));
    let watch = move || {
        while let Some(desk) = Weak::upgrade(&weak) {
            let next = desk.look();
            drop(desk);
            bell.wait(next);
        }
    };
    if let Err(error) = thread::Builder::new().name("varve-idle".to_owned()).spawn(watch) {
        log::warn!("transactions that nobody uses stay: {error}");
    }
}

impl ViewDesk {
    /// Says when to look again; `None`: when a transaction has begun.
    fn look(&self) -> Option<Duration> {
        let Some(_working) = self.door.enter() else { return Some(INTERVAL) };
        let open = self.fs.transactions().unwrap_or_default();
        let ids: Vec<String> = open.iter().map(|txn| txn.name().name).collect();
        self.claims.used.lock().retain(|id, _| ids.contains(id));
        for txn in &open {
            let in_use = txn.idle_abort_s.is_some() && self.is_in_use(&txn.name());
            let idle = self.idle(txn, in_use);
            if let Some(limit_s) = txn.idle_abort_s.filter(|limit_s| idle.as_secs() >= *limit_s) {
                self.abort_idle(&txn.name(), limit_s);
            }
        }
        match open.iter().any(|txn| txn.idle_abort_s.is_some()) {
            true => Some(INTERVAL),
            false if open.is_empty() => None,
            false => Some(REST),
        }
    }

    /// For how long nobody has used a transaction, which is `in_use` as far as the kernel knows.
    fn idle(&self, txn: &Transaction, in_use: bool) -> Duration {
        let name = txn.name();
        let asked = self.attached(&name).is_some_and(|fs| fs.take_used());
        let used = self.fs.take_pairs_used(txn) || asked || in_use;
        let mut all = self.claims.used.lock();
        let last = all.entry(name.name).or_insert_with(Instant::now);
        if used {
            *last = Instant::now();
        }
        last.elapsed()
    }

    /// Whether the kernel knows of programs in the mount of a view.
    fn is_in_use(&self, name: &ViewName) -> bool {
        if self.attached(name).is_none() {
            return false;
        }
        let path = self.dir.join(name.path());
        let _alone = self.claims.asking.lock();
        // Asked to take an unused mount away the kernel marks it first, and that it says. Whoever walks through it then
        // takes the mark off, as is done here.
        let asked = rustix::mount::unmount(&path, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW);
        drop(rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()));
        asked == Err(Errno::BUSY)
    }

    fn abort_idle(&self, name: &ViewName, limit_s: u64) {
        match self.abort(name, UnmountMode::Plain) {
            Ok(()) => {
                log::warn!(
                    "transaction {} is aborted: nobody has used it for {limit_s} s",
                    name.name
                );
                let mut told = self.claims.aborted.lock();
                told.push_back((name.name.clone(), limit_s));
                if told.len() > TOLD_MAX {
                    told.pop_front();
                }
            }
            Err(error) => log::info!("transaction {} stays: {}", name.name, error.message()),
        }
    }

    /// Adds to what is told of a transaction whether anybody uses it.
    pub(super) fn with_use(&self, txn: &Transaction, mut told: Value) -> Value {
        let in_use = self.is_in_use(&txn.name());
        told["in_use"] = in_use.into();
        told["idle_s"] = self.idle(txn, in_use).as_secs().into();
        told
    }
}
