//! Directories on which another mount appears when a program walks there ([`varve_vfs::Vfs::arrive`]).
//!
//! Such a directory is called a place here. A request about a place starts the mount, and its answer is ESTALE. Then
//! the kernel walks the path once more and crosses into the mount:
//!
//! ```text
//! GETATTR, OPENDIR, ACCESS of the place:  wait for the mount --> ESTALE
//! LOOKUP, READDIR ... in the place:       ESTALE at once, while another thread mounts
//! LOOKUP of the place meanwhile:          waits for the mount, unless the mounting process asks
//! ```
//!
//! A request that would wait gets ESTALE at once if too many wait already (`transport::held`).
//!
//! The middle line is for requests during which the kernel holds the lock of the place, which mounting takes too.
//! Where the kernel checks permissions, a GETATTR precedes them. The last line makes the second walk find the mount.
//! Its wait has a limit: the kernel may have forgotten the place, and then mounting waits for this very answer.
//!
//! The kernel does not repeat a request that makes a directory, a link or a special file in a place. Such a request
//! fails if it is the first one there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use varve_types::InodeId;
use varve_vfs::{FsError, Vfs};

use super::{Adapter, Call, Served};
use crate::answer::Answer;
use crate::mount::walks_apart;
use crate::protocol::reply::Reply;
use crate::protocol::request::Request;

/// How long a walk waits for a mount that is coming.
const WALK_WAIT_MAX: Duration = Duration::from_secs(2);

/// The places that are being mounted on.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    coming: Mutex<Vec<Arc<Coming>>>,
    changed: Condvar,
}

/// A place that is being mounted on.
#[derive(Debug)]
struct Coming {
    place: InodeId,
}

/// Marks a place as being mounted on until this is dropped, whether the mount succeeded or not.
struct Expected {
    arrivals: Arc<Arrivals>,
    coming: Arc<Coming>,
}

impl Arrivals {
    /// Notes that a mount on `place` begins.
    fn expect(self: &Arc<Self>, place: InodeId) -> Expected {
        let coming = Arc::new(Coming { place });
        self.coming.lock().push(Arc::clone(&coming));
        Expected { arrivals: Arc::clone(self), coming }
    }

    fn is_coming(&self, place: InodeId) -> bool {
        self.coming.lock().iter().any(|one| one.place == place)
    }

    /// Waits until no mount on `place` is under way, at most for [`WALK_WAIT_MAX`].
    fn wait(&self, place: InodeId) {
        let is_coming = |coming: &mut Vec<Arc<Coming>>| coming.iter().any(|one| one.place == place);
        self.changed.wait_while_for(&mut self.coming.lock(), is_coming, WALK_WAIT_MAX);
    }
}

impl Expected {
    /// Mounts on the place in this thread. Returns an error in any case: `Stale` means that the kernel has to walk
    /// the path again.
    fn arrive(self, vfs: &dyn Vfs) -> Result<(), FsError> {
        vfs.arrive(self.coming.place)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.arrivals.coming.lock().retain(|one| !Arc::ptr_eq(one, &self.coming));
        self.arrivals.changed.notify_all();
    }
}

/// Returns whether the kernel holds the lock of the directory during this request.
fn holds_the_directory(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Lookup { .. }
            | Request::Create(_)
            | Request::Mknod(_)
            | Request::Mkdir { .. }
            | Request::Symlink { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename(_)
            | Request::Readdir(_)
            | Request::ReaddirPlus(_)
            | Request::Setattr(_)
            | Request::Setxattr(_)
            | Request::Removexattr { .. }
    )
}

impl Adapter {
    /// Answers a request about a place.
    pub(super) fn awaited(&self, call: &Call<'_>, request: &Request<'_>) -> Served {
        let expected = self.arrivals.expect(call.ino);
        if !holds_the_directory(request) {
            let asked = self.ask(call, move |vfs| expected.arrive(vfs).map(|()| Bytes::new()));
            return asked.map_err(|_| FsError::Stale);
        }
        let vfs = self.vfs.clone();
        // Not on this thread, because mounting would wait for its answer. If there is no other thread, the next
        // request starts the mount.
        let _ = self.askers.try_run(Box::new(move || {
            if let Err(error) = expected.arrive(&*vfs)
                && !matches!(error, FsError::Stale)
            {
                log::warn!("cannot mount a view: {error}");
            }
            if vfs.follows_answers() {
                vfs.delivered();
            }
        }));
        Err(FsError::Stale)
    }

    /// Answers the LOOKUP that has found the place `ino` when the mount on it is there. `None` if no mount is under
    /// way, or if the LOOKUP is of the process that mounts.
    pub(super) fn found_place(&self, call: &Call<'_>, ino: InodeId) -> Option<Answer> {
        let waits = self.is_awaited(ino) && self.arrivals.is_coming(ino);
        if !waits || walks_apart(call.header.pid) {
            return None;
        }
        let (arrivals, validity) = (Arc::clone(&self.arrivals), self.name_validity(ino));
        let found = self.ask(call, move |vfs| {
            arrivals.wait(ino);
            let mut reply = Reply::new();
            reply.entry_out(validity, &vfs.getattr(ino)?);
            Ok(Bytes::copy_from_slice(reply.body()))
        });
        found.ok()
    }
}
