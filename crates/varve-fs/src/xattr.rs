//! Extended attributes: rows of their own beside the inode's data, found by the hash of the name. An
//! inode knows whether it has any, so that asking a file without costs nothing more than the file.

use std::collections::BTreeMap;

use bytes::Bytes;
use varve_schema::{DATA, FileKind, Inode, RowKey, XattrRow};
use varve_types::InodeId;
use varve_types::limits::{XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use varve_vfs::{FsError, FsResult, XattrMode};

use crate::acl::{ListChange, accept_list, is_list};
use crate::error;
use crate::fs::VarveFs;
use crate::rows::{Changes, for_each_xattr_row};

/// The namespaces whose attributes are stored.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// An error unless an attribute can have this name.
pub(crate) fn check_name(name: &[u8]) -> FsResult<()> {
    if name.is_empty() || name.contains(&0) {
        return Err(FsError::Invalid("an empty attribute name"));
    }
    if name.len() > XATTR_NAME_BYTES_MAX {
        return Err(FsError::XattrNameTooLong);
    }
    let stored = NAMESPACES.iter().any(|space| name.starts_with(space) && name.len() > space.len());
    if stored || is_list(name) {
        Ok(())
    } else if NAMESPACES.contains(&name) {
        Err(FsError::Invalid("an attribute name that is only a namespace"))
    } else {
        Err(FsError::NotSupported("extended attributes of this namespace"))
    }
}

/// Whether an object of this kind may have the attribute: users' own are for files and directories only,
/// since anybody may write to a device or a fifo that says so, and nothing guards a symbolic link.
fn may_have(kind: FileKind, name: &[u8]) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory) || !name.starts_with(b"user.")
}

impl VarveFs {
    pub(crate) fn xattr_row(&self, key: RowKey) -> FsResult<XattrRow> {
        match self.store.get(self.data, &key.to_bytes()).map_err(error::store)? {
            Some(bytes) => XattrRow::decode(&bytes).map_err(|error| error::row(DATA, key, error)),
            None => Ok(XattrRow::default()),
        }
    }

    pub(crate) fn xattr_key(&self, ino: InodeId, name: &[u8]) -> RowKey {
        RowKey::xattr(ino, self.hasher.xattr(name))
    }

    pub(crate) fn do_getxattr(&self, ino: InodeId, name: &[u8]) -> FsResult<Bytes> {
        let inode = self.read_inode(ino)?;
        check_name(name)?;
        if !inode.has_xattrs {
            return Err(FsError::NoXattr);
        }
        let row = self.xattr_row(self.xattr_key(ino, name))?;
        row.get(name).map(|attr| attr.value.clone()).ok_or(FsError::NoXattr)
    }

    pub(crate) fn do_setxattr(
        &self,
        ino: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> FsResult<()> {
        self.writable()?;
        check_name(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(FsError::XattrTooLarge);
        }
        let mut held = self.hold(ino)?;
        if held.is_detached() {
            return Err(FsError::NotSupported("extended attributes of a removed object"));
        }
        if !may_have(held.inode.kind, name) {
            return Err(FsError::NotPermitted);
        }
        let key = self.xattr_key(ino, name);
        let mut row = self.xattr_row(key)?;
        match (mode, row.get(name)) {
            (XattrMode::Create, Some(_)) => return Err(FsError::XattrExists),
            (XattrMode::Replace, None) => return Err(FsError::NoXattr),
            (_, None) => self.check_room_for(&held.inode, name)?,
            _ => {}
        }
        let mut changes = self.changes();
        let kill_set_gid = mode == XattrMode::SetKillSetGid;
        let change = match is_list(name) {
            true => accept_list(&mut held.inode, name, value, kill_set_gid)?,
            false => ListChange::Set(value.to_vec()),
        };
        match change {
            ListChange::Set(value) => {
                row.set(name, &value);
                changes.put_data(key, row.encode());
                held.inode.has_xattrs = true;
            }
            ListChange::Remove => {
                self.remove_xattr(&mut changes, &mut held.inode, key, row, name)?;
            }
        }
        held.inode.times.ctime = self.now();
        self.stage(&mut changes, &mut held)?;
        self.commit(&mut changes)
    }

    /// Refuses one more name if the list of all of them could then not be asked for.
    fn check_room_for(&self, inode: &Inode, name: &[u8]) -> FsResult<()> {
        let listed = self.list_names(inode)?.len();
        if listed + name.len() < XATTR_LIST_BYTES_MAX {
            return Ok(());
        }
        Err(FsError::NoSpace(format!(
            "the names of the extended attributes of inode {}",
            inode.ino
        )))
    }

    /// Gives `inode`, which has none, attributes of these different names.
    pub(crate) fn put_first_xattrs(
        &self,
        changes: &mut Changes,
        inode: &mut Inode,
        attrs: &[(&[u8], Vec<u8>)],
    ) {
        let mut rows: BTreeMap<RowKey, XattrRow> = BTreeMap::new();
        for (name, value) in attrs {
            rows.entry(self.xattr_key(inode.ino, name)).or_default().set(name, value);
        }
        inode.has_xattrs = !rows.is_empty();
        for (key, row) in rows {
            changes.put_data(key, row.encode());
        }
    }

    /// Adds to `changes` the removal of `name`, which may be absent, from `row` at `key`.
    fn remove_xattr(
        &self,
        changes: &mut Changes,
        inode: &mut Inode,
        key: RowKey,
        mut row: XattrRow,
        name: &[u8],
    ) -> FsResult<()> {
        if !row.remove(name) {
            return Ok(());
        }
        changes.batch.reclaims_space();
        if row.attrs.is_empty() {
            changes.delete_data(key);
            let mut others = false;
            for_each_xattr_row(self.store.as_ref(), self.data, inode.ino, &mut |other, _| {
                others |= other != key;
            })?;
            inode.has_xattrs = others;
        } else {
            changes.put_data(key, row.encode());
        }
        Ok(())
    }

    pub(crate) fn do_listxattr(&self, ino: InodeId) -> FsResult<Vec<u8>> {
        self.list_names(&self.read_inode(ino)?)
    }

    fn list_names(&self, inode: &Inode) -> FsResult<Vec<u8>> {
        let mut names = Vec::new();
        if !inode.has_xattrs {
            return Ok(names);
        }
        for_each_xattr_row(self.store.as_ref(), self.data, inode.ino, &mut |_, row| {
            for attr in &row.attrs {
                names.extend_from_slice(&attr.name);
                names.push(0);
            }
        })?;
        Ok(names)
    }

    pub(crate) fn do_removexattr(&self, ino: InodeId, name: &[u8]) -> FsResult<()> {
        self.writable()?;
        check_name(name)?;
        let mut held = self.hold(ino)?;
        let key = self.xattr_key(ino, name);
        let row = if held.inode.has_xattrs { self.xattr_row(key)? } else { XattrRow::default() };
        if row.get(name).is_none() {
            // That a list says no more than the mode is no error: such a list is not kept.
            return if is_list(name) { Ok(()) } else { Err(FsError::NoXattr) };
        }
        let mut changes = self.changes();
        self.remove_xattr(&mut changes, &mut held.inode, key, row, name)?;
        held.inode.times.ctime = self.now();
        self.stage(&mut changes, &mut held)?;
        self.commit(&mut changes)
    }
}
