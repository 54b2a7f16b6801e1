//! Each request of the kernel as one call of the `Vfs`.
//!
//! [`Adapter::serve`] sends a request to the method for it: `names` for what changes or finds names,
//! `attributes` for attributes of both kinds, `trees` for those that stand for what is known of trees, `files` for what is open,
//! `astray` for what the kernel has to hear of appends, `arrivals` for places of mounts to come, `transactions` for what programs do about those,
//! `flags` for file flags; `rules` has what they share.
//!
//! Rules that the kernel's protocol adds to the calls:
//!
//! - Names that are absent are answered with inode number 0, so that the kernel remembers the absence.
//! - CREATE opens nothing that is there: it comes for names that the kernel takes for absent, and so has checked no
//!   permissions. Of one that has come meanwhile, past the kernel, the answer is ESTALE, upon which it walks the path once more.
//! - FLUSH, OPENDIR (but see [`Adapter::opendir`]) and what is not served are answered with ENOSYS, after which the kernel stops
//!   asking. Locks are not claimed, so the kernel keeps them itself, which is right for a single mount.
//! - The kernel leaves the removal of set-id bits to the file system (FUSE_HANDLE_KILLPRIV_V2) and says by a
//!   flag of SETATTR, OPEN and WRITE when.
//! - A listing that has already handed out entries with attributes ends well, whatever happens after: each
//!   entry counts as a lookup that the kernel must learn of. The next request meets the error again.
//! - Every handle given is released once, however the request ended.
//! - Syncs leave the reader threads (`waiters`), so that nobody waits behind them and many share one commit. So does what takes
//!   other requests to the same mount ([`Adapter::ask`]).
//! - A request that locks of transactions are in the way of leaves the reader threads too (`parked`); what the kernel has checked
//!   before it is looked at once more when it is done (`checked`). INTERRUPT is about those
//!   alone, and has no answer: with ENOSYS the kernel would tell of no signal any more.
//! - A write by a file that is open to append goes to the end that the file has, not to the one that the kernel takes it to have, which is
//!   another where the file changed without it.
//! - On a mount of root alone, where the kernel checks nothing, only root is served ([`Adapter::admit`]).
//! - The mount options `sync` and `dirsync` are kept here; the kernel does nothing about them.
//!
//! Failures of the storage are logged here, where they are turned into an errno; the others are the
//! caller's everyday business.

mod arrivals;
mod astray;
mod attributes;
mod checked;
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

/// An answer, or why the file system gives none.
type Served = FsResult<Answer>;

/// Nothing to say but that it went well.
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
    options: SessionOptions,
    agreement: Agreement,
    backing: BackingTable,
    /// For syncs.
    waiters: Waiters,
    /// For what takes other requests to this mount.
    askers: Waiters,
    parked: Parked,
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
            vfs,
            options,
            agreement,
            backing,
            waiters,
            askers,
            parked,
            arrivals,
            listers,
            astray,
            meters,
        }
    }

    /// Goes on where the session that left `state` on the connection of `device` stopped.
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

    /// Finishes the syncs under way and gives what the next session must know. REQUIRES: no request is being
    /// served.
    pub(crate) fn leave(self) -> SessionState {
        let Adapter { backing, waiters, askers, agreement, .. } = self;
        drop((waiters, askers));
        agreement.state(backing.leave())
    }

    /// Serves one request, which came from `origin` and has these bytes; fills `reply` if the answer is
    /// [`Answer::Body`]. If locks are in the way, it is served later.
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

    /// Serves one request, unless locks are in the way.
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
            // Of a handle that has ended nothing is left to be done again.
            Ok(Err(FsError::Blocked(blocked))) if header.opcode != FUSE_RELEASE => Err(blocked),
            Ok(Err(error)) => Ok(self.failed(header, &error)),
            Err(panicked) => Ok(panicked),
        }
    }

    /// The answer to a request that has failed.
    pub(crate) fn failed(&self, header: &Header, error: &FsError) -> Answer {
        Answer::Errno(errno(opcode_name(header.opcode), error))
    }

    /// What is counted of requests.
    pub(crate) fn meters(&self) -> &Meters {
        &self.meters
    }

    /// What is served.
    pub(crate) fn vfs(&self) -> &dyn Vfs {
        &*self.vfs
    }

    /// The requests that wait for locks.
    pub(crate) fn parked(&self) -> &Parked {
        &self.parked
    }

    /// The directory that the mount shows as its root.
    pub(crate) fn root(&self) -> InodeId {
        self.options.root
    }

    /// Whether the mount is one of root alone.
    pub(crate) fn is_for_root_alone(&self) -> bool {
        self.agreement.root_alone()
    }

    /// The inode that the kernel calls `node`: for it the root is always number 1.
    fn inode(&self, node: u64) -> InodeId {
        let ino = InodeId::new(node);
        if ino == InodeId::ROOT { self.options.root } else { ino }
    }

    /// Whether `ino` is a place where another mount is to appear.
    fn is_awaited(&self, ino: InodeId) -> bool {
        ino.is_made_up() && self.vfs.is_awaited(ino)
    }

    /// Whether nothing known of `ino` holds for long.
    fn is_fleeting(&self, ino: InodeId) -> bool {
        ino.is_made_up() && self.vfs.is_fleeting(ino)
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
            Request::Interrupt { unique } => {
                self.parked.interrupt(unique);
                Ok(DONE)
            }
            Request::Ioctl(ioctl) => self.ioctl(call, &ioctl),
            Request::Access { mask } => self.access(call, mask),
            Request::Init(_) => Err(FsError::Invalid("a second INIT")),
            Request::Other => Err(FsError::NotImplemented),
        }
    }

    /// Has `sync` done by a thread that may wait, which then answers.
    fn later(
        &self,
        call: &Call<'_>,
        sync: impl FnOnce(&dyn Vfs) -> FsResult<()> + Send + 'static,
    ) -> Answer {
        self.waiters.run(self.answering(call, move |vfs| sync(vfs).map(|()| Bytes::new()), None));
        Answer::Later
    }

    /// The same for what takes other requests to this mount, and for who waits for it. `TryAgain` if so many wait that these
    /// requests might not come through.
    fn ask(
        &self,
        call: &Call<'_>,
        work: impl FnOnce(&dyn Vfs) -> FsResult<Bytes> + Send + 'static,
    ) -> Served {
        let hold = call.origin.hold(Until::Asked).ok_or(FsError::TryAgain)?;
        let asked = self.askers.try_run(self.answering(call, work, Some(hold)));
        asked.map(|()| Answer::Later).map_err(|_| FsError::TryAgain)
    }

    /// A job that does `work` and answers with what it gives; lets go of `hold` then.
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
            origin.reply(unique, answer, &mut Reply::new());
            drop(hold);
        })
    }
}
