//! Carries the answers of other threads to the thread of one queue.
//!
//! Only the queue's own thread may hand an answer to its ring (a request is bound to the ring that the
//! entry was armed on). So another thread posts the answer here, and the first post since the last
//! [`Mailbox::take`] wakes the queue's thread through an eventfd that its ring watches.
//!
//! There is at most one answer per ring entry.

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;

/// The answer to a request: an errno (0 for success) and the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LateAnswer {
    pub(super) entry: usize,
    pub(super) unique: u64,
    pub(super) errno: i32,
    pub(super) body: Bytes,
}

/// The mailbox of one queue.
#[derive(Debug)]
pub(crate) struct Mailbox {
    posted: Mutex<Vec<LateAnswer>>,
    wakes: OwnedFd,
}

impl Mailbox {
    /// An empty mailbox.
    pub(super) fn new() -> io::Result<Mailbox> {
        let wakes = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox { posted: Mutex::new(Vec::new()), wakes })
    }

    /// Returns the descriptor that becomes readable when an answer is posted.
    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }

    /// Posts an answer. Any thread may call this.
    pub(super) fn post(&self, answer: LateAnswer) {
        let mut posted = self.posted.lock();
        posted.push(answer);
        if posted.len() == 1
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
        mem::take(&mut posted)
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
