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
