//! Attributes: what a row says of them, and what setting them changes.

use varve_schema::{Content, FileKind, Inode};
use varve_types::Timestamp;
use varve_types::limits::FILE_BYTES_MAX;
use varve_vfs::{Attr, Caller, FileType, FsError, FsResult, Keep, SetAttr, SetIdTaken, SetTime};

use crate::flags::check_sets;
use crate::{Changes, Rows, acl, xattr};

/// Set-user-id.
pub const SET_UID: u16 = 0o4000;
/// Set-group-id: inherited by what is made in such a directory.
pub const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

/// The type as front ends see it.
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Fifo => FileType::Fifo,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Directory => FileType::Directory,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Regular => FileType::Regular,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Socket => FileType::Socket,
    }
}

/// Clears the set-id bits, of anything but a directory, as a write or chown by someone without the
/// right does. Says which there were.
pub fn kill_set_id(inode: &mut Inode) -> SetIdTaken {
    let lost = set_id_to_lose(inode);
    inode.perm &= !lost;
    match inode.kind {
        FileKind::Directory => SetIdTaken::None,
        _ if inode.perm & SET_GID != 0 => SetIdTaken::AllButGroup,
        _ if lost != 0 => SetIdTaken::All,
        _ => SetIdTaken::None,
    }
}

/// Which bits that clears.
pub fn set_id_to_lose(inode: &Inode) -> u16 {
    let of_group = if inode.perm & GROUP_EXECUTE == 0 { 0 } else { SET_GID };
    match inode.kind {
        FileKind::Directory => 0,
        _ => inode.perm & (SET_UID | of_group),
    }
}

/// The attributes of `inode` as its row has them. Of a large file that is being written the object knows better.
pub fn stored_attr(inode: &Inode) -> Attr {
    let times = &inode.times;
    let mut attr = Attr {
        ino: inode.ino,
        kind: file_type(inode.kind),
        perm: u32::from(inode.perm),
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        size: inode.size,
        blocks: inode.size.div_ceil(512),
        atime: times.atime,
        mtime: times.mtime,
        ctime: times.ctime,
        btime: times.btime,
        keep: Keep::Forever,
    };
    match &inode.content {
        Content::Directory(dir) => {
            attr.size = dir.entries;
            attr.blocks = 0;
        }
        Content::Symlink(_) => attr.blocks = 0,
        Content::Object { dirty: false, blocks } => attr.blocks = *blocks,
        Content::Shared(borrowed) => attr.blocks = borrowed.blocks.unwrap_or(attr.blocks),
        // A hole as well: what was written to it in memory is known late, and a program that takes a file for one hole by this
        // looks no further.
        Content::Object { dirty: true, .. }
        | Content::None
        | Content::Inline(_)
        | Content::Chunks => {}
    }
    attr
}

/// Refuses what may not be set on `inode`.
pub fn check_set(inode: &Inode, set: &SetAttr) -> FsResult<()> {
    if let Some(size) = set.size {
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Invalid("only a regular file can be cut or extended")),
        }
        if size > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
    }
    check_sets(inode, set)
}

/// Sets attributes of `inode`, all but its size. REQUIRES: the lock of the row that it is in, and [`check_set`].
pub fn set<R: Rows>(
    rows: &R,
    changes: &mut Changes,
    inode: &mut Inode,
    caller: Caller,
    set: &SetAttr,
    now: Timestamp,
) -> Result<(), R::Error> {
    if let Some(perm) = set.perm {
        inode.perm = (perm & 0o7777) as u16;
        acl::follow_mode(rows, changes, inode)?;
    }
    let chown_by_user = (set.uid.is_some() || set.gid.is_some()) && caller.uid != 0;
    if chown_by_user || set.kill_set_id {
        kill_set_id(inode);
        xattr::drop_capability(rows, changes, inode)?;
    }
    if set.kill_set_gid && inode.kind != FileKind::Directory {
        inode.perm &= !SET_GID;
    }
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    inode.times.atime = set.atime.map_or(inode.times.atime, time);
    inode.times.mtime = set.mtime.map_or(inode.times.mtime, time);
    if *set != SetAttr::default() {
        inode.times.ctime = now;
    }
    Ok(())
}
