//! The status with which a procedure ends.

use varve_types::Errno;
use varve_vfs::FsError;

/// A status of NFS version 3 (RFC 1813, 2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u32);

impl Status {
    pub(crate) const OK: Status = Status(0);
    pub(crate) const NOT_PERMITTED: Status = Status(1);
    pub(crate) const IO: Status = Status(5);
    pub(crate) const ACCESS: Status = Status(13);
    pub(crate) const EXISTS: Status = Status(17);
    pub(crate) const NOT_DIRECTORY: Status = Status(20);
    pub(crate) const IS_DIRECTORY: Status = Status(21);
    pub(crate) const INVALID: Status = Status(22);
    pub(crate) const CROSS_DEVICE: Status = Status(18);
    pub(crate) const READ_ONLY: Status = Status(30);
    pub(crate) const STALE: Status = Status(70);
    pub(crate) const BAD_HANDLE: Status = Status(10_001);
    pub(crate) const NOT_SYNC: Status = Status(10_002);
    pub(crate) const NOT_SUPPORTED: Status = Status(10_004);
    pub(crate) const TOO_SMALL: Status = Status(10_005);
    pub(crate) const BAD_TYPE: Status = Status(10_007);
    /// The client has to repeat the call later.
    pub(crate) const JUKEBOX: Status = Status(10_008);
}

impl From<&FsError> for Status {
    fn from(error: &FsError) -> Status {
        // The first numbers are the errnos of Unix.
        match error.errno() {
            errno @ (Errno::Perm
            | Errno::NotFound
            | Errno::Access
            | Errno::Exists
            | Errno::NotDir
            | Errno::IsDir
            | Errno::Invalid
            | Errno::TooBig
            | Errno::NoSpace
            | Errno::ReadOnly
            | Errno::TooManyLinks
            | Errno::CrossDevice) => Status(errno.get() as u32),
            Errno::NameTooLong => Status(63),
            Errno::NotEmpty => Status(66),
            Errno::Quota => Status(69),
            Errno::Stale => Status::STALE,
            Errno::NotSupported => Status::NOT_SUPPORTED,
            Errno::TextBusy | Errno::Busy | Errno::Again => Status::JUKEBOX,
            _ => Status::IO,
        }
    }
}

impl From<FsError> for Status {
    fn from(error: FsError) -> Status {
        if let FsError::Storage(what) | FsError::Damaged(what) = &error {
            log::error!("{what}");
        }
        Status::from(&error)
    }
}
