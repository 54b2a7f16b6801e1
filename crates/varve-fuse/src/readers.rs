//! Where the reader threads run.
//!
//! A request served on another CPU than its caller's costs about ten times one served on the same CPU: the
//! caller's CPU goes idle, another is woken, and back again for the reply.
//!
//! A thread that serves a ring shares its CPU with its callers, and requests that nobody waits for (RELEASE)
//! would interrupt the caller to wake it. Under SCHED_BATCH (`batch`) it runs when the caller waits, which it soon
//! does, and then serves both requests in one go: 7 percent off a create.

mod batch;

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

    /// Puts the calling thread, which serves the callers of `cpu`, there, if this process may run there.
    pub(crate) fn place_on(&self, cpu: usize) {
        if self.cpus.contains(&cpu) {
            pin(cpu);
            if let Err(err) = batch::enter() {
                log::debug!("a ring's thread interrupts its callers: {err}");
            }
        }
    }
}

/// Has the calling thread, which a reader may have started, run on any of `cpus`, and as other threads do.
pub(crate) fn set_free(cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    if let Err(err) = rustix::thread::sched_setaffinity(None, &set) {
        log::debug!("cannot unpin a thread: {err}");
    }
    if let Err(err) = batch::leave() {
        log::debug!("a thread does not interrupt those that wait for it: {err}");
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

#[cfg(test)]
pub(crate) use batch::tests::policy;
