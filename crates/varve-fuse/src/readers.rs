//! Where the reader threads run.
//!
//! A request served on another CPU than its caller's costs about ten times one served on the same CPU: the
//! caller's CPU goes idle, another is woken, and back again for the reply.
//!
//! A thread that serves a ring shares its CPU with its callers, and requests that nobody waits for (RELEASE)
//! would interrupt the caller to wake it. Under SCHED_BATCH it runs when the caller waits, which it soon
//! does, and then serves both requests in one go: 7 percent off a create. While requests come thick it gives way altogether
//! (`crate::bursts::giving_way`).

pub(crate) mod policy;

use policy::Policy;
use rustix::thread::CpuSet;

/// Where the reader threads of a session run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Wherever the scheduler puts them.
    Free,
    /// Each on one CPU, in turn.
    Pinned,
}

/// Gives each reader thread its CPU.
#[derive(Debug)]
pub(crate) struct Readers {
    cpus: Vec<usize>,
}

impl Readers {
    /// REQUIRES: called by a thread that is not pinned.
    pub(crate) fn new(placement: Placement) -> Readers {
        let cpus = match placement {
            Placement::Free => Vec::new(),
            Placement::Pinned => usable_cpus(),
        };
        Readers { cpus }
    }

    /// Puts the calling thread, number `turn` of the readers, where it belongs.
    pub(crate) fn place(&self, turn: usize) {
        if !self.cpus.is_empty() {
            pin(self.cpus[turn % self.cpus.len()]);
        }
    }

    /// Puts the calling thread, which serves the callers of `cpu`, there, if this process may run there; whether it does.
    pub(crate) fn place_on(&self, cpu: usize) -> bool {
        let is_usable = self.cpus.contains(&cpu);
        if is_usable {
            pin(cpu);
            if let Err(err) = policy::set_own(Policy::Batch) {
                log::debug!("a ring's thread interrupts its callers: {err}");
            }
        }
        is_usable
    }
}

/// Has the calling thread run wherever the first thread of the process may, under the usual policy: a thread begins where and as the one
/// runs that starts it.
pub(crate) fn set_free() {
    let first = rustix::process::getpid();
    let all = rustix::thread::sched_getaffinity(Some(first));
    if let Err(err) = all.and_then(|cpus| rustix::thread::sched_setaffinity(None, &cpus)) {
        log::debug!("cannot unpin a thread: {err}");
    }
    if let Err(err) = policy::set_own(Policy::Other) {
        log::debug!("a thread does not interrupt those that wait for it: {err}");
    }
}

/// Has the calling thread, which is about to start another, not give way meanwhile (`crate::bursts`), or the new one would begin so, with
/// nobody to call it back. Who looks after those that give way has this one do it again.
pub(crate) fn take_share() {
    let is_idle = policy::own().is_ok_and(|own| own == libc::SCHED_IDLE);
    if is_idle && let Err(err) = policy::set_own(Policy::Batch) {
        log::debug!("a thread begins when nobody else wants its CPU: {err}");
    }
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(err) = rustix::thread::sched_setaffinity(None, &set) {
        log::warn!("cannot pin a reader thread to a CPU: {err}");
    }
}

/// The CPUs this process may run on.
pub(crate) fn usable_cpus() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => Vec::new(),
    }
}
