//! Where a request came from, and so where its answer goes.

use std::sync::Arc;

use bytes::Bytes;

use super::held::{Held, Hold, Until};
use super::uring::Mailbox;
use crate::answer::Answer;
use crate::device::Device;
use crate::protocol::reply::Reply;

/// Where a request came from. It may be kept by a thread that answers later.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// Read from the descriptor.
    Device(Device),
    /// From an entry of a ring.
    Ring {
        /// The connection's descriptor.
        device: Device,
        /// Takes answers to the thread of the ring.
        mailbox: Arc<Mailbox>,
        /// Which entries of the ring are kept.
        held: Arc<Held>,
        /// The entry.
        entry: usize,
    },
}

impl Origin {
    /// The connection's descriptor.
    pub(crate) fn device(&self) -> &Device {
        match self {
            Origin::Device(device) | Origin::Ring { device, .. } => device,
        }
    }

    /// Keeps the request without an answer as long as what this gives is there; `None` if that would be one too many.
    pub(crate) fn hold(&self, until: Until) -> Option<Hold> {
        match self {
            // Whoever reads the descriptor takes the next request into the same memory.
            Origin::Device(_) => Some(Hold::free()),
            Origin::Ring { held, .. } => held.hold(until),
        }
    }

    /// Answers request `unique`, from any thread of a descriptor, and from another than that of the ring it came from.
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
