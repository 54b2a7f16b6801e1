//! Rules of the kernel's protocol that several requests share.

use varve_types::InodeId;
use varve_vfs::{Attr, Caller, Entry, FsError, FsResult, OpenFlags, Opened, SetAttr};

use super::{Adapter, Call};
use crate::backing::Route;
use crate::convert;
use crate::device::Device;
use crate::groups::{is_root, takes_set_gid};
use crate::protocol::constants::{FUSE_SETXATTR, opcode_name};
use crate::protocol::request::{Header, Request};

/// The attribute that gives a program capabilities.
const CAPABILITY: &[u8] = b"security.capability";

/// Returns the errno for `error`, and logs failures of which the administrator must know.
pub(super) fn errno(operation: &str, error: &FsError) -> i32 {
    if matches!(error, FsError::Storage(_) | FsError::Damaged(_) | FsError::NoSpace(_)) {
        log::error!("{operation}: {error}");
    }
    match error {
        // For setxattr(2) the kernel turns EAGAIN into EOPNOTSUPP (`__vfs_setxattr_noperm` in its fs/xattr.c).
        FsError::TryAgain if operation == opcode_name(FUSE_SETXATTR) => libc::EINTR,
        _ => error.errno().get(),
    }
}

impl Adapter {
    /// On a mount of root alone, refuses programs of root that act as another user: the kernel lets them in and
    /// checks nothing. They may use and close what is open already, because permissions are checked when a file is
    /// opened. This holds for directories too, because the kernel sends an OPENDIR for each there
    /// ([`Adapter::opendir`]).
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
            | Request::Flush { .. }
            | Request::Getlk(_)
            | Request::Setlk { .. }
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

    /// Returns how the kernel serves `ino`, which the file system has opened as `opened`.
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

    /// Clears the set-id bits of a file that a caller without the right to keep them has opened to change it. Tells
    /// the kernel, which would otherwise keep the old mode and execute the file with these bits.
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

    /// Clears the set-id bits as [`Adapter::kill_set_id`] does, unless root has opened the file.
    pub(super) fn kill_set_id_unless_root(&self, call: &Call<'_>, ino: InodeId) -> FsResult<()> {
        // By the request alone first, because a look at the caller costs more than one at the file.
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

    /// Clears the set-id bits and capabilities of a file that a user other than root is about to change by a request
    /// without a flag for this.
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

    /// With `dirsync`, makes the names in `dir` durable after a successful change.
    pub(super) fn settled<T>(&self, dir: InodeId, result: FsResult<T>) -> FsResult<T> {
        let value = result?;
        if self.options.sync_dirs {
            self.vfs.fsync_dir(dir)?;
        }
        Ok(value)
    }

    /// Takes back the handle and the lookup of a create of which the kernel will not learn.
    pub(super) fn undo_create(&self, (entry, opened): (Entry, Opened)) {
        if let Err(err) = self.vfs.release(entry.attr.ino, opened.handle) {
            log::error!("release: {err}");
        }
        self.vfs.forget(entry.attr.ino, 1);
    }

    pub(super) fn open_flags(&self, raw: u32) -> OpenFlags {
        let flags = convert::open_flags(raw);
        // Each write says whether its file is open to append, because a program can change that after the open (fcntl
        // F_SETFL).
        let (appends, sync) = (flags.append, flags.sync || self.options.sync_writes);
        OpenFlags { append: false, appends, sync, ..flags }
    }
}
