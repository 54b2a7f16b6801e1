//! FUSE over io_uring: each CPU has a queue, and each queue has a ring and a thread pinned to the CPU.
//!
//! 1. Before the answer to the handshake [`queues`] makes a ring for every CPU that the machine may ever have. The
//!    kernel sends no request before all of them are served.
//! 2. Each queue's thread registers its entries ([`Queue::serve`]). A request goes to the queue of the CPU on which
//!    its caller runs, so this CPU serves it and no other is woken.
//! 3. The thread takes a request out of its entry, serves it, puts the answer into the entry and commits it. The same
//!    system call waits for the next request.
//! 4. An answer that comes from another thread goes through the queue's mailbox (`mailbox`).
//! 5. The connection ends with ENOTCONN in every entry.
//!
//! FORGET and INTERRUPT still come from /dev/fuse, where a reader of `dev` takes them.
//!
//! Invariant: an entry has memory only for the pages that requests have touched, and a queue gives back what is
//! beyond [`backing::BACKED_BYTES_MAX`]. So a queue that is busy with large requests has at most 2 MiB, and one that
//! serves names and attributes some 100 KiB.
//!
//! Source: the kernel's Documentation/filesystems/fuse/fuse-io-uring.rst and fs/fuse/dev_uring.c.

mod backing;
mod deaths;
mod mailbox;
mod ring;

use std::io;
use std::sync::Arc;

use backing::Backing;
use bytes::Bytes;
pub(crate) use deaths::Deaths;
use mailbox::LateAnswer;
pub(crate) use mailbox::Mailbox;
pub(crate) use ring::PAYLOAD_BYTES_MAX;
use ring::{Arrival, Ring};

use super::Origin;
use super::held::{ENTRIES, Held};
use crate::adapter::Adapter;
use crate::answer::Answer;
use crate::bursts::Pulse;
use crate::device::Device;
use crate::meters::Meter;
use crate::protocol::constants::{FUSE_RELEASE, FUSE_RELEASEDIR};
use crate::protocol::reply::Reply;
use crate::protocol::request::Header;
use crate::protocol::ring as layout;

/// The file with the CPUs that the machine may ever have, as a list such as "0-3" or "0,2-5".
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

/// One queue: the requests of one CPU.
pub(crate) struct Queue {
    cpu: u16,
    ring: Ring,
    mailbox: Arc<Mailbox>,
    /// By entry.
    origins: Vec<Origin>,
    backing: Backing,
}

/// Makes the queues of a connection, one for every possible CPU.
pub(super) fn queues(device: &Device) -> io::Result<Vec<Queue>> {
    let text = std::fs::read_to_string(POSSIBLE_CPUS)
        .map_err(|err| io::Error::other(format!("{POSSIBLE_CPUS}: {err}")))?;
    let cpus = count_cpus(&text)
        .ok_or_else(|| io::Error::other(format!("{POSSIBLE_CPUS} says `{}`", text.trim())))?;
    (0..cpus).map(|cpu| Queue::new(device, cpu)).collect()
}

/// Returns whether the kernel uses the rings that the answer asked for. They may have been switched off after the offer.
pub(super) fn is_taken(device: &Device) -> io::Result<bool> {
    ring::takes_commands(device)
}

/// Returns how many CPUs a list in the kernel's form has.
fn count_cpus(text: &str) -> Option<u16> {
    text.trim().split(',').try_fold(0_u16, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

impl Queue {
    fn new(device: &Device, cpu: u16) -> io::Result<Queue> {
        let mailbox = Arc::new(Mailbox::new()?);
        let held = Arc::<Held>::default();
        let origin = |entry| {
            let (device, mailbox, held) = (device.clone(), mailbox.clone(), held.clone());
            Origin::Ring { device, mailbox, held, entry }
        };
        let origins = (0..ENTRIES).map(origin).collect();
        Ok(Queue { cpu, ring: Ring::new(device, cpu)?, mailbox, origins, backing: Backing::new() })
    }

    /// Returns the CPU whose requests come to this queue.
    pub(super) fn cpu(&self) -> usize {
        usize::from(self.cpu)
    }

    /// Serves the queue until the connection ends.
    pub(super) fn serve(&mut self, adapter: &Adapter, pulse: &mut Pulse<'_>) -> io::Result<()> {
        self.ring.start()?;
        self.ring.watch(self.mailbox.wakes())?;
        let (mut reply, mut meter) = (Reply::new(), adapter.meters().meter());
        let mut arrivals = Vec::with_capacity(ENTRIES + 1);
        let mut entries = ENTRIES;
        loop {
            self.ring.wait(&mut arrivals)?;
            self.shrink(&arrivals);
            let (mut rest, mut awaited) = (arrivals.len(), false);
            for arrival in arrivals.drain(..) {
                rest -= 1;
                match arrival {
                    Arrival::Request(entry) => {
                        pulse.beat();
                        awaited |= self.serve_one((adapter, &mut meter), entry, &mut reply)?;
                        if adapter.follows_answers() {
                            // Now, because the next system call may wait for a request.
                            self.ring.submit()?;
                            adapter.delivered();
                        }
                    }
                    Arrival::Watched => {
                        awaited = true;
                        for LateAnswer { entry, unique, errno, body } in self.mailbox.take() {
                            self.commit(entry, unique, errno, &body)?;
                        }
                        if adapter.follows_answers() {
                            self.ring.submit()?;
                            self.mailbox.handed_over();
                        }
                        self.ring.watch(self.mailbox.wakes())?;
                    }
                    Arrival::Refused(_, libc::ENOTCONN | libc::ECONNABORTED) => return Ok(()),
                    // The kernel has dropped the request meanwhile, for example because the connection was aborted.
                    Arrival::Refused(_, libc::ENOENT | libc::ECANCELED) if entries > 1 => {
                        entries -= 1;
                    }
                    Arrival::Refused(_, libc::ENOENT | libc::ECANCELED) => return Ok(()),
                    Arrival::Refused(_, errno) => return Err(io::Error::from_raw_os_error(errno)),
                }
                if rest > 0 && awaited {
                    // An answer does not wait for the next request.
                    self.ring.submit()?;
                    awaited = false;
                }
            }
        }
    }

    /// Serves the request in `entry`. Returns whether a program waits for the answer.
    fn serve_one(
        &mut self,
        (adapter, meter): (&Adapter, &mut Meter<'_>),
        entry: usize,
        reply: &mut Reply,
    ) -> io::Result<bool> {
        let bytes = self.ring.entry(entry);
        let unique = layout::commit_id(bytes).map_err(|_| io::ErrorKind::InvalidData)?;
        let decoded = layout::gather(bytes).and_then(Header::decode);
        let (opcode, answered) = match &decoded {
            Ok((header, body)) => {
                let began = meter.begin();
                let answered = adapter.serve(&self.origins[entry], header, body, reply);
                meter.end(header.opcode, began, &answered);
                (header.opcode, answered)
            }
            Err(_) => {
                log::error!(
                    "the kernel has put a request with impossible lengths into a ring entry"
                );
                (0, Answer::Errno(libc::EIO))
            }
        };
        match answered {
            Answer::Body => self.commit(entry, unique, 0, reply.body())?,
            Answer::Data(data) => self.commit(entry, unique, 0, &data)?,
            Answer::Errno(errno) => self.commit(entry, unique, errno, &[])?,
            Answer::Later => return Ok(false),
        }
        Ok(!matches!(opcode, FUSE_RELEASE | FUSE_RELEASEDIR))
    }

    fn commit(&mut self, entry: usize, unique: u64, errno: i32, body: &[u8]) -> io::Result<()> {
        let bytes = self.ring.entry(entry);
        self.backing.touch(entry, layout::payload_len(bytes).max(body.len()));
        if layout::answer(bytes, unique, errno, body).is_err() {
            log::error!("an answer of {} bytes is too long for a ring entry", body.len());
            // An answer without a body fits.
            let _ = layout::answer(bytes, unique, libc::EIO, &[]);
        }
        self.ring.commit(entry, unique)
    }

    /// Gives back memory of entries whose answer has gone, except entries in which a request has just arrived.
    fn shrink(&mut self, arrivals: &[Arrival]) {
        for (entry, keep) in
            self.backing.surplus(|entry| arrivals.contains(&Arrival::Request(entry)))
        {
            self.ring.trim(entry, keep);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

impl Mailbox {
    /// Sends the answer of another thread for the request in `entry`.
    pub(crate) fn answer(&self, entry: usize, unique: u64, errno: i32, body: Bytes) {
        self.post(LateAnswer { entry, unique, errno, body });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possible_cpus_are_counted() {
        for (text, count) in
            [("0\n", Some(1)), ("0-1\n", Some(2)), ("0-3,8-9,11", Some(7)), ("0-65535", None)]
        {
            assert_eq!(count_cpus(text), count, "{text}");
        }
        for text in ["", "a", "3-1", "-", "0-", "0,,1"] {
            assert_eq!(count_cpus(text), None, "{text}");
        }
    }
}
