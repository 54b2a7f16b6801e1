//! Decodes requests.
//!
//! ```text
//! offset  0 len u32 | 4 opcode u32 | 8 unique u64 | 16 nodeid u64 | 24 uid u32 | 28 gid u32 | 32 pid u32
//!        36 total_extlen u16 (in 8 bytes) | 38 padding u16 | 40 the operation's own structure and names
//!        ... extensions
//! ```
//!
//! 1. [`Header::decode`] checks the length and separates the body.
//! 2. [`Request::decode`] decodes the body by the opcode. It skips fields that this program does not need.
//!
//! Invariants: for any bytes the decoder returns a request or a [`DecodeError`]. It copies no bytes: names, which end
//! with a NUL, and data stay in the buffer. It checks no values, except that the nanoseconds of a time must be less
//! than a second.
//!
//! The fuzz target `fuse_request` builds this file and `constants` by themselves.

use super::constants::*;

const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// Why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// They end too early, or a name has no end.
    Truncated,
    /// A time's nanoseconds are a second or more.
    BadTime,
}

type Result<T> = std::result::Result<T, DecodeError>;

/// What precedes every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The operation.
    pub(crate) opcode: u32,
    /// The request's number, which its answer repeats.
    pub(crate) unique: u64,
    /// The inode it is about.
    pub(crate) node: u64,
    /// The caller's file-system user id.
    pub(crate) uid: u32,
    /// The caller's file-system group id.
    pub(crate) gid: u32,
    /// The calling thread.
    pub(crate) pid: u32,
}

impl Header {
    /// Returns the header and the operation's own bytes, without extensions.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Header, &[u8])> {
        let mut fields = Fields(bytes);
        let _len = fields.u32()?;
        let opcode = fields.u32()?;
        let (unique, node) = (fields.u64()?, fields.u64()?);
        let (uid, gid, pid) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let extension = usize::from(fields.u16()?) * 8;
        let _padding = fields.u16()?;
        let body = fields.0.len().checked_sub(extension).ok_or(DecodeError::Truncated)?;
        Ok((Header { opcode, unique, node, uid, gid, pid }, &fields.0[..body]))
    }
}

/// A point in time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// The moment of the request.
    Now,
    /// Seconds since 1970, which may be negative, and nanoseconds after it (less than a second).
    At(i64, u32),
}

/// INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Init {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    /// The capabilities offered.
    pub(crate) flags: u64,
}

/// SETATTR; `None` leaves a field as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetAttrIn {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<Time>,
    pub(crate) mtime: Option<Time>,
    pub(crate) kill_set_id: bool,
    /// It is about an open file.
    pub(crate) has_handle: bool,
}

impl SetAttrIn {
    /// Returns whether it cuts or extends an open file and nothing else, as ftruncate(2) does: a program that has
    /// opened it for writing may do this.
    pub(crate) fn is_cut_of_open_file(&self) -> bool {
        let SetAttrIn { mode, uid, gid, size, atime, mtime, kill_set_id: _, has_handle } = *self;
        let others = (mode, uid, gid, atime, mtime);
        has_handle && size.is_some() && others == (None, None, None, None, None)
    }
}

/// MKNOD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mknod<'a> {
    pub(crate) mode: u32,
    pub(crate) rdev: u32,
    pub(crate) umask: u32,
    pub(crate) name: &'a [u8],
}

/// CREATE and TMPFILE, whose name means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Create<'a> {
    pub(crate) flags: u32,
    pub(crate) mode: u32,
    pub(crate) umask: u32,
    pub(crate) name: &'a [u8],
}

/// RENAME and RENAME2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rename<'a> {
    pub(crate) new_parent: u64,
    pub(crate) flags: u32,
    pub(crate) name: &'a [u8],
    pub(crate) new_name: &'a [u8],
}

/// READ, READDIR and READDIRPLUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
}

/// WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Write<'a> {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    /// It writes back what programs have changed in mapped memory.
    pub(crate) is_writeback: bool,
    /// The flags of open(2) that the file has now. Where it is open to append the offset is where the kernel takes the end to be,
    /// unless the program said that it is no append (RWF_NOAPPEND).
    pub(crate) open_flags: u32,
    pub(crate) kill_set_id: bool,
    pub(crate) data: &'a [u8],
}

/// SETXATTR, whose form depends on what was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetXattrIn<'a>(pub(crate) &'a [u8]);

/// SETXATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetXattr<'a> {
    pub(crate) flags: u32,
    /// The name is that of an access control list, and set-group-id is to go.
    pub(crate) kill_set_gid: bool,
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// FALLOCATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fallocate {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) mode: u32,
}

/// COPY_FILE_RANGE and COPY_FILE_RANGE_64, whose answers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyRange {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) to_node: u64,
    pub(crate) to_handle: u64,
    pub(crate) to_offset: u64,
    pub(crate) length: u64,
    /// The answer has room for 64 bits.
    pub(crate) is_long: bool,
}

/// GETLK, SETLK and SETLKW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub(crate) mode: u32,
    /// The process; 0 if it lives where the kernel of the mount has no number for it.
    pub(crate) pid: u32,
    /// By flock(2).
    pub(crate) is_flock: bool,
}

/// The inodes and lookup counts of a BATCH_FORGET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forgets<'a>(&'a [[u8; 16]]);

impl Forgets<'_> {
    /// Inode and count, one after the other.
    pub(crate) fn iter(self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().filter_map(|one| {
            let mut fields = Fields(one);
            Some((fields.u64().ok()?, fields.u64().ok()?))
        })
    }
}

/// One request, apart from its [`Header`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget(Forgets<'a>),
    Getattr,
    Setattr(SetAttrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod(Mknod<'a>),
    Mkdir {
        mode: u32,
        umask: u32,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename(Rename<'a>),
    Link {
        inode: u64,
        name: &'a [u8],
    },
    Open {
        flags: u32,
        kill_set_id: bool,
    },
    Create(Create<'a>),
    Tmpfile(Create<'a>),
    Read(Read),
    Write(Write<'a>),
    Statfs,
    Release {
        handle: u64,
    },
    Fsync {
        handle: u64,
        data_only: bool,
    },
    Fsyncdir,
    /// A process closes a descriptor.
    Flush {
        handle: u64,
        owner: u64,
    },
    Getlk(Lock),
    /// SETLK, and SETLKW, which waits.
    Setlk {
        lock: Lock,
        waits: bool,
    },
    Setxattr(SetXattrIn<'a>),
    Getxattr {
        size: u32,
        name: &'a [u8],
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Init(Init),
    Access {
        mask: u32,
    },
    Opendir,
    Readdir(Read),
    ReaddirPlus(Read),
    Releasedir,
    Destroy,
    Ioctl(Ioctl<'a>),
    Fallocate(Fallocate),
    CopyRange(CopyRange),
    Lseek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    Syncfs,
    Statx,
    /// The caller of the request `unique` has got a signal.
    Interrupt {
        unique: u64,
    },
    /// An operation that is not served, or none at all.
    Other,
}

impl<'a> Request<'a> {
    /// Returns the request whose header says `opcode`.
    pub(crate) fn decode(opcode: u32, body: &'a [u8]) -> Result<Request<'a>> {
        let mut f = Fields(body);
        Ok(match opcode {
            FUSE_LOOKUP => Request::Lookup { name: f.name()? },
            FUSE_FORGET => Request::Forget { lookups: f.u64()? },
            FUSE_BATCH_FORGET => Request::BatchForget(f.forgets()?),
            FUSE_GETATTR => Request::Getattr,
            FUSE_SETATTR => Request::Setattr(f.setattr()?),
            FUSE_READLINK => Request::Readlink,
            FUSE_SYMLINK => Request::Symlink { name: f.name()?, target: f.name()? },
            FUSE_MKNOD => Request::Mknod(f.mknod()?),
            FUSE_MKDIR => Request::Mkdir { mode: f.u32()?, umask: f.u32()?, name: f.name()? },
            FUSE_UNLINK => Request::Unlink { name: f.name()? },
            FUSE_RMDIR => Request::Rmdir { name: f.name()? },
            FUSE_RENAME => Request::Rename(f.rename(false)?),
            FUSE_RENAME2 => Request::Rename(f.rename(true)?),
            FUSE_LINK => Request::Link { inode: f.u64()?, name: f.name()? },
            FUSE_OPEN => Request::Open {
                flags: f.u32()?,
                kill_set_id: f.u32()? & FUSE_OPEN_KILL_SUIDGID != 0,
            },
            FUSE_CREATE => Request::Create(f.create()?),
            FUSE_TMPFILE => Request::Tmpfile(f.create()?),
            FUSE_READ => Request::Read(f.read()?),
            FUSE_OPENDIR => Request::Opendir,
            FUSE_READDIR => Request::Readdir(f.read()?),
            FUSE_READDIRPLUS => Request::ReaddirPlus(f.read()?),
            FUSE_WRITE => Request::Write(f.write()?),
            FUSE_STATFS => Request::Statfs,
            FUSE_RELEASE => Request::Release { handle: f.u64()? },
            FUSE_RELEASEDIR => Request::Releasedir,
            FUSE_FSYNC => {
                Request::Fsync { handle: f.u64()?, data_only: f.u32()? & FUSE_FSYNC_FDATASYNC != 0 }
            }
            FUSE_FSYNCDIR => Request::Fsyncdir,
            FUSE_FLUSH => Request::Flush { handle: f.u64()?, owner: f.after_padding()? },
            FUSE_GETLK => Request::Getlk(f.lock()?),
            FUSE_SETLK => Request::Setlk { lock: f.lock()?, waits: false },
            FUSE_SETLKW => Request::Setlk { lock: f.lock()?, waits: true },
            FUSE_SYNCFS => Request::Syncfs,
            FUSE_SETXATTR => Request::Setxattr(SetXattrIn(body)),
            FUSE_GETXATTR => Request::Getxattr { size: f.size_and_padding()?, name: f.name()? },
            FUSE_LISTXATTR => Request::Listxattr { size: f.size_and_padding()? },
            FUSE_REMOVEXATTR => Request::Removexattr { name: f.name()? },
            FUSE_INIT => Request::Init(f.init()?),
            FUSE_ACCESS => Request::Access { mask: f.u32()? },
            FUSE_INTERRUPT => Request::Interrupt { unique: f.u64()? },
            FUSE_DESTROY => Request::Destroy,
            FUSE_IOCTL => Request::Ioctl(f.ioctl()?),
            FUSE_FALLOCATE => Request::Fallocate(f.fallocate()?),
            FUSE_COPY_FILE_RANGE => Request::CopyRange(f.copy_range(false)?),
            FUSE_COPY_FILE_RANGE_64 => Request::CopyRange(f.copy_range(true)?),
            FUSE_LSEEK => Request::Lseek { handle: f.u64()?, offset: f.u64()?, whence: f.u32()? },
            FUSE_STATX => Request::Statx,
            _ => Request::Other,
        })
    }
}

impl<'a> SetXattrIn<'a> {
    /// Reads it in the form of FUSE_SETXATTR_EXT, `size u32 | flags u32 | setxattr_flags u32 | padding u32 |
    /// name | value`, or in the older one, which ends with the first flags.
    pub(crate) fn decode(self, extended: bool) -> Result<SetXattr<'a>> {
        let mut f = Fields(self.0);
        let (size, flags) = (f.u32()?, f.u32()?);
        let more = if extended { f.size_and_padding()? } else { 0 };
        let kill_set_gid = more & FUSE_SETXATTR_ACL_KILL_SGID != 0;
        Ok(SetXattr { flags, kill_set_gid, name: f.name()?, value: f.bytes(size)? })
    }
}

/// The bytes not read so far.
struct Fields<'a>(&'a [u8]);

/// A restricted ioctl: what it brings and takes is said by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ioctl<'a> {
    pub(crate) command: u32,
    /// Room for what it takes.
    pub(crate) out_bytes: u32,
    pub(crate) brought: &'a [u8],
}

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (&array, rest) = self.0.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(array)
    }

    fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_ne_bytes)
    }

    fn ioctl(&mut self) -> Result<Ioctl<'a>> {
        let (_handle, _flags, command, _argument) =
            (self.u64()?, self.u32()?, self.u32()?, self.u64()?);
        let (in_bytes, out_bytes) = (self.u32()?, self.u32()?);
        Ok(Ioctl { command, out_bytes, brought: self.bytes(in_bytes)? })
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8]> {
        let len = usize::try_from(len).map_err(|_| DecodeError::Truncated)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Returns the bytes before the next NUL.
    fn name(&mut self) -> Result<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(DecodeError::Truncated)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }

    fn size_and_padding(&mut self) -> Result<u32> {
        let size = self.u32()?;
        self.u32()?;
        Ok(size)
    }

    /// fuse_init_in, which before 7.36 ends after the lower half of the flags.
    fn init(&mut self) -> Result<Init> {
        let (major, minor, max_readahead) = (self.u32()?, self.u32()?, self.u32()?);
        let lower = u64::from(self.u32()?);
        let upper = if lower & FUSE_INIT_EXT != 0 { u64::from(self.u32()?) } else { 0 };
        Ok(Init { major, minor, max_readahead, flags: lower | upper << 32 })
    }

    /// ```text
    /// valid u32 | padding u32 | fh u64 | size u64 | lock_owner u64 | atime u64 | mtime u64 | ctime u64
    /// atimensec u32 | mtimensec u32 | ctimensec u32 | mode u32 | unused u32 | uid u32 | gid u32 | unused u32
    /// ```
    fn setattr(&mut self) -> Result<SetAttrIn> {
        let valid = self.size_and_padding()?;
        let (_handle, size, _owner) = (self.u64()?, self.u64()?, self.u64()?);
        let (atime, mtime, _ctime) = (self.i64()?, self.i64()?, self.i64()?);
        let (atime_nanos, mtime_nanos, _ctime_nanos) = (self.u32()?, self.u32()?, self.u32()?);
        let (mode, _unused, uid, gid) = (self.u32()?, self.u32()?, self.u32()?, self.u32()?);
        let has = |flag| valid & flag != 0;
        let time = |at, now, secs, nanos| match () {
            () if !has(at) => Ok(None),
            () if has(now) => Ok(Some(Time::Now)),
            () if nanos >= NANOS_PER_SECOND => Err(DecodeError::BadTime),
            () => Ok(Some(Time::At(secs, nanos))),
        };
        Ok(SetAttrIn {
            mode: has(FATTR_MODE).then_some(mode),
            uid: has(FATTR_UID).then_some(uid),
            gid: has(FATTR_GID).then_some(gid),
            size: has(FATTR_SIZE).then_some(size),
            atime: time(FATTR_ATIME, FATTR_ATIME_NOW, atime, atime_nanos)?,
            mtime: time(FATTR_MTIME, FATTR_MTIME_NOW, mtime, mtime_nanos)?,
            kill_set_id: has(FATTR_KILL_SUIDGID),
            has_handle: has(FATTR_FH),
        })
    }

    fn mknod(&mut self) -> Result<Mknod<'a>> {
        let (mode, rdev, umask, _padding) = (self.u32()?, self.u32()?, self.u32()?, self.u32()?);
        Ok(Mknod { mode, rdev, umask, name: self.name()? })
    }

    fn create(&mut self) -> Result<Create<'a>> {
        let (flags, mode, umask, _open_flags) =
            (self.u32()?, self.u32()?, self.u32()?, self.u32()?);
        Ok(Create { flags, mode, umask, name: self.name()? })
    }

    fn rename(&mut self, with_flags: bool) -> Result<Rename<'a>> {
        let new_parent = self.u64()?;
        let flags = if with_flags { self.size_and_padding()? } else { 0 };
        Ok(Rename { new_parent, flags, name: self.name()?, new_name: self.name()? })
    }

    /// `fh u64 | offset u64 | size u32 | read_flags u32 | lock_owner u64 | flags u32 | padding u32`
    fn read(&mut self) -> Result<Read> {
        Ok(Read { handle: self.u64()?, offset: self.u64()?, size: self.u32()? })
    }

    /// `fh u64 | offset u64 | size u32 | write_flags u32 | lock_owner u64 | flags u32 | padding u32 | data`
    fn write(&mut self) -> Result<Write<'a>> {
        let (handle, offset) = (self.u64()?, self.u64()?);
        let (size, write_flags) = (self.u32()?, self.u32()?);
        let (_lock_owner, open_flags, _padding) = (self.u64()?, self.u32()?, self.u32()?);
        let kill_set_id = write_flags & FUSE_WRITE_KILL_SUIDGID != 0;
        let is_writeback = write_flags & FUSE_WRITE_CACHE != 0;
        let data = self.bytes(size)?;
        Ok(Write { handle, offset, is_writeback, open_flags, kill_set_id, data })
    }

    fn after_padding(&mut self) -> Result<u64> {
        self.u64()?;
        self.u64()
    }

    /// `fh u64 | owner u64 | start u64 | end u64 | type u32 | pid u32 | lk_flags u32 | padding u32`
    fn lock(&mut self) -> Result<Lock> {
        let (handle, owner) = (self.u64()?, self.u64()?);
        let (first, last) = (self.u64()?, self.u64()?);
        let (mode, pid) = (self.u32()?, self.u32()?);
        let is_flock = self.u32()? & FUSE_LK_FLOCK != 0;
        Ok(Lock { handle, owner, first, last, mode, pid, is_flock })
    }

    fn fallocate(&mut self) -> Result<Fallocate> {
        let (handle, offset, length) = (self.u64()?, self.u64()?, self.u64()?);
        Ok(Fallocate { handle, offset, length, mode: self.u32()? })
    }

    /// fuse_copy_file_range_in; of its flags none has a meaning.
    fn copy_range(&mut self, is_long: bool) -> Result<CopyRange> {
        let (handle, offset, to_node) = (self.u64()?, self.u64()?, self.u64()?);
        let (to_handle, to_offset, length) = (self.u64()?, self.u64()?, self.u64()?);
        let _flags = self.u64()?;
        Ok(CopyRange { handle, offset, to_node, to_handle, to_offset, length, is_long })
    }

    fn forgets(&mut self) -> Result<Forgets<'a>> {
        let count =
            usize::try_from(self.size_and_padding()?).map_err(|_| DecodeError::Truncated)?;
        let (all, _) = self.0.as_chunks();
        all.get(..count).map(Forgets).ok_or(DecodeError::Truncated)
    }
}
