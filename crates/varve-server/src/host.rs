//! What a server offers beside the calls of its file system: other file systems of the same store, each at a path, and
//! requests about the store as a whole.
//!
//! 1. A client that wants a path as its root for which the host has a view gets the view's file system. It has sessions,
//!    leases and looked-up inodes of its own ([`Views`]).
//! 2. A view is closed when it ends ([`Asked::ends`]), or when no client has used it for the length of a session.
//! 3. [`varve_wire::Request::Ask`] goes to [`Host::ask`]. The host says what has changed, before the client has its answer.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use varve_meta::SessionId;
use varve_types::InodeId;
use varve_vfs::{FsResult, Vfs};
use varve_wire::Cached;

use crate::calls::Service;
use crate::status::Status;

/// The most objects of which one change is told at a time.
const TOLD_AT_ONCE: usize = 256;
/// The session of nobody: whoever has cached something drops it.
pub(crate) const NOBODY: SessionId = SessionId(0);

/// A file system beside the main one.
pub struct View {
    /// The file system.
    pub vfs: Arc<dyn Vfs>,
    /// Its directory that clients see as the root.
    pub root: InodeId,
    /// Clients may change nothing in it.
    pub read_only: bool,
}

/// Whom a server asks about views and about the store as a whole.
pub trait Host: Send + Sync {
    /// Opens the view at `path`; `None` if the path is one of the main file system. Called once until
    /// [`Host::close`].
    fn open(&self, path: &[u8]) -> Option<FsResult<View>>;
    /// Closes the view at `path`: no call of a client is made on it any more.
    fn close(&self, path: &[u8]);
    /// Returns what the server and its store have and do, as JSON, for somebody who asks without a session.
    fn report(&self, status: &Status) -> Vec<u8>;
    /// Answers a request of a client that may change something unless it is `read_only`. Request and answer are the
    /// host's own.
    fn ask(&self, request: &[u8], read_only: bool, asked: &Asked<'_>) -> Vec<u8>;
}

/// What the host of a server tells it while it answers a request.
pub struct Asked<'a> {
    pub(crate) main: &'a Service,
    pub(crate) views: &'a Views,
}

impl Asked<'_> {
    /// Inodes and names of the main file system have changed. Returns when no client shows what was there before.
    pub fn changed(
        &self,
        inodes: impl IntoIterator<Item = InodeId>,
        names: impl IntoIterator<Item = (InodeId, Vec<u8>)>,
    ) {
        let inodes = inodes.into_iter().map(|ino| Cached::Inode(ino.get()));
        let names = names.into_iter().map(|(dir, name)| Cached::Name(dir.get(), name));
        let mut objects = inodes.chain(names).peekable();
        while objects.peek().is_some() {
            let some: SmallVec<[Cached; 4]> = objects.by_ref().take(TOLD_AT_ONCE).collect();
            // It waits, so it cannot fail.
            drop(self.main.changes.begin(&self.main.sessions, NOBODY, some, true));
        }
    }

    /// The view at `path` has ended or is about to: its clients are sent away, and the host's view is closed.
    pub fn ends(&self, path: &[u8]) {
        self.views.end(path);
    }
}

/// The views that clients use, by their paths.
pub(crate) struct Views {
    host: Option<Arc<dyn Host>>,
    open: Mutex<HashMap<Vec<u8>, Arc<Service>>>,
}

impl Views {
    pub(crate) fn new(host: Option<Arc<dyn Host>>) -> Views {
        Views { host, open: Mutex::default() }
    }

    pub(crate) fn host(&self) -> Option<&dyn Host> {
        self.host.as_deref()
    }

    /// Calls `enter` with the view at `path`, which cannot be closed meanwhile. `None` if there is no view at that path.
    pub(crate) fn enter<T>(
        &self,
        path: &[u8],
        make: impl FnOnce(View) -> Service,
        enter: impl FnOnce(&Arc<Service>) -> T,
    ) -> Option<FsResult<T>> {
        let host = self.host()?;
        let mut open = self.open.lock();
        if let Some(service) = open.get(path) {
            return Some(Ok(enter(service)));
        }
        Some(host.open(path)?.map(|view| {
            let service = open.entry(path.to_vec()).or_insert(Arc::new(make(view)));
            enter(service)
        }))
    }

    /// All that are open.
    pub(crate) fn all(&self) -> Vec<Arc<Service>> {
        self.open.lock().values().cloned().collect()
    }

    /// Closes those that have no session.
    pub(crate) fn close_unused(&self) {
        let mut open = self.open.lock();
        let unused = open.extract_if(|_, service| service.sessions.all().is_empty());
        for (path, service) in unused {
            self.close(&path, &service);
        }
    }

    /// Closes the view at `path`, if it is open.
    pub(crate) fn end(&self, path: &[u8]) {
        let mut open = self.open.lock();
        if let Some(service) = open.remove(path) {
            self.close(path, &service);
        }
    }

    /// Closes all.
    pub(crate) fn end_all(&self) {
        for (path, service) in self.open.lock().drain() {
            self.close(&path, &service);
        }
    }

    fn close(&self, path: &[u8], service: &Service) {
        service.end_all();
        if let Some(host) = self.host() {
            host.close(path);
        }
    }
}
