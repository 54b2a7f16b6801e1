//! Whether a row may be one of a stream: one that a plain form has ([`super::plain`]), that can be read, and that speaks of
//! no inode that the sender has not given an id by then.

use bytes::Bytes;
use varve_schema::key::MetaRow;
use varve_schema::{
    Body, Content, DictionaryRow, EntryRow, Inode, Limits, ParentRow, RowKey, decode_inode_row,
};
use varve_types::{FileName, InodeId};

use super::receive::ReceiveError;
use super::{DATA_SPACE, META_SPACE, NAMES_SPACE};
use crate::dictionaries::check_pair;

/// The error of a stream that is wrong.
pub(super) fn wrong(what: &str) -> ReceiveError {
    ReceiveError::Stream(format!("the stream makes no sense: {what}"))
}

fn not_sent() -> ReceiveError {
    wrong("a row that is not to be sent")
}

/// Refuses what is no row of a stream whose inodes are below `end`.
pub(super) fn check_row(
    end: InodeId,
    space: u32,
    key: &[u8],
    value: Option<&Bytes>,
) -> Result<(), ReceiveError> {
    let unreadable = |_| wrong("a row that cannot be read");
    match space {
        META_SPACE => return check_meta(end, key, value),
        DATA_SPACE => {
            let key = RowKey::from_bytes(key);
            let key = key.ok_or_else(|| wrong("a row of data with no such key"))?;
            check_inodes(end, &[InodeId::new(key.prefix())])?;
        }
        NAMES_SPACE => {
            FileName::new(key).map_err(|_| wrong("a name that no dictionary has"))?;
            let row = value.map(DictionaryRow::decode).transpose().map_err(unreadable)?;
            if row.is_some_and(|row| row.going) {
                return Err(wrong("a dictionary that is gone"));
            }
        }
        _ => {
            let pair = check_pair(key, value.map(AsRef::as_ref));
            pair.map_err(|_| wrong("a pair that no dictionary has"))?;
        }
    }
    Ok(())
}

fn check_inodes(end: InodeId, inodes: &[InodeId]) -> Result<(), ReceiveError> {
    match inodes.iter().find(|ino| **ino >= end) {
        Some(ino) => Err(wrong(&format!("a row of inode {ino}, its header says below {end}"))),
        None => Ok(()),
    }
}

fn check_inode(end: InodeId, inode: &Inode) -> Result<(), ReceiveError> {
    check_inodes(end, &[inode.ino])?;
    if let Some(home) = &inode.home {
        check_inodes(end, &[home.dir])?;
    }
    match &inode.content {
        Content::Borrowed(_) | Content::Object { dirty: true, .. } => Err(not_sent()),
        Content::Directory(info) if info.source.is_some() || !info.untold.is_zero() => {
            Err(not_sent())
        }
        Content::Directory(info) => check_inodes(end, &[info.parent]),
        _ => Ok(()),
    }
}

fn check_meta(end: InodeId, key: &[u8], value: Option<&Bytes>) -> Result<(), ReceiveError> {
    let unreadable = |_| wrong("a row that cannot be read");
    let kind = RowKey::from_bytes(key).ok_or_else(not_sent)?.meta_kind();
    let (MetaRow::Entry(of, _) | MetaRow::Inode(of) | MetaRow::Parent(of, _) | MetaRow::Limits(of)) =
        kind
    else {
        return Err(not_sent());
    };
    check_inodes(end, &[of])?;
    let Some(row) = value else { return Ok(()) };
    match kind {
        MetaRow::Entry(..) => {
            for named in EntryRow::decode(row).map_err(unreadable)?.names() {
                match &named.body {
                    Body::Inline(inode) => check_inode(end, inode)?,
                    Body::Reference { ino, .. } => check_inodes(end, &[*ino])?,
                }
            }
        }
        MetaRow::Inode(ino) => {
            let inode = decode_inode_row(row).map_err(unreadable)?;
            if inode.ino != ino {
                return Err(wrong(&format!("a row of inode {ino} that is {}", inode.ino)));
            }
            check_inode(end, &inode)?;
        }
        MetaRow::Parent(..) => {
            let row = ParentRow::decode(row).map_err(unreadable)?;
            row.pointers.iter().try_for_each(|pointer| check_inodes(end, &[pointer.dir]))?;
        }
        _ => drop(Limits::decode(row).map_err(unreadable)?),
    }
    Ok(())
}
