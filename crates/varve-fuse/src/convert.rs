//! Between the kernel's words and the file system's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, INodeNo, RenameFlags, TimeOrNow};
use varve_types::{FileName, InodeId, Timestamp};
use varve_vfs::{
    AllocateMode, Attr, Caller, FileType, FsError, FsResult, OpenFlags, RenameMode, SeekFrom,
    SetTime, XattrMode,
};

/// The unit of I/O that stat(2) reports, in bytes.
const BLOCK_BYTES: u32 = 4096;

pub(crate) fn inode(ino: INodeNo) -> InodeId {
    InodeId::new(ino.0)
}

pub(crate) fn name(name: &OsStr) -> FsResult<FileName<'_>> {
    Ok(FileName::new(name.as_bytes())?)
}

pub(crate) fn caller(request: &fuser::Request, umask: u32) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), umask: umask & 0o777 }
}

pub(crate) fn kind(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
    }
}

pub(crate) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.get()),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: kind(attr.kind),
        perm: (attr.perm & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// An answer to a lookup that says the name is absent and may be remembered so: inode number 0.
pub(crate) fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos()));
    let whole = Duration::from_secs(time.secs().unsigned_abs());
    let base =
        if time.secs() < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|base| base.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

pub(crate) fn set_time(time: TimeOrNow) -> FsResult<SetTime> {
    match time {
        TimeOrNow::Now => Ok(SetTime::Now),
        TimeOrNow::SpecificTime(time) => {
            timestamp(time).map(SetTime::To).ok_or(FsError::Invalid("time out of range"))
        }
    }
}

/// Undoes fuser's decoding of a time, which for times before 1970 takes the nanoseconds off the seconds
/// instead of adding them.
fn timestamp(time: SystemTime) -> Option<Timestamp> {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp::new(i64::try_from(after.as_secs()).ok()?, after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            Timestamp::new(0i64.checked_sub_unsigned(before.as_secs())?, before.subsec_nanos())
        }
    }
}

/// The flags of open(2).
pub(crate) fn open_flags(raw: i32) -> OpenFlags {
    let access = raw & libc::O_ACCMODE;
    OpenFlags {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY,
        append: raw & libc::O_APPEND != 0,
        truncate: raw & libc::O_TRUNC != 0,
        exclusive: raw & libc::O_EXCL != 0,
        sync: raw & libc::O_DSYNC != 0,
    }
}

pub(crate) fn rename_mode(flags: RenameFlags) -> FsResult<RenameMode> {
    if flags.is_empty() {
        Ok(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(RenameMode::Exchange)
    } else {
        Err(FsError::Invalid("rename flags"))
    }
}

pub(crate) fn xattr_mode(flags: i32) -> FsResult<XattrMode> {
    match flags {
        0 => Ok(XattrMode::Set),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(FsError::Invalid("setxattr flags")),
    }
}

pub(crate) fn allocate_mode(mode: i32) -> FsResult<AllocateMode> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    match mode {
        0 => Ok(AllocateMode::Extend),
        KEEP => Ok(AllocateMode::KeepSize),
        PUNCH => Ok(AllocateMode::PunchHole),
        ZERO => Ok(AllocateMode::ZeroRange),
        ZERO_KEEP => Ok(AllocateMode::ZeroKeepSize),
        _ => Err(FsError::NotSupported("this mode of fallocate")),
    }
}

pub(crate) fn seek_from(whence: i32) -> FsResult<SeekFrom> {
    match whence {
        libc::SEEK_DATA => Ok(SeekFrom::Data),
        libc::SEEK_HOLE => Ok(SeekFrom::Hole),
        _ => Err(FsError::Invalid("whence")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_the_transport() {
        let time = Timestamp::new(-2, 800_000_000).unwrap();
        // What fuser makes of (-2, 800000000), and what it needs to send it back.
        let decoded = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(timestamp(decoded), Some(time));
        assert_eq!(system_time(time), UNIX_EPOCH - Duration::from_millis(1200));
    }

    #[test]
    fn times_at_the_ends_of_the_range_do_not_panic() {
        for secs in [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX] {
            let time = Timestamp::new(secs, 999_999_999).unwrap();
            let _ = system_time(time);
        }
        let time = Timestamp::new(1 << 40, 5).unwrap();
        assert_eq!(timestamp(system_time(time)), Some(time));
    }

    #[test]
    fn open_flags_are_read() {
        let flags = open_flags(libc::O_WRONLY | libc::O_APPEND | libc::O_EXCL);
        assert_eq!(
            flags,
            OpenFlags { write: true, append: true, exclusive: true, ..OpenFlags::default() }
        );
        let flags = open_flags(libc::O_RDWR | libc::O_TRUNC | libc::O_SYNC);
        assert_eq!(
            flags,
            OpenFlags {
                read: true,
                write: true,
                truncate: true,
                sync: true,
                ..OpenFlags::default()
            }
        );
        assert_eq!(open_flags(libc::O_RDONLY), OpenFlags { read: true, ..OpenFlags::default() });
    }

    #[test]
    fn unknown_modes_are_refused() {
        assert!(matches!(rename_mode(RenameFlags::RENAME_WHITEOUT), Err(FsError::Invalid(_))));
        let collapse = libc::FALLOC_FL_COLLAPSE_RANGE;
        assert!(matches!(allocate_mode(collapse), Err(FsError::NotSupported(_))));
        assert!(matches!(xattr_mode(3), Err(FsError::Invalid(_))));
        assert!(matches!(seek_from(libc::SEEK_END), Err(FsError::Invalid(_))));
    }
}
