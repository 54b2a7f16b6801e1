//! Places where another mount appears when somebody comes by ([`varve_vfs::Vfs::arrive`]).
//!
//! A request about a place brings the mount and is then answered ESTALE, upon which the kernel walks the path once more and
//! crosses into it:
//!
//! ```text
//! GETATTR, OPENDIR, ACCESS of the place:  wait for the mount --> ESTALE
//! LOOKUP, READDIR ... in the place:       ESTALE at once, and the mount comes by itself
//! LOOKUP of the place, while it comes:    waits for it, unless it is the mount's own walk
//! ```
//!
//! Of those who would wait for a mount some are told ESTALE at once where too many do already (`transport::held`).
//!
//! The middle line is for requests that the kernel makes with the place's directory locked, a lock that mounting takes too.
//! Where permissions are checked a GETATTR precedes them. The last one makes the second walk find the mount. It does not wait
//! for ever: the kernel may have forgotten the place, and then mounting waits for this very answer.
//!
//! What makes a directory, link or special file in a place is not tried again by the kernel, so it fails if nothing else has
//! come by before.

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

/// Mounts that are coming.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    coming: Mutex<Vec<Arc<Coming>>>,
    changed: Condvar,
}

/// One of them.
#[derive(Debug)]
struct Coming {
    place: InodeId,
}

/// Ends with the arrival, however that went.
struct Expected {
    arrivals: Arc<Arrivals>,
    coming: Arc<Coming>,
}

impl Arrivals {
    /// Notes that `place` is about to be mounted on.
    fn expect(self: &Arc<Self>, place: InodeId) -> Expected {
        let coming = Arc::new(Coming { place });
        self.coming.lock().push(Arc::clone(&coming));
        Expected { arrivals: Arc::clone(self), coming }
    }

    fn is_coming(&self, place: InodeId) -> bool {
        self.coming.lock().iter().any(|one| one.place == place)
    }

    /// Waits until nothing is about to be mounted on `place`, or for too long.
    fn wait(&self, place: InodeId) {
        let is_coming = |coming: &mut Vec<Arc<Coming>>| coming.iter().any(|one| one.place == place);
        self.changed.wait_while_for(&mut self.coming.lock(), is_coming, WALK_WAIT_MAX);
    }
}

impl Expected {
    /// Has this thread mount it. Never "done": what was asked is to be asked again.
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

/// Whether the kernel makes this request with its directory locked.
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
        // Never on this thread, for whose answer mounting would wait: without another the next request brings the mount.
        let _ = self.askers.try_run(Box::new(move || {
            if let Err(error) = expected.arrive(&*vfs)
                && !matches!(error, FsError::Stale)
            {
                log::warn!("a view is not mounted: {error}");
            }
        }));
        Err(FsError::Stale)
    }

    /// Answers the LOOKUP that has found the place `ino` once a mount that is coming there has come; `None` if none is, or the
    /// LOOKUP is of who brings one.
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
