//! Threads for requests that take long: syncs, and work that needs further requests to the same mount.
//!
//! A sync takes milliseconds. On a reader thread it would hold up all other requests, and no more syncs could share
//! one commit than there are readers. So a reader hands a sync over and goes on:
//!
//! 1. [`Waiters::run`] queues the job and, if no thread is idle and fewer than [`THREADS_MAX`] exist,
//!    starts one.
//! 2. A thread takes jobs until the session ends. Further jobs wait in the queue; when [`JOBS_MAX`] wait, the reader
//!    runs the next itself, which holds callers back.
//! 3. A drop of the [`Waiters`] finishes the queued jobs and waits for the threads.
//!
//! Work that needs further requests has threads of its own, and a reader, which must serve these requests, never runs
//! it ([`Waiters::try_run`]). So syncs always end, and keep no entry of a ring for long (`transport::held`).
//!
//! Invariant: at most [`ASKED_WAITS_MAX`] jobs wait for the work of another job, so that a thread is left for that
//! one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::readers::{set_free, take_share};

/// The most threads, and so the most jobs under way at one time.
const THREADS_MAX: usize = 32;
/// The most calls beside requests ([`varve_vfs::Vfs::transact`]) that may wait at a time for further requests of
/// programs. A commit waits so for the end of the transactions that have locked what it changes.
pub const ASKED_WAITS_MAX: usize = THREADS_MAX / 2;
/// The most jobs that wait for a thread. For each a caller waits.
const JOBS_MAX: usize = 1024;

/// The work that a thread runs.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

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

/// The threads of one session and their queue.
pub(crate) struct Waiters {
    name: &'static str,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Waiters {
    /// Makes the queue; no thread runs yet.
    pub(crate) fn new(name: &'static str) -> Waiters {
        let threads = Mutex::new(Vec::new());
        Waiters { name, shared: Arc::default(), threads }
    }

    /// Runs `job` on another thread, or on this one if there is no other.
    pub(crate) fn run(&self, job: Job) {
        if let Err(job) = self.try_run(job) {
            job();
        }
    }

    /// Runs `job` on another thread; returns the job if there is no other. For a job that this thread must not run.
    pub(crate) fn try_run(&self, job: Job) -> Result<(), Job> {
        let mut queue = self.shared.queue.lock();
        if queue.jobs.len() >= JOBS_MAX {
            return Err(job);
        }
        if queue.idle <= queue.jobs.len()
            && !self.start(&mut queue)
            && self.threads.lock().is_empty()
        {
            return Err(job);
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Starts one more thread, if the limit allows it. The thread counts as idle at once, under the same lock that
    /// showed that it is needed. So another job that comes before this one is queued cannot count on it too.
    fn start(&self, queue: &mut Queue) -> bool {
        let mut threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            return false;
        }
        let shared = self.shared.clone();
        let name = format!("{}-{}", self.name, threads.len());
        take_share();
        match std::thread::Builder::new().name(name).spawn(move || serve(&shared)) {
            Ok(thread) => {
                threads.push(thread);
                queue.idle += 1;
                true
            }
            Err(err) => {
                log::warn!("cannot start a thread for requests that take long: {err}");
                false
            }
        }
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            if thread.join().is_err() {
                log::error!("a request on a separate thread panicked");
            }
        }
    }
}

/// Runs jobs until the session ends.
fn serve(shared: &Shared) {
    // A thread starts with the CPU and the policy of the reader that started it.
    set_free();
    let mut queue = shared.queue.lock();
    queue.idle -= 1;
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use varve_testkit::PATIENCE;

    use super::*;
    use crate::readers::policy::{self, Policy};
    use crate::readers::{Placement, Readers, usable_cpus};

    /// Threads that a ring's thread had started gave way to everybody, as it does, on whatever took long; and while it gives way
    /// itself they would have begun only when nobody else wanted its CPU.
    #[test]
    fn who_is_started_by_a_ring_runs_as_others_do() {
        let (waiters, cpus) = (Waiters::new("varve-wait"), usable_cpus());
        let (sender, receiver) = std::sync::mpsc::channel();
        let place = || (usable_cpus(), policy::own().unwrap());
        std::thread::scope(|scope| {
            let ring = scope.spawn(|| {
                Readers::new(Placement::Pinned).place_on(cpus[0]);
                let before = place();
                policy::set_own(Policy::Idle).unwrap();
                waiters.run(Box::new(move || sender.send(place()).unwrap()));
                (before, place())
            });
            let at_its_share = (vec![cpus[0]], libc::SCHED_BATCH);
            assert_eq!(ring.join().unwrap(), (at_its_share.clone(), at_its_share));
        });
        assert_eq!(receiver.recv().unwrap(), (cpus, libc::SCHED_OTHER));
    }

    /// Of those that came at once, and found no thread that was idle, one was queued without a thread: it was done when another was.
    #[test]
    fn each_of_many_jobs_that_come_at_once_has_a_thread() {
        const JOBS: u64 = 4;
        for round in 0..600 {
            let waiters = Waiters::new("varve-wait");
            let together = Arc::new(Barrier::new(JOBS as usize));
            let (sender, receiver) = std::sync::mpsc::channel();
            let start = Barrier::new(JOBS as usize);
            std::thread::scope(|scope| {
                for at in 0..JOBS {
                    let (together, sender) = (together.clone(), sender.clone());
                    let (waiters, start) = (&waiters, &start);
                    scope.spawn(move || {
                        start.wait();
                        // Each comes in all moments of what it takes to start a thread for another.
                        for _ in 0..at * 100 * (round % 40) {
                            std::hint::spin_loop();
                        }
                        waiters.run(Box::new(move || {
                            together.wait();
                            sender.send(()).unwrap();
                        }));
                    });
                }
            });
            for _ in 0..JOBS {
                // The jobs wait for each other, so there is no ending them.
                receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| {
                    eprintln!("round {round}: a job has no thread");
                    std::process::abort()
                });
            }
        }
    }

    #[test]
    fn all_jobs_are_done_and_the_queue_is_bounded() {
        let (waiters, done) = (Waiters::new("varve-wait"), Arc::new(AtomicUsize::new(0)));
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock();
        let submit = |blocks: bool| {
            let (gate, done) = (gate.clone(), done.clone());
            waiters.run(Box::new(move || {
                if blocks {
                    drop(gate.lock());
                }
                done.fetch_add(1, Ordering::SeqCst);
            }));
        };
        let waiting = || waiters.shared.queue.lock().jobs.len();
        for _ in 0..THREADS_MAX {
            submit(true);
            while waiting() > 0 {
                std::thread::yield_now();
            }
        }
        (0..JOBS_MAX).for_each(|_| submit(true));
        assert_eq!(waiting(), JOBS_MAX);
        let before = done.load(Ordering::SeqCst);
        submit(false);
        assert_eq!(done.load(Ordering::SeqCst), before + 1, "by the caller itself, at once");
        assert_eq!(waiting(), JOBS_MAX);
        drop(held);
        drop(waiters);
        assert_eq!(done.load(Ordering::SeqCst), THREADS_MAX + JOBS_MAX + 1);
    }
}
