//! What each line of a dump becomes: rows, and object files.
//!
//! An inode's rows are written when all lines that belong to it have come, since the row of a large file says how
//! much room its bytes take.

use std::sync::Arc;

use varve_env::File;
use varve_namespace::xattr::XattrBytes;
use varve_schema::{
    Body, CHUNK_BYTES, Content, EntryRow, FileKind, Inode, Limits, ParentRow, RowKey, XattrRow,
    encode_inode_row,
};
use varve_types::limits::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX};
use varve_types::{FileName, InodeId};
use varve_vfs::FsResult;

use super::Counts;
use super::inode::inode_of;
use super::line::{
    DataLine, DictionaryLine, InodeLine, LimitsLine, LinkLine, PairLine, Text, XattrLine,
};
use super::pairs::Pairs;
use super::rows::Rows;
use super::wrong::wrong;
use crate::error;
use crate::fsck::volume::Volume;

/// The inode whose lines are being read.
struct Current {
    inode: Inode,
    parent: InodeId,
    name: Option<Vec<u8>>,
    xattrs_left: u32,
    xattr_bytes: XattrBytes,
    object: Option<Arc<dyn File>>,
}

/// The state of a load.
pub(super) struct Load<'a> {
    volume: &'a Volume,
    rows: Rows<'a>,
    pairs: Pairs<'a>,
    current: Option<Current>,
    /// All inode ids are below this.
    next_inode: u64,
    pub(super) counts: Counts,
}

impl<'a> Load<'a> {
    /// Nothing is loaded yet; about `rows_bytes` bytes of rows are kept in memory.
    pub(super) fn new(
        volume: &'a Volume,
        next_inode: u64,
        rows_bytes: usize,
        compression: bool,
    ) -> Load<'a> {
        let (rows, counts) = (Rows::new(volume, rows_bytes), Counts::default());
        let pairs = Pairs::new(volume, rows_bytes, compression);
        Load { volume, rows, pairs, current: None, next_inode, counts }
    }

    fn id(&self, member: &str, raw: u64) -> FsResult<InodeId> {
        let is_one = raw == InodeId::ROOT.get()
            || (InodeId::FIRST_FREE.get()..self.next_inode).contains(&raw);
        let what = || wrong(format!("{member}: {raw} is the id of no inode of this dump"));
        is_one.then_some(InodeId::new(raw)).ok_or_else(what)
    }

    pub(super) fn limits(&mut self, line: &LimitsLine) -> FsResult<()> {
        let limits = Limits { bytes: line.bytes, inodes: line.inodes };
        let key = RowKey::limits(self.id("dir", line.dir)?);
        self.rows.put(self.volume.meta, key, limits.encode())
    }

    pub(super) fn inode(&mut self, line: InodeLine) -> FsResult<()> {
        self.finish_inode()?;
        let (ino, parent) = (self.id("ino", line.ino)?, self.id("parent", line.parent)?);
        let (name, xattrs_left) = (line.name.clone(), line.xattrs);
        let inode = inode_of(&self.volume.hasher, ino, parent, line)?;
        if let Some(Text(name)) = &name {
            FileName::new(name).map_err(|error| wrong(format!("name: {error}")))?;
        } else if inode.kind == FileKind::Directory && inode.ino != InodeId::ROOT {
            return Err(wrong("name: a directory needs one"));
        }
        let object = match inode.content {
            Content::Object { .. } => Some(self.volume.objects.create(inode.ino)?),
            _ => None,
        };
        self.counts.inodes += 1;
        self.counts.names += u64::from(name.is_some());
        let name = name.map(|Text(name)| name);
        let xattr_bytes = XattrBytes::default();
        self.current = Some(Current { inode, parent, name, xattrs_left, xattr_bytes, object });
        Ok(())
    }

    /// The inode that a line of `ino` belongs to.
    fn current(&mut self, ino: u64) -> FsResult<&mut Current> {
        let current = self.current.as_mut().filter(|current| current.inode.ino.get() == ino);
        current.ok_or_else(|| wrong("ino: not the inode that the lines before are about"))
    }

    pub(super) fn xattr(&mut self, line: XattrLine) -> FsResult<()> {
        let XattrLine { ino, name: Text(name), value } = line;
        let current = self.current(ino)?;
        let Some(left) = current.xattrs_left.checked_sub(1) else {
            return Err(wrong("xattr: one more than its inode's line says"));
        };
        current.xattrs_left = left;
        if !(1..=XATTR_NAME_BYTES_MAX).contains(&name.len()) {
            return Err(wrong("name: an extended attribute's has 1 to 255 bytes"));
        }
        if value.0.len() > XATTR_VALUE_BYTES_MAX {
            return Err(wrong("value: larger than 65536 bytes"));
        }
        current.xattr_bytes.add(name.len(), value.0.len());
        if current.xattr_bytes.is_too_much() {
            return Err(wrong(format!(
                "value: names and values of an inode's extended attributes have {XATTRS_BYTES_MAX} bytes at most"
            )));
        }
        let key = RowKey::xattr(InodeId::new(ino), self.volume.hasher.xattr(&name));
        let mut row = match self.rows.get(self.volume.data, key)? {
            Some(value) => XattrRow::decode(&value)
                .map_err(|cause| error::unreadable(varve_schema::DATA, key, cause))?,
            None => XattrRow::default(),
        };
        if row.get(&name).is_some() {
            return Err(wrong("name: an extended attribute that the inode has already"));
        }
        row.set(&name, &value.0);
        self.rows.put(self.volume.data, key, row.encode())
    }

    pub(super) fn data(&mut self, line: DataLine) -> FsResult<()> {
        let DataLine { ino, at, data } = line;
        let path = self.volume.objects.path(InodeId::new(ino));
        let current = self.current(ino)?;
        let end = at.checked_add(data.0.len() as u64).filter(|end| *end <= current.inode.size);
        match (&current.inode.content, &current.object) {
            (_, Some(object)) if end.is_some() => {
                object.write_all_at(&data.0, at).map_err(|e| error::object("write", &path, e))
            }
            (Content::Chunks, None)
                if at < current.inode.size
                    && at.is_multiple_of(CHUNK_BYTES as u64)
                    && data.0.len() <= CHUNK_BYTES =>
            {
                let key = RowKey::chunk(InodeId::new(ino), at / CHUNK_BYTES as u64);
                self.rows.put(self.volume.data, key, data.0)
            }
            _ => Err(wrong("at: no place for data in this inode")),
        }
    }

    pub(super) fn link(&mut self, line: LinkLine) -> FsResult<()> {
        self.finish_inode()?;
        let LinkLine { ino, kind, parent, name: Text(name) } = line;
        FileName::new(&name).map_err(|error| wrong(format!("name: {error}")))?;
        let (ino, dir) = (self.id("ino", ino)?, self.id("parent", parent)?);
        let kind = kind.into();
        if kind == FileKind::Directory {
            return Err(wrong("kind: a directory has only the name in its own line"));
        }
        self.counts.names += 1;
        self.put_name(dir, &name, Body::Reference { ino, kind })?;
        let hash = self.volume.hasher.parent(dir, &name);
        let key = RowKey::parent(ino, hash);
        let mut pointers = match self.rows.get(self.volume.meta, key)? {
            Some(value) => ParentRow::decode(&value)
                .map_err(|cause| error::unreadable(varve_schema::META, key, cause))?,
            None => ParentRow::default(),
        };
        pointers.add(dir, &name);
        self.rows.put(self.volume.meta, key, pointers.encode())
    }

    /// Writes the rows of the inode whose lines have come.
    pub(super) fn finish_inode(&mut self) -> FsResult<()> {
        let Some(Current { mut inode, parent, name, xattrs_left, object, .. }) =
            self.current.take()
        else {
            return Ok(());
        };
        if xattrs_left != 0 {
            return Err(wrong(format!("{xattrs_left} extended attributes before it are missing")));
        }
        if let Some(object) = object {
            let path = self.volume.objects.path(inode.ino);
            let fail = |cause| error::object("write", &path, cause);
            object.set_len(inode.size).map_err(fail)?;
            object.set_times(None, Some(inode.times.mtime)).map_err(fail)?;
            let blocks = object.stat().map_err(fail)?.allocated.div_ceil(512);
            inode.content = Content::Object { dirty: false, blocks };
            self.volume.objects.claim(inode.ino, object);
            self.rows.claims_object();
        }
        let (ino, kind) = (inode.ino, inode.kind);
        let meta = self.volume.meta;
        let own = inode.kind == FileKind::Directory || name.is_none();
        if own {
            let key = RowKey::inode(ino);
            if self.rows.get(meta, key)?.is_some() {
                return Err(wrong(format!("ino: {ino} is there already")));
            }
            self.rows.put(meta, key, encode_inode_row(&inode))?;
        }
        match name {
            Some(name) if own => self.put_name(parent, &name, Body::Reference { ino, kind }),
            Some(name) => self.put_name(parent, &name, Body::Inline(inode)),
            None => Ok(()),
        }
    }

    fn put_name(&mut self, dir: InodeId, name: &[u8], body: Body) -> FsResult<()> {
        let key = RowKey::entry(dir, self.volume.hasher.entry(name));
        let mut row = match self.rows.get(self.volume.meta, key)? {
            Some(value) => EntryRow::decode(&value)
                .map_err(|cause| error::unreadable(varve_schema::META, key, cause))?,
            None => EntryRow::default(),
        };
        if row.find(name).is_some() {
            return Err(wrong("name: one that is in the directory already"));
        }
        if row.insert(name, body).is_none() {
            return Err(wrong("name: too many names of the directory share a hash"));
        }
        self.rows.put(self.volume.meta, key, row.encode())
    }

    /// Writes a bookkeeping row.
    pub(super) fn bookkeeping(&mut self, key: RowKey, value: Vec<u8>) -> FsResult<()> {
        self.rows.put(self.volume.meta, key, value)
    }

    pub(super) fn dictionary(&mut self, line: DictionaryLine) -> FsResult<()> {
        // The rows of files make room for pairs.
        self.finish_inode()?;
        self.rows.write()?;
        self.pairs.dictionary(line)
    }

    pub(super) fn pair(&mut self, line: PairLine) -> FsResult<()> {
        self.pairs.pair(line)
    }

    /// Writes what is left. REQUIRES: [`Load::finish_inode`].
    pub(super) fn write(&mut self) -> FsResult<()> {
        self.rows.write()?;
        self.pairs.write()
    }
}
