//! One file system with its exports, and the rights of its callers.
//!
//! 1. A [`Request`] finds the export and the inode of a handle.
//! 2. It checks the caller's rights by mode bits and access control lists, as the kernel does for a local mount.
//! 3. It makes the call of the file system, and repeats it while transactions block it.
//!
//! Invariant: no call changes anything under an export for reading.

use std::net::IpAddr;
use std::sync::Arc;

use varve_types::{FileName, InodeId};
use varve_vfs::{
    AccessMode, Attr, Caller, Entry, FileType, FsError, FsResult, Vfs, in_time, insist,
};

use crate::export::{Export, MappedUser, Terms};
use crate::handle::{FileHandle, HANDLE_BYTES_MAX};
use crate::looked_up::LookedUp;
use crate::opened::Opened;
use crate::rpc::Credentials;
use crate::status::Status;
use crate::xdr::{Garbage, Reader, Writer};

/// The longest name that is decoded. The file system refuses names that are too long for it.
const NAME_BYTES_MAX: usize = 4096;
/// The sticky bit: only owners may remove names from such a directory.
const STICKY: u32 = 0o1000;

/// The file system and what the server keeps about it.
pub(crate) struct Service {
    pub(crate) vfs: Arc<dyn Vfs>,
    /// The number of the file system in handles and attributes; the same after a restart.
    pub(crate) file_system: u64,
    /// The write verifier: it changes with each start, and tells clients that unstable writes may be lost.
    pub(crate) verifier: [u8; 8],
    /// The directories that clients may mount, each with its inode.
    pub(crate) exports: Vec<(Export, InodeId)>,
    pub(crate) looked_up: LookedUp,
    pub(crate) opened: Opened,
}

/// Why a procedure has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Its arguments make no sense.
    Garbage,
    /// The call ends with this status.
    Status(Status),
}

impl From<Garbage> for Failure {
    fn from(_: Garbage) -> Failure {
        Failure::Garbage
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Status(status)
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        Failure::Status(error.into())
    }
}

/// One call, with its caller and its export.
pub(crate) struct Request<'a> {
    pub(crate) service: &'a Service,
    pub(crate) export: InodeId,
    pub(crate) terms: &'a Terms,
    pub(crate) user: MappedUser,
}

impl Service {
    /// Finds the export of a handle, if the client at `address` may use it.
    pub(crate) fn request(
        &self,
        handle: &FileHandle,
        address: IpAddr,
        credentials: &Credentials,
    ) -> Result<Request<'_>, Status> {
        if handle.file_system != self.file_system {
            return Err(Status::STALE);
        }
        let exports = self.exports.iter().filter(|(_, root)| *root == handle.export);
        let terms = exports.filter_map(|(export, _)| export.terms(address)).next();
        let terms = terms.ok_or(Status::ACCESS)?;
        Ok(Request {
            service: self,
            export: handle.export,
            terms,
            user: terms.mapped_user(credentials),
        })
    }

    /// Decodes the handle in a message.
    pub(crate) fn handle(reader: &mut Reader<'_>) -> Result<FileHandle, Failure> {
        let bytes = reader.opaque(HANDLE_BYTES_MAX)?;
        Ok(FileHandle::decode(bytes).ok_or(Status::BAD_HANDLE)?)
    }

    /// Makes a call of the file system. If transactions block it, waits as long as the file system allows.
    pub(crate) fn settled<T>(&self, call: impl Fn() -> FsResult<T>) -> FsResult<T> {
        let vfs = &*self.vfs;
        let once = || match call() {
            Err(FsError::Blocked(blocked)) => Err(blocked),
            done => Ok(done),
        };
        let done = in_time(vfs, vfs.lock_wait_max(), once).or_else(|it| insist(vfs, it, once));
        done.unwrap_or_else(|blocked| Err(FsError::Blocked(blocked)))
    }
}

/// Decodes a name in a message.
pub(crate) fn name<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Failure> {
    Ok(reader.opaque(NAME_BYTES_MAX)?)
}

impl<'a> Request<'a> {
    pub(crate) fn vfs(&self) -> &'a Arc<dyn Vfs> {
        &self.service.vfs
    }

    pub(crate) fn is_root(&self) -> bool {
        self.user.uid == 0
    }

    pub(crate) fn caller(&self) -> Caller {
        // The client has applied the umask of its process to the mode already.
        Caller { uid: self.user.uid, gid: self.user.gid, umask: 0 }
    }

    pub(crate) fn is_in(&self, group: u32) -> bool {
        self.user.gid == group || self.user.groups.contains(&group)
    }

    /// Checks another handle of the same call.
    pub(crate) fn other_handle(&self, reader: &mut Reader<'_>) -> Result<FileHandle, Failure> {
        let handle = Service::handle(reader)?;
        match handle.file_system == self.service.file_system && handle.export == self.export {
            true => Ok(handle),
            false => Err(Status::CROSS_DEVICE.into()),
        }
    }

    /// Makes a call about the inode of a handle. If the file system does not find the inode where it was, looks for
    /// it again.
    pub(crate) fn on<T>(
        &self,
        handle: &FileHandle,
        call: impl Fn(InodeId) -> FsResult<T>,
    ) -> Result<T, Failure> {
        let service = self.service;
        if service.vfs.is_awaited(handle.ino) {
            return Err(Status::NOT_SUPPORTED.into());
        }
        service.looked_up.recall(&*service.vfs, handle)?;
        match service.settled(|| call(handle.ino)) {
            Err(FsError::Stale) => {
                service.looked_up.find_again(&*service.vfs, handle)?;
                Ok(service.settled(|| call(handle.ino))?)
            }
            done => Ok(done?),
        }
    }

    /// Returns the attributes of the inode of a handle.
    pub(crate) fn attr(&self, handle: &FileHandle) -> Result<Attr, Failure> {
        self.on(handle, |ino| self.vfs().getattr(ino))
    }

    /// Returns a handle for what was found in `dir`, and takes over its lookup.
    pub(crate) fn found(&self, dir: InodeId, entry: &Entry) -> FileHandle {
        self.service.looked_up.note(&*self.service.vfs, entry.attr.ino);
        self.child(dir, entry.attr.ino)
    }

    /// Returns the handle of an inode that is in `dir`.
    pub(crate) fn child(&self, dir: InodeId, ino: InodeId) -> FileHandle {
        let file_system = self.service.file_system;
        FileHandle { file_system, export: self.export, ino, parent: Some(dir) }
    }

    /// Refuses a change under an export for reading.
    pub(crate) fn changes(&self) -> Result<(), Failure> {
        if self.terms.read_only { Err(Status::READ_ONLY.into()) } else { Ok(()) }
    }

    /// Makes a change durable, as NFS requires of each change, unless the export is `async`.
    pub(crate) fn make_durable(&self, dir: InodeId) -> Result<(), Failure> {
        match self.terms.is_async {
            true => Ok(()),
            false => Ok(self.vfs().fsync_dir(dir)?),
        }
    }

    /// Returns whether the caller has these rights, by mode bits and access control lists.
    pub(crate) fn may(&self, ino: InodeId, mode: AccessMode) -> Result<bool, Failure> {
        let asked =
            self.service.settled(|| self.vfs().access(self.caller(), &self.user.groups, ino, mode));
        match asked {
            Ok(()) => Ok(true),
            Err(FsError::AccessDenied | FsError::ReadOnly) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn require(&self, ino: InodeId, mode: AccessMode) -> Result<(), Failure> {
        if self.may(ino, mode)? { Ok(()) } else { Err(Status::ACCESS.into()) }
    }

    /// Checks that the caller may look up names in a directory.
    pub(crate) fn require_search(&self, dir: InodeId) -> Result<(), Failure> {
        self.require(dir, AccessMode { execute: true, ..AccessMode::default() })
    }

    /// Checks that the caller may change the names in a directory.
    pub(crate) fn require_change(&self, dir: InodeId) -> Result<(), Failure> {
        self.changes()?;
        self.require(dir, AccessMode { read: false, write: true, execute: true })
    }

    /// Checks that the caller, who may change `dir`, may remove the name of `victim` from it.
    pub(crate) fn require_removal(&self, dir: &Attr, victim: &Attr) -> Result<(), Failure> {
        let is_owner = self.user.uid == victim.uid || self.user.uid == dir.uid;
        match dir.perm & STICKY == 0 || self.is_root() || is_owner {
            true => Ok(()),
            false => Err(Status::NOT_PERMITTED.into()),
        }
    }

    /// Checks that the caller may read a file. The owner may, because a process of his may have it open; so may a
    /// user who may execute it.
    pub(crate) fn require_read(&self, attr: &Attr) -> Result<(), Failure> {
        let reads = AccessMode { read: true, ..AccessMode::default() };
        let executes = AccessMode { execute: true, ..AccessMode::default() };
        let may = self.user.uid == attr.uid
            || self.may(attr.ino, reads)?
            || self.may(attr.ino, executes)?;
        if may { Ok(()) } else { Err(Status::ACCESS.into()) }
    }

    /// Checks that the caller may write to a file. The owner may.
    pub(crate) fn require_write(&self, attr: &Attr) -> Result<(), Failure> {
        self.changes()?;
        let writes = AccessMode { write: true, ..AccessMode::default() };
        let may = self.user.uid == attr.uid || self.may(attr.ino, writes)?;
        if may { Ok(()) } else { Err(Status::ACCESS.into()) }
    }

    /// Returns the attributes of the inode of a name, without keeping the lookup.
    pub(crate) fn peek(&self, dir: InodeId, name: FileName<'_>) -> FsResult<Attr> {
        let entry = self.service.settled(|| self.vfs().lookup(dir, name))?;
        self.service.looked_up.note(&*self.service.vfs, entry.attr.ino);
        Ok(entry.attr)
    }
}

/// Encodes attributes (`fattr3`).
pub(crate) fn put_attr(writer: &mut Writer, file_system: u64, attr: &Attr) {
    let kind = match attr.kind {
        FileType::Regular => 1,
        FileType::Directory => 2,
        FileType::BlockDevice => 3,
        FileType::CharDevice => 4,
        FileType::Symlink => 5,
        FileType::Socket => 6,
        FileType::Fifo => 7,
    };
    writer.u32s(&[kind, attr.perm, attr.nlink, attr.uid, attr.gid]);
    writer.u64(attr.size);
    writer.u64(attr.blocks.saturating_mul(512));
    let device = u64::from(attr.rdev);
    writer.u32(rustix::fs::major(device));
    writer.u32(rustix::fs::minor(device));
    writer.u64(file_system);
    writer.u64(attr.ino.get());
    for time in [attr.atime, attr.mtime, attr.ctime] {
        writer.u32(seconds(time.secs()));
        writer.u32(time.nanos());
    }
}

/// Converts seconds since 1970 to NFS version 3, which has the years 1970 to 2106.
pub(crate) fn seconds(seconds: i64) -> u32 {
    seconds.clamp(0, u32::MAX.into()) as u32
}

/// Encodes attributes that may be missing (`post_op_attr`).
pub(crate) fn put_attr_after(writer: &mut Writer, file_system: u64, attr: Option<&Attr>) {
    writer.bool(attr.is_some());
    if let Some(attr) = attr {
        put_attr(writer, file_system, attr);
    }
}

/// Encodes attributes after a change (`wcc_data`), without the ones before: another call may have changed them in
/// between.
pub(crate) fn put_change(writer: &mut Writer, file_system: u64, attr: Option<&Attr>) {
    writer.bool(false);
    put_attr_after(writer, file_system, attr);
}

#[cfg(test)]
mod tests;
