//! Which transactions somebody uses, and the end of those that nobody claims any more.
//!
//! 1. Every [`INTERVAL`] a thread looks at the open transactions. One is in use while programs have files open in its
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

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde_json::Value;
use varve_fs::{Transaction, ViewName};
use varve_fuse::UnmountMode;

use super::views::ViewDesk;
use crate::{Error, Result, views};

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
}

impl Claims {
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
    let weak: Weak<ViewDesk> = Arc::downgrade(desk);
    let watch = move || {
        while let Some(desk) = weak.upgrade() {
            let any_limits = desk.look();
            drop(desk);
            thread::sleep(if any_limits { INTERVAL } else { REST });
        }
    };
    if let Err(error) = thread::Builder::new().name("varve-idle".to_owned()).spawn(watch) {
        log::warn!("transactions that nobody uses stay: {error}");
    }
}

impl ViewDesk {
    /// Says whether any transaction may have to be aborted later.
    fn look(&self) -> bool {
        let Some(_working) = self.door.enter() else { return true };
        let open = self.fs.transactions().unwrap_or_default();
        let ids: Vec<String> = open.iter().map(|txn| txn.name().name).collect();
        self.claims.used.lock().retain(|id, _| ids.contains(id));
        for txn in &open {
            let idle = self.idle(txn);
            if let Some(limit_s) = txn.idle_abort_s.filter(|limit_s| idle.as_secs() >= *limit_s) {
                self.abort_idle(&txn.name(), limit_s);
            }
        }
        open.iter().any(|txn| txn.idle_abort_s.is_some())
    }

    /// For how long nobody has used a transaction.
    fn idle(&self, txn: &Transaction) -> Duration {
        let name = txn.name();
        let asked = self.attached(&name).is_some_and(|fs| fs.take_used());
        let used = self.fs.take_pairs_used(txn)
            || asked
            || (txn.idle_abort_s.is_some() && self.is_in_use(&name));
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
        let aborted = self.ending(name, || {
            self.detach(name, UnmountMode::Plain)?;
            self.let_go(name, |_| true);
            views::abort(&self.fs, &name.name)
        });
        match aborted {
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
        self.name_changed(name);
    }

    /// Adds to what is told of a transaction whether anybody uses it.
    pub(super) fn with_use(&self, mut told: Value) -> Result<Value> {
        let id = told["id"].as_str().unwrap_or_default().to_owned();
        let txn = self.fs.transaction(&id).map_err(|error| views::no_transaction(&id, error))?;
        let idle = self.idle(&txn);
        told["in_use"] = self.is_in_use(&txn.name()).into();
        told["idle_s"] = idle.as_secs().into();
        Ok(told)
    }
}
