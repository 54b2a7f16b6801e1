//! Threads for requests that wait for the disk.
//!
//! A sync takes milliseconds. On a reader thread it would keep everybody else waiting, and no more syncs
//! could share one commit than there are readers. So a reader hands a sync over and goes on:
//!
//! 1. [`Waiters::run`] queues the job and, if no thread is idle and fewer than [`THREADS_MAX`] exist,
//!    starts one.
//! 2. A thread takes jobs until the session ends, then leaves. Jobs beyond the limit wait their turn.
//! 3. Dropping the [`Waiters`] finishes what is queued and waits for the threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rustix::thread::CpuSet;

use crate::readers::usable_cpus;

/// The most syncs under way at one time.
const THREADS_MAX: usize = 32;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// The threads and the queue of one session.
pub(crate) struct Waiters {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    cpus: Vec<usize>,
}

impl Waiters {
    /// No threads yet. REQUIRES: called by a thread that is not pinned.
    pub(crate) fn new() -> Waiters {
        Waiters { shared: Arc::default(), threads: Mutex::new(Vec::new()), cpus: usable_cpus() }
    }

    /// Runs `job` on another thread; on this one if there is no other.
    pub(crate) fn run(&self, job: Job) {
        let mut queue = self.shared.queue.lock();
        queue.jobs.push_back(job);
        let covered = queue.idle >= queue.jobs.len();
        drop(queue);
        if !covered {
            self.start();
        }
        self.shared.changed.notify_one();
        if self.threads.lock().is_empty() {
            let job = self.shared.queue.lock().jobs.pop_front();
            job.into_iter().for_each(|job| job());
        }
    }

    fn start(&self) {
        let mut threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            return;
        }
        let (shared, cpus) = (self.shared.clone(), self.cpus.clone());
        let name = format!("varve-wait-{}", threads.len());
        match std::thread::Builder::new().name(name).spawn(move || serve(&shared, &cpus)) {
            Ok(thread) => threads.push(thread),
            Err(err) => log::warn!("cannot start a thread for syncs: {err}"),
        }
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            if thread.join().is_err() {
                log::error!("a sync panicked");
            }
        }
    }
}

/// One thread's life.
fn serve(shared: &Shared, cpus: &[usize]) {
    // A thread starts on the CPU to which the reader that started it is pinned.
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    if let Err(err) = rustix::thread::sched_setaffinity(None, &set) {
        log::debug!("cannot unpin a thread: {err}");
    }
    let mut queue = shared.queue.lock();
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            job();
            queue = shared.queue.lock();
        } else if queue.closed {
            return;
        } else {
            queue.idle += 1;
            shared.changed.wait(&mut queue);
            queue.idle -= 1;
        }
    }
}
