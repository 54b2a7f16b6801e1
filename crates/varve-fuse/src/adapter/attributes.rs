//! Serves requests about attributes, fixed and extended ones.

use varve_vfs::{FsError, FsResult, SetAttr, XattrMode};

use super::said::{beginning, ending};
use super::trees::is_of_tree;
use super::{Adapter, Call, DONE, Served};
use crate::answer::Answer;
use crate::convert;
use crate::groups::{is_root, takes_set_gid};
use crate::protocol::constants::ACCESS_LIST_XATTR;
use crate::protocol::request::{SetAttrIn, SetXattr, SetXattrIn};

/// The attribute of the root directory that holds [`varve_vfs::Vfs::status_json`]. No listing shows it.
const STATUS_XATTR: &[u8] = b"user.varve.status";
/// The attribute of the root directory that holds the agreement with the kernel.
const SESSION_XATTR: &[u8] = b"user.varve.session";

/// The attribute of the root directory that holds the counts of requests ([`crate::meters`]).
const REQUESTS_XATTR: &[u8] = b"user.varve.requests";

/// How many bytes a text about the mount may grow between a request for its length and a request for the text.
const TEXT_GROWTH_BYTES: usize = 1024;

/// XATTR_CREATE and XATTR_REPLACE together, which no attribute satisfies.
const BOTH_XATTR_FLAGS: u32 = 3;

/// The namespace of attributes that only the superuser may see.
const TRUSTED: &[u8] = b"trusted.";

/// Returns a list of names, each ended by a NUL, without the names that only the superuser may see.
fn without_trusted(names: &[u8]) -> Vec<u8> {
    let each = names.split_inclusive(|byte| *byte == 0);
    each.filter(|name| !name.starts_with(TRUSTED)).flatten().copied().collect()
}

/// Answers a request for a value or a list: with its length if `size` is 0, else with the bytes if they fit.
fn sized(call: &mut Call<'_>, value: &[u8], size: u32) -> Answer {
    sized_with_room(call, value, size, 0)
}

/// Answers as [`sized`] does for a text that changes: the reported length has room for the growth until the text is
/// read.
fn sized_text(call: &mut Call<'_>, text: &str, size: u32) -> Answer {
    sized_with_room(call, text.as_bytes(), size, TEXT_GROWTH_BYTES)
}

fn sized_with_room(call: &mut Call<'_>, value: &[u8], size: u32, room: usize) -> Answer {
    let len = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    if size == 0 {
        call.reply.size_out(len(value.len() + room));
    } else if len(value.len()) <= size {
        call.reply.bytes(value);
    } else {
        return Answer::Errno(libc::ERANGE);
    }
    Answer::Body
}

impl Adapter {
    pub(super) fn getattr(&self, call: &mut Call<'_>) -> Served {
        let attr = self.vfs.getattr(call.ino)?;
        call.reply.attr_out(self.attr_validity(&attr), &attr);
        Ok(Answer::Body)
    }

    pub(super) fn statx(&self, call: &mut Call<'_>) -> Served {
        let attr = self.vfs.getattr(call.ino)?;
        call.reply.statx_out(self.attr_validity(&attr), &attr);
        Ok(Answer::Body)
    }

    pub(super) fn setattr(&self, call: &mut Call<'_>, request: &SetAttrIn) -> Served {
        let SetAttrIn { mode, uid, gid, size, atime, mtime, kill_set_id, has_handle: _ } = *request;
        let caller = convert::caller(call.header, 0);
        // The kernel asks to clear set-id bits with each change of owner, also by root, who may keep set-group-id.
        let kill_set_gid = kill_set_id
            && caller.uid != 0
            && takes_set_gid(call.header, &self.vfs.getattr(call.ino)?)
            && !is_root(call.header);
        let set = SetAttr {
            perm: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time).transpose()?,
            mtime: mtime.map(convert::set_time).transpose()?,
            kill_set_id,
            kill_set_gid,
        };
        let attr = self.vfs.setattr(caller, call.ino, set)?;
        call.reply.attr_out(self.attr_validity(&attr), &attr);
        Ok(Answer::Body)
    }

    /// Serves access(2) and chdir(2). Where the kernel checks permissions it answers these itself.
    pub(super) fn access(&self, call: &Call<'_>, mask: u32) -> Served {
        // Groups matter only to users other than root, and only root gets here.
        let caller = convert::caller(call.header, 0);
        self.vfs.access(caller, &[], call.ino, convert::access_mode(mask))?;
        Ok(DONE)
    }

    pub(super) fn setxattr(&self, call: &Call<'_>, request: SetXattrIn<'_>) -> Served {
        self.serves_xattr()?;
        let SetXattr { flags, kill_set_gid, name, value } = request
            .decode(self.agreement.setxattr_ext())
            .map_err(|_| FsError::Invalid("a SETXATTR that ends too early"))?;
        if let Some(end) = ending(name) {
            return self.end_by_attribute(call, end, value);
        }
        if is_of_tree(name) {
            self.set_of_tree(call.header, call.ino, name, Some(value))?;
            return Ok(DONE);
        }
        self.check_xattr_name(name)?;
        if flags == BOTH_XATTR_FLAGS {
            self.vfs.getxattr(call.ino, name)?;
            return Err(FsError::XattrExists);
        }
        let mode = match convert::xattr_mode(flags)? {
            XattrMode::Set if kill_set_gid => XattrMode::SetKillSetGid,
            mode => mode,
        };
        self.vfs.setxattr(call.ino, name, value, mode)?;
        if name == ACCESS_LIST_XATTR && self.agreement.root_alone() {
            // A list sets the mode. On other mounts the kernel knows this.
            if let Err(error) = self.notifier(call.origin).attributes_changed(call.ino) {
                log::warn!("the kernel may not see the mode of inode {}: {error}", call.ino);
            }
        }
        Ok(DONE)
    }

    pub(super) fn getxattr(&self, call: &mut Call<'_>, size: u32, name: &[u8]) -> Served {
        self.serves_xattr()?;
        if call.ino == self.root() && name == STATUS_XATTR {
            return Ok(sized_text(call, &self.vfs.status_json(), size));
        }
        if call.ino == self.root() && name == SESSION_XATTR {
            let status = self.agreement.status_json(self.options.threads);
            return Ok(sized_text(call, &status, size));
        }
        if call.ino == self.root() && name == REQUESTS_XATTR {
            return Ok(sized_text(call, &self.meters.to_json(), size));
        }
        if let Some(how) = beginning(name) {
            return self.begin_by_attribute(call, how, size);
        }
        if is_of_tree(name) {
            let value = self.get_of_tree(call.header, call.ino, name)?;
            return Ok(sized(call, value.as_bytes(), size));
        }
        self.check_xattr_name(name)?;
        let value = self.vfs.getxattr(call.ino, name)?;
        Ok(sized(call, &value, size))
    }

    pub(super) fn listxattr(&self, call: &mut Call<'_>, size: u32) -> Served {
        self.serves_xattr()?;
        let mut names = self.vfs.listxattr(call.ino)?;
        let open = without_trusted(&names);
        if open.len() < names.len() && !is_root(call.header) {
            names = open;
        }
        Ok(sized(call, &names, size))
    }

    pub(super) fn removexattr(&self, call: &Call<'_>, name: &[u8]) -> Served {
        self.serves_xattr()?;
        if is_of_tree(name) {
            self.set_of_tree(call.header, call.ino, name, None)?;
            return Ok(DONE);
        }
        self.check_xattr_name(name)?;
        self.vfs.removexattr(call.ino, name)?;
        Ok(DONE)
    }

    /// Refuses access control lists that the kernel would not obey, except on a mount of root alone, where they bind
    /// nobody.
    fn check_xattr_name(&self, name: &[u8]) -> FsResult<()> {
        let kept = self.agreement.posix_acl() || self.agreement.root_alone() && self.options.acl;
        if name.starts_with(b"system.") && !kept {
            Err(FsError::NotSupported("access control lists by this mount"))
        } else {
            Ok(())
        }
    }

    fn serves_xattr(&self) -> FsResult<()> {
        if self.options.xattr { Ok(()) } else { Err(FsError::NotImplemented) }
    }
}
