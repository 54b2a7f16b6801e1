//! Extended attributes: rows of their own beside the inode's data, found by the hash of the name. An
//! inode knows whether it has any, so that asking a file without costs nothing more than the file.

use std::collections::BTreeMap;

use bytes::Bytes;
use varve_schema::{FileKind, Inode, RowKey, XattrRow};
use varve_types::InodeId;
use varve_types::limits::{
    XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX,
};
use varve_vfs::{FsError, FsResult, XattrMode};

use crate::acl::{ListChange, accept_list, is_list};
use crate::{Changes, Rows};

/// The namespaces whose attributes are stored.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// What gives a program capabilities. Whoever takes set-id bits takes it too.
const CAPABILITY: &[u8] = b"security.capability";

/// An error unless an attribute can have this name.
pub fn check_name(name: &[u8]) -> FsResult<()> {
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

/// An error unless an attribute can have a value of this length.
pub fn check_value(value: &[u8]) -> FsResult<()> {
    if value.len() > XATTR_VALUE_BYTES_MAX { Err(FsError::XattrTooLarge) } else { Ok(()) }
}

/// Whether an object of this kind may have the attribute: users' own are for files and directories only,
/// since anybody may write to a device or a fifo that says so, and nothing guards a symbolic link.
fn may_have(kind: FileKind, name: &[u8]) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory) || !name.starts_with(b"user.")
}

/// What extended attributes of one inode take, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XattrBytes {
    /// The list of their names.
    list: usize,
    /// Their names and values.
    all: usize,
}

impl XattrBytes {
    /// Adds one with a name and a value of these lengths.
    pub fn add(&mut self, name: usize, value: usize) {
        self.list += name + 1;
        self.all += name + value;
    }

    /// Adds the attributes of a row.
    pub fn add_row(&mut self, row: &XattrRow) {
        row.attrs.iter().for_each(|attr| self.add(attr.name.len(), attr.value.len()));
    }

    /// Gives one another value, of `now` bytes in the place of `was`.
    fn change(&mut self, was: usize, now: usize) {
        self.all = (self.all + now).saturating_sub(was);
    }

    /// Removes one with a name and a value of these lengths.
    fn remove(&mut self, name: usize, value: usize) {
        self.list = self.list.saturating_sub(name + 1);
        self.all = self.all.saturating_sub(name + value);
    }

    /// Whether names and values are more than one inode may have.
    pub fn is_too_much(&self) -> bool {
        self.all > XATTRS_BYTES_MAX
    }

    /// Whether they have grown beyond what one inode may have. Those that were more before may become fewer.
    pub fn has_outgrown(&self, before: XattrBytes) -> bool {
        (self.is_too_much() && self.all > before.all)
            || (self.list > XATTR_LIST_BYTES_MAX && self.list > before.list)
    }

    /// The larger of each.
    pub fn or(self, other: XattrBytes) -> XattrBytes {
        XattrBytes { list: self.list.max(other.list), all: self.all.max(other.all) }
    }
}

/// The row of the attribute `name` of `ino`.
pub fn key<R: Rows>(rows: &R, ino: InodeId, name: &[u8]) -> RowKey {
    RowKey::xattr(ino, rows.hasher().xattr(name))
}

/// The value of the attribute `name` of `inode`; `NoXattr` if there is none.
pub fn get<R: Rows>(rows: &R, inode: &Inode, name: &[u8]) -> Result<Bytes, R::Error> {
    check_name(name)?;
    if !inode.has_xattrs {
        return Err(FsError::NoXattr.into());
    }
    let row = rows.xattr_row(key(rows, inode.ino, name))?;
    row.get(name).map(|attr| attr.value.clone()).ok_or_else(|| FsError::NoXattr.into())
}

/// The names of all attributes of `inode`, each ended by a NUL.
pub fn list<R: Rows>(rows: &R, inode: &Inode) -> Result<Vec<u8>, R::Error> {
    let mut names = Vec::new();
    if !inode.has_xattrs {
        return Ok(names);
    }
    rows.xattr_rows(inode.ino, &mut |_, row| {
        for attr in &row.attrs {
            names.extend_from_slice(&attr.name);
            names.push(0);
        }
        true
    })?;
    Ok(names)
}

/// An attribute to set.
#[derive(Clone, Copy, Debug)]
pub struct NewXattr<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Whether it may or must be there already.
    pub mode: XattrMode,
}

/// Sets an attribute of `inode`, of which `known` says what all its attributes take, if that is known. Returns what they take
/// then, unless that would have to be found out for nothing else. REQUIRES: the lock of the row that the inode is in.
pub fn set<R: Rows>(
    rows: &R,
    changes: &mut Changes,
    inode: &mut Inode,
    new: NewXattr<'_>,
    known: Option<XattrBytes>,
) -> Result<Option<XattrBytes>, R::Error> {
    let NewXattr { name, value, mode } = new;
    if !may_have(inode.kind, name) {
        return Err(FsError::NotPermitted.into());
    }
    crate::flags::check_xattrs(inode)?;
    let key = key(rows, inode.ino, name);
    let mut row = rows.xattr_row(key)?;
    match (mode, row.get(name)) {
        (XattrMode::Create, Some(_)) => return Err(FsError::XattrExists.into()),
        (XattrMode::Replace, None) => return Err(FsError::NoXattr.into()),
        _ => {}
    }
    let change = match is_list(name) {
        true => accept_list(inode, name, value, mode == XattrMode::SetKillSetGid)?,
        false => ListChange::Set(value.to_vec()),
    };
    let old = row.get(name).map(|attr| attr.value.len());
    match change {
        ListChange::Set(value) => {
            let bytes = check_room_for(rows, inode, known, (name, old, value.len()))?;
            row.set(name, &value);
            changes.put_data(key, row.encode());
            inode.has_xattrs = true;
            Ok(bytes)
        }
        ListChange::Remove => {
            changes.reclaims_space |= remove_from(rows, changes, inode, (key, row), name)?;
            Ok(None)
        }
    }
}

/// Refuses an attribute with a value of `new` bytes in the place of one with `old`, or of none, if the inode would have too much.
fn check_room_for<R: Rows>(
    rows: &R,
    inode: &Inode,
    known: Option<XattrBytes>,
    (name, old, new): (&[u8], Option<usize>, usize),
) -> Result<Option<XattrBytes>, R::Error> {
    let with = |mut bytes: XattrBytes| {
        match old {
            Some(old) => bytes.change(old, new),
            None => bytes.add(name.len(), new),
        }
        bytes
    };
    if old.is_some_and(|old| new <= old) {
        return Ok(known.map(with));
    }
    if let Some(before) = known
        && !with(before).has_outgrown(before)
    {
        return Ok(Some(with(before)));
    }
    let before = bytes_of(rows, inode)?;
    if !with(before).has_outgrown(before) {
        return Ok(Some(with(before)));
    }
    Err(FsError::NoSpace(format!("the extended attributes of inode {}", inode.ino)).into())
}

/// What the attributes of `inode` take; of those that are too much, more than may be.
fn bytes_of<R: Rows>(rows: &R, inode: &Inode) -> Result<XattrBytes, R::Error> {
    let mut bytes = XattrBytes::default();
    if inode.has_xattrs {
        rows.xattr_rows(inode.ino, &mut |_, row| {
            bytes.add_row(&row);
            !bytes.is_too_much()
        })?;
    }
    Ok(bytes)
}

/// Gives `inode`, which has none, attributes of these different names.
pub fn put_first<R: Rows>(
    rows: &R,
    changes: &mut Changes,
    inode: &mut Inode,
    attrs: &[(&[u8], Vec<u8>)],
) {
    let mut new: BTreeMap<RowKey, XattrRow> = BTreeMap::new();
    for (name, value) in attrs {
        new.entry(key(rows, inode.ino, name)).or_default().set(name, value);
    }
    inode.has_xattrs = !new.is_empty();
    for (key, row) in new {
        changes.put_data(key, row.encode());
    }
}

/// Whether the program that `inode` holds would get capabilities.
pub fn has_capability<R: Rows>(rows: &R, inode: &Inode) -> Result<bool, R::Error> {
    if !inode.has_xattrs || inode.kind == FileKind::Directory {
        return Ok(false);
    }
    let row = rows.xattr_row(key(rows, inode.ino, CAPABILITY))?;
    Ok(row.get(CAPABILITY).is_some())
}

/// Removes the attribute by which the program that `inode` holds would get capabilities. The kernel itself removes it only where
/// it has not found before that there is none, and does not hear of one that a commit brings.
pub fn drop_capability<R: Rows>(
    rows: &R,
    changes: &mut Changes,
    inode: &mut Inode,
) -> Result<(), R::Error> {
    if !inode.has_xattrs || inode.kind == FileKind::Directory {
        return Ok(());
    }
    let key = key(rows, inode.ino, CAPABILITY);
    let row = rows.xattr_row(key)?;
    remove_from(rows, changes, inode, (key, row), CAPABILITY).map(drop)
}

/// Removes the attribute `name` of `inode`, of which `known` says what all its attributes take, if that is known. Returns what
/// they take then; `None` if nothing changes. REQUIRES: the lock of the row that the inode is in.
pub fn remove<R: Rows>(
    rows: &R,
    changes: &mut Changes,
    inode: &mut Inode,
    name: &[u8],
    known: Option<XattrBytes>,
) -> Result<Option<Removed>, R::Error> {
    crate::flags::check_xattrs(inode)?;
    let key = key(rows, inode.ino, name);
    let row = if inode.has_xattrs { rows.xattr_row(key)? } else { XattrRow::default() };
    let Some(value) = row.get(name).map(|attr| attr.value.len()) else {
        // That a list says no more than the mode is no error: such a list is not kept.
        return if is_list(name) { Ok(None) } else { Err(FsError::NoXattr.into()) };
    };
    changes.reclaims_space = true;
    remove_from(rows, changes, inode, (key, row), name)?;
    let bytes = known.map(|mut bytes| {
        bytes.remove(name.len(), value);
        bytes
    });
    Ok(Some(Removed { bytes }))
}

/// An attribute was removed.
#[derive(Clone, Copy, Debug)]
pub struct Removed {
    /// What the others take, if that is known.
    pub bytes: Option<XattrBytes>,
}

/// Adds to `changes` the removal of `name` from `row` at `key`; says whether it was there.
fn remove_from<R: Rows>(
    rows: &R,
    changes: &mut Changes,
    inode: &mut Inode,
    (key, mut row): (RowKey, XattrRow),
    name: &[u8],
) -> Result<bool, R::Error> {
    if !row.remove(name) {
        return Ok(false);
    }
    if row.attrs.is_empty() {
        changes.delete_data(key);
        inode.has_xattrs = false;
        rows.xattr_keys(inode.ino, &mut |other| {
            inode.has_xattrs |= other != key;
            !inode.has_xattrs
        })?;
    } else {
        changes.put_data(key, row.encode());
    }
    Ok(true)
}

/// Adds to `changes` the removal of all attributes of `inode`.
pub fn delete_all<R: Rows>(rows: &R, changes: &mut Changes, inode: &Inode) -> Result<(), R::Error> {
    if !inode.has_xattrs {
        return Ok(());
    }
    rows.xattr_keys(inode.ino, &mut |key| {
        changes.delete_data(key);
        true
    })
}
