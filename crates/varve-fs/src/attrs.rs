//! Attributes: getattr, setattr, access, and the times that reads and writes leave.

use varve_namespace::Changes;
use varve_namespace::acl::check_access;
use varve_namespace::attrs::{self, check_set, stored_attr};
use varve_schema::acl::AclCaller;
use varve_schema::{FileKind, Inode};
use varve_types::{InodeId, Timestamp};
use varve_vfs::{AccessMode, Attr, Caller, FsError, FsResult, Gave, Keep, SetAttr};

use crate::fs::VarveFs;
use crate::held::Held;
use crate::options::Atime;

/// After this long a read refreshes the time of last access in any case, as the kernel's relatime does.
const RELATIME_SECS: i64 = 24 * 60 * 60;
/// The right of everybody to search a directory: the bits of its owner and of its group hold for these, and not those of others.
pub(crate) const ALL_EXECUTE: u16 = 0o111;

impl VarveFs {
    /// The attributes of `inode`; of a large file that is being written, as its object has them now.
    pub(crate) fn attr(&self, inode: &Inode) -> FsResult<Attr> {
        let mut attr = stored_attr(inode);
        if inode.content.is_dirty() {
            // Before the object is looked at: whoever writes to it elsewhere may close it meanwhile.
            if self.is_written_elsewhere(inode)? || self.may_change_in_memory(inode.ino) {
                attr.keep = Keep::Never;
            }
            let stat = self.object_stat(inode.ino)?;
            attr.size = stat.len;
            attr.blocks = stat.allocated.div_ceil(512);
            if !self.is_stamp(inode, stat.modified) {
                attr.mtime = stat.modified;
                attr.ctime = attr.ctime.max(stat.modified);
            }
        }
        Ok(attr)
    }

    /// Whether programs may have mapped memory of a large file that they change it in straight.
    fn may_change_in_memory(&self, ino: InodeId) -> bool {
        self.session.inodes.node(ino).is_some_and(|node| node.state().straight_mappers > 0)
    }

    pub(crate) fn do_setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> FsResult<Attr> {
        self.writable()?;
        let sizes = set.size.is_some();
        let mut held = if sizes { self.hold_counted(ino)? } else { self.hold(ino)? };
        check_set(&held.inode, &set)?;
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
        let mut changes = Changes::new();
        let now = self.now();
        if let Some(size) = set.size {
            self.resize(&mut changes, held, size, now)?;
        }
        attrs::set(self, &mut changes, &mut held.inode, caller, &set, now)?;
        let truncated = set.size.is_some();
        if truncated && held.inode.content.is_object() {
            changes.depends_on_external = true;
        }
        // Opened before anything changes, as that may fail.
        let timed = set.mtime.is_some() && held.inode.content.is_object();
        let object = if timed { Some(self.any_object(ino)?) } else { None };
        self.stage(&mut changes, held)?;
        if set != SetAttr::default() {
            self.commit_call(&mut changes, Gave::Nothing)?;
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
        if mode.write && self.options.read_only && file_kind_is_stored(inode.kind) {
            return Err(FsError::ReadOnly);
        }
        let caller = AclCaller { uid: caller.uid, gid: caller.gid, groups };
        check_access(self, caller, &inode, mode)
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
