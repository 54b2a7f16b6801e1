//! Which transactions somebody uses, and the end of those that nobody claims any more.
//!
//! 1. A transaction is in use while programs have files open in its mount or their working directory there, which the kernel
//!    knows, or it is mounted elsewhere too, as in their own mount namespaces; it was used when its mount or its pairs were last
//!    asked for anything.
//! 2. One that was begun to be aborted without use (`varve txn begin --idle-abort`), and has not been used for so long, is,
//!    unless a program turns out to be in it, or the mount is read-only. The log says so, and whoever names it later is told.
//! 3. A thread looks when the first can be due ([`look_after`]), and sleeps where none ever will be.
//!
//! When a mount begins, so does the time without use. It is counted in memory alone.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use varve::Error;
use varve_fs::{Transaction, ViewName};
use varve_fuse::UnmountMode;

use super::ViewDesk;

/// The shortest time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// While programs are in a transaction, one looks so often within the time that it may be without use.
const LOOKS_IN_USE: u32 = 8;
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

/// In what time to look again at a transaction that is to be aborted after `limit` without use, and has not been used for
/// `idle`. Programs that are in it may leave at any moment.
fn look_after(limit: Duration, idle: Duration, in_use: bool) -> Duration {
    let after = if in_use || idle >= limit { limit / LOOKS_IN_USE } else { limit - idle };
    after.max(INTERVAL)
}

impl ViewDesk {
    /// Says in what time to look again; `None`: when a transaction has begun.
    fn look(&self) -> Option<Duration> {
        let Some(_working) = self.door.enter() else { return Some(INTERVAL) };
        let open = self.fs.transactions().unwrap_or_default();
        let ids: Vec<String> = open.iter().map(|txn| txn.name().name).collect();
        self.claims.keep_only(&ids);
        let mut next = None;
        for txn in &open {
            let Some(limit_s) = txn.idle_abort_s else { continue };
            let limit = Duration::from_secs(limit_s);
            let name = txn.name();
            let in_use = self.claims.note_in_use(&name.name, self.is_in_use(&name));
            let idle = self.idle(txn, in_use);
            if idle >= limit && self.check_writable().is_ok() {
                self.abort_idle(&name, limit_s);
            }
            let after = look_after(limit, idle, in_use);
            next = Some(next.map_or(after, |next: Duration| next.min(after)));
        }
        next
    }

    /// For how long nobody has used a transaction, which is `in_use` as far as the kernel knows.
    fn idle(&self, txn: &Transaction, in_use: bool) -> Duration {
        let name = txn.name();
        let of_mount = self.attached(&name).map(|fs| fs.unused_for());
        let of_pairs = self.fs.pairs_unused_for(txn);
        let of_programs = in_use.then_some(Duration::ZERO);
        // From now on, if it was not known.
        self.claims.idle(&name.name);
        if let Some(unused) = [of_mount, of_pairs, of_programs].into_iter().flatten().min() {
            self.claims.note(&name.name, unused);
        }
        self.claims.idle(&name.name)
    }

    /// Whether the kernel knows of programs in the mount of a view.
    fn is_in_use(&self, name: &ViewName) -> bool {
        if self.attached(name).is_none() {
            return false;
        }
        let _alone = self.claims.asking.lock();
        // What cannot be looked at may be in use.
        let Ok(place) = self.place(name) else { return true };
        place.is_in_use().unwrap_or(true)
            || self.check_elsewhere(std::slice::from_ref(name)).is_err()
    }

    fn abort_idle(&self, name: &ViewName, limit_s: u64) {
        match self.abort::<Error>(name, UnmountMode::Plain) {
            Ok(()) => {
                log::warn!(
                    "transaction {} is aborted: nobody has used it for {limit_s} s",
                    name.name
                );
                self.claims.note_aborted(&name.name, limit_s);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_looks_when_something_can_be_due() {
        let seconds = Duration::from_secs;
        let hour = seconds(3600);
        assert_eq!(look_after(hour, seconds(600), false), seconds(3000));
        assert_eq!(look_after(hour, seconds(600), true), seconds(450));
        assert_eq!(look_after(hour, hour - Duration::from_millis(1), false), INTERVAL);
        // It could not be aborted.
        assert_eq!(look_after(hour, hour, false), seconds(450));
        assert_eq!(look_after(seconds(1), Duration::ZERO, true), INTERVAL);
    }
}
