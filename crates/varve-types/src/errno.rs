//! The error numbers that a system call can return.

/// A Linux error number. There is one value for each errno that Varve returns; the discriminant is the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Errno {
    /// EPERM: the caller lacks the privilege.
    Perm = 1,
    /// ENOENT: no such file or directory.
    NotFound = 2,
    /// EINTR: interrupted.
    Interrupted = 4,
    /// EIO: the storage below failed or is damaged.
    Io = 5,
    /// EBADF: not an open file of the right mode.
    BadHandle = 9,
    /// EAGAIN: try again.
    Again = 11,
    /// ENOMEM: out of memory.
    NoMemory = 12,
    /// EACCES: permission denied.
    Access = 13,
    /// EBUSY: in use.
    Busy = 16,
    /// EEXIST: already there.
    Exists = 17,
    /// EXDEV: on another file system.
    CrossDevice = 18,
    /// ENOTDIR: not a directory.
    NotDir = 20,
    /// EISDIR: is a directory.
    IsDir = 21,
    /// EINVAL: invalid argument.
    Invalid = 22,
    /// EFBIG: file too large.
    TooBig = 27,
    /// ENOSPC: no space left on the storage below.
    NoSpace = 28,
    /// EROFS: read-only file system.
    ReadOnly = 30,
    /// EMLINK: too many links.
    TooManyLinks = 31,
    /// ERANGE: result too large for the buffer.
    Range = 34,
    /// EDEADLK: would deadlock.
    Deadlock = 35,
    /// ENAMETOOLONG: file name too long.
    NameTooLong = 36,
    /// EOPNOTSUPP: not supported.
    NotSupported = 95,
    /// ENOSYS: not implemented.
    NoSys = 38,
    /// ENOTEMPTY: the directory is not empty.
    NotEmpty = 39,
    /// ELOOP: too many symbolic links.
    Loop = 40,
    /// ENODATA: no such attribute.
    NoData = 61,
    /// EOVERFLOW: value too large.
    Overflow = 75,
    /// ESTALE: the object is gone.
    Stale = 116,
    /// EDQUOT: quota exceeded.
    Quota = 122,
    /// ENXIO: no such offset or device.
    NoDevice = 6,
    /// E2BIG: too large.
    ArgListTooLong = 7,
    /// ETXTBSY: text file busy.
    TextBusy = 26,
    /// ENOLCK: no more locks of files.
    NoLocks = 37,
}

impl Errno {
    /// Returns the number, which is positive, as `errno` holds it.
    pub const fn get(self) -> i32 {
        self as i32
    }

    /// Returns the symbolic name, such as `ENOENT`.
    pub const fn name(self) -> &'static str {
        match self {
            Errno::Perm => "EPERM",
            Errno::NotFound => "ENOENT",
            Errno::Interrupted => "EINTR",
            Errno::Io => "EIO",
            Errno::BadHandle => "EBADF",
            Errno::Again => "EAGAIN",
            Errno::NoMemory => "ENOMEM",
            Errno::Access => "EACCES",
            Errno::Busy => "EBUSY",
            Errno::Exists => "EEXIST",
            Errno::CrossDevice => "EXDEV",
            Errno::NotDir => "ENOTDIR",
            Errno::IsDir => "EISDIR",
            Errno::Invalid => "EINVAL",
            Errno::TooBig => "EFBIG",
            Errno::NoSpace => "ENOSPC",
            Errno::ReadOnly => "EROFS",
            Errno::TooManyLinks => "EMLINK",
            Errno::Range => "ERANGE",
            Errno::Deadlock => "EDEADLK",
            Errno::NameTooLong => "ENAMETOOLONG",
            Errno::NotSupported => "EOPNOTSUPP",
            Errno::NoSys => "ENOSYS",
            Errno::NotEmpty => "ENOTEMPTY",
            Errno::Loop => "ELOOP",
            Errno::NoData => "ENODATA",
            Errno::Overflow => "EOVERFLOW",
            Errno::Stale => "ESTALE",
            Errno::Quota => "EDQUOT",
            Errno::NoDevice => "ENXIO",
            Errno::ArgListTooLong => "E2BIG",
            Errno::TextBusy => "ETXTBSY",
            Errno::NoLocks => "ENOLCK",
        }
    }

    /// Converts a number of the operating system; a number that Varve does not return becomes `Io`.
    pub fn from_raw(raw: i32) -> Errno {
        ALL.into_iter().find(|errno| errno.get() == raw).unwrap_or(Errno::Io)
    }
}

/// Every value, for [`Errno::from_raw`].
const ALL: [Errno; 33] = [
    Errno::Perm,
    Errno::NotFound,
    Errno::Interrupted,
    Errno::Io,
    Errno::BadHandle,
    Errno::Again,
    Errno::NoMemory,
    Errno::Access,
    Errno::Busy,
    Errno::Exists,
    Errno::CrossDevice,
    Errno::NotDir,
    Errno::IsDir,
    Errno::Invalid,
    Errno::TooBig,
    Errno::NoSpace,
    Errno::ReadOnly,
    Errno::TooManyLinks,
    Errno::Range,
    Errno::Deadlock,
    Errno::NameTooLong,
    Errno::NotSupported,
    Errno::NoSys,
    Errno::NotEmpty,
    Errno::Loop,
    Errno::NoData,
    Errno::Overflow,
    Errno::Stale,
    Errno::Quota,
    Errno::NoDevice,
    Errno::ArgListTooLong,
    Errno::TextBusy,
    Errno::NoLocks,
];
