//! Whether a row may be one of a stream: one that a plain form has ([`super::plain`]), whose value can be read and stands where its
//! names say, and that speaks of no inode that the sender has not given an id by then. Whether rows fit each other is not looked
//! at, as they come one after the other.

use bytes::Bytes;
use varve_namespace::xattr::check_name;
use varve_schema::key::{DataRow, MetaRow};
use varve_schema::{
    Body, CHUNK_BYTES, Content, DecodeError, DictionaryRow, EntryRow, FileKind, Inode, Limits,
    NameHasher, ParentPointer, ParentRow, RowKey, STORED_FILE_BYTES_MAX, XattrRow,
    decode_inode_row, is_lost_chunk,
};
use varve_types::limits::FILE_BYTES_MAX;
use varve_types::{FileName, InodeId};

use super::outcome::ReceiveError;
use super::{DATA_SPACE, META_SPACE, NAMES_SPACE};
use crate::dictionaries::check_pair;
use crate::epoch::Epoch;
use crate::ids::is_inode_id;

/// The error of a stream that is wrong.
pub(super) fn wrong(what: &str) -> ReceiveError {
    ReceiveError::Stream(format!("the stream makes no sense: {what}"))
}

fn not_sent() -> ReceiveError {
    wrong("a row that is not to be sent")
}

/// What the rows of a stream have to fit.
pub(super) struct Checks<'a> {
    /// How names are hashed.
    pub(super) hasher: &'a NameHasher,
    /// All inodes are below this.
    pub(super) end: Epoch,
}

impl Checks<'_> {
    /// Refuses what is no row of a stream.
    pub(super) fn row(
        &self,
        space: u32,
        key: &[u8],
        value: Option<&Bytes>,
    ) -> Result<(), ReceiveError> {
        match space {
            META_SPACE => self.meta(key, value),
            DATA_SPACE => self.data(key, value),
            NAMES_SPACE => {
                FileName::new(key).map_err(|_| wrong("a name that no dictionary has"))?;
                let row = value.map(DictionaryRow::decode).transpose().map_err(unreadable)?;
                if row.is_some_and(|row| row.going) {
                    return Err(wrong("a dictionary that is gone"));
                }
                Ok(())
            }
            _ => {
                let pair = check_pair(key, value.map(AsRef::as_ref));
                pair.map_err(|_| wrong("a pair that no dictionary has"))
            }
        }
    }

    fn ino(&self, ino: InodeId) -> Result<(), ReceiveError> {
        if !self.end.knows(ino) {
            let end = self.end;
            return Err(wrong(&format!("a row of inode {ino}, its header says below {end}")));
        }
        if !is_inode_id(ino) {
            return Err(wrong(&format!("a row of {ino}, an id that no inode has")));
        }
        Ok(())
    }

    /// Of a name that lies in `dir` where its hash says, if it `is_there`.
    fn name(&self, dir: InodeId, name: &[u8], is_there: bool) -> Result<(), ReceiveError> {
        self.ino(dir)?;
        FileName::new(name).map_err(|_| wrong("a name that no file has"))?;
        if is_there { Ok(()) } else { Err(wrong("a name in the row of another hash")) }
    }

    fn inode(&self, inode: &Inode) -> Result<(), ReceiveError> {
        self.ino(inode.ino)?;
        if inode.size > FILE_BYTES_MAX {
            return Err(wrong("a size that no file has"));
        }
        if let Some(home) = &inode.home {
            self.ino(home.dir)?;
        }
        match &inode.content {
            Content::Shared(_) | Content::Object { dirty: true, .. } => Err(not_sent()),
            Content::Directory(info) if info.source.is_some() || !info.pending.is_zero() => {
                Err(not_sent())
            }
            Content::Directory(info) => self.ino(info.parent),
            _ => Ok(()),
        }
    }

    /// Of an inode that is in the row of its name.
    fn inlined(&self, inode: &Inode) -> Result<(), ReceiveError> {
        self.inode(inode)?;
        if inode.kind == FileKind::Directory || inode.ino == InodeId::ROOT {
            return Err(wrong("a directory in the row of its name"));
        }
        if inode.nlink != 1 || inode.home.is_some() {
            return Err(wrong("a file of several names in the row of one"));
        }
        Ok(())
    }

    fn meta(&self, key: &[u8], value: Option<&Bytes>) -> Result<(), ReceiveError> {
        let kind = RowKey::from_bytes(key).ok_or_else(not_sent)?.meta_kind();
        let (MetaRow::Entry(of, _)
        | MetaRow::Inode(of)
        | MetaRow::Parent(of, _)
        | MetaRow::Limits(of)) = kind
        else {
            return Err(not_sent());
        };
        self.ino(of)?;
        let Some(row) = value else { return Ok(()) };
        match kind {
            MetaRow::Entry(dir, suffix) => {
                let row = EntryRow::decode(row).map_err(unreadable)?;
                for named in row.names() {
                    self.name(dir, &named.name, self.hasher.entry(&named.name) == suffix)?;
                    if row.find(&named.name).is_some_and(|first| first.slot != named.slot) {
                        return Err(wrong("a name that its directory has twice"));
                    }
                    match &named.body {
                        Body::Inline(inode) => self.inlined(inode)?,
                        Body::Reference { ino, .. } => self.ino(*ino)?,
                    }
                }
            }
            MetaRow::Inode(ino) => {
                let inode = decode_inode_row(row).map_err(unreadable)?;
                if inode.ino != ino {
                    return Err(wrong(&format!("a row of inode {ino} that is {}", inode.ino)));
                }
                self.inode(&inode)?;
            }
            MetaRow::Parent(_, hash) => {
                for ParentPointer { dir, name } in
                    &ParentRow::decode(row).map_err(unreadable)?.pointers
                {
                    self.name(*dir, name, self.hasher.parent(*dir, name) == hash)?;
                }
            }
            _ => drop(Limits::decode(row).map_err(unreadable)?),
        }
        Ok(())
    }

    fn data(&self, key: &[u8], value: Option<&Bytes>) -> Result<(), ReceiveError> {
        let key = RowKey::from_bytes(key);
        let key = key.ok_or_else(|| wrong("a row of data with no such key"))?;
        self.ino(InodeId::new(key.prefix()))?;
        let Some(row) = value else { return Ok(()) };
        match key.data_kind() {
            DataRow::Chunk(_, index) => {
                let chunks = STORED_FILE_BYTES_MAX.div_ceil(CHUNK_BYTES as u64);
                let is_chunk = row.len() <= CHUNK_BYTES || is_lost_chunk(row);
                if !is_chunk || index >= chunks {
                    return Err(wrong("a chunk that no file has"));
                }
            }
            DataRow::Xattr(ino) => {
                for attr in XattrRow::decode(row).map_err(unreadable)?.attrs {
                    check_name(&attr.name).map_err(|_| wrong("an attribute that no file has"))?;
                    if RowKey::xattr(ino, self.hasher.xattr(&attr.name)) != key {
                        return Err(wrong("an attribute in the row of another hash"));
                    }
                }
            }
        }
        Ok(())
    }
}

fn unreadable(_: DecodeError) -> ReceiveError {
    wrong("a row that cannot be read")
}
