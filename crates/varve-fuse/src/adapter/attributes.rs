//! Requests about attributes, the fixed and the extended ones.

use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, SetAttr};

use super::{Adapter, Answer, Call, DONE, Served};
use crate::convert;
use crate::protocol::request::{SetAttrIn, SetXattr};

/// The attribute of the root directory that holds [`varve_vfs::Vfs::status_json`]; no listing shows it.
const STATUS_XATTR: &[u8] = b"user.varve.status";
/// Beside it, what is agreed on with the kernel.
const SESSION_XATTR: &[u8] = b"user.varve.session";

/// Access control lists and other attributes of the system's are not served: without FUSE_POSIX_ACL the
/// kernel would store them and not obey them.
fn check_xattr_name(name: &[u8]) -> FsResult<()> {
    if name.starts_with(b"system.") {
        Err(FsError::NotSupported("system attributes"))
    } else {
        Ok(())
    }
}

/// Answers a request for an attribute's value or a list: its length if `size` is 0, else the bytes if they
/// fit.
fn sized(call: &mut Call<'_>, value: &[u8], size: u32) -> Answer {
    let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
    if size == 0 {
        call.reply.size_out(len);
    } else if len <= size {
        call.reply.bytes(value);
    } else {
        return Answer::Errno(libc::ERANGE);
    }
    Answer::Body
}

impl Adapter {
    pub(super) fn getattr(&self, call: &mut Call<'_>) -> Served {
        let attr = self.vfs.getattr(call.ino)?;
        call.reply.attr_out(self.options.attr_timeout, &attr);
        Ok(Answer::Body)
    }

    pub(super) fn statx(&self, call: &mut Call<'_>) -> Served {
        let attr = self.vfs.getattr(call.ino)?;
        call.reply.statx_out(self.options.attr_timeout, &attr);
        Ok(Answer::Body)
    }

    pub(super) fn setattr(&self, call: &mut Call<'_>, request: &SetAttrIn) -> Served {
        let SetAttrIn { mode, uid, gid, size, atime, mtime, kill_set_id } = *request;
        let set = SetAttr {
            perm: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time).transpose()?,
            mtime: mtime.map(convert::set_time).transpose()?,
            kill_set_id,
        };
        let attr = self.vfs.setattr(convert::caller(call.header, 0), call.ino, set)?;
        call.reply.attr_out(self.options.attr_timeout, &attr);
        Ok(Answer::Body)
    }

    pub(super) fn setxattr(&self, call: &Call<'_>, request: &SetXattr<'_>) -> Served {
        self.serves_xattr()?;
        check_xattr_name(request.name)?;
        let mode = convert::xattr_mode(request.flags)?;
        self.vfs.setxattr(call.ino, request.name, request.value, mode)?;
        Ok(DONE)
    }

    pub(super) fn getxattr(&self, call: &mut Call<'_>, size: u32, name: &[u8]) -> Served {
        self.serves_xattr()?;
        if call.ino == InodeId::ROOT && name == STATUS_XATTR {
            return Ok(sized(call, self.vfs.status_json().as_bytes(), size));
        }
        if call.ino == InodeId::ROOT && name == SESSION_XATTR {
            return Ok(sized(call, self.status.as_bytes(), size));
        }
        check_xattr_name(name)?;
        let value = self.vfs.getxattr(call.ino, name)?;
        Ok(sized(call, &value, size))
    }

    pub(super) fn listxattr(&self, call: &mut Call<'_>, size: u32) -> Served {
        self.serves_xattr()?;
        let names = self.vfs.listxattr(call.ino)?;
        Ok(sized(call, &names, size))
    }

    pub(super) fn removexattr(&self, call: &Call<'_>, name: &[u8]) -> Served {
        self.serves_xattr()?;
        check_xattr_name(name)?;
        self.vfs.removexattr(call.ino, name)?;
        Ok(DONE)
    }

    fn serves_xattr(&self) -> FsResult<()> {
        if self.options.xattr { Ok(()) } else { Err(FsError::NotImplemented) }
    }
}
