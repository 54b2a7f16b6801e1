//! Where a request came from, and so where its answer goes.

use std::sync::Arc;

use bytes::Bytes;

use super::uring::Mailbox;
use crate::adapter::Answer;
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

    /// Answers request `unique`, from any thread of a descriptor, and from another than that of the ring it came from.
    pub(crate) fn reply(&self, unique: u64, answer: Answer, reply: &mut Reply) {
        match (self, answer) {
            (_, Answer::Later) => {}
            (_, Answer::Errno(errno)) => self.answer(unique, errno),
            (Origin::Device(device), Answer::Body) => device.reply(unique, reply),
            (Origin::Device(device), Answer::Data(data)) => device.reply_data(unique, &data),
            (Origin::Ring { mailbox, entry, .. }, Answer::Body) => {
                mailbox.answer(*entry, unique, 0, Bytes::copy_from_slice(reply.body()));
            }
            (Origin::Ring { mailbox, entry, .. }, Answer::Data(data)) => {
                mailbox.answer(*entry, unique, 0, data);
            }
        }
    }

    /// Answers request `unique` from another thread than the one that took it: that it failed (`errno`
    /// positive) or went well (0).
    pub(crate) fn answer(&self, unique: u64, errno: i32) {
        match self {
            Origin::Device(device) => device.reply_errno(unique, errno),
            Origin::Ring { mailbox, entry, .. } => {
                mailbox.answer(*entry, unique, errno, Bytes::new());
            }
        }
    }
}
