//! Threads for calls that have to wait: for other clients, for the storage, for locks.
//!
//! Threads begin when there is work for them, up to a number, and end when they had none for some time.
//!
//! Sessions take turns: each has its own queue, and the next job is that of the session whose turn is longest ago. A session
//! that has jobs under way gets a thread more only while those are fewer than half of the free threads. So a flood of
//! calls that wait, by one session or several, leaves threads to others.
//!
//! Invariant: the queue of a session is bounded by what the server holds for its connections
//! ([`crate::connection::HELD_BYTES_MAX`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_meta::SessionId;

/// How long a thread waits for work.
const IDLE_MAX: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The jobs of one session.
#[derive(Default)]
struct Line {
    jobs: VecDeque<Job>,
    running: usize,
}

#[derive(Default)]
struct Queue {
    /// Sessions that have jobs, queued or under way.
    lines: HashMap<SessionId, Line>,
    /// Sessions with queued jobs, each once.
    turns: VecDeque<SessionId>,
    /// How many jobs are queued, and how many are under way.
    queued: usize,
    running: usize,
    threads: usize,
    idle: usize,
    has_ended: bool,
}

impl Queue {
    fn push(&mut self, session: SessionId, job: Job) {
        let line = self.lines.entry(session).or_default();
        line.jobs.push_back(job);
        self.queued += 1;
        if line.jobs.len() == 1 {
            self.turns.push_back(session);
        }
    }

    /// Takes the next job that may begin.
    fn next(&mut self, threads_max: usize) -> Option<(SessionId, Job)> {
        let free = threads_max.saturating_sub(self.running);
        // All that are passed over have jobs under way, so they are few.
        let may_begin =
            |line: &Line| line.running == 0 || line.running < free / 2 || self.has_ended;
        let at = self.turns.iter().position(|id| self.lines.get(id).is_some_and(may_begin))?;
        let session = self.turns.remove(at)?;
        let line = self.lines.get_mut(&session)?;
        let job = line.jobs.pop_front()?;
        line.running += 1;
        self.running += 1;
        self.queued -= 1;
        if !line.jobs.is_empty() {
            self.turns.push_back(session);
        }
        Some((session, job))
    }

    /// A job has ended.
    fn ended(&mut self, session: SessionId) {
        self.running -= 1;
        if let Some(line) = self.lines.get_mut(&session) {
            line.running -= 1;
            if line.running == 0 && line.jobs.is_empty() {
                self.lines.remove(&session);
            }
        }
    }
}

struct Shared {
    queue: Mutex<Queue>,
    came: Condvar,
    ended: Condvar,
    threads_max: usize,
}

/// A pool of threads.
pub(crate) struct Workers(Arc<Shared>);

impl Workers {
    pub(crate) fn new(threads_max: usize) -> Workers {
        let (queue, came, ended) = (Mutex::default(), Condvar::new(), Condvar::new());
        Workers(Arc::new(Shared { queue, came, ended, threads_max }))
    }

    pub(crate) fn run(&self, session: SessionId, job: Job) {
        let mut queue = self.0.queue.lock();
        queue.push(session, job);
        if queue.idle > 0 {
            self.0.came.notify_one();
        }
        // One that is idle may have been woken for another job.
        if queue.idle >= queue.queued || queue.threads >= self.0.threads_max {
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
                let next = queue.next(self.0.threads_max);
                drop(queue);
                if let Some((session, job)) = next {
                    job();
                    self.0.queue.lock().ended(session);
                }
            }
        }
    }

    /// Returns how many jobs wait, and how many are under way.
    pub(crate) fn load(&self) -> (usize, usize) {
        let queue = self.0.queue.lock();
        (queue.queued, queue.running)
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
        if let Some((session, job)) = queue.next(shared.threads_max) {
            // The end of one job can let jobs of two sessions begin.
            if queue.idle > 0 && !queue.turns.is_empty() {
                shared.came.notify_one();
            }
            drop(queue);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            if done.is_err() {
                log::error!("a call has panicked; its client gets no answer");
            }
            queue = shared.queue.lock();
            queue.ended(session);
            continue;
        }
        if queue.has_ended && queue.turns.is_empty() {
            break;
        }
        queue.idle += 1;
        let timed_out = shared.came.wait_for(&mut queue, IDLE_MAX).timed_out();
        queue.idle -= 1;
        if timed_out && queue.turns.is_empty() {
            break;
        }
    }
    queue.threads -= 1;
    shared.ended.notify_all();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_flood_of_calls_that_wait_leaves_threads_to_others() {
        let workers = Workers::new(64);
        let (go, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let flood = |session: u32| {
            for _ in 0..1000 {
                let gate = Arc::clone(&gate);
                workers.run(
                    SessionId(session),
                    Box::new(move || assert!(gate.lock().recv().is_err())),
                );
            }
        };
        (1..=3).for_each(flood);
        let (done, ended) = mpsc::channel();
        for session in 4..8 {
            let done = done.clone();
            workers.run(SessionId(session), Box::new(move || done.send(session).unwrap()));
            assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(session));
        }
        for session in 1..=3 {
            // What each gets depends on the order in which the threads begin.
            let running = workers.0.queue.lock().lines[&SessionId(session)].running;
            assert!((4..32).contains(&running), "{running}");
        }
        drop(go);
        workers.stop();
        let queue = workers.0.queue.lock();
        assert_eq!((queue.running, queue.lines.len(), queue.turns.len()), (0, 0, 0));
    }

    #[test]
    fn sessions_take_turns() {
        let mut queue = Queue::default();
        let (sent, order) = mpsc::channel();
        for session in [1, 1, 1, 2, 2, 3] {
            let sent = sent.clone();
            queue.push(SessionId(session), Box::new(move || sent.send(session).unwrap()));
        }
        while let Some((session, job)) = queue.next(1) {
            job();
            queue.ended(session);
        }
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [1, 2, 3, 1, 2, 1]);
    }
}
