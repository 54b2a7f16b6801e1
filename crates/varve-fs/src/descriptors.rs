//! How many object files are open at once.
//!
//! Programs may have more large files open than this process may have descriptors, and the kernel needs
//! none of ours for a file it passes through. So an open inode's object is a descriptor that may be closed
//! and opened again at any time:
//!
//! 1. [`Descriptors::object`] gives the object of an open inode and opens it if it is closed.
//! 2. Beyond the limit the inode whose object was opened first gives its descriptor back, unless it was
//!    used since it was last looked at (second chance).
//!
//! Objects that are to be synced stay open besides, until they are ([`Descriptors::claim`]).
//!
//! Invariant: every inode with an open object is in the queue, and the queue is not longer than the limit, which the store and all
//! its views share. What an operation is using stays open until it is done. Closing loses nothing: bytes that were written
//! are with the operating system, and a sync through a later descriptor covers them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use varve_env::File;
use varve_types::InodeId;
use varve_vfs::FsResult;

/// An inode that is open here, with the descriptor of its large file.
pub(crate) type OpenNode = varve_session::OpenNode<Arc<dyn File>>;

/// Objects held open until the next sync, at most. Of more one sync of all costs less than one of each.
const CLAIMED_MAX: usize = 64;

/// The object files of open inodes, and those that are to be synced.
#[derive(Debug)]
pub(crate) struct Descriptors {
    max: usize,
    queue: Mutex<VecDeque<Weak<OpenNode>>>,
    claimed_max: usize,
    claimed: AtomicUsize,
}

/// Of an object that is held open until it is synced.
#[derive(Debug)]
pub(crate) struct Claim(Arc<Descriptors>);

impl Descriptors {
    /// At most `max` at once, at least two: a quarter of them, and no more than [`CLAIMED_MAX`], of objects that are to be synced.
    pub(crate) fn new(max: usize) -> Descriptors {
        let claimed_max = (max / 4).clamp(1, CLAIMED_MAX);
        let max = max.saturating_sub(claimed_max).max(1);
        Descriptors { max, queue: Mutex::default(), claimed_max, claimed: AtomicUsize::new(0) }
    }

    /// For one more object that is held open until it is synced, if there is room for it.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<Claim> {
        let (one_more, order) = (|n| (n < self.claimed_max).then_some(n + 1), Ordering::Relaxed);
        self.claimed.fetch_update(order, order, one_more).ok()?;
        Some(Claim(Arc::clone(self)))
    }

    /// The object of `node`, opened with `open` if it is closed. REQUIRES: no commit can change which file that is meanwhile.
    pub(crate) fn object(
        &self,
        node: &Arc<OpenNode>,
        open: impl FnOnce() -> FsResult<Arc<dyn File>>,
    ) -> FsResult<Arc<dyn File>> {
        if let Some(object) = node.object() {
            return Ok(object);
        }
        let opened = open()?;
        self.keep(node, &opened);
        Ok(opened)
    }

    /// Notes that `object` is the object of `node` and open.
    pub(crate) fn keep(&self, node: &Arc<OpenNode>, object: &Arc<dyn File>) {
        {
            let mut state = node.state();
            state.has_object = true;
            if state.object.is_some() {
                return;
            }
            state.object = Some(Arc::clone(object));
        }
        let mut queue = self.queue.lock();
        queue.push_back(Arc::downgrade(node));
        let mut chances = queue.len();
        while queue.len() > self.max {
            let Some(first) = queue.pop_front() else { return };
            let Some(node) = first.upgrade() else { continue };
            let mut state = node.state();
            if state.object_used && chances > 0 {
                state.object_used = false;
                chances -= 1;
                queue.push_back(first);
            } else {
                state.object = None;
            }
        }
    }

    /// Closes the object of an inode here, wherever it is open.
    pub(crate) fn close(&self, ino: InodeId) {
        let open: Vec<_> = self.queue.lock().iter().filter_map(Weak::upgrade).collect();
        open.iter().filter(|node| node.ino == ino).for_each(|node| node.state().object = None);
    }

    /// Inodes that may have their object open.
    pub(crate) fn count(&self) -> usize {
        self.queue.lock().len()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.claimed.fetch_sub(1, Ordering::Relaxed);
    }
}
