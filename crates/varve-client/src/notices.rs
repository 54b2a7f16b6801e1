//! Reads notices, and has the front end drop what they recall.

use std::sync::Arc;

use varve_types::InodeId;
use varve_wire::frame::Kind;
use varve_wire::{Cached, Header, Notice};

use crate::client::Inner;

/// Reads notices until the client ends.
pub(crate) fn run(inner: &Arc<Inner>) {
    while let Some((header, notice)) = inner.transport.next_notice(inner) {
        match notice {
            Notice::Recall(objects) => recall(inner, &objects),
            Notice::RecallAll => recall_all(inner),
            Notice::Ping => {}
        }
        let header = Header { kind: Kind::Acknowledgement, ..header };
        inner.transport.acknowledge(header);
    }
}

fn recall(inner: &Inner, objects: &[Cached]) {
    // First, so that no answer on its way is kept.
    inner.leases.recall();
    let front_end = inner.front_end.read();
    let Some(front_end) = &*front_end else { return };
    let mut has_names = false;
    for object in objects {
        match object {
            Cached::Inode(ino) => front_end.inode_changed(InodeId::new(*ino)),
            Cached::Name(..) => has_names = true,
        }
    }
    if has_names {
        let _ = front_end.names_changed();
    }
}

fn recall_all(inner: &Inner) {
    inner.leases.recall();
    let front_end = inner.front_end.read();
    let Some(front_end) = &*front_end else { return };
    let _ = front_end.names_changed();
    inner.nodes.each(|ino| front_end.inode_changed(ino));
}
