//! Turns each request of the kernel into one call of the `Vfs`.
//!
//! 1. [`Adapter::serve`] decodes a request and checks that its caller may make it ([`Adapter::admit`]).
//! 2. The method for the request makes the call: `names` finds and changes names, `attributes` serves attributes of
//!    both kinds, `trees` the attributes about directory trees, `files` open files, `flags` file flags,
//!    `transactions` the ends of transactions, `file_locks` locks of files, `arrivals` directories on which other mounts
//!    appear. `rules` has what they share, and `astray` tells the kernel of appends.
//! 3. The result becomes an [`Answer`]; an error becomes an errno.
//!
//! Invariants, which are rules that the kernel's protocol adds to the calls:
//!
//! - The answer about an absent name is inode number 0, so that the kernel remembers the absence.
//! - CREATE opens no existing file: the kernel sends it for names that it takes for absent, and so it has checked no
//!   permissions. If the name has appeared meanwhile without the kernel, the answer is ESTALE, and the kernel walks
//!   the path once more.
//! - The answer to FLUSH (but see [`Adapter::flush`]), OPENDIR (but see [`Adapter::opendir`]) and unknown requests is
//!   ENOSYS. Then the kernel stops asking. Unless the file system keeps file locks the handshake asks for none, so the
//!   kernel keeps them itself, which is right for a single mount.
//! - The file system clears set-id bits (FUSE_HANDLE_KILLPRIV_V2). A flag of SETATTR, OPEN and WRITE says when.
//! - A listing that has already emitted entries with attributes succeeds, even if an error follows: each entry counts
//!   as a lookup, of which the kernel must learn. The next request meets the error again.
//! - Every handle is released once, however the request ended.
//! - Syncs run on other threads than the readers (`waiters`), so that no request waits behind them and many syncs
//!   share one commit. So do requests that need other requests to the same mount ([`Adapter::ask`]).
//! - A request that locks of transactions block leaves the reader threads too (`parked`). Before it is served again,
//!   what the kernel had checked for it is checked once more (`checked`).
//! - A request that waits for a file lock keeps no thread (`lock_waits`).
//! - INTERRUPT is only about requests that wait for locks and has no answer: after ENOSYS the kernel would report no
//!   signal any more.
//! - A write to a file that is open to append goes to the real end of the file. The kernel's end may be another, if
//!   the file changed without the kernel.
//! - On a mount of root alone, where the kernel checks no permissions, only root is served ([`Adapter::admit`]).
//! - The mount options `sync` and `dirsync` are obeyed here; the kernel ignores them.
//!
//! This crate logs failures of the storage, where it turns them into an errno. It logs no other errors, which
//! programs cause every day.

mod arrivals;
mod astray;
mod attributes;
mod checked;
mod file_locks;
mod files;
mod flags;
mod listers;
mod names;
mod rules;
mod said;
mod transactions;
mod trees;

use std::sync::Arc;

use bytes::Bytes;
use varve_types::InodeId;
use varve_vfs::{Blocked, FsError, FsResult, Handle, Vfs};

use crate::agreement::Agreement;
use crate::answer::{Answer, unless_it_panics};
use crate::backing::BackingTable;
use crate::convert;
use crate::device::Device;
use crate::handover::SessionState;
use crate::lock_waits::LockWaits;
use crate::meters::Meters;
use crate::options::SessionOptions;
use crate::parked::{self, Parked};
use crate::protocol::constants::{FUSE_RELEASE, opcode_name};
use crate::protocol::reply::Reply;
use crate::protocol::request::{DecodeError, Header, Request};
use crate::transport::{Hold, Origin, Until};
use crate::waiters::{Job, Waiters};
use arrivals::Arrivals;
use astray::Astray;
pub(crate) use checked::Checked;
use listers::Listers;
use rules::errno;

/// An answer, or the error of the file system.
type Served = FsResult<Answer>;

/// The answer of a request that succeeded without a body.
const DONE: Answer = Answer::Errno(0);

/// One request under way.
struct Call<'a> {
    origin: &'a Origin,
    header: &'a Header,
    ino: InodeId,
    reply: &'a mut Reply,
}

/// Serves the kernel's requests by a `Vfs`.
pub(crate) struct Adapter {
    vfs: Arc<dyn Vfs>,
    /// The file system has to know when answers have reached the kernel.
    follows_answers: bool,
    options: SessionOptions,
    agreement: Agreement,
    backing: BackingTable,
    /// Threads for syncs.
    waiters: Waiters,
    /// Threads for calls that need other requests to this mount.
    askers: Waiters,
    parked: Parked,
    lock_waits: Arc<LockWaits>,
    arrivals: Arc<Arrivals>,
    listers: Listers,
    astray: Arc<Astray>,
    meters: Arc<Meters>,
}

impl Adapter {
    pub(crate) fn new(vfs: Arc<dyn Vfs>, options: SessionOptions, agreement: Agreement) -> Adapter {
        let backing = BackingTable::new(agreement.passthrough());
        Adapter::with(vfs, options, agreement, backing)
    }

    fn with(
        vfs: Arc<dyn Vfs>,
        options: SessionOptions,
        agreement: Agreement,
        backing: BackingTable,
    ) -> Adapter {
        let (waiters, askers) = (Waiters::new("varve-wait"), Waiters::new("varve-ask"));
        let (parked, arrivals, listers) = (Parked::default(), Arc::default(), Listers::default());
        let (astray, meters) = (Arc::default(), Arc::default());
        Adapter {
            follows_answers: vfs.follows_answers(),
            vfs,
            options,
            agreement,
            backing,
            waiters,
            askers,
            parked,
            lock_waits: Arc::default(),
            arrivals,
            listers,
            astray,
            meters,
        }
    }

    /// Continues the session that left `state` on the connection of `device`.
    pub(crate) fn resume(
        vfs: Arc<dyn Vfs>,
        options: SessionOptions,
        agreement: Agreement,
        device: &Device,
        state: &SessionState,
    ) -> Adapter {
        let backing = BackingTable::restore(agreement.passthrough(), device, &state.open);
        Adapter::with(vfs, options, agreement, backing)
    }

    /// Finishes the syncs under way and returns the state that the next session needs. REQUIRES: no request is being
    /// served.
    pub(crate) fn leave(self) -> SessionState {
        let Adapter { backing, waiters, askers, agreement, .. } = self;
        drop((waiters, askers));
        agreement.state(backing.leave())
    }

    /// Serves one request from `origin`. Fills `reply` if the answer is [`Answer::Body`]. If locks block the request,
    /// serves it later.
    pub(crate) fn serve(
        &self,
        origin: &Origin,
        header: &Header,
        body: &[u8],
        reply: &mut Reply,
    ) -> Answer {
        let blocked = match self.serve_now(origin, header, body, reply) {
            Ok(answer) => return answer,
            Err(blocked) => blocked,
        };
        match unless_it_panics(header.opcode, || self.checked(header, body)) {
            Ok(checked) => {
                let may_wait = !self.vfs.lock_wait_max().is_zero();
                match may_wait && self.parked.add(origin, (header, body), &blocked, checked) {
                    true => Answer::Later,
                    false => parked::insist(self, (origin, header, body), blocked, reply),
                }
            }
            Err(panicked) => {
                self.vfs.wait_is_over(&blocked);
                panicked
            }
        }
    }

    /// Serves one request; fails if locks block it.
    pub(crate) fn serve_now(
        &self,
        origin: &Origin,
        header: &Header,
        body: &[u8],
        reply: &mut Reply,
    ) -> Result<Answer, Blocked> {
        reply.clear();
        let operation = opcode_name(header.opcode);
        let request = match Request::decode(header.opcode, body) {
            Ok(request) => request,
            Err(DecodeError::BadTime) => return Ok(Answer::Errno(libc::EINVAL)),
            Err(DecodeError::Truncated) => {
                log::error!("{operation}: {} bytes are not enough", body.len());
                return Ok(Answer::Errno(libc::EIO));
            }
        };
        let ino = self.inode(header.node);
        let mut call = Call { origin, header, ino, reply };
        let served = unless_it_panics(header.opcode, || {
            self.admit(header, &request)?;
            self.dispatch(&mut call, &request)
        });
        match served {
            Ok(Ok(answer)) => Ok(answer),
            // A RELEASE has ended its handle, so there is nothing to repeat.
            Ok(Err(FsError::Blocked(blocked))) if header.opcode != FUSE_RELEASE => Err(blocked),
            Ok(Err(error)) => Ok(self.failed(header, &error)),
            Err(panicked) => Ok(panicked),
        }
    }

    /// Returns the answer to a request that has failed.
    pub(crate) fn failed(&self, header: &Header, error: &FsError) -> Answer {
        Answer::Errno(errno(opcode_name(header.opcode), error))
    }

    /// Returns whether the file system has to know when answers have reached the kernel.
    pub(crate) fn follows_answers(&self) -> bool {
        self.follows_answers
    }

    /// Says that the calling thread holds no answer any more. REQUIRES: the kernel has the answer of each request that
    /// this thread has served, or another thread will make it.
    pub(crate) fn delivered(&self) {
        if self.follows_answers {
            self.vfs.delivered();
        }
    }

    /// Returns the counts of requests.
    pub(crate) fn meters(&self) -> &Meters {
        &self.meters
    }

    /// Returns the file system that is served.
    pub(crate) fn vfs(&self) -> &dyn Vfs {
        &*self.vfs
    }

    /// Returns the requests that wait for locks.
    pub(crate) fn parked(&self) -> &Parked {
        &self.parked
    }

    /// Returns the requests that wait for locks of files.
    pub(crate) fn lock_waits(&self) -> &LockWaits {
        &self.lock_waits
    }

    /// Returns the directory that the mount shows as its root.
    pub(crate) fn root(&self) -> InodeId {
        self.options.root
    }

    /// Returns whether the mount is one of root alone.
    pub(crate) fn is_for_root_alone(&self) -> bool {
        self.agreement.root_alone()
    }

    /// Returns the inode that the kernel calls `node`. The kernel's number of the root is always 1.
    fn inode(&self, node: u64) -> InodeId {
        let ino = InodeId::new(node);
        if ino == InodeId::ROOT { self.options.root } else { ino }
    }

    /// Returns whether `ino` is a directory on which another mount will appear.
    fn is_awaited(&self, ino: InodeId) -> bool {
        ino.is_synthetic() && self.vfs.is_awaited(ino)
    }

    /// Returns whether the kernel must not cache what it knows of `ino`.
    fn is_fleeting(&self, ino: InodeId) -> bool {
        ino.is_synthetic() && self.vfs.is_fleeting(ino)
    }

    fn dispatch(&self, call: &mut Call<'_>, request: &Request<'_>) -> Served {
        let ino = call.ino;
        let is_forget = matches!(request, Request::Forget { .. } | Request::BatchForget(_));
        if self.is_awaited(ino) && !is_forget {
            return self.awaited(call, request);
        }
        match *request {
            Request::Lookup { name } => self.lookup(call, name),
            Request::Forget { lookups } => {
                self.vfs.forget(ino, lookups);
                Ok(DONE)
            }
            Request::BatchForget(forgets) => {
                forgets.iter().for_each(|(ino, n)| self.vfs.forget(self.inode(ino), n));
                Ok(DONE)
            }
            Request::Getattr => self.getattr(call),
            Request::Statx => self.statx(call),
            Request::Setattr(set) => self.setattr(call, &set),
            Request::Readlink => Ok(Answer::Data(self.vfs.readlink(ino)?)),
            Request::Symlink { name, target } => self.symlink(call, name, target),
            Request::Mknod(mknod) => self.mknod(call, &mknod),
            Request::Mkdir { mode, umask, name } => self.mkdir(call, mode, umask, name),
            Request::Unlink { name } => {
                self.settled(ino, self.vfs.unlink(ino, convert::name(name)?)).map(|()| DONE)
            }
            Request::Rmdir { name } => {
                self.settled(ino, self.vfs.rmdir(ino, convert::name(name)?)).map(|()| DONE)
            }
            Request::Rename(rename) => self.rename(call, &rename),
            Request::Link { inode, name } => self.link(call, self.inode(inode), name),
            Request::Open { flags, kill_set_id } => self.open(call, flags, kill_set_id),
            Request::Create(create) => self.create(call, &create),
            Request::Tmpfile(create) => self.tmpfile(call, &create),
            Request::Read(read) => self.read(call, &read),
            Request::Write(write) => self.write(call, &write),
            Request::Release { handle } => self.release(call, Handle(handle)),
            Request::Fsync { handle, data_only } => {
                let sync = move |vfs: &dyn Vfs| vfs.fsync(ino, Handle(handle), data_only);
                Ok(self.later(call, sync))
            }
            Request::Flush { handle, owner } => self.flush(call, Handle(handle), owner),
            Request::Getlk(lock) => self.getlk(call, &lock),
            Request::Setlk { lock, waits } => self.setlk(call, &lock, waits),
            Request::Fsyncdir => Ok(self.later(call, move |vfs| vfs.fsync_dir(ino))),
            Request::Syncfs => Ok(self.later(call, |vfs| vfs.sync())),
            Request::Readdir(read) => self.readdir(call, &read),
            Request::ReaddirPlus(read) => self.readdirplus(call, &read),
            Request::Statfs => {
                call.reply.statfs_out(&self.vfs.statfs()?);
                Ok(Answer::Body)
            }
            Request::Setxattr(set) => self.setxattr(call, set),
            Request::Getxattr { size, name } => self.getxattr(call, size, name),
            Request::Listxattr { size } => self.listxattr(call, size),
            Request::Removexattr { name } => self.removexattr(call, name),
            Request::Fallocate(fallocate) => self.fallocate(call, &fallocate),
            Request::CopyRange(copy) => self.copy_range(call, &copy),
            Request::Lseek { handle, offset, whence } => {
                self.lseek(call, Handle(handle), offset, whence)
            }
            Request::Opendir => self.opendir(call),
            Request::Releasedir | Request::Destroy => Ok(DONE),
            Request::Interrupt { unique } => Ok(self.interrupt(unique)),
            Request::Ioctl(ioctl) => self.ioctl(call, &ioctl),
            Request::Access { mask } => self.access(call, mask),
            Request::Init(_) => Err(FsError::Invalid("a second INIT")),
            Request::Other => Err(FsError::NotImplemented),
        }
    }

    /// Ends the wait of a request whose caller has got a signal.
    fn interrupt(&self, unique: u64) -> Answer {
        self.parked.interrupt(unique);
        self.lock_waits.interrupt(&*self.vfs, unique);
        DONE
    }

    /// Runs `sync` on a thread that may wait. That thread answers the request.
    fn later(
        &self,
        call: &Call<'_>,
        sync: impl FnOnce(&dyn Vfs) -> FsResult<()> + Send + 'static,
    ) -> Answer {
        self.waiters.run(self.answering(call, move |vfs| sync(vfs).map(|()| Bytes::new()), None));
        Answer::Later
    }

    /// Runs work that needs other requests to this mount, or waits for such work, on a thread that may wait. That
    /// thread answers. `TryAgain` if so much work waits that the other requests might get no thread or ring entry.
    fn ask(
        &self,
        call: &Call<'_>,
        work: impl FnOnce(&dyn Vfs) -> FsResult<Bytes> + Send + 'static,
    ) -> Served {
        let hold = call.origin.hold(Until::Asked).ok_or(FsError::TryAgain)?;
        let asked = self.askers.try_run(self.answering(call, work, Some(hold)));
        asked.map(|()| Answer::Later).map_err(|_| FsError::TryAgain)
    }

    /// Makes a job that runs `work`, answers with its result and then drops `hold`.
    fn answering(
        &self,
        call: &Call<'_>,
        work: impl FnOnce(&dyn Vfs) -> FsResult<Bytes> + Send + 'static,
        hold: Option<Hold>,
    ) -> Job {
        let (vfs, origin, meters) =
            (self.vfs.clone(), call.origin.clone(), Arc::clone(&self.meters));
        let Header { unique, opcode, .. } = *call.header;
        let (operation, began) = (opcode_name(opcode), Meters::now());
        Box::new(move || {
            let answer = match unless_it_panics(opcode, || work(&*vfs)) {
                Ok(Ok(body)) if body.is_empty() => DONE,
                Ok(Ok(body)) => Answer::Data(body),
                Ok(Err(err)) => Answer::Errno(errno(operation, &err)),
                Err(panicked) => panicked,
            };
            meters.answered(opcode, began.elapsed(), &answer);
            deliver(&*vfs, &origin, unique, answer, &mut Reply::new());
            drop(hold);
        })
    }
}

/// Answers request `unique` on a thread other than the one that took it, and says so to the file system if it has to
/// know.
pub(crate) fn deliver(
    vfs: &dyn Vfs,
    origin: &Origin,
    unique: u64,
    answer: Answer,
    reply: &mut Reply,
) {
    origin.reply(unique, answer, reply);
    if vfs.follows_answers() {
        origin.wait_until_taken();
        vfs.delivered();
    }
}
