//! The attributes of an inode as front ends see them.

use std::time::Duration;

use varve_types::{InodeId, Timestamp};

/// What kind of object an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileType {
    /// Returns the `S_IFMT` bits of `st_mode`.
    pub const fn mode_bits(self) -> u32 {
        match self {
            FileType::Fifo => 0o010_000,
            FileType::CharDevice => 0o020_000,
            FileType::Directory => 0o040_000,
            FileType::BlockDevice => 0o060_000,
            FileType::Regular => 0o100_000,
            FileType::Symlink => 0o120_000,
            FileType::Socket => 0o140_000,
        }
    }

    /// Returns the type in the `S_IFMT` bits of `mode`; no bits mean a regular file, as for mknod(2).
    pub const fn from_mode(mode: u32) -> Option<FileType> {
        match mode & 0o170_000 {
            0o010_000 => Some(FileType::Fifo),
            0o020_000 => Some(FileType::CharDevice),
            0o040_000 => Some(FileType::Directory),
            0o060_000 => Some(FileType::BlockDevice),
            0o100_000 | 0 => Some(FileType::Regular),
            0o120_000 => Some(FileType::Symlink),
            0o140_000 => Some(FileType::Socket),
            _ => None,
        }
    }
}

/// For how long a front end may go by an answer without asking again. A notice that the answer no longer holds ends
/// the time early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Until a notice.
    Forever,
    /// For this long since the answer was given. After that it may change without a notice.
    For(Duration),
    /// Not at all: it may change at any moment without a notice.
    Never,
}

impl Keep {
    /// Returns for how long a front end keeps the answer that keeps nothing for longer than `max`.
    pub fn at_most(self, max: Duration) -> Duration {
        match self {
            Keep::Forever => max,
            Keep::For(time) => time.min(max),
            Keep::Never => Duration::ZERO,
        }
    }
}

/// The attributes of one inode: `struct stat` with a birth time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode.
    pub ino: InodeId,
    /// What it is.
    pub kind: FileType,
    /// Permission, set-id and sticky bits (`0o7777`).
    pub perm: u32,
    /// Number of names; for a directory 2 plus its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number; 0 unless the inode is a device node.
    pub rdev: u32,
    /// Size in bytes; of a directory, the number of its entries.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// For how long a front end may go by these attributes without asking again.
    pub keep: Keep,
}

/// What lies below a directory, without the directory itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TreeUsage {
    /// Sum of the sizes of regular files and symbolic links, in bytes.
    pub bytes: u64,
    /// Files, and all other objects except directories. A file with several names counts once, in the directory of
    /// one of them.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
}

/// The most that may lie below a directory, without the directory itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TreeLimits {
    /// The most bytes; `None` for no limit.
    pub bytes: Option<u64>,
    /// The most files and directories; `None` for no limit.
    pub inodes: Option<u64>,
}

/// The limits on a directory, and what counts against them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeQuota {
    /// The path of the directory from the root of the file system.
    pub path: Vec<u8>,
    /// Its limits.
    pub limits: TreeLimits,
    /// What lies below it.
    pub usage: TreeUsage,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The moment of the call.
    Now,
    /// This time.
    To(Timestamp),
}

/// What [`crate::Vfs::setattr`] changes; `None` leaves a field as it is. Either all changes are made or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// New permission, set-id and sticky bits.
    pub perm: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size; a smaller one cuts the file, a larger one extends it with a hole.
    pub size: Option<u64>,
    /// New time of last access.
    pub atime: Option<SetTime>,
    /// New time of last change.
    pub mtime: Option<SetTime>,
    /// Clear set-user-id, set-group-id and `security.capability`, as a write by an unprivileged caller does.
    pub kill_set_id: bool,
    /// Clear set-group-id, except on a directory, even if the group may not execute the file: the caller is not in
    /// the group.
    pub kill_set_gid: bool,
}
