//! Bytes and attributes of files.

use bytes::Bytes;
use varve_types::{InodeId, Timestamp, limits};
use varve_vfs::{
    AccessMode, AllocateMode, Attr, Caller, FileType, FsError, FsResult, Handle, OpenFlags, Opened,
    SeekFrom, SetAttr, SetIdTaken, SetTime, Written, XattrMode,
};

use super::{OpenFile, State};

/// How old an atime must be to be renewed without a change of the file (relatime), in seconds.
const RELATIME_SECS: i64 = 24 * 60 * 60;

impl State {
    /// Changes attributes, all or none.
    pub(super) fn setattr(&mut self, caller: Caller, ino: InodeId, set: SetAttr) -> FsResult<Attr> {
        let now = self.now();
        let node = self.node_mut(ino)?;
        if set == SetAttr::default() {
            return Ok(node.visible());
        }
        if let Some(size) = set.size {
            check_size(size)?;
            node.data()?;
        }
        let to = |set: Option<SetTime>| matches!(set, Some(SetTime::To(_)));
        let owned = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
        node.check_flags(!(owned || set.size.is_some() || to(set.atime) || to(set.mtime)))?;
        if let Some(size) = set.size {
            node.data_mut()?.cut(size);
            node.attr.size = size;
            node.attr.mtime = now;
        }
        if set.kill_set_gid && !node.is_dir() {
            node.attr.perm &= !0o2000;
        }
        let attr = &mut node.attr;
        attr.perm = set.perm.map_or(attr.perm, |perm| perm & 0o7777);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, |time| resolve(time, now));
        attr.mtime = set.mtime.map_or(attr.mtime, |time| resolve(time, now));
        attr.ctime = now;
        let chown_by_user = caller.uid != 0 && (set.uid.is_some() || set.gid.is_some());
        if set.kill_set_id || chown_by_user {
            node.kill_set_id();
        }
        Ok(node.visible())
    }

    /// Opens a regular file.
    pub(super) fn open(&mut self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened> {
        let now = self.now();
        // For who writes the kernel has asked.
        let is_executed = flags.truncate
            && !flags.write
            && self.handles.values().any(|open| open.ino == ino && open.flags.execute);
        let node = self.node_mut(ino)?;
        node.data()?;
        if flags.write || flags.truncate {
            node.check_flags(!flags.truncate && (flags.append || flags.appends))?;
        }
        if is_executed {
            return Err(FsError::TextBusy);
        }
        if flags.truncate {
            node.data_mut()?.cut(0);
            node.attr.size = 0;
            node.touch(now);
        }
        node.opens += 1;
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.handles.insert(handle, OpenFile { ino, flags });
        Ok(Opened { handle, passthrough: false, reread: false })
    }

    /// Returns the flags of an open handle of `ino`.
    pub(super) fn flags(&self, ino: InodeId, handle: Handle) -> FsResult<OpenFlags> {
        match self.handles.get(&handle) {
            Some(open) if open.ino == ino => Ok(open.flags),
            _ => Err(FsError::BadHandle),
        }
    }

    /// Ends a handle.
    pub(super) fn release(&mut self, ino: InodeId, handle: Handle) -> FsResult<()> {
        self.flags(ino, handle)?;
        self.handles.remove(&handle);
        self.node_mut(ino)?.opens -= 1;
        self.reap(ino);
        Ok(())
    }

    /// Reads, up to the end.
    pub(super) fn read(
        &mut self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        len: usize,
    ) -> FsResult<Bytes> {
        if !self.flags(ino, handle)?.read {
            return Err(FsError::BadHandle);
        }
        self.accessed(ino)?;
        let node = self.node(ino)?;
        let len = (len as u64).min(node.attr.size.saturating_sub(offset));
        Ok(node.data()?.read(offset, len).into())
    }

    /// Writes, extending the file.
    pub(super) fn write(
        &mut self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written> {
        let flags = self.flags(ino, handle)?;
        if !flags.write {
            return Err(FsError::BadHandle);
        }
        if data.is_empty() {
            return Ok(Written { offset, bytes: 0, set_id: SetIdTaken::None });
        }
        let now = self.now();
        let node = self.node_mut(ino)?;
        let offset = if flags.append { node.attr.size } else { offset };
        node.check_flags(!flags.appends || offset >= node.attr.size)?;
        let end = offset.checked_add(data.len() as u64).ok_or(FsError::FileTooLarge)?;
        check_size(end)?;
        node.data_mut()?.write(offset, data);
        node.attr.size = node.attr.size.max(end);
        node.touch(now);
        if kill_set_id {
            node.kill_set_id();
        }
        Ok(Written { offset, bytes: data.len(), set_id: SetIdTaken::All })
    }

    /// Reserves, frees or zeroes a range.
    pub(super) fn fallocate(
        &mut self,
        ino: InodeId,
        handle: Handle,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> FsResult<()> {
        if !self.flags(ino, handle)?.write {
            return Err(FsError::BadHandle);
        }
        if len == 0 {
            return Err(FsError::Invalid("a range cannot be empty"));
        }
        let end = offset.checked_add(len).ok_or(FsError::FileTooLarge)?;
        check_size(end)?;
        let now = self.now();
        let node = self.node_mut(ino)?;
        let size = node.attr.size;
        node.check_flags(matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize))?;
        if !matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize) {
            node.data_mut()?.zero(offset.min(size), end.min(size).saturating_sub(offset.min(size)));
        }
        if matches!(mode, AllocateMode::Extend | AllocateMode::ZeroRange) {
            node.attr.size = size.max(end);
        }
        node.touch(now);
        Ok(())
    }

    /// Returns the next data or hole.
    pub(super) fn lseek(&self, ino: InodeId, offset: u64, what: SeekFrom) -> FsResult<u64> {
        let node = self.node(ino)?;
        if offset >= node.attr.size {
            return Err(FsError::NoSuchOffset);
        }
        let found = node.data()?.seek(offset, what == SeekFrom::Data);
        match what {
            SeekFrom::Data => found.filter(|at| *at < node.attr.size).ok_or(FsError::NoSuchOffset),
            SeekFrom::Hole => Ok(found.map_or(node.attr.size, |at| at.min(node.attr.size))),
        }
    }

    /// Somebody read: renews the atime as relatime does.
    pub(super) fn accessed(&mut self, ino: InodeId) -> FsResult<()> {
        let now = self.now();
        let attr = &mut self.node_mut(ino)?.attr;
        let old = now.secs().saturating_sub(attr.atime.secs()) >= RELATIME_SECS;
        if attr.atime <= attr.mtime || attr.atime <= attr.ctime || old {
            attr.atime = now;
        }
        Ok(())
    }

    /// Checks the mode bits; the superuser needs one execute bit to execute, and nothing else.
    pub(super) fn access(
        &self,
        caller: Caller,
        groups: &[u32],
        ino: InodeId,
        mode: AccessMode,
    ) -> FsResult<()> {
        let node = self.node(ino)?;
        if mode.write {
            node.check_flags(true)?;
        }
        let attr = node.attr;
        let wanted = u32::from(mode.read) * 4 + u32::from(mode.write) * 2 + u32::from(mode.execute);
        let granted = if caller.uid == 0 {
            let executable = attr.kind == FileType::Directory || attr.perm & 0o111 != 0;
            6 | u32::from(executable)
        } else if caller.uid == attr.uid {
            attr.perm >> 6 & 7
        } else if caller.gid == attr.gid || groups.contains(&attr.gid) {
            attr.perm >> 3 & 7
        } else {
            attr.perm & 7
        };
        if wanted & !granted == 0 { Ok(()) } else { Err(FsError::AccessDenied) }
    }

    /// Sets an extended attribute.
    pub(super) fn setxattr(
        &mut self,
        ino: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> FsResult<()> {
        check_xattr_name(name)?;
        if value.len() > limits::XATTR_VALUE_BYTES_MAX {
            return Err(FsError::XattrTooLarge);
        }
        let now = self.now();
        let node = self.node_mut(ino)?;
        let may_have_own = matches!(node.attr.kind, FileType::Regular | FileType::Directory);
        if name.starts_with(b"user.") && !may_have_own {
            return Err(FsError::NotPermitted);
        }
        node.check_flags(false)?;
        let held: usize = node.xattrs.keys().map(|held| held.len() + 1).sum();
        match (node.xattrs.contains_key(name), mode) {
            (true, XattrMode::Create) => return Err(FsError::XattrExists),
            (false, XattrMode::Replace) => return Err(FsError::NoXattr),
            (false, _) if held + name.len() + 1 > limits::XATTR_LIST_BYTES_MAX => {
                return Err(FsError::NoSpace("the names of the extended attributes".to_owned()));
            }
            _ => {}
        }
        node.xattrs.insert(name.to_vec(), Bytes::copy_from_slice(value));
        node.attr.ctime = now;
        if mode == XattrMode::SetKillSetGid {
            node.attr.perm &= !0o2000;
        }
        Ok(())
    }

    /// Removes an extended attribute.
    pub(super) fn removexattr(&mut self, ino: InodeId, name: &[u8]) -> FsResult<()> {
        check_xattr_name(name)?;
        let now = self.now();
        let node = self.node_mut(ino)?;
        node.check_flags(false)?;
        node.xattrs.remove(name).ok_or(FsError::NoXattr)?;
        node.attr.ctime = now;
        Ok(())
    }
}

fn resolve(time: SetTime, now: Timestamp) -> Timestamp {
    match time {
        SetTime::Now => now,
        SetTime::To(time) => time,
    }
}

fn check_size(size: u64) -> FsResult<()> {
    if size > limits::FILE_BYTES_MAX { Err(FsError::FileTooLarge) } else { Ok(()) }
}

/// Refuses names beyond the limit and outside the namespaces that are stored as given.
pub(super) fn check_xattr_name(name: &[u8]) -> FsResult<()> {
    const STORED: [&[u8]; 5] = [
        b"user.",
        b"trusted.",
        b"security.",
        b"system.posix_acl_access",
        b"system.posix_acl_default",
    ];
    if name.len() > limits::XATTR_NAME_BYTES_MAX {
        return Err(FsError::XattrNameTooLong);
    }
    if STORED.iter().any(|prefix| name.starts_with(prefix)) {
        Ok(())
    } else {
        Err(FsError::NotSupported("extended attributes of this namespace"))
    }
}
