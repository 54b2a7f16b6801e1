//! Access control lists: where they come from, and where they change something else than themselves.
//!
//! 1. Something new takes its list and its mode from its directory's default list, which then stands in the
//!    place of the umask; without one its mode is reduced by the umask ([`give_mode`]).
//! 2. Setting an access list sets the mode; one that says no more than a mode is kept as the mode alone.
//! 3. A change of the mode changes the list ([`follow_mode`]).
//! 4. Permission is asked of the list where there is one and the mode leaves the group anything
//!    ([`permits`]). On a mount the kernel does that by itself, with the lists it has read.
//!
//! An inode without lists has no rows for them and costs none: a bit in the inode says so. A mount may have no lists
//! ([`Rows::obeys_lists`]): then those that are stored are as good as absent.
//!
//! Source: POSIX.1e draft 17, 23.1; acl(5) for Linux' choices.

use varve_schema::acl::{ACL_ACCESS, ACL_DEFAULT, Acl, AclCaller};
use varve_schema::{FileKind, Inode};
use varve_vfs::{AccessMode, Caller, FsError, FsResult};

use crate::attrs::SET_GID;
use crate::{Changes, Rows, unreadable, xattr};

/// What setting an attribute that is a list comes to.
pub(crate) enum ListChange {
    /// The attribute is set to these bytes.
    Set(Vec<u8>),
    /// There is to be no such attribute.
    Remove,
}

/// Whether `name` is that of a list.
pub(crate) fn is_list(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

/// Checks a list that is to be set on `inode`, and sets the mode by it. `kill_set_gid` says that whoever
/// sets it may not keep set-group-id.
pub(crate) fn accept_list(
    inode: &mut Inode,
    name: &[u8],
    value: &[u8],
    kill_set_gid: bool,
) -> FsResult<ListChange> {
    let list = Acl::decode(value).map_err(|error| FsError::Invalid(error.what))?;
    if inode.kind == FileKind::Symlink {
        return Err(FsError::NotSupported("access control lists of symbolic links"));
    }
    let Some(list) = list else { return Ok(ListChange::Remove) };
    if name == ACL_DEFAULT {
        return match inode.kind {
            FileKind::Directory => Ok(ListChange::Set(list.encode())),
            _ => Err(FsError::AccessDenied),
        };
    }
    inode.perm = inode.perm & !0o777 | list.mode();
    if kill_set_gid {
        inode.perm &= !SET_GID;
    }
    Ok(if list.is_minimal() { ListChange::Remove } else { ListChange::Set(list.encode()) })
}

/// The list `name` of `inode`, if it has one and lists count.
fn list<R: Rows>(rows: &R, inode: &Inode, name: &[u8]) -> Result<Option<Acl>, R::Error> {
    if !inode.has_xattrs || !rows.obeys_lists() {
        return Ok(None);
    }
    let key = xattr::key(rows, inode.ino, name);
    let row = rows.xattr_row(key)?;
    let Some(attr) = row.get(name) else { return Ok(None) };
    Acl::decode(&attr.value).map_err(|error| unreadable(varve_schema::DATA, key, error).into())
}

/// Gives `inode`, which is new in `dir`, its mode and its lists. REQUIRES: it has no attributes yet.
pub(crate) fn give_mode<R: Rows>(
    rows: &R,
    changes: &mut Changes,
    caller: Caller,
    dir: &Inode,
    inode: &mut Inode,
) -> Result<(), R::Error> {
    if inode.kind == FileKind::Symlink {
        return Ok(());
    }
    let Some(default) = list(rows, dir, ACL_DEFAULT)? else {
        inode.perm &= !(caller.umask as u16 & 0o777);
        return Ok(());
    };
    let (access, perm) = default.inherit(inode.perm);
    inode.perm = perm;
    let mut lists = Vec::with_capacity(2);
    if !access.is_minimal() {
        lists.push((ACL_ACCESS, access.encode()));
    }
    if inode.kind == FileKind::Directory {
        lists.push((ACL_DEFAULT, default.encode()));
    }
    xattr::put_first(rows, changes, inode, &lists);
    Ok(())
}

/// Adds to `changes` what the mode that `inode` has now means for its access list. REQUIRES: the lock of
/// the row it is in.
pub(crate) fn follow_mode<R: Rows>(
    rows: &R,
    changes: &mut Changes,
    inode: &Inode,
) -> Result<(), R::Error> {
    if let Some(mut list) = list(rows, inode, ACL_ACCESS)? {
        list.follow_mode(inode.perm & 0o777);
        let key = xattr::key(rows, inode.ino, ACL_ACCESS);
        let mut row = rows.xattr_row(key)?;
        row.set(ACL_ACCESS, &list.encode());
        changes.put_data(key, row.encode());
    }
    Ok(())
}

/// `AccessDenied` unless mode bits and lists let `caller` do what `mode` asks.
pub fn check_access<R: Rows>(
    rows: &R,
    caller: AclCaller<'_>,
    inode: &Inode,
    mode: AccessMode,
) -> Result<(), R::Error> {
    let wanted =
        (u16::from(mode.read) << 2) | (u16::from(mode.write) << 1) | u16::from(mode.execute);
    if mode.write && inode.flags.immutable() {
        return Err(FsError::NotPermitted.into());
    }
    let permitted = if caller.uid == 0 {
        !mode.execute || inode.kind == FileKind::Directory || inode.perm & 0o111 != 0
    } else {
        permits(rows, caller, inode, wanted)?
    };
    if permitted { Ok(()) } else { Err(FsError::AccessDenied.into()) }
}

/// Whether `caller`, who is not privileged, may do all of `wanted` (4 to read, 2 to write, 1 to execute)
/// with `inode`.
fn permits<R: Rows>(
    rows: &R,
    caller: AclCaller<'_>,
    inode: &Inode,
    wanted: u16,
) -> Result<bool, R::Error> {
    let perm = inode.perm;
    let enough = |granted: u16| wanted & !granted & 0o7 == 0;
    if caller.uid == inode.uid {
        return Ok(enough(perm >> 6));
    }
    if perm & 0o070 != 0
        && let Some(list) = list(rows, inode, ACL_ACCESS)?
    {
        return Ok(list.grants(caller, inode.uid, inode.gid, wanted));
    }
    Ok(enough(if caller.is_in(inode.gid) { perm >> 3 } else { perm }))
}
