//! Extended attributes: rows of their own beside the inode's data, found by the hash of the name. An
//! inode knows whether it has any, so that asking a file without costs nothing more than the file.

mod known;

use std::collections::BTreeMap;

use bytes::Bytes;
use varve_schema::{DATA, FileKind, Inode, RowKey, XattrRow};
use varve_types::InodeId;
use varve_types::limits::{
    XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX,
};
use varve_vfs::{FsError, FsResult, XattrMode};

use crate::acl::{ListChange, accept_list, is_list};
use crate::error;
use crate::flags::check_xattrs;
use crate::fs::VarveFs;
use crate::rows::{Changes, for_each_xattr_row, rows_from};
use known::InodeRow;
pub(crate) use known::KnownXattrs;

/// The namespaces whose attributes are stored.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// What gives a program capabilities, which whoever takes set-id bits takes too.
const CAPABILITY: &[u8] = b"security.capability";

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

/// What extended attributes of one inode take, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct XattrBytes {
    /// The list of their names.
    list: usize,
    /// Their names and values.
    all: usize,
}

impl XattrBytes {
    /// Adds one with a name and a value of these lengths.
    pub(crate) fn add(&mut self, name: usize, value: usize) {
        self.list += name + 1;
        self.all += name + value;
    }

    /// Adds those of a row.
    pub(crate) fn add_row(&mut self, row: &XattrRow) {
        row.attrs.iter().for_each(|attr| self.add(attr.name.len(), attr.value.len()));
    }

    /// Gives one another value, of `now` bytes in the place of `was`.
    fn change(&mut self, was: usize, now: usize) {
        self.all = (self.all + now).saturating_sub(was);
    }

    /// Takes one with a name and a value of these lengths away.
    fn remove(&mut self, name: usize, value: usize) {
        self.list = self.list.saturating_sub(name + 1);
        self.all = self.all.saturating_sub(name + value);
    }

    /// Whether names and values are more than one inode may have.
    pub(crate) fn is_too_much(&self) -> bool {
        self.all > XATTRS_BYTES_MAX
    }

    /// Whether they have grown beyond what one inode may have. Those that were more before may become fewer.
    pub(crate) fn has_outgrown(&self, before: XattrBytes) -> bool {
        (self.is_too_much() && self.all > before.all)
            || (self.list > XATTR_LIST_BYTES_MAX && self.list > before.list)
    }

    /// The larger of each.
    pub(crate) fn or(self, other: XattrBytes) -> XattrBytes {
        XattrBytes { list: self.list.max(other.list), all: self.all.max(other.all) }
    }
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
            // As one that lost its last name while somebody had it open, or while this call waited for who took that.
            match held.inode.kind {
                FileKind::Regular => self.revive(&mut held)?,
                _ => return Err(FsError::NotFound),
            }
        }
        if !may_have(held.inode.kind, name) {
            return Err(FsError::NotPermitted);
        }
        check_xattrs(&held.inode)?;
        let key = self.xattr_key(ino, name);
        let known = self.xattrs.now(ino, held.row_key());
        let mut row = self.xattr_row(key)?;
        match (mode, row.get(name)) {
            (XattrMode::Create, Some(_)) => return Err(FsError::XattrExists),
            (XattrMode::Replace, None) => return Err(FsError::NoXattr),
            _ => {}
        }
        let mut changes = self.changes();
        let kill_set_gid = mode == XattrMode::SetKillSetGid;
        let change = match is_list(name) {
            true => accept_list(&mut held.inode, name, value, kill_set_gid)?,
            false => ListChange::Set(value.to_vec()),
        };
        let old = row.get(name).map(|attr| attr.value.len());
        let mut bytes = None;
        match change {
            ListChange::Set(value) => {
                bytes = self.check_room_for(&held.inode, known, name, old, value.len())?;
                row.set(name, &value);
                changes.put_data(key, row.encode());
                held.inode.has_xattrs = true;
            }
            ListChange::Remove => {
                if self.remove_xattr(&mut changes, &mut held.inode, key, row, name)? {
                    changes.batch.reclaims_space();
                }
            }
        }
        held.inode.times.ctime = self.now();
        self.stage(&mut changes, &mut held)?;
        self.commit(&mut changes)?;
        if let Some((before, bytes)) = known.zip(bytes) {
            self.xattrs.keep(before, bytes);
        }
        Ok(())
    }

    /// Refuses an attribute with a value of `new` bytes in the place of one with `old`, or of none, if the inode would have too much.
    /// Gives what all take then, unless that would have to be found out for nothing else.
    fn check_room_for(
        &self,
        inode: &Inode,
        row: Option<InodeRow>,
        name: &[u8],
        old: Option<usize>,
        new: usize,
    ) -> FsResult<Option<XattrBytes>> {
        let with = |mut bytes: XattrBytes| {
            match old {
                Some(old) => bytes.change(old, new),
                None => bytes.add(name.len(), new),
            }
            bytes
        };
        let known = row.and_then(|row| self.xattrs.get(row));
        if old.is_some_and(|old| new <= old) {
            return Ok(known.map(with));
        }
        if let Some(before) = known
            && !with(before).has_outgrown(before)
        {
            return Ok(Some(with(before)));
        }
        let before = self.xattr_bytes(inode)?;
        if !with(before).has_outgrown(before) {
            return Ok(Some(with(before)));
        }
        Err(FsError::NoSpace(format!("the extended attributes of inode {}", inode.ino)))
    }

    /// What the attributes of `inode` take; of those that are too much, more than may be.
    fn xattr_bytes(&self, inode: &Inode) -> FsResult<XattrBytes> {
        let mut bytes = XattrBytes::default();
        if inode.has_xattrs {
            let visit = &mut |_, row: XattrRow| {
                bytes.add_row(&row);
                !bytes.is_too_much()
            };
            for_each_xattr_row(self.store.as_ref(), self.data, inode.ino, visit)?;
        }
        Ok(bytes)
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

    /// Whether the program that `inode` holds would get capabilities.
    pub(crate) fn has_capability(&self, inode: &Inode) -> FsResult<bool> {
        if !inode.has_xattrs || inode.kind == FileKind::Directory {
            return Ok(false);
        }
        let row = self.xattr_row(self.xattr_key(inode.ino, CAPABILITY))?;
        Ok(row.get(CAPABILITY).is_some())
    }

    /// Adds to `changes` that it gets none. The kernel itself takes the attribute away only where it has not found before that there is
    /// none, and it hears of none that comes by a commit.
    pub(crate) fn drop_capability(&self, changes: &mut Changes, inode: &mut Inode) -> FsResult<()> {
        if !inode.has_xattrs || inode.kind == FileKind::Directory {
            return Ok(());
        }
        let key = self.xattr_key(inode.ino, CAPABILITY);
        let row = self.xattr_row(key)?;
        self.remove_xattr(changes, inode, key, row, CAPABILITY).map(drop)
    }

    /// Adds to `changes` the removal of `name` from `row` at `key`; says whether it was there.
    fn remove_xattr(
        &self,
        changes: &mut Changes,
        inode: &mut Inode,
        key: RowKey,
        mut row: XattrRow,
        name: &[u8],
    ) -> FsResult<bool> {
        if !row.remove(name) {
            return Ok(false);
        }
        if row.attrs.is_empty() {
            changes.delete_data(key);
            let (key, all) = (key.to_bytes(), rows_from(RowKey::xattr(inode.ino, 0)));
            let mut keys = self.store.keys(self.data, all).map_err(error::store)?;
            let other = keys.find(|other| other.as_ref().map_or(true, |other| **other != key[..]));
            inode.has_xattrs = other.transpose().map_err(error::store)?.is_some();
        } else {
            changes.put_data(key, row.encode());
        }
        Ok(true)
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
            true
        })?;
        Ok(names)
    }

    pub(crate) fn do_removexattr(&self, ino: InodeId, name: &[u8]) -> FsResult<()> {
        self.writable()?;
        check_name(name)?;
        let mut held = self.hold(ino)?;
        check_xattrs(&held.inode)?;
        let key = self.xattr_key(ino, name);
        let row = if held.inode.has_xattrs { self.xattr_row(key)? } else { XattrRow::default() };
        if row.get(name).is_none() {
            // That a list says no more than the mode is no error: such a list is not kept.
            return if is_list(name) { Ok(()) } else { Err(FsError::NoXattr) };
        }
        let known = self.xattrs.now(ino, held.row_key());
        let bytes = known.and_then(|row| self.xattrs.get(row));
        let value = row.get(name).map_or(0, |attr| attr.value.len());
        let mut changes = self.changes();
        changes.batch.reclaims_space();
        self.remove_xattr(&mut changes, &mut held.inode, key, row, name)?;
        held.inode.times.ctime = self.now();
        self.stage(&mut changes, &mut held)?;
        self.commit(&mut changes)?;
        if let Some((before, mut bytes)) = known.zip(bytes) {
            bytes.remove(name.len(), value);
            self.xattrs.keep(before, bytes);
        }
        Ok(())
    }
}
