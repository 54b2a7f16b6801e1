//! The rules that the kernel's protocol adds to the calls of the `Vfs`, apart from the requests themselves.

use varve_types::InodeId;
use varve_vfs::{Attr, Caller, Entry, FsError, FsResult, OpenFlags, Opened, SetAttr};

use super::{Adapter, Call};
use crate::backing::Route;
use crate::convert;
use crate::device::Device;
use crate::groups::{is_root, takes_set_gid};
use crate::protocol::constants::{FUSE_SETXATTR, opcode_name};
use crate::protocol::request::{Header, Request};

/// What gives a program capabilities.
const CAPABILITY: &[u8] = b"security.capability";

/// The errno for `error`, after logging what the administrator must know.
pub(super) fn errno(operation: &str, error: &FsError) -> i32 {
    if matches!(error, FsError::Storage(_) | FsError::Damaged(_) | FsError::NoSpace(_)) {
        log::error!("{operation}: {error}");
    }
    match error {
        // The kernel makes EOPNOTSUPP of EAGAIN there (`__vfs_setxattr_noperm` in its fs/xattr.c).
        FsError::TryAgain if operation == opcode_name(FUSE_SETXATTR) => libc::EINTR,
        _ => error.errno().get(),
    }
}

impl Adapter {
    /// Refuses, on a mount of root alone, whoever acts as somebody else: the kernel lets root's programs in while they do, and
    /// checks nothing. What is open already may be used and closed, as permissions are asked for when something is opened; of
    /// directories too, as the kernel asks for each to be opened there ([`Adapter::opendir`]).
    pub(super) fn admit(&self, header: &Header, request: &Request<'_>) -> FsResult<()> {
        if header.uid == 0 || !self.agreement.root_alone() {
            return Ok(());
        }
        match request {
            Request::Forget { .. }
            | Request::BatchForget(_)
            | Request::Getattr
            | Request::Statx
            | Request::Read(_)
            | Request::Readdir(_)
            | Request::ReaddirPlus(_)
            | Request::Write(_)
            | Request::Lseek { .. }
            | Request::Fallocate(_)
            | Request::CopyRange(_)
            | Request::Fsync { .. }
            | Request::Fsyncdir
            | Request::Syncfs
            | Request::Statfs
            | Request::Release { .. }
            | Request::Releasedir
            | Request::Interrupt { .. }
            | Request::Destroy
            | Request::Other => Ok(()),
            Request::Setattr(set) if set.is_cut_of_open_file() => Ok(()),
            _ => Err(FsError::AccessDenied),
        }
    }

    /// How to open `ino`, which the file system has opened as `opened`.
    pub(super) fn route(&self, device: &Device, ino: InodeId, opened: Opened) -> Route {
        self.backing.opened(ino, opened.passthrough, || {
            let mut registered = None;
            let took = self
                .vfs
                .with_passthrough(opened.handle, &mut |fd| registered = Some(device.register(fd)));
            if let Err(err) = took {
                log::debug!("no passthrough: {err}");
            }
            registered
        })
    }

    /// Takes the set-id bits off a file that someone without the right to keep them has opened to change it. The kernel is told,
    /// as it takes the mode for the same after what it sends then, and would execute the file with them.
    pub(super) fn kill_set_id(
        &self,
        call: &Call<'_>,
        caller: Caller,
        ino: InodeId,
    ) -> FsResult<()> {
        let attr = self.vfs.getattr(ino)?;
        match attr.perm & 0o6000 {
            0 => Ok(()),
            _ => self.kill(call, caller, &attr),
        }
    }

    /// The same, unless root has opened it.
    pub(super) fn kill_set_id_unless_root(&self, call: &Call<'_>, ino: InodeId) -> FsResult<()> {
        // By the request alone first: to look the caller up costs more than to look at the file.
        if call.header.uid == 0 {
            return Ok(());
        }
        let attr = self.vfs.getattr(ino)?;
        match attr.perm & 0o6000 != 0 && !is_root(call.header) {
            true => self.kill(call, convert::caller(call.header, 0), &attr),
            false => Ok(()),
        }
    }

    fn kill(&self, call: &Call<'_>, caller: Caller, attr: &Attr) -> FsResult<()> {
        let (ino, kill_set_gid) = (attr.ino, takes_set_gid(call.header, attr));
        let set = SetAttr { kill_set_id: true, kill_set_gid, ..SetAttr::default() };
        let killed = self.vfs.setattr(caller, ino, set);
        self.tell_of_attributes(call.origin, ino);
        killed.map(drop)
    }

    /// Takes the set-id bits and capabilities off a file that somebody else than root is about to change, where the kernel's
    /// request has no flag that says so.
    pub(super) fn kill_set_id_of_others(&self, call: &Call<'_>, ino: InodeId) -> FsResult<()> {
        if call.header.uid == 0 {
            return Ok(());
        }
        let attr = self.vfs.getattr(ino)?;
        let loses = attr.perm & 0o6000 != 0 || self.has_capability(ino)?;
        match loses && !is_root(call.header) {
            true => self.kill(call, convert::caller(call.header, 0), &attr),
            false => Ok(()),
        }
    }

    fn has_capability(&self, ino: InodeId) -> FsResult<bool> {
        match self.vfs.getxattr(ino, CAPABILITY) {
            Err(FsError::Blocked(blocked)) => Err(FsError::Blocked(blocked)),
            found => Ok(found.is_ok()),
        }
    }

    /// With `dirsync`, makes the names in `dir` durable after a change that went well.
    pub(super) fn settled<T>(&self, dir: InodeId, result: FsResult<T>) -> FsResult<T> {
        let value = result?;
        if self.options.sync_dirs {
            self.vfs.fsync_dir(dir)?;
        }
        Ok(value)
    }

    /// Gives back what a create has handed out that the kernel will not hear of.
    pub(super) fn undo_create(&self, (entry, opened): (Entry, Opened)) {
        if let Err(err) = self.vfs.release(entry.attr.ino, opened.handle) {
            log::error!("release: {err}");
        }
        self.vfs.forget(entry.attr.ino, 1);
    }

    pub(super) fn open_flags(&self, raw: u32) -> OpenFlags {
        let flags = convert::open_flags(raw);
        // Each write says whether it is by a file that is open to append: what was opened so need not stay so (fcntl F_SETFL).
        let (appends, sync) = (flags.append, flags.sync || self.options.sync_writes);
        OpenFlags { append: false, appends, sync, ..flags }
    }
}
