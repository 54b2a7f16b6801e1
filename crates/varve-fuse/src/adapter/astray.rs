//! Tells the kernel of appends that went elsewhere than to the kernel's end of the file.
//!
//! The kernel's page cache holds the appended bytes at the wrong offset, and drops them upon a notice
//! ([`Notifier::inode_changed`]). This notice may wait for the request that is being served and for other requests of
//! the session. So a separate thread sends it, and no request waits for that thread.
//!
//! The kernel does not learn the new end from the notice, but when a program asks for the attributes. Until then
//! further appends go astray too, so the thread stays for a while. (FUSE_NOTIFY_STORE of the last byte would set the
//! end. But it may arrive after a program has changed that byte in mapped memory, and would undo the change.)

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_types::InodeId;

use crate::notify::Notifier;
use crate::readers::{set_free, take_share};

/// How long the thread stays without a file to report.
const STAY: Duration = Duration::from_secs(1);

/// The files about which the kernel has not been told yet.
#[derive(Debug, Default)]
pub(super) struct Astray {
    files: Mutex<Files>,
    added: Condvar,
}

#[derive(Debug, Default)]
struct Files {
    /// Each file with the notifier of its kernel.
    pending: BTreeMap<InodeId, Notifier>,
    /// A thread sends the notices.
    is_telling: bool,
}

impl Astray {
    /// Has the thread tell the kernel of `ino`.
    pub(super) fn tell(self: &Arc<Self>, notifier: Notifier, ino: InodeId) {
        let mut files = self.files.lock();
        files.pending.insert(ino, notifier);
        if std::mem::replace(&mut files.is_telling, true) {
            self.added.notify_one();
            return;
        }
        drop(files);
        take_share();
        let files = Arc::clone(self);
        let tell = move || {
            set_free();
            files.tell_all();
        };
        if let Err(error) = std::thread::Builder::new().name("varve-astray".to_owned()).spawn(tell)
        {
            self.files.lock().is_telling = false;
            log::warn!("the kernel may show inode {ino} as it was before an append: {error}");
        }
    }

    fn tell_all(&self) {
        while let Some((ino, notifier)) = self.next() {
            if let Err(error) = notifier.inode_changed(ino) {
                log::warn!("the kernel may show inode {ino} as it was before an append: {error}");
            }
        }
    }

    fn next(&self) -> Option<(InodeId, Notifier)> {
        let mut files = self.files.lock();
        self.added.wait_while_for(&mut files, |files| files.pending.is_empty(), STAY);
        let next = files.pending.pop_first();
        files.is_telling = next.is_some();
        next
    }
}
