//! File flags: what is immutable or append-only, and what that forbids.
//!
//! They bind everybody, root too, so they are checked here and not by front ends: where a name or an inode is about to change, with
//! its row locked. Those who had a file open before it became append-only may go on as they did, as on other file systems. What is
//! open to be written to past this program cannot be stopped, so such a file does not become immutable, and who opens one that
//! is append-only to read and write it, and so might map it, never does it past this program.
//!
//! What the file system does of its own accord goes on: times of last access, the rows of large files that were closed, commits.

use varve_schema::{FileKind, Inode};
use varve_types::FileFlags;
use varve_vfs::{AllocateMode, FsError, FsResult, OpenFlags, SetAttr, SetTime};

/// What new files and directories take from the directory they are made in.
const INHERITED: FileFlags = FileFlags::NO_DUMP;

/// `NotPermitted` if that is so.
fn refuse(forbidden: bool) -> FsResult<()> {
    if forbidden { Err(FsError::NotPermitted) } else { Ok(()) }
}

/// Whether a name may be added to `dir`.
pub fn check_adds_name(dir: &Inode) -> FsResult<()> {
    refuse(dir.flags.immutable())
}

/// Whether the name of `inode` may go from `dir`, or stand for something else.
pub fn check_takes_name(dir: &Inode, inode: &Inode) -> FsResult<()> {
    refuse(dir.flags.fixed() || inode.flags.fixed())
}

/// Whether `inode` may get one more name.
pub fn check_links(inode: &Inode) -> FsResult<()> {
    refuse(inode.flags.fixed())
}

/// Whether extended attributes of `inode` may change.
pub fn check_xattrs(inode: &Inode) -> FsResult<()> {
    refuse(inode.flags.fixed())
}

/// Whether `inode` may be opened like that.
pub fn check_opens(inode: &Inode, flags: OpenFlags) -> FsResult<()> {
    let OpenFlags { write, append, appends, truncate, .. } = flags;
    let elsewhere = truncate || write && !(append || appends);
    refuse(inode.flags.immutable() && (write || truncate))?;
    refuse(inode.flags.append_only() && elsewhere)
}

/// Whether attributes of `inode` may change like that.
pub fn check_sets(inode: &Inode, set: &SetAttr) -> FsResult<()> {
    let SetAttr { perm, uid, gid, size, atime, mtime, .. } = *set;
    let is_time = |set: Option<SetTime>| matches!(set, Some(SetTime::To(_)));
    let owned = perm.is_some() || uid.is_some() || gid.is_some();
    refuse(inode.flags.immutable() && *set != SetAttr::default())?;
    let fixed = owned || size.is_some() || is_time(atime) || is_time(mtime);
    refuse(inode.flags.append_only() && fixed)
}

/// Whether a range of `inode` may be reserved, freed or zeroed.
pub fn check_allocates(inode: &Inode, mode: AllocateMode) -> FsResult<()> {
    let adds = matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize);
    refuse(inode.flags.immutable() || inode.flags.append_only() && !adds)
}

/// Whether bytes of `inode` may change.
pub fn check_changes(inode: &Inode) -> FsResult<()> {
    refuse(inode.flags.immutable())
}

/// The flags of something new of `kind` in `dir`.
pub fn inherited(dir: &Inode, kind: FileKind) -> FileFlags {
    if kind.has_flags() { dir.flags.and(INHERITED) } else { FileFlags::default() }
}
