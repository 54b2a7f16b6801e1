//! Where the reader threads run.
//!
//! A request served on another CPU than its caller's costs about ten times one served on the same CPU: the
//! caller's CPU goes idle, another is woken, and back again for the reply.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::CpuSet;

/// Where the reader threads of a session run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Wherever the scheduler puts them.
    Free,
    /// Each on one CPU, in turn.
    Pinned,
}

/// Gives each reader thread its CPU when it serves its first request.
#[derive(Debug)]
pub(crate) struct Readers {
    cpus: Vec<usize>,
    next: AtomicUsize,
}

thread_local! {
    static PLACED: Cell<bool> = const { Cell::new(false) };
}

impl Readers {
    pub(crate) fn new(placement: Placement) -> Readers {
        let cpus = match placement {
            Placement::Free => Vec::new(),
            Placement::Pinned => usable_cpus(),
        };
        Readers { cpus, next: AtomicUsize::new(0) }
    }

    /// Called at the start of each request; does something on a thread's first one only.
    pub(crate) fn place(&self) {
        if self.cpus.is_empty() || PLACED.get() {
            return;
        }
        PLACED.set(true);
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let mut set = CpuSet::new();
        set.set(self.cpus[turn % self.cpus.len()]);
        if let Err(err) = rustix::thread::sched_setaffinity(None, &set) {
            log::warn!("cannot pin a reader thread to a CPU: {err}");
        }
    }
}

/// The CPUs this process may run on.
pub(crate) fn usable_cpus() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => Vec::new(),
    }
}
