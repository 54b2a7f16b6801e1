//! Numbers of the protocol, under the names of the kernel's `fuse.h`, where each is explained.

/// The part of the version that has to be the same on both sides.
pub(crate) const FUSE_KERNEL_VERSION: u32 = 7;
/// The newest minor version whose structures are known here.
pub(crate) const FUSE_KERNEL_MINOR_VERSION: u32 = 45;

/// Declares constants of one type.
macro_rules! numbers {
    ($type:ty: $($name:ident = $value:expr,)*) => {
        $(pub(crate) const $name: $type = $value;)*
    };
}

/// Declares operations, and their names for logs.
macro_rules! opcodes {
    ($($name:ident = $value:expr,)*) => {
        $(pub(crate) const $name: u32 = $value;)*

        /// The highest of them.
        pub(crate) const OPCODE_MAX: u32 = {
            let (mut max, all) = (0, [$($name),*]);
            let mut at = 0;
            while at < all.len() {
                if all[at] > max {
                    max = all[at];
                }
                at += 1;
            }
            max
        };

        /// Returns the kernel's name of an operation.
        pub(crate) fn opcode_name(opcode: u32) -> &'static str {
            match opcode {
                $($name => stringify!($name),)*
                _ => "a request not served",
            }
        }
    };
}

opcodes! {
    FUSE_LOOKUP = 1,
    FUSE_FORGET = 2,
    FUSE_GETATTR = 3,
    FUSE_SETATTR = 4,
    FUSE_READLINK = 5,
    FUSE_SYMLINK = 6,
    FUSE_MKNOD = 8,
    FUSE_MKDIR = 9,
    FUSE_UNLINK = 10,
    FUSE_RMDIR = 11,
    FUSE_RENAME = 12,
    FUSE_LINK = 13,
    FUSE_OPEN = 14,
    FUSE_READ = 15,
    FUSE_WRITE = 16,
    FUSE_STATFS = 17,
    FUSE_RELEASE = 18,
    FUSE_FSYNC = 20,
    FUSE_SETXATTR = 21,
    FUSE_GETXATTR = 22,
    FUSE_LISTXATTR = 23,
    FUSE_REMOVEXATTR = 24,
    FUSE_FLUSH = 25,
    FUSE_INIT = 26,
    FUSE_OPENDIR = 27,
    FUSE_READDIR = 28,
    FUSE_RELEASEDIR = 29,
    FUSE_FSYNCDIR = 30,
    FUSE_GETLK = 31,
    FUSE_SETLK = 32,
    FUSE_SETLKW = 33,
    FUSE_ACCESS = 34,
    FUSE_CREATE = 35,
    FUSE_INTERRUPT = 36,
    FUSE_DESTROY = 38,
    FUSE_IOCTL = 39,
    FUSE_BATCH_FORGET = 42,
    FUSE_FALLOCATE = 43,
    FUSE_READDIRPLUS = 44,
    FUSE_RENAME2 = 45,
    FUSE_LSEEK = 46,
    FUSE_COPY_FILE_RANGE = 47,
    FUSE_SYNCFS = 50,
    FUSE_TMPFILE = 51,
    FUSE_STATX = 52,
    FUSE_COPY_FILE_RANGE_64 = 53,
}

// Capabilities agreed on in INIT. The upper half travels in `flags2`.
numbers! { u64:
    FUSE_ASYNC_READ = 1 << 0,
    FUSE_POSIX_LOCKS = 1 << 1,
    FUSE_ATOMIC_O_TRUNC = 1 << 3,
    FUSE_EXPORT_SUPPORT = 1 << 4,
    FUSE_BIG_WRITES = 1 << 5,
    FUSE_DONT_MASK = 1 << 6,
    FUSE_FLOCK_LOCKS = 1 << 10,
    FUSE_AUTO_INVAL_DATA = 1 << 12,
    FUSE_DO_READDIRPLUS = 1 << 13,
    FUSE_READDIRPLUS_AUTO = 1 << 14,
    FUSE_PARALLEL_DIROPS = 1 << 18,
    FUSE_POSIX_ACL = 1 << 20,
    FUSE_MAX_PAGES = 1 << 22,
    FUSE_CACHE_SYMLINKS = 1 << 23,
    FUSE_NO_OPENDIR_SUPPORT = 1 << 24,
    FUSE_HANDLE_KILLPRIV_V2 = 1 << 28,
    FUSE_SETXATTR_EXT = 1 << 29,
    FUSE_INIT_EXT = 1 << 30,
    FUSE_PASSTHROUGH = 1 << 37,
    FUSE_ALLOW_IDMAP = 1 << 40,
    FUSE_OVER_IO_URING = 1 << 41,
}

// What a SETATTR holds.
numbers! { u32:
    FATTR_MODE = 1 << 0,
    FATTR_UID = 1 << 1,
    FATTR_GID = 1 << 2,
    FATTR_SIZE = 1 << 3,
    FATTR_ATIME = 1 << 4,
    FATTR_MTIME = 1 << 5,
    FATTR_FH = 1 << 6,
    FATTR_ATIME_NOW = 1 << 7,
    FATTR_MTIME_NOW = 1 << 8,
    FATTR_KILL_SUIDGID = 1 << 11,
}

// Flags of single requests and of the answer to an open.
numbers! { u32:
    FUSE_OPEN_KILL_SUIDGID = 1 << 0,
    FUSE_WRITE_CACHE = 1 << 0,
    FUSE_WRITE_KILL_SUIDGID = 1 << 2,
    FUSE_FSYNC_FDATASYNC = 1 << 0,
    FUSE_LK_FLOCK = 1 << 0,
    FUSE_SETXATTR_ACL_KILL_SGID = 1 << 0,
    FOPEN_KEEP_CACHE = 1 << 1,
    FOPEN_CACHE_DIR = 1 << 3,
    FOPEN_PASSTHROUGH = 1 << 7,
}

/// The extended attribute that holds the access control list of a file, which sets its mode too.
pub(crate) const ACCESS_LIST_XATTR: &[u8] = b"system.posix_acl_access";
