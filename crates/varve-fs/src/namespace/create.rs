//! Making files, directories, symbolic links and special files: one batch with the entry and its
//! parent's inode row (and the new directory's own).

use std::sync::Arc;

use varve_schema::{
    Body, Content, DirInfo, EntryRow, FileKind, Inode, Place, RowKey, Times, UsageChange,
};
use varve_types::{FileName, InodeId, Timestamp};
use varve_vfs::{Caller, Entry, FsError, FsResult, OpenFlags, Opened};

use super::lookup::row_full;
use crate::attrs::SET_GID;
use crate::flags::{check_adds_name, inherited};
use crate::fs::VarveFs;
use crate::node::OpenNode;
use crate::rows::Changes;

/// What a new inode is to be.
pub(crate) struct NewInode {
    pub(crate) kind: FileKind,
    /// Permission bits, not yet reduced by the umask or a default access control list.
    pub(crate) perm: u32,
    pub(crate) rdev: u32,
    pub(crate) content: Content,
}

/// The directory part of a directory's inode.
pub(crate) fn dir_info_mut(dir: &mut Inode) -> FsResult<&mut DirInfo> {
    match &mut dir.content {
        Content::Directory(info) => Ok(info),
        _ => Err(FsError::NotDirectory),
    }
}

/// Changes the counts of a directory and its times.
pub(crate) fn adjust_dir(
    dir: &mut Inode,
    entries: i64,
    subdirs: i32,
    now: Timestamp,
) -> FsResult<()> {
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

impl VarveFs {
    /// Makes `new` under `name`; the entry counts as a lookup.
    pub(crate) fn make(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        new: NewInode,
    ) -> FsResult<Entry> {
        let note = |ino, place| self.locator.note_new(ino, place);
        self.make_under_locks(caller, parent, name, new, note).map(|(entry, ())| entry)
    }

    /// Makes an empty regular file under `name` and opens it; the entry counts as a lookup.
    pub(crate) fn make_and_open(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        let new = NewInode::regular(perm);
        self.make_under_locks(caller, parent, name, new, |ino, place| {
            let node = self.locator.note_new_and_open(ino, place);
            if flags.write {
                node.state().began_in = Some(parent);
            }
            self.add_handle(&node, flags, false)
        })
    }

    /// Makes an empty regular file under `name` and counts a handle of it, which is a writer; the entry counts as a lookup.
    pub(crate) fn make_and_count(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
    ) -> FsResult<(Entry, Arc<OpenNode>)> {
        let new = NewInode::regular(perm);
        self.make_under_locks(caller, parent, name, new, |ino, place| {
            let node = self.locator.note_new_and_open(ino, place);
            let mut state = node.state();
            state.began_in = Some(parent);
            state.writers += 1;
            drop(state);
            node
        })
    }

    /// Makes `new` and calls `then`, which counts the lookup, before the locks are dropped.
    fn make_under_locks<T>(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        new: NewInode,
        then: impl FnOnce(InodeId, Place) -> T,
    ) -> FsResult<(Entry, T)> {
        self.writable()?;
        self.check_name(parent, name)?;
        let suffix = self.hasher.entry(name.as_bytes());
        let key = RowKey::entry(parent, suffix);
        let (guards, mut dir) = self.lock_unfolded(parent, &[RowKey::inode(parent), key])?;
        let mut row = self.locked_entry_row(&guards, key)?;
        if row.find(name.as_bytes()).is_some() {
            return Err(FsError::Exists);
        }
        check_adds_name(&dir)?;
        self.check_none_written_elsewhere(&row)?;
        let now = self.now();
        let mut changes = self.changes();
        let mut inode = self.new_inode(&mut changes, caller, &dir, new, now)?;
        let is_dir = inode.kind == FileKind::Directory;
        if is_dir {
            let info = dir_info_mut(&mut inode)?;
            (info.parent, info.suffix) = (parent, Some(suffix));
            changes.put_inode(&inode);
        }
        let slot = match row.is_empty() {
            true => {
                changes.put_row(key, EntryRow::encode_new(name.as_bytes(), &inode).into());
                0
            }
            false => {
                let body = match is_dir {
                    true => Body::Reference { ino: inode.ino, kind: inode.kind },
                    false => Body::Inline(inode.clone()),
                };
                let slot = row.insert(name.as_bytes(), body).ok_or_else(|| row_full(&row))?;
                changes.put_entry_row(key, &row);
                slot
            }
        };
        adjust_dir(&mut dir, 1, i32::from(is_dir), now)?;
        changes.put_dir(dir);
        changes
            .charge(parent, if is_dir { UsageChange::DIR } else { UsageChange::file(inode.size) });
        self.commit(&mut changes)?;
        let place = if is_dir { Place::Own } else { Place::Entry { key, slot } };
        let then = then(inode.ino, place);
        Ok((Entry { attr: self.attr(&inode)? }, then))
    }

    /// An inode for something new in `dir`, owned by the caller, or by the directory's group if that is
    /// set-group-id. What it has besides the inode is added to `changes`.
    pub(crate) fn new_inode(
        &self,
        changes: &mut Changes,
        caller: Caller,
        dir: &Inode,
        new: NewInode,
        now: Timestamp,
    ) -> FsResult<Inode> {
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
            ino: self.ids.allocate()?,
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
            content: new.content,
        };
        self.give_mode(changes, caller, dir, &mut inode)?;
        Ok(inode)
    }
}

impl NewInode {
    /// A directory; its place is filled in when it gets its name.
    pub(crate) fn directory(perm: u32) -> NewInode {
        let content = Content::Directory(DirInfo::new(InodeId::ROOT, None));
        NewInode { kind: FileKind::Directory, perm, rdev: 0, content }
    }

    /// What RENAME_WHITEOUT leaves.
    pub(crate) fn whiteout() -> NewInode {
        NewInode { kind: FileKind::CharDevice, perm: 0, rdev: 0, content: Content::None }
    }

    /// An empty regular file.
    pub(crate) fn regular(perm: u32) -> NewInode {
        NewInode { kind: FileKind::Regular, perm, rdev: 0, content: Content::None }
    }
}
