//! Carries the answers of other threads to the thread of one queue.
//!
//! Only the queue's own thread may hand an answer to its ring (a request is bound to the ring that the
//! entry was armed on). So another thread posts the answer here, and the first post since the last
//! [`Mailbox::take`] wakes the queue's thread through an eventfd that its ring watches.
//!
//! There is at most one answer per ring entry. A thread that has posted an answer can wait until the ring has it
//! ([`Mailbox::wait_until_taken`]).

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use rustix::event::EventfdFlags;

/// The answer to a request: an errno (0 for success) and the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LateAnswer {
    pub(super) entry: usize,
    pub(super) unique: u64,
    pub(super) errno: i32,
    pub(super) body: Bytes,
}

#[derive(Debug, Default)]
struct Posted {
    answers: Vec<LateAnswer>,
    /// How many answers were ever posted, taken, and handed to the ring.
    posted: u64,
    taken: u64,
    handed_over: u64,
    /// No answer is taken any more.
    is_closed: bool,
}

/// The mailbox of one queue.
#[derive(Debug)]
pub(crate) struct Mailbox {
    posted: Mutex<Posted>,
    handed_over: Condvar,
    wakes: OwnedFd,
}

impl Mailbox {
    /// An empty mailbox.
    pub(super) fn new() -> io::Result<Mailbox> {
        let wakes = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox { posted: Mutex::default(), handed_over: Condvar::new(), wakes })
    }

    /// Returns the descriptor that becomes readable when an answer is posted.
    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }

    /// Posts an answer. Any thread may call this.
    pub(super) fn post(&self, answer: LateAnswer) {
        let mut posted = self.posted.lock();
        posted.answers.push(answer);
        posted.posted += 1;
        if posted.answers.len() == 1
            && let Err(err) = rustix::io::write(&self.wakes, &1_u64.to_ne_bytes())
        {
            log::error!("cannot wake the thread of a ring: {err}");
        }
    }

    /// Takes all answers that were posted since the last call.
    pub(super) fn take(&self) -> Vec<LateAnswer> {
        let mut posted = self.posted.lock();
        // The eventfd is empty already if an earlier `take` has taken the answers of this wake.
        let _ = rustix::io::read(&self.wakes, &mut [0; 8]);
        posted.taken = posted.posted;
        mem::take(&mut posted.answers)
    }

    /// Notes that the kernel has all answers that were taken.
    pub(super) fn handed_over(&self) {
        let mut posted = self.posted.lock();
        posted.handed_over = posted.taken;
        self.handed_over.notify_all();
    }

    /// Notes that no answer is taken any more.
    pub(super) fn close(&self) {
        self.posted.lock().is_closed = true;
        self.handed_over.notify_all();
    }

    /// Waits until the kernel has all answers that are posted, or until the mailbox is closed. REQUIRES: the queue
    /// notes what it hands over ([`Mailbox::handed_over`]).
    pub(crate) fn wait_until_taken(&self) {
        let mut posted = self.posted.lock();
        let mine = posted.posted;
        let is_pending = |posted: &mut Posted| posted.handed_over < mine && !posted.is_closed;
        self.handed_over.wait_while(&mut posted, is_pending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_awake(mailbox: &Mailbox) -> bool {
        let mut watched = [PollFd::new(&mailbox.wakes, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn posts_wake_until_they_are_taken() {
        let mailbox = Mailbox::new().unwrap();
        assert!(!is_awake(&mailbox) && mailbox.take().is_empty());
        let answer =
            |entry| LateAnswer { entry, unique: 10 + entry as u64, errno: 0, body: Bytes::new() };
        mailbox.post(answer(0));
        mailbox.post(answer(1));
        assert!(is_awake(&mailbox));
        assert_eq!(mailbox.take(), [answer(0), answer(1)]);
        assert!(!is_awake(&mailbox));
        mailbox.post(answer(2));
        assert!(is_awake(&mailbox));
        assert_eq!(mailbox.take(), [answer(2)]);
    }

    #[test]
    fn a_wait_for_an_answer_ends_when_the_ring_has_it_or_takes_none_any_more() {
        let mailbox = Mailbox::new().unwrap();
        std::thread::scope(|scope| {
            for closes in [false, true] {
                mailbox.post(LateAnswer { entry: 0, unique: 0, errno: 0, body: Bytes::new() });
                let (sender, waited) = std::sync::mpsc::channel();
                let mailbox = &mailbox;
                scope.spawn(move || {
                    mailbox.wait_until_taken();
                    sender.send(()).unwrap();
                });
                assert_eq!(mailbox.take().len(), 1);
                let moment = std::time::Duration::from_millis(20);
                waited.recv_timeout(moment).expect_err("the ring does not have it yet");
                if closes {
                    mailbox.close()
                } else {
                    mailbox.handed_over()
                }
                waited.recv().unwrap();
            }
        });
    }

    /// Seeded by the number of threads: each post arrives once, and the last one is never slept through.
    #[test]
    fn posts_from_many_threads_all_arrive() {
        for threads in [2_usize, 3, 8] {
            let mailbox = Mailbox::new().unwrap();
            let mut seen = std::thread::scope(|scope| {
                for thread in 0..threads {
                    let mailbox = &mailbox;
                    scope.spawn(move || {
                        for turn in 0..500 {
                            let entry = thread * 500 + turn;
                            mailbox.post(LateAnswer {
                                entry,
                                unique: 0,
                                errno: 0,
                                body: Bytes::new(),
                            });
                        }
                    });
                }
                let mut seen = Vec::new();
                while seen.len() < threads * 500 {
                    let mut watched = [PollFd::new(&mailbox.wakes, PollFlags::IN)];
                    let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
                    assert_eq!(poll(&mut watched, Some(&patience)), Ok(1), "a wake was lost");
                    seen.extend(mailbox.take().into_iter().map(|answer| answer.entry));
                }
                seen
            });
            seen.sort_unstable();
            assert_eq!(seen, (0..threads * 500).collect::<Vec<_>>());
        }
    }
}
