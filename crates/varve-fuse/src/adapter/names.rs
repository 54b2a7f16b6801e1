//! Serves requests that find, make, move, remove and list names.
//!
//! 1. A method converts the arguments and makes one call of the file system.
//! 2. With `dirsync` it makes the changed directory durable.
//! 3. It answers with the entry and how long the kernel may cache it.
//!
//! Invariant: each lookup that the file system counts reaches the kernel or is taken back.

use std::time::Duration;

use bytes::Bytes;
use varve_types::InodeId;
use varve_vfs::{Attr, Entry, FileType, FsError, FsResult, Keep, Vfs, insist};

use super::{Adapter, Call, DONE, Served};
use crate::answer::Answer;
use crate::convert;
use crate::options::ReaddirPlus;
use crate::protocol::constants::{FOPEN_CACHE_DIR, FOPEN_KEEP_CACHE};
use crate::protocol::reply::{OpenOut, Reply, Validity};
use crate::protocol::request::{Mknod, Read, Rename};

impl Adapter {
    /// Returns how long the kernel may cache a name and its attributes.
    pub(super) fn validity(&self, Entry { attr, keep }: &Entry) -> Validity {
        Validity { entry: self.entry_validity(attr.ino, *keep), attr: self.attr_validity(attr) }
    }

    /// Returns how long the kernel may cache a name whose attributes are not known yet.
    pub(super) fn name_validity(&self, ino: InodeId) -> Validity {
        let attr = if self.is_fleeting(ino) { Duration::ZERO } else { self.options.attr_timeout };
        Validity { entry: self.entry_validity(ino, Keep::Forever), attr }
    }

    /// Returns how long the kernel may cache a name that the file system allows to `keep`.
    fn entry_validity(&self, ino: InodeId, keep: Keep) -> Duration {
        // On a mount without checks of permissions the kernel sends no request about a place before it asks for a
        // name in it, and the second walk (see [`super::arrivals`]) must find what the first has learned. It asks
        // again in any case.
        let is_kept = self.agreement.root_alone() && self.is_awaited(ino);
        let asks_again = self.is_fleeting(ino) && !is_kept;
        if asks_again { Duration::ZERO } else { keep.at_most(self.options.entry_timeout) }
    }

    /// Returns how long the kernel may cache attributes. It may not where another mount will appear, where a name
    /// disappears by itself, or where attributes change without this mount.
    pub(super) fn attr_validity(&self, attr: &Attr) -> Duration {
        let keep = if self.is_fleeting(attr.ino) { Keep::Never } else { attr.keep };
        keep.at_most(self.options.attr_timeout)
    }

    /// Answers a request that has found or made a name.
    fn entry(&self, call: &mut Call<'_>, entry: Entry) -> Answer {
        call.reply.entry_out(self.validity(&entry), &entry.attr);
        Answer::Body
    }

    /// Answers a request that has made a name, after the name is durable if it must be. If that fails, the kernel
    /// does not learn of the inode and never forgets it, so this method takes the lookup back.
    fn made(&self, call: &mut Call<'_>, made: FsResult<Entry>) -> Served {
        let made = made?;
        let forget = |_: &FsError| self.vfs.forget(made.attr.ino, 1);
        self.settled(call.ino, Ok(())).inspect_err(forget)?;
        Ok(self.entry(call, made))
    }

    pub(super) fn lookup(&self, call: &mut Call<'_>, name: &[u8]) -> Served {
        if matches!(name, b"." | b"..") {
            return Ok(self.lookup_by_handle(call, name == b".."));
        }
        let (name, timeout) = (convert::name(name)?, self.options.negative_timeout);
        match self.vfs.lookup(call.ino, name) {
            Err(FsError::NotFound)
                if !timeout.is_zero() && !self.vfs.may_appear(call.ino, name) =>
            {
                call.reply.absent(timeout);
                Ok(Answer::Body)
            }
            found => {
                let found = found?;
                if found.attr.kind != FileType::Directory {
                    self.listers.looks_up(call.header.pid, call.ino);
                }
                let waits = self.found_place(call, found.attr.ino);
                Ok(waits.unwrap_or_else(|| self.entry(call, found)))
            }
        }
    }

    /// Finds the inode of a file handle that the kernel has forgotten (`fuse_get_dentry` in its fs/fuse/inode.c), or
    /// its parent directory (`fuse_get_parent`). This may take long, so another thread does it.
    fn lookup_by_handle(&self, call: &Call<'_>, parent: bool) -> Answer {
        let (ino, root, timeout) = (call.ino, self.root(), self.options.attr_timeout);
        let work = move |vfs: &dyn Vfs| {
            let Entry { attr, keep: _ } = unblocked(vfs, || match parent {
                true => vfs.lookup_parent(ino),
                false => vfs.lookup_inode(ino),
            })?;
            let node = if attr.ino == root { InodeId::ROOT } else { attr.ino };
            let mut reply = Reply::new();
            let valid = Validity { entry: Duration::ZERO, attr: attr.keep.at_most(timeout) };
            reply.entry_of(node.get(), valid, &attr);
            Ok(Bytes::copy_from_slice(reply.body()))
        };
        self.waiters.run(self.answering(call, work, None));
        Answer::Later
    }

    pub(super) fn mknod(&self, call: &mut Call<'_>, request: &Mknod<'_>) -> Served {
        let Mknod { mode, rdev, umask, name } = *request;
        let caller = convert::caller(call.header, umask);
        let made = self.vfs.mknod(caller, call.ino, convert::name(name)?, mode, rdev);
        self.made(call, made)
    }

    pub(super) fn mkdir(&self, call: &mut Call<'_>, mode: u32, umask: u32, name: &[u8]) -> Served {
        let caller = convert::caller(call.header, umask);
        let made = self.vfs.mkdir(caller, call.ino, convert::name(name)?, mode & 0o7777);
        self.made(call, made)
    }

    pub(super) fn symlink(&self, call: &mut Call<'_>, name: &[u8], target: &[u8]) -> Served {
        let caller = convert::caller(call.header, 0);
        let made = self.vfs.symlink(caller, call.ino, convert::name(name)?, target);
        self.made(call, made)
    }

    pub(super) fn link(&self, call: &mut Call<'_>, ino: InodeId, name: &[u8]) -> Served {
        let linked = self.vfs.link(ino, call.ino, convert::name(name)?);
        self.made(call, linked)
    }

    pub(super) fn rename(&self, call: &Call<'_>, request: &Rename<'_>) -> Served {
        let mode = convert::rename_mode(call.header, request.flags)?;
        let (name, new_name) = (convert::name(request.name)?, convert::name(request.new_name)?);
        let new_parent = self.inode(request.new_parent);
        let renamed = self.vfs.rename(call.ino, name, new_parent, new_name, mode);
        self.settled(new_parent, self.settled(call.ino, renamed))?;
        Ok(DONE)
    }

    /// Answers OPENDIR. An open directory has no state, so the answer tells the kernel to stop asking. On a mount of
    /// root alone the kernel must go on asking, because there it sends no other request about a place before it opens
    /// it ([`super::arrivals`]).
    pub(super) fn opendir(&self, call: &mut Call<'_>) -> Served {
        if !self.agreement.root_alone() {
            return Err(FsError::NotImplemented);
        }
        let flags = FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR;
        call.reply.open_out(OpenOut { handle: 0, flags, backing: None });
        Ok(Answer::Body)
    }

    pub(super) fn readdir(&self, call: &mut Call<'_>, request: &Read) -> Served {
        let limit = convert::length(request.size);
        self.listers.goes_on(call.header.pid, call.ino, false);
        let reply = &mut *call.reply;
        let listed = self
            .vfs
            .readdir(call.ino, request.offset, false, &mut |entry| reply.dirent(limit, entry));
        call.listed(listed)
    }

    pub(super) fn readdirplus(&self, call: &mut Call<'_>, request: &Read) -> Served {
        let limit = convert::length(request.size);
        let with_attr = self.wants_attributes(call, request.offset);
        let reply = &mut *call.reply;
        let listed = self.vfs.readdir(call.ino, request.offset, with_attr, &mut |entry| {
            let valid = match entry.attr {
                Some(attr) => self.validity(&Entry { attr, keep: entry.keep }),
                None => self.name_validity(entry.ino),
            };
            reply.direntplus(limit, valid, entry)
        });
        call.listed(listed)
    }

    /// Returns whether the program wants the attributes that the kernel asks for with names from `offset` on.
    fn wants_attributes(&self, call: &Call<'_>, offset: u64) -> bool {
        let (thread, dir) = (call.header.pid, call.ino);
        if offset == 0 && self.options.readdir_plus == ReaddirPlus::Auto {
            return self.listers.begins(thread, dir);
        }
        self.listers.goes_on(thread, dir, true);
        true
    }
}

/// Makes a call on a thread that may wait, until no locks block it or it has failed.
pub(super) fn unblocked<T>(vfs: &dyn Vfs, mut call: impl FnMut() -> FsResult<T>) -> FsResult<T> {
    let mut once = || match call() {
        Err(FsError::Blocked(blocked)) => Err(blocked),
        done => Ok(done),
    };
    let done = once().or_else(|blocked| insist(vfs, blocked, once));
    done.unwrap_or_else(|blocked| Err(FsError::Blocked(blocked)))
}

impl Call<'_> {
    /// Returns the answer to a listing: the entries that were taken, even if an error followed.
    fn listed(&self, listed: varve_vfs::FsResult<()>) -> Served {
        match listed {
            Err(err) if self.reply.body_len() == 0 => Err(err),
            _ => Ok(Answer::Body),
        }
    }
}
