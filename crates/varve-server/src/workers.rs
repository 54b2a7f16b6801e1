//! Threads for calls that have to wait: for other clients, for the storage, for locks.
//!
//! Threads begin when there is work for them, up to a number, and end when they had none for some time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How long a thread waits for work.
const IDLE_MAX: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    has_ended: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    came: Condvar,
    ended: Condvar,
    threads_max: usize,
}

/// A pool of threads. Its queue is bounded by the slots of all sessions.
pub(crate) struct Workers(Arc<Shared>);

impl Workers {
    pub(crate) fn new(threads_max: usize) -> Workers {
        let (queue, came, ended) = (Mutex::default(), Condvar::new(), Condvar::new());
        Workers(Arc::new(Shared { queue, came, ended, threads_max }))
    }

    pub(crate) fn run(&self, job: Job) {
        let mut queue = self.0.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() {
            self.0.came.notify_one();
            return;
        }
        if queue.threads >= self.0.threads_max {
            return;
        }
        let shared = Arc::clone(&self.0);
        let begun =
            thread::Builder::new().name("varve-work".to_owned()).spawn(move || work(&shared));
        match begun {
            Ok(_) => queue.threads += 1,
            Err(error) if queue.threads > 0 => log::warn!("one thread less serves calls: {error}"),
            Err(error) => {
                log::error!("this thread serves a call that may wait: {error}");
                let job = queue.jobs.pop_back();
                drop(queue);
                if let Some(job) = job {
                    job();
                }
            }
        }
    }

    /// Waits until all work is done.
    pub(crate) fn stop(&self) {
        let mut queue = self.0.queue.lock();
        queue.has_ended = true;
        self.0.came.notify_all();
        while queue.threads > 0 {
            self.0.ended.wait(&mut queue);
        }
    }
}

fn work(shared: &Shared) {
    let mut queue = shared.queue.lock();
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            if done.is_err() {
                log::error!("a call has panicked; its client gets no answer");
            }
            queue = shared.queue.lock();
            continue;
        }
        if queue.has_ended {
            break;
        }
        queue.idle += 1;
        let timed_out = shared.came.wait_for(&mut queue, IDLE_MAX).timed_out();
        queue.idle -= 1;
        if timed_out && queue.jobs.is_empty() {
            break;
        }
    }
    queue.threads -= 1;
    shared.ended.notify_all();
}
