//! Directories: how one is found, how its counts change, and what the names in it stand for.

use varve_schema::{Content, DirInfo, EntryRow, Inode, Named, RowKey, UsageChange};
use varve_types::{InodeId, Timestamp};
use varve_vfs::{FsError, FsResult};

use crate::{Locked, Need, Outcome, Rows, Stop};

/// Directories above one another before they are taken for a loop.
pub const DEPTH_MAX: usize = 1 << 20;

/// The directory `dir`, to be changed, with all its names. `NotFound` if it was removed, `NotDirectory` if it is something else.
pub fn directory(host: &impl Locked, dir: InodeId) -> Outcome<Inode> {
    match host.inode(dir)? {
        Some(inode) => match &inode.content {
            Content::Directory(info) if info.source.is_some() => Err(Stop::Needs(Need::Names(dir))),
            Content::Directory(_) => Ok(inode),
            _ => Err(FsError::NotDirectory.into()),
        },
        None => Err(host.not_a_directory(dir).into()),
    }
}

/// The directory part of a directory's inode.
pub fn dir_info_mut(dir: &mut Inode) -> FsResult<&mut DirInfo> {
    match &mut dir.content {
        Content::Directory(info) => Ok(info),
        _ => Err(FsError::NotDirectory),
    }
}

/// Changes the counts of a directory and its times.
pub fn adjust_dir(dir: &mut Inode, entries: i64, subdirs: i32, now: Timestamp) -> FsResult<()> {
    let info = dir_info_mut(dir)?;
    let counts =
        info.entries.checked_add_signed(entries).zip(info.subdirs.checked_add_signed(subdirs));
    let Some((entries, subdirs)) = counts else {
        let text = format!("directory {} has a wrong count of entries; run `varve fsck`", dir.ino);
        return Err(FsError::Storage(text));
    };
    (info.entries, info.subdirs) = (entries, subdirs);
    dir.nlink = subdirs.saturating_add(2);
    dir.times.mtime = now;
    dir.times.ctime = now;
    Ok(())
}

/// Adds `change` to the usage of `dir`. Its parent does not count it yet: says whether there is anything that the parent does not
/// count. The root has no parent.
pub fn apply_charge(dir: &mut Inode, change: UsageChange) -> FsResult<bool> {
    let is_root = dir.ino == InodeId::ROOT;
    let ino = dir.ino;
    let info = dir_info_mut(dir)?;
    debug_assert!(info.usage.covers(change), "{change:?} of directory {ino}: {:?}", info.usage);
    info.usage = info.usage.plus(change);
    if !is_root {
        info.pending = info.pending.plus(change);
    }
    debug_assert!(
        info.usage.covers(info.pending.negated()),
        "the parent of directory {ino} counts less than nothing: {info:?}"
    );
    Ok(!info.pending.is_zero())
}

/// Whether two states of a directory differ at most by what it counts and by times: such changes commute.
pub fn differ_by_counts(one: &Inode, other: &Inode) -> bool {
    let rest = |inode: &Inode| match &inode.content {
        Content::Directory(info) => {
            let Inode { perm, uid, gid, has_xattrs, flags, .. } = *inode;
            Some((perm, uid, gid, has_xattrs, flags, info.parent, info.suffix))
        }
        _ => None,
    };
    rest(one).is_some_and(|one| Some(one) == rest(other))
}

/// Whether `dir` is `below` or holds it. REQUIRES: no directory gets another parent meanwhile.
pub(crate) fn is_above<R: Rows>(rows: &R, dir: InodeId, below: InodeId) -> Result<bool, R::Error> {
    let mut at = below;
    for _ in 0..DEPTH_MAX {
        if at == dir || at == InodeId::ROOT {
            return Ok(at == dir);
        }
        let inode = rows.peek_inode(at)?.ok_or(FsError::NotFound)?;
        let Content::Directory(info) = inode.content else {
            return Err(FsError::NotDirectory.into());
        };
        at = info.parent;
    }
    let text = format!("the parents of directory {below} form a loop; run `varve fsck --repair`");
    Err(FsError::Damaged(text).into())
}

/// A name whose inode has no row.
pub fn dangling<Name: AsRef<[u8]>>(key: RowKey, named: &Named<Name>) -> FsError {
    FsError::Storage(format!(
        "the entry {} of directory {} stands for inode {}, which has no row; run `varve fsck`",
        named.name.as_ref().escape_ascii(),
        key.prefix(),
        named.body.ino()
    ))
}

/// The failure of adding a name to a row in which every slot is taken.
pub fn row_full(row: &EntryRow) -> FsError {
    FsError::NoSpace(format!("{} names of one directory share a hash", row.names().len()))
}
