//! Appends that went elsewhere than where the kernel takes the end of the file to be.
//!
//! Its page cache has their bytes there, and forgets them when it is told ([`Notifier::inode_changed`]). That may wait for the very
//! request that is being served, and for others of the session: so a thread apart does it, for which nobody waits.
//!
//! The kernel does not learn of the end by that, but when somebody asks for the attributes. Until then all that is appended goes astray: so
//! the thread stays a while for the next. (It could be told of the end with the last byte, by FUSE_NOTIFY_STORE. But that may
//! come after what a program has changed there in mapped memory, and would take it back.)

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_types::InodeId;

use crate::notify::Notifier;
use crate::readers::{set_free, take_share};

/// How long the thread stays when there is nothing more to tell.
const STAY: Duration = Duration::from_secs(1);

/// The files of which the kernel is yet to be told.
#[derive(Debug, Default)]
pub(super) struct Astray {
    files: Mutex<Files>,
    added: Condvar,
}

#[derive(Debug, Default)]
struct Files {
    /// And by whom.
    untold: BTreeMap<InodeId, Notifier>,
    /// A thread tells of them.
    is_telling: bool,
}

impl Astray {
    /// Has the kernel told of `ino`.
    pub(super) fn tell(self: &Arc<Self>, notifier: Notifier, ino: InodeId) {
        let mut files = self.files.lock();
        files.untold.insert(ino, notifier);
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
        self.added.wait_while_for(&mut files, |files| files.untold.is_empty(), STAY);
        let next = files.untold.pop_first();
        files.is_telling = next.is_some();
        next
    }
}
