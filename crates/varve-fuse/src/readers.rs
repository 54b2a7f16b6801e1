//! Chooses the CPUs on which the reader threads run.
//!
//! A request that is served on another CPU than its caller's costs about ten times as much as one on the same CPU:
//! the caller's CPU goes idle, another is woken, and back again for the reply.
//!
//! A thread that serves a ring shares its CPU with its callers. A request that no program waits for (RELEASE) would
//! wake the thread and interrupt the caller. Under SCHED_BATCH the thread runs when the caller waits, which it soon
//! does, and then serves both requests in one go. This saves 7 percent of a create. During a burst the thread gives
//! way to the caller altogether (`crate::bursts::giving_way`).

pub(crate) mod policy;

use policy::Policy;
use rustix::thread::CpuSet;

/// Where the reader threads of a session run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Wherever the scheduler puts them.
    Free,
    /// Each on one CPU, one after the other.
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

    /// Puts the calling thread, number `turn` of the readers, on its CPU.
    pub(crate) fn place(&self, turn: usize) {
        if !self.cpus.is_empty() {
            pin(self.cpus[turn % self.cpus.len()]);
        }
    }

    /// Puts the calling thread, which serves the callers of `cpu`, on this CPU. Returns false if this process may not
    /// run there.
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

/// Lets the calling thread run wherever the first thread of the process may, under the usual policy. Without this a
/// new thread keeps the CPU and the policy of the thread that started it.
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

/// Gives the calling thread, which is about to start another, its fair share (`crate::bursts`). Otherwise the new
/// thread would give way from the start, and the governor would not know of it. The governor lets the calling thread
/// give way again later.
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

/// Returns the CPUs on which this process may run.
pub(crate) fn usable_cpus() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => Vec::new(),
    }
}
