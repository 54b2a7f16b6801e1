//! Where a request came from, which is where its answer goes.

use std::sync::Arc;

use bytes::Bytes;

use super::held::{Held, Hold, Until};
use super::uring::Mailbox;
use crate::answer::Answer;
use crate::device::Device;
use crate::protocol::reply::Reply;

/// Where a request came from. A thread that answers later keeps this.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// Read from the descriptor.
    Device(Device),
    /// From an entry of a ring.
    Ring {
        /// The descriptor of the connection.
        device: Device,
        /// Carries answers to the thread of the ring.
        mailbox: Arc<Mailbox>,
        /// Counts the entries of the ring whose requests are held.
        held: Arc<Held>,
        /// The entry.
        entry: usize,
    },
}

impl Origin {
    /// Returns the descriptor of the connection.
    pub(crate) fn device(&self) -> &Device {
        match self {
            Origin::Device(device) | Origin::Ring { device, .. } => device,
        }
    }

    /// Holds the request without an answer until the returned hold is dropped; `None` if too many are held already.
    pub(crate) fn hold(&self, until: Until) -> Option<Hold> {
        match self {
            // A reader of the descriptor uses the same memory for the next request.
            Origin::Device(_) => Some(Hold::free()),
            Origin::Ring { held, .. } => held.hold(until),
        }
    }

    /// Waits until the kernel has the answer of this request, or the connection has ended. REQUIRES: as for
    /// [`Origin::reply`], which has answered it.
    pub(crate) fn wait_until_taken(&self) {
        match self {
            // The write that answers hands it over.
            Origin::Device(_) => {}
            Origin::Ring { mailbox, .. } => mailbox.wait_until_taken(),
        }
    }

    /// Answers request `unique`. Any thread may call this. The answer of a request from a ring goes through the ring's
    /// mailbox, so the ring's own thread has a shorter way.
    pub(crate) fn reply(&self, unique: u64, answer: Answer, reply: &mut Reply) {
        match (self, answer) {
            (_, Answer::Later) => {}
            (Origin::Device(device), Answer::Errno(errno)) => device.reply_errno(unique, errno),
            (Origin::Device(device), Answer::Body) => device.reply(unique, reply),
            (Origin::Device(device), Answer::Data(data)) => device.reply_data(unique, &data),
            (Origin::Ring { mailbox, entry, .. }, Answer::Errno(errno)) => {
                mailbox.answer(*entry, unique, errno, Bytes::new());
            }
            (Origin::Ring { mailbox, entry, .. }, Answer::Body) => {
                mailbox.answer(*entry, unique, 0, Bytes::copy_from_slice(reply.body()));
            }
            (Origin::Ring { mailbox, entry, .. }, Answer::Data(data)) => {
                mailbox.answer(*entry, unique, 0, data);
            }
        }
    }
}
