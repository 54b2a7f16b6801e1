//! Aborts transactions that no program uses, if they were begun so (`varve txn begin --idle-abort`).
//!
//! 1. A transaction is in use while programs have files open in its mount, or their working directory there, or while it is mounted
//!    elsewhere too, such as in a program's mount namespace. It was used when its mount or its pairs were last asked for anything.
//! 2. A transaction that was not used for its limit is aborted, unless a program is in it after all, or the mount is read-only. The
//!    log names it, and a client that asks for it later gets the reason ([`super::usage`]).
//! 3. A thread looks again when the first limit can end ([`look_after`]), and sleeps while no transaction has a limit.
//!
//! The time without use is counted in memory: it begins anew with each mount.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use varve::Error;
use varve_fs::{Transaction, ViewName};
use varve_fuse::UnmountMode;

use super::ViewService;

/// The shortest time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often the thread looks within the limit of a transaction that is in use.
const LOOKS_IN_USE: u32 = 8;
/// Starts the thread that aborts unused transactions of `service`. It ends with the service.
pub(super) fn watch(service: &Arc<ViewService>) {
    let (weak, bell) = (Arc::downgrade(service), Arc::clone(&service.usage.bell));
    let watch = move || {
        while let Some(service) = Weak::upgrade(&weak) {
            let next = service.look();
            drop(service);
            bell.wait(next);
        }
    };
    if let Err(error) = thread::Builder::new().name("varve-idle".to_owned()).spawn(watch) {
        log::warn!("unused transactions are not aborted, as no thread starts: {error}");
    }
}

/// After what time to look again at a transaction with this `limit` that was not used for `idle`. Programs that are in it may leave at
/// any moment.
fn look_after(limit: Duration, idle: Duration, in_use: bool) -> Duration {
    let after = if in_use || idle >= limit { limit / LOOKS_IN_USE } else { limit - idle };
    after.max(INTERVAL)
}

impl ViewService {
    /// Looks once. Returns after what time to look again; `None` means when the next transaction begins.
    fn look(&self) -> Option<Duration> {
        let Some(_admitted) = self.gate.enter() else { return Some(INTERVAL) };
        let open = self.fs().transactions().unwrap_or_default();
        let ids: Vec<String> = open.iter().map(|txn| txn.name().name).collect();
        self.usage.keep_only(&ids);
        let mut next = None;
        for txn in &open {
            let Some(limit_s) = txn.idle_abort_s else { continue };
            let limit = Duration::from_secs(limit_s);
            let name = txn.name();
            let in_use = self.usage.note_in_use(&name.name, self.is_in_use(&name));
            let idle = self.idle(txn, in_use);
            if idle >= limit && self.check_writable().is_ok() {
                self.abort_idle(&name, limit_s);
            }
            let after = look_after(limit, idle, in_use);
            next = Some(next.map_or(after, |next: Duration| next.min(after)));
        }
        next
    }

    /// For how long no program has used a transaction; `in_use` is what the kernel knows.
    fn idle(&self, txn: &Transaction, in_use: bool) -> Duration {
        let name = txn.name();
        let of_mount = self.attached(&name).map(|fs| fs.unused_for());
        let of_pairs = self.fs().pairs_unused_for(txn);
        let of_programs = in_use.then_some(Duration::ZERO);
        // Counts from now on, if the transaction was not known.
        self.usage.idle(&name.name);
        if let Some(unused) = [of_mount, of_pairs, of_programs].into_iter().flatten().min() {
            self.usage.note(&name.name, unused);
        }
        self.usage.idle(&name.name)
    }

    /// Whether programs are in the mount of a view, as far as the kernel knows.
    fn is_in_use(&self, name: &ViewName) -> bool {
        if self.attached(name).is_none() {
            return false;
        }
        let _alone = self.usage.asking.lock();
        // A view that cannot be examined may be in use.
        let Ok(place) = self.place(name) else { return true };
        place.is_in_use().unwrap_or(true)
            || self.check_elsewhere(std::slice::from_ref(name)).is_err()
    }

    fn abort_idle(&self, name: &ViewName, limit_s: u64) {
        match self.abort::<Error>(name, UnmountMode::Plain) {
            Ok(()) => {
                log::warn!(
                    "transaction {} is aborted: no program has used it for {limit_s} s",
                    name.name
                );
                self.usage.note_aborted(&name.name, limit_s);
            }
            Err(error) => log::info!("transaction {} stays: {}", name.name, error.message()),
        }
    }

    /// Adds to the description of a transaction whether programs use it.
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
