//! Making files, directories, symbolic links and special files: one batch with the entry and the parent's inode row (and the new
//! directory's own row).

use varve_schema::{
    Body, Content, DirInfo, EntryRow, FileKind, Inode, InodeLocation, Pending, Times, UsageChange,
};
use varve_types::{InodeId, Timestamp};
use varve_vfs::{Caller, FsError};

use crate::attrs::SET_GID;
use crate::directory::{adjust_dir, dir_info_mut, directory, row_full};
use crate::flags::{check_adds_name, inherited};
use crate::{Changes, Locked, NameIn, Outcome, acl};

/// What a new inode is to be.
#[derive(Clone, Debug)]
pub struct NewInode {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, not yet reduced by the umask or a default access control list.
    pub perm: u32,
    /// Of a device, its number.
    pub rdev: u32,
    /// Its content.
    pub content: Content,
}

impl NewInode {
    /// A directory; its place is filled in when it gets its name.
    pub fn directory(perm: u32) -> NewInode {
        let content = Content::Directory(DirInfo::new(InodeId::ROOT, None));
        NewInode { kind: FileKind::Directory, perm, rdev: 0, content }
    }

    /// What RENAME_WHITEOUT leaves.
    pub fn whiteout() -> NewInode {
        NewInode { kind: FileKind::CharDevice, perm: 0, rdev: 0, content: Content::None }
    }

    /// An empty regular file.
    pub fn regular(perm: u32) -> NewInode {
        NewInode { kind: FileKind::Regular, perm, rdev: 0, content: Content::None }
    }
}

/// A new inode, and where it is.
#[derive(Debug)]
pub struct Created {
    /// The inode.
    pub inode: Inode,
    /// Where it is.
    pub place: InodeLocation,
}

/// Makes `new` under the name `at`. `Exists` if the name is taken.
pub fn create(
    host: &impl Locked,
    changes: &mut Changes,
    caller: Caller,
    at: NameIn<'_>,
    new: &NewInode,
    now: Timestamp,
) -> Outcome<Created> {
    let key = at.key();
    let mut dir = directory(host, at.dir)?;
    let mut row = host.entry_row(key)?;
    if row.find(at.bytes()).is_some() {
        return Err(FsError::Exists.into());
    }
    check_adds_name(&dir)?;
    host.check_none_written_elsewhere(&row)?;
    let mut inode = new_inode(host, changes, caller, &dir, new, now)?;
    let is_dir = inode.kind == FileKind::Directory;
    if is_dir {
        let info = dir_info_mut(&mut inode)?;
        (info.parent, info.suffix) = (at.dir, Some(at.suffix));
        changes.put_inode(&inode);
    }
    let slot = match row.is_empty() {
        true => {
            changes.put_row(key, EntryRow::encode_new(at.bytes(), &inode).into());
            0
        }
        false => {
            let body = match is_dir {
                true => Body::Reference { ino: inode.ino, kind: inode.kind },
                false => Body::Inline(inode.clone()),
            };
            let slot = row.insert(at.bytes(), body).ok_or_else(|| row_full(&row))?;
            changes.put_entry_row(key, &row);
            slot
        }
    };
    adjust_dir(&mut dir, 1, i32::from(is_dir), now)?;
    changes.put_dir(dir);
    changes.charge(at.dir, if is_dir { UsageChange::DIR } else { UsageChange::file(inode.size) });
    let place = if is_dir { InodeLocation::Own } else { InodeLocation::Entry { key, slot } };
    Ok(Created { inode, place })
}

/// Makes an empty regular file without a name, which takes what files in `parent` take from it.
pub fn create_unnamed(
    host: &impl Locked,
    changes: &mut Changes,
    caller: Caller,
    parent: InodeId,
    perm: u32,
    now: Timestamp,
) -> Outcome<Created> {
    let dir = host.inode(parent)?.ok_or_else(|| host.not_a_directory(parent))?;
    if dir.kind != FileKind::Directory {
        return Err(FsError::NotDirectory.into());
    }
    check_adds_name(&dir)?;
    let mut inode = new_inode(host, changes, caller, &dir, &NewInode::regular(perm), now)?;
    inode.nlink = 0;
    changes.put_inode(&inode);
    changes.put_pending(inode.ino, Pending::Orphan);
    Ok(Created { inode, place: InodeLocation::Own })
}

/// An inode for something new in `dir`, owned by the caller, or by the directory's group if that is
/// set-group-id. What it has besides the inode is added to `changes`.
pub(crate) fn new_inode(
    host: &impl Locked,
    changes: &mut Changes,
    caller: Caller,
    dir: &Inode,
    new: &NewInode,
    now: Timestamp,
) -> Outcome<Inode> {
    let is_dir = new.kind == FileKind::Directory;
    let mut perm = (new.perm & 0o7777) as u16;
    let mut gid = caller.gid;
    if dir.perm & SET_GID != 0 {
        gid = dir.gid;
        if is_dir {
            perm |= SET_GID;
        }
    }
    let size = match &new.content {
        Content::Symlink(target) => target.len() as u64,
        _ => 0,
    };
    let mut inode = Inode {
        ino: host.new_ino()?,
        kind: new.kind,
        perm,
        nlink: if is_dir { 2 } else { 1 },
        uid: caller.uid,
        gid,
        rdev: new.rdev,
        size,
        times: Times::all(now),
        has_xattrs: false,
        flags: inherited(dir, new.kind),
        home: None,
        content: new.content.clone(),
    };
    acl::give_mode(host, changes, caller, dir, &mut inode)?;
    Ok(inode)
}
