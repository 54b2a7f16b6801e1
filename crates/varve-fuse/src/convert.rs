//! Converts between the kernel's types and the file system's.

use varve_types::{FileName, Timestamp};
use varve_vfs::{
    AccessMode, AllocateMode, Caller, FsError, FsResult, OpenFlags, RenameMode, SeekFrom, SetTime,
    XattrMode,
};

use crate::protocol::request::{Header, Time};

pub(crate) fn name(name: &[u8]) -> FsResult<FileName<'_>> {
    Ok(FileName::new(name)?)
}

pub(crate) fn caller(header: &Header, umask: u32) -> Caller {
    Caller { uid: header.uid, gid: header.gid, umask: umask & 0o777 }
}

/// Converts a length in bytes that the kernel asks for.
pub(crate) fn length(size: u32) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Converts the rights that access(2) asks for.
pub(crate) fn access_mode(mask: u32) -> AccessMode {
    let has = |right| signed(mask) & right != 0;
    AccessMode { read: has(libc::R_OK), write: has(libc::W_OK), execute: has(libc::X_OK) }
}

/// The protocol's numbers are unsigned where the system's constants are not.
fn signed(number: u32) -> i32 {
    number.cast_signed()
}

pub(crate) fn set_time(time: Time) -> FsResult<SetTime> {
    match time {
        Time::Now => Ok(SetTime::Now),
        Time::At(secs, nanos) => Timestamp::new(secs, nanos)
            .map(SetTime::To)
            .ok_or(FsError::Invalid("nanoseconds of a second or more")),
    }
}

/// The kernel's own flag (`__FMODE_EXEC` of include/linux/fs.h) on the open of a file that it executes.
const OPENED_BY_EXEC: i32 = 1 << 5;

/// Converts the flags of open(2) and the kernel's own flags.
pub(crate) fn open_flags(raw: u32) -> OpenFlags {
    let raw = signed(raw);
    let access = raw & libc::O_ACCMODE;
    OpenFlags {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY,
        append: raw & libc::O_APPEND != 0,
        appends: false,
        truncate: raw & libc::O_TRUNC != 0,
        exclusive: raw & libc::O_EXCL != 0,
        sync: raw & libc::O_DSYNC != 0,
        execute: raw & OPENED_BY_EXEC != 0,
    }
}

pub(crate) fn rename_mode(header: &Header, flags: u32) -> FsResult<RenameMode> {
    const WHITEOUT_ALONE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
    // A whiteout has no permissions that a umask could take.
    let whiteout = |replaces| RenameMode::Whiteout { caller: caller(header, 0), replaces };
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        libc::RENAME_WHITEOUT => Ok(whiteout(true)),
        WHITEOUT_ALONE => Ok(whiteout(false)),
        _ => Err(FsError::Invalid("rename flags")),
    }
}

pub(crate) fn xattr_mode(flags: u32) -> FsResult<XattrMode> {
    match signed(flags) {
        0 => Ok(XattrMode::Set),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(FsError::Invalid("setxattr flags")),
    }
}

pub(crate) fn allocate_mode(mode: u32) -> FsResult<AllocateMode> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    match signed(mode) {
        0 => Ok(AllocateMode::Extend),
        KEEP => Ok(AllocateMode::KeepSize),
        PUNCH => Ok(AllocateMode::PunchHole),
        ZERO => Ok(AllocateMode::ZeroRange),
        ZERO_KEEP => Ok(AllocateMode::ZeroKeepSize),
        _ => Err(FsError::NotSupported("this mode of fallocate")),
    }
}

pub(crate) fn seek_from(whence: u32) -> FsResult<SeekFrom> {
    match signed(whence) {
        libc::SEEK_DATA => Ok(SeekFrom::Data),
        libc::SEEK_HOLE => Ok(SeekFrom::Hole),
        _ => Err(FsError::Invalid("whence")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_there_is_can_be_set() {
        for secs in [i64::MIN, -2, 0, i64::MAX] {
            let time = Timestamp::new(secs, 999_999_999).unwrap();
            assert_eq!(set_time(Time::At(secs, 999_999_999)).unwrap(), SetTime::To(time));
        }
        assert!(set_time(Time::At(0, 1_000_000_000)).is_err());
    }

    #[test]
    fn open_flags_are_read() {
        let flags = open_flags((libc::O_WRONLY | libc::O_APPEND | libc::O_EXCL).cast_unsigned());
        assert_eq!(
            flags,
            OpenFlags { write: true, append: true, exclusive: true, ..OpenFlags::default() }
        );
        let flags = open_flags((libc::O_RDWR | libc::O_TRUNC | libc::O_SYNC).cast_unsigned());
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
        assert!(open_flags((libc::O_RDONLY | OPENED_BY_EXEC).cast_unsigned()).execute);
        assert_eq!(
            open_flags(libc::O_RDONLY.cast_unsigned()),
            OpenFlags { read: true, ..OpenFlags::default() }
        );
    }

    #[test]
    fn unknown_modes_are_refused() {
        let header = Header { opcode: 0, unique: 0, node: 1, uid: 1, gid: 2, pid: 3 };
        let both = libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE;
        assert!(matches!(rename_mode(&header, both), Err(FsError::Invalid(_))));
        assert!(matches!(rename_mode(&header, 8), Err(FsError::Invalid(_))));
        let collapse = libc::FALLOC_FL_COLLAPSE_RANGE.cast_unsigned();
        assert!(matches!(allocate_mode(collapse), Err(FsError::NotSupported(_))));
        assert!(matches!(xattr_mode(3), Err(FsError::Invalid(_))));
        assert!(matches!(seek_from(libc::SEEK_END.cast_unsigned()), Err(FsError::Invalid(_))));
    }
}
