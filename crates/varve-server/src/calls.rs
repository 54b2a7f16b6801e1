//! Makes the calls of clients.
//!
//! 1. [`Service::serve`] makes the call of one request.
//! 2. A call that only looks notes which changes have ended, makes the call, and grants leases on what it found.
//! 3. A call that changes something names the objects that will change, has everybody drop them ([`Changes::begin`]),
//!    and makes the call.
//!
//! A call that changes something leaves a note of its request with its effect ([`Vfs::numbered`]), so that the next server
//! does not make it again when its client, who has no answer, sends it again ([`Call::again`]).
//!
//! Invariant: on a thread that must not wait ([`Call::may_wait`]) a call that has to wait fails as [`MustWait`] and has
//! done nothing. So has a call that finds after a wait that its client has gone ([`Session::drops`]).

mod again;
mod attributes;
mod files;
mod names;
mod whole;

use std::sync::Arc;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use varve_meta::Learned;
use varve_types::InodeId;
use varve_vfs::{Attr, Entry, FsError, FsResult, Keep, Vfs, in_time, insist};
use varve_wire::answer::Answer;
use varve_wire::{Cached, Failure, Node, Request, attr};

use crate::changes::{Change, Changes, MustWait};
use crate::connection::Connection;
use crate::journal::Subject;
use crate::nodes::Nodes;
use crate::session::{File, Numbered, Session, Sessions};

/// Larger reads go to a thread that may wait, because the storage may.
const QUICK_BYTES_MAX: u32 = 128 << 10;

/// The file system and what the server keeps about it.
pub(crate) struct Service {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) nodes: Nodes,
    pub(crate) sessions: Sessions,
    pub(crate) changes: Changes,
    /// The directory that clients see as the root; `None`: which one they like.
    pub(crate) root: Option<InodeId>,
    /// Clients may change nothing.
    pub(crate) read_only: bool,
}

/// A call of a client.
pub(crate) struct Call<'a> {
    pub(crate) service: &'a Service,
    pub(crate) session: &'a Session,
    numbered: Numbered,
    /// The connection on which the client waits for the answer; `None` if the call must not wait for anything.
    waiting: Option<&'a Connection>,
}

/// What a call returns: the answer and its data.
type Returned = (Answer, Bytes);

/// Why a call returns nothing.
enum Stop {
    Failed(FsError),
    MustWait,
    /// The client has gone, and nothing is done.
    Dropped,
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Stop {
        Stop::Failed(error)
    }
}

impl From<MustWait> for Stop {
    fn from(_: MustWait) -> Stop {
        Stop::MustWait
    }
}

type Served<T = Returned> = Result<T, Stop>;

/// Returns whether a request must not be executed twice.
pub(crate) fn is_once(request: &Request<'_>) -> bool {
    !matches!(
        request,
        Request::Lookup { .. }
            | Request::LookupParent { .. }
            | Request::LookupInode { .. }
            | Request::Getattr { .. }
            | Request::Readlink { .. }
            | Request::Read { .. }
            | Request::Fsync { .. }
            | Request::FsyncDir { .. }
            | Request::Sync
            | Request::Readdir { .. }
            | Request::Statfs
            | Request::Access { .. }
            | Request::FileFlags { .. }
            | Request::Lseek { .. }
            | Request::Getxattr { .. }
            | Request::Listxattr { .. }
            | Request::Usage { .. }
            | Request::Quotas { .. }
            | Request::Status
            | Request::AskRest { .. }
            | Request::Recovered
    )
}

/// Returns whether a call always waits for the storage, or may take long.
fn waits(request: &Request<'_>) -> bool {
    match request {
        Request::Fsync { .. }
        | Request::FsyncDir { .. }
        | Request::Sync
        | Request::CopyRange { .. }
        | Request::CloneTree { .. }
        | Request::LookupInode { .. }
        | Request::Fallocate { .. }
        | Request::SetLimits { .. }
        | Request::Quotas { .. }
        | Request::Ask { .. }
        | Request::Status => true,
        Request::Read { length, .. } => *length > QUICK_BYTES_MAX,
        _ => false,
    }
}

impl Service {
    /// Closes a file.
    pub(crate) fn close(&self, File { ino, handle }: File) -> FsResult<()> {
        let vfs = &*self.vfs;
        let closed = vfs.release(ino, handle);
        // An inode without names must not stay looked up: its rows would stay.
        if vfs.getattr(ino).is_ok_and(|attr| attr.nlink == 0) {
            self.nodes.forget(vfs, ino);
        }
        closed
    }

    /// Ends all sessions, and forgets all inodes.
    pub(crate) fn end_all(&self) {
        for session in self.sessions.all() {
            self.changes.journal.write(Subject::Sessions, || {
                format!(
                    "{}: the session ends with its snapshot or transaction",
                    session.described()
                )
            });
            self.end(&session);
        }
        self.nodes.clear(&*self.vfs);
    }

    /// Ends a session for good.
    pub(crate) fn end(&self, session: &Session) {
        session.end_connections();
        self.close_all(session, session.take_files());
    }

    /// Closes the files of a session that the next server may go on with. Files without a name stay open: a file system
    /// that keeps them for their holders has to be closed with them.
    pub(crate) fn leave(&self, session: &Session) {
        session.end_connections();
        let has_name = |file: &File| self.vfs.getattr(file.ino).is_ok_and(|attr| attr.nlink > 0);
        self.close_all(session, session.take_files().into_iter().filter(has_name));
    }

    fn close_all(&self, session: &Session, files: impl IntoIterator<Item = File>) {
        for file in files {
            if let Err(error) = self.close(file) {
                log::error!(
                    "{}: inode {} is not closed as it should: {error}",
                    session.name,
                    file.ino
                );
            }
        }
    }

    /// Makes the call of a request whose client waits on the connection `waiting`. `None`: the client has gone; without a
    /// connection, the call has to wait.
    pub(crate) fn serve(
        &self,
        session: &Session,
        numbered: Numbered,
        request: &Request<'_>,
        data: &[u8],
        waiting: Option<&Connection>,
    ) -> Option<Returned> {
        if waits(request) && waiting.is_none() {
            return None;
        }
        let call = Call { service: self, session, numbered, waiting };
        match call.serve_once(request, data) {
            Ok(returned) => Some(returned),
            Err(Stop::MustWait | Stop::Dropped) => None,
            Err(Stop::Failed(error)) => {
                if matches!(error, FsError::Storage(_) | FsError::Damaged(_)) {
                    log::error!("{}: {error}", session.name);
                }
                Some((Answer::Failed(Failure::from(&error)), Bytes::new()))
            }
        }
    }
}

/// What a client gets of a call that has panicked.
pub(crate) fn failed() -> Returned {
    let failed = FsError::Storage("the server failed in this call; its log says why".into());
    (Answer::Failed(Failure::from(&failed)), Bytes::new())
}

fn done() -> Served {
    Ok((Answer::Done, Bytes::new()))
}

impl Call<'_> {
    fn vfs(&self) -> &dyn Vfs {
        &*self.service.vfs
    }

    fn may_wait(&self) -> bool {
        self.waiting.is_some()
    }

    /// Makes a call of the file system. If transactions block it, waits as long as the file system allows.
    fn settled<T>(&self, mut call: impl FnMut() -> FsResult<T>) -> Served<T> {
        let vfs = self.vfs();
        let mut once = || match call() {
            Err(FsError::Blocked(blocked)) => Err(blocked),
            done => Ok(done),
        };
        let settled = match once() {
            Err(blocked) if !self.may_wait() => {
                vfs.wait_is_over(&blocked);
                return Err(Stop::MustWait);
            }
            Err(blocked) => {
                vfs.wait_for_locks(&blocked, vfs.lock_wait_max());
                in_time(vfs, vfs.lock_wait_max(), &mut once).or_else(|it| insist(vfs, it, once))
            }
            settled => settled,
        };
        Ok(settled.unwrap_or_else(|blocked| Err(FsError::Blocked(blocked)))?)
    }

    /// Finds the inode of a request. An open file is known by that, also when its last name is gone.
    fn node(&self, node: Node) -> FsResult<InodeId> {
        let found = self.service.nodes.recall(self.vfs(), node);
        let ino = InodeId::new(node.ino);
        match found {
            Err(FsError::Stale) if self.session.has_open(ino) => Ok(ino),
            found => found,
        }
    }

    fn file(&self, node: Node, file: u64) -> FsResult<File> {
        let file = self.session.file(file)?;
        if file.ino.get() == node.ino { Ok(file) } else { Err(FsError::BadHandle) }
    }

    /// Fails on a session that may change nothing.
    fn writable(&self) -> FsResult<()> {
        if self.session.read_only { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// Begins a change of inodes and names.
    fn change(&self, objects: SmallVec<[Cached; 4]>) -> Served<Change<'_>> {
        self.writable()?;
        let service = self.service;
        let (sessions, session) = (&service.sessions, self.session.id);
        let change = service.changes.begin(sessions, session, objects, self.may_wait())?;
        match self.waiting {
            Some(waiting) if self.session.drops(waiting, self.numbered.id) => Err(Stop::Dropped),
            _ => Ok(change),
        }
    }

    fn change_inode(&self, ino: InodeId) -> Served<Change<'_>> {
        self.change(smallvec![Cached::Inode(ino.get())])
    }

    fn looks(&self) -> Learned {
        Learned { since: self.service.changes.ended(), by_own_change: false }
    }

    fn changes(&self) -> Learned {
        Learned { by_own_change: true, ..self.looks() }
    }

    /// Returns how many directories lie between the root that the client sees and what has a name in `dir`.
    fn depth_in(&self, dir: InodeId) -> u8 {
        let is_root = dir == self.session.root;
        let depth = if is_root { 0 } else { self.service.nodes.depth(dir) };
        depth.saturating_add(1)
    }

    /// Makes an answer of attributes of an inode that was found in `dir`, if it was looked for there.
    fn attr(&self, attr: &Attr, dir: Option<InodeId>, learned: Learned) -> attr::Attr {
        let Service { nodes, changes, .. } = self.service;
        let object = Cached::Inode(attr.ino.get());
        let depth = || dir.map_or_else(|| nodes.depth(attr.ino), |dir| self.depth_in(dir)).into();
        let keep_ms = match attr.keep {
            Keep::Never => 0,
            // The file systems that are served keep attributes for ever or not at all.
            Keep::Forever | Keep::For(_) => changes.grant((&object, depth), self.session, learned),
        };
        attr::Attr::new(attr, keep_ms)
    }

    /// Makes an answer of a name that was found or made. Takes over its lookup.
    fn entry(
        &self,
        name: Option<(InodeId, &[u8])>,
        entry: &Entry,
        learned: Learned,
    ) -> attr::Entry {
        self.service.nodes.note(
            self.vfs(),
            entry.attr.ino,
            name.map(|(dir, _)| self.depth_in(dir)),
        );
        self.found(name, &entry.attr, learned)
    }

    /// Makes a part of an answer of what a name stands for.
    fn found(&self, name: Option<(InodeId, &[u8])>, attr: &Attr, learned: Learned) -> attr::Entry {
        let place = self.vfs().place(attr.ino).ok().flatten().map(varve_vfs::Place::to_bytes);
        let changes = &self.service.changes;
        let keep_ms = name.map_or(0, |(dir, name)| {
            let object = Cached::Name(dir.get(), name.to_vec());
            let depth = || self.depth_in(dir).into();
            // A change of a name that is under way is never the one that has found or made it.
            let learned = Learned { by_own_change: false, ..learned };
            changes.grant((&object, depth), self.session, learned)
        });
        attr::Entry { attr: self.attr(attr, name.map(|(dir, _)| dir), learned), place, keep_ms }
    }

    fn entry_done(
        &self,
        name: Option<(InodeId, &[u8])>,
        entry: &Entry,
        learned: Learned,
    ) -> Served {
        Ok((Answer::Entry(self.entry(name, entry, learned)), Bytes::new()))
    }

    /// Makes the call of a request, unless the server before has made it.
    fn serve_once(&self, request: &Request<'_>, data: &[u8]) -> Served {
        if !is_once(request) {
            return self.serve(request, data);
        }
        let Numbered { id, is_first } = self.numbered;
        if is_first
            && let Some(done) = self.vfs().request_done(id.client, id.slot)?
            && done.number == id.number
        {
            return self.again(request, done.gave);
        }
        let mut served = None;
        self.vfs().numbered(id, &mut || served = Some(self.serve(request, data)));
        served.unwrap_or_else(|| Err(FsError::NotImplemented.into()))
    }

    /// Makes the call of a request.
    fn serve(&self, request: &Request<'_>, data: &[u8]) -> Served {
        match request {
            Request::Lookup { .. }
            | Request::LookupParent { .. }
            | Request::LookupInode { .. }
            | Request::Mknod { .. }
            | Request::Mkdir { .. }
            | Request::Symlink { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
            | Request::CloneTree { .. }
            | Request::Readdir { .. } => self.names(request, data),
            Request::Create { .. }
            | Request::Tmpfile { .. }
            | Request::Open { .. }
            | Request::Read { .. }
            | Request::Write { .. }
            | Request::Release { .. }
            | Request::Fsync { .. }
            | Request::Fallocate { .. }
            | Request::CopyRange { .. }
            | Request::Lseek { .. } => self.open_files(request, data),
            Request::Getattr { .. }
            | Request::Setattr { .. }
            | Request::Readlink { .. }
            | Request::Access { .. }
            | Request::FileFlags { .. }
            | Request::SetFileFlags { .. }
            | Request::Getxattr { .. }
            | Request::Setxattr { .. }
            | Request::Listxattr { .. }
            | Request::Removexattr { .. } => self.attributes(request, data),
            Request::FsyncDir { .. }
            | Request::Sync
            | Request::Statfs
            | Request::Usage { .. }
            | Request::SetLimits { .. }
            | Request::Quotas { .. }
            | Request::Status
            | Request::Recovered => self.whole(request),
            // They are not about one file system.
            Request::Ask { .. } | Request::AskRest { .. } => Err(FsError::NotImplemented.into()),
        }
    }
}
