//! Where a request came from, and so where its answer goes.

use std::sync::Arc;

use super::uring::Mailbox;
use crate::device::Device;

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

    /// Answers request `unique` from another thread than the one that took it: that it failed (`errno`
    /// positive) or went well (0).
    pub(crate) fn answer(&self, unique: u64, errno: i32) {
        match self {
            Origin::Device(device) => device.reply_errno(unique, errno),
            Origin::Ring { mailbox, entry, .. } => mailbox.answer(*entry, unique, errno),
        }
    }
}
