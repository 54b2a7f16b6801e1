//! The rules that the kernel's protocol adds to the calls of the `Vfs`, apart from the list of requests.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{Errno, InitFlags, ReplyEmpty, ReplyEntry, ReplyXattr};
use varve_types::InodeId;
use varve_vfs::{Attr, Caller, Entry, FileType, FsError, FsResult, OpenFlags, Opened, SetAttr};

use super::{Adapter, GENERATION};
use crate::backing::Route;
use crate::convert;
use crate::session::ReaddirPlus;

/// The errno for `error`, after logging what the administrator must know.
pub(super) fn errno(operation: &str, error: &FsError) -> Errno {
    if matches!(error, FsError::Storage(_) | FsError::NoSpace(_)) {
        log::error!("{operation}: {error}");
    }
    Errno::from_i32(error.errno().get())
}

/// Answers a request that asks for nothing back.
pub(super) fn empty(operation: &str, result: FsResult<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(err) => reply.error(errno(operation, &err)),
    }
}

/// Answers a request for an attribute value or list: its length if `size` is 0, else the bytes if they fit.
pub(super) fn xattr(
    operation: &str,
    result: FsResult<impl AsRef<[u8]>>,
    size: u32,
    reply: ReplyXattr,
) {
    match result {
        Ok(value) => {
            let value = value.as_ref();
            let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
            match size {
                0 => reply.size(len),
                _ if len <= size => reply.data(value),
                _ => reply.error(Errno::from_i32(libc::ERANGE)),
            }
        }
        Err(err) => reply.error(errno(operation, &err)),
    }
}

/// Access control lists and other attributes of the system's are not served: without FUSE_POSIX_ACL the
/// kernel would store them and not obey them.
pub(super) fn check_xattr_name(name: &OsStr) -> FsResult<&[u8]> {
    let name = name.as_bytes();
    if name.starts_with(b"system.") {
        Err(FsError::NotSupported("system attributes"))
    } else {
        Ok(name)
    }
}

impl Adapter {
    /// Answers a request that finds or makes a name.
    pub(super) fn entry(&self, operation: &str, result: FsResult<Entry>, reply: ReplyEntry) {
        match result {
            Ok(Entry { attr }) => reply.entry_with_ttls(
                &self.options.attr_timeout,
                &self.options.entry_timeout,
                &convert::attr(&attr),
                GENERATION,
            ),
            Err(err) => reply.error(errno(operation, &err)),
        }
    }

    /// The timeout for replies where fuser takes one for both name and attributes.
    pub(super) fn common_timeout(&self) -> Duration {
        self.options.entry_timeout.min(self.options.attr_timeout)
    }

    /// What to ask of the kernel; it grants what it knows.
    pub(super) fn capabilities(&self) -> InitFlags {
        let mut wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        wanted |= match self.options.readdir_plus {
            ReaddirPlus::Auto => InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO,
            ReaddirPlus::Always => InitFlags::FUSE_DO_READDIRPLUS,
            ReaddirPlus::Never => InitFlags::empty(),
        };
        wanted
    }

    /// How to open `ino`, which the file system has opened as `opened`. `register` makes a descriptor known
    /// to the kernel as a backing file.
    pub(super) fn route(
        &self,
        ino: InodeId,
        opened: Opened,
        register: impl Fn(BorrowedFd<'_>) -> io::Result<fuser::BackingId>,
    ) -> Route {
        self.backing.opened(ino, || {
            let mut registered = None;
            if opened.passthrough {
                let took = self
                    .vfs
                    .with_passthrough(opened.handle, &mut |fd| registered = Some(register(fd)));
                if let Err(err) = took {
                    log::debug!("no passthrough: {err}");
                }
            }
            registered
        })
    }

    /// Takes the set-id bits off a file that someone other than root has opened to change it.
    pub(super) fn kill_set_id(&self, caller: Caller, ino: InodeId) -> FsResult<()> {
        if self.vfs.getattr(ino)?.perm & 0o6000 != 0 {
            self.vfs.setattr(caller, ino, SetAttr { kill_set_id: true, ..SetAttr::default() })?;
        }
        Ok(())
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

    pub(super) fn open_flags(&self, raw: i32) -> OpenFlags {
        let flags = convert::open_flags(raw);
        OpenFlags { sync: flags.sync || self.options.sync_writes, ..flags }
    }

    pub(super) fn open_file(
        &self,
        caller: Caller,
        ino: InodeId,
        flags: OpenFlags,
    ) -> FsResult<Opened> {
        let opened = self.vfs().open(ino, flags)?;
        if flags.truncate
            && caller.uid != 0
            && let Err(err) = self.kill_set_id(caller, ino)
        {
            self.vfs.release(ino, opened.handle)?;
            return Err(err);
        }
        Ok(opened)
    }

    /// Changes attributes; truncation by other than root and a change of owner take the set-id bits of
    /// anything but a directory.
    pub(super) fn change(&self, caller: Caller, ino: InodeId, mut set: SetAttr) -> FsResult<Attr> {
        let chown = set.uid.is_some() || set.gid.is_some();
        let truncated = set.size.is_some() && caller.uid != 0;
        set.kill_set_id =
            truncated || (chown && self.vfs().getattr(ino)?.kind != FileType::Directory);
        self.vfs().setattr(caller, ino, set)
    }
}
