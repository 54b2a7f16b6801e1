//! Attributes: getattr, setattr, access, and the times that reads and writes leave.

use varve_schema::acl::AclCaller;
use varve_schema::{Content, FileKind, Inode};
use varve_types::limits::FILE_BYTES_MAX;
use varve_types::{InodeId, Timestamp};
use varve_vfs::{
    AccessMode, Attr, Caller, FileType, FsError, FsResult, SetAttr, SetIdTaken, SetTime,
};

use crate::flags::check_sets;
use crate::fs::VarveFs;
use crate::held::Held;
use crate::options::Atime;

/// After this long a read refreshes the time of last access in any case, as the kernel's relatime does.
const RELATIME_SECS: i64 = 24 * 60 * 60;
pub(crate) const SET_UID: u16 = 0o4000;
/// Set-group-id: inherited by what is made in such a directory.
pub(crate) const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
/// The right of everybody to search a directory: the bits of its owner and of its group hold for these, and not those of others.
pub(crate) const ALL_EXECUTE: u16 = 0o111;

/// The type as front ends see it.
pub(crate) fn file_type(kind: FileKind) -> FileType {
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
pub(crate) fn kill_set_id(inode: &mut Inode) -> SetIdTaken {
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
pub(crate) fn set_id_to_lose(inode: &Inode) -> u16 {
    let of_group = if inode.perm & GROUP_EXECUTE == 0 { 0 } else { SET_GID };
    match inode.kind {
        FileKind::Directory => 0,
        _ => inode.perm & (SET_UID | of_group),
    }
}

impl VarveFs {
    /// The attributes of `inode`; of a large file that is being written, as its object has them now.
    pub(crate) fn attr(&self, inode: &Inode) -> FsResult<Attr> {
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
            is_fleeting: false,
        };
        match &inode.content {
            Content::Directory(dir) => {
                attr.size = dir.entries;
                attr.blocks = 0;
            }
            Content::Symlink(_) => attr.blocks = 0,
            Content::Object { dirty: false, blocks } => attr.blocks = *blocks,
            Content::Object { dirty: true, .. } => {
                // Before the object is looked at: whoever writes to it elsewhere may close it meanwhile.
                attr.is_fleeting =
                    self.is_written_elsewhere(inode)? || self.may_change_in_memory(inode.ino);
                let stat = self.object_stat(inode.ino)?;
                attr.size = stat.len;
                attr.blocks = stat.allocated.div_ceil(512);
                if !self.is_stamp(inode, stat.modified) {
                    attr.mtime = stat.modified;
                    attr.ctime = attr.ctime.max(stat.modified);
                }
            }
            Content::Borrowed(borrowed) => attr.blocks = borrowed.blocks.unwrap_or(attr.blocks),
            // A hole as well: what was written to it in memory is told of late, and who takes a file for one hole by this
            // looks no further.
            Content::None | Content::Inline(_) | Content::Chunks => {}
        }
        Ok(attr)
    }

    /// Whether programs may have mapped memory of a large file that they change it in straight.
    fn may_change_in_memory(&self, ino: InodeId) -> bool {
        self.locator.node(ino).is_some_and(|node| node.state().straight_mappers > 0)
    }

    pub(crate) fn do_setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> FsResult<Attr> {
        self.writable()?;
        let sizes = set.size.is_some();
        let mut held = if sizes { self.hold_counted(ino)? } else { self.hold(ino)? };
        if let Some(size) = set.size {
            match held.inode.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid("only a regular file can be cut or extended")),
            }
            if size > FILE_BYTES_MAX {
                return Err(FsError::FileTooLarge);
            }
        }
        check_sets(&held.inode, &set)?;
        if sizes {
            self.revive(&mut held)?;
        }
        let was_dirty = held.inode.content.is_dirty();
        let done = self.set_held(&mut held, caller, set);
        if done.is_err() && sizes && !was_dirty && held.inode.content.is_object() {
            // It may be now, for a change that does not come.
            drop(held);
            self.settle_unwritten(ino);
        }
        done
    }

    fn set_held(&self, held: &mut Held<'_>, caller: Caller, set: SetAttr) -> FsResult<Attr> {
        let ino = held.inode.ino;
        let mut changes = self.changes();
        let now = self.now();
        if let Some(size) = set.size {
            self.resize(&mut changes, held, size, now)?;
        }
        let inode = &mut held.inode;
        if let Some(perm) = set.perm {
            inode.perm = (perm & 0o7777) as u16;
            self.follow_mode(&mut changes, inode)?;
        }
        let chown_by_user = (set.uid.is_some() || set.gid.is_some()) && caller.uid != 0;
        if chown_by_user || set.kill_set_id {
            kill_set_id(inode);
            self.drop_capability(&mut changes, inode)?;
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
        if let Some(atime) = set.atime {
            inode.times.atime = time(atime);
        }
        if let Some(mtime) = set.mtime {
            inode.times.mtime = time(mtime);
        }
        if set != SetAttr::default() {
            inode.times.ctime = now;
        }
        let truncated = set.size.is_some();
        if truncated && held.inode.content.is_object() {
            changes.batch.depends_on_external();
        }
        // Opened before anything changes, as that may fail.
        let timed = set.mtime.is_some() && held.inode.content.is_object();
        let object = if timed { Some(self.any_object(ino)?) } else { None };
        self.stage(&mut changes, held)?;
        if set != SetAttr::default() {
            self.commit(&mut changes)?;
        }
        if let Some(object) = object {
            // Not before: the time of the last write, which it hides, is also that of the last change until the row has another.
            let mtime = held.inode.times.mtime;
            match held.inode.content.is_dirty() {
                true => self.stamp_object(ino, object.as_ref(), mtime)?,
                false => self.set_object_time(ino, object.as_ref(), mtime)?,
            }
        }
        self.attr(&held.inode)
    }

    pub(crate) fn do_access(
        &self,
        caller: Caller,
        groups: &[u32],
        ino: InodeId,
        mode: AccessMode,
    ) -> FsResult<()> {
        let inode = self.read_inode(ino)?;
        let wanted =
            (u16::from(mode.read) << 2) | (u16::from(mode.write) << 1) | u16::from(mode.execute);
        if mode.write && self.options.read_only && file_kind_is_stored(inode.kind) {
            return Err(FsError::ReadOnly);
        }
        if mode.write && inode.flags.immutable() {
            return Err(FsError::NotPermitted);
        }
        if caller.uid == 0 {
            let executable = inode.kind == FileKind::Directory || inode.perm & 0o111 != 0;
            return if mode.execute && !executable { Err(FsError::AccessDenied) } else { Ok(()) };
        }
        let caller = AclCaller { uid: caller.uid, gid: caller.gid, groups };
        if self.permits(caller, &inode, wanted)? { Ok(()) } else { Err(FsError::AccessDenied) }
    }

    /// When a read of an inode with these times happens, if the mount keeps that.
    pub(crate) fn atime_due(
        &self,
        atime: Timestamp,
        mtime: Timestamp,
        ctime: Timestamp,
    ) -> Option<Timestamp> {
        if self.options.read_only || self.options.atime == Atime::Noatime {
            return None;
        }
        let now = self.now();
        let is_old = atime <= mtime
            || atime <= ctime
            || now.secs().saturating_sub(atime.secs()) >= RELATIME_SECS;
        (is_old || self.options.atime == Atime::Strict).then_some(now)
    }

    /// Notes that `inode`, as it was just read, was accessed, if the mount keeps such times. A failure
    /// does not fail the read.
    pub(crate) fn touch_atime(&self, inode: &Inode) {
        let times = &inode.times;
        let Some(now) = self.atime_due(times.atime, times.mtime, times.ctime) else { return };
        let touched = self.hold(inode.ino).and_then(|mut held| {
            if held.inode.times.atime >= now {
                return Ok(());
            }
            held.inode.times.atime = now;
            self.write_back(&mut held)
        });
        if let Err(error) = touched {
            log::debug!("the time of last access of inode {} stays: {error}", inode.ino);
        }
    }
}

fn file_kind_is_stored(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink)
}
