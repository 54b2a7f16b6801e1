//! Appends that went elsewhere than where the kernel takes the end of the file to be.
//!
//! Its page cache has their bytes there, and forgets them when it is told ([`Notifier::inode_changed`]). That may wait for the very
//! request that is being served, and for others of the session: so a thread apart does it, for which nobody waits. It ends when
//! there is nothing more to tell.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_types::InodeId;

use crate::notify::Notifier;
use crate::readers::{set_free, take_share};

/// The files of which the kernel is yet to be told.
#[derive(Debug, Default)]
pub(super) struct Astray(Mutex<Files>);

#[derive(Debug, Default)]
struct Files {
    untold: BTreeSet<InodeId>,
    /// A thread tells of them.
    is_telling: bool,
}

impl Astray {
    /// Has the kernel told of `ino`.
    pub(super) fn tell(self: &Arc<Self>, notifier: Notifier, ino: InodeId) {
        let mut files = self.0.lock();
        files.untold.insert(ino);
        if std::mem::replace(&mut files.is_telling, true) {
            return;
        }
        drop(files);
        take_share();
        let files = Arc::clone(self);
        let tell = move || {
            set_free();
            files.tell_all(&notifier);
        };
        if let Err(error) = std::thread::Builder::new().name("varve-astray".to_owned()).spawn(tell)
        {
            self.0.lock().is_telling = false;
            log::warn!("the kernel may show inode {ino} as it was before an append: {error}");
        }
    }

    fn tell_all(&self, notifier: &Notifier) {
        while let Some(ino) = self.next() {
            if let Err(error) = notifier.inode_changed(ino) {
                log::warn!("the kernel may show inode {ino} as it was before an append: {error}");
            }
        }
    }

    fn next(&self) -> Option<InodeId> {
        let mut files = self.0.lock();
        let next = files.untold.pop_first();
        files.is_telling = next.is_some();
        next
    }
}
