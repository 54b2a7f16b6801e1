//! Mends what belongs to inodes: chunks, extended attributes, object files.

use std::path::Path;

use bytes::Bytes;
use varve_engine::{Batch, Direction};
use varve_env::OpenMode;
use varve_namespace::Changes;
use varve_namespace::xattr::check_name;
use varve_schema::{
    Body, CHUNK_BYTES, Content, DATA, Inode, META, Pending, RowKey, STORED_FILE_BYTES_MAX,
    XattrRow, is_lost_chunk, lost_chunk,
};
use varve_types::InodeId;
use varve_types::limits::FILE_BYTES_MAX;
use varve_vfs::FsResult;

use super::Repair;
use super::edit::{Edit, row_key};
use crate::epoch::Epoch;
use crate::error;
use crate::fsck::Finding;
use crate::fsck::finding::At;
use crate::objects::object_path;
use crate::overlay::blocks_path;
use crate::rows::rows_from;
use crate::superblock::view_dir;

/// The unit of a row's count of blocks.
const BLOCK_BYTES: u64 = 512;

impl Repair<'_> {
    pub(super) fn mend_data(&mut self, finding: &Finding, at: &At) -> FsResult<Option<String>> {
        match (finding, at) {
            (Finding::ImpossibleSize { ino, .. }, at) => self.possible_size(*ino, at),
            (Finding::ContentBeyondSize { ino, .. }, at) => self.cut_content(*ino, at),
            (Finding::DataWithoutInode { ino, .. } | Finding::ObjectWithoutRow { ino }, _) => {
                self.file_without_row(*ino)
            }
            (Finding::StrayChunk { ino, index }, _) => {
                let key = RowKey::chunk(InodeId::new(*ino), *index).to_bytes();
                self.set_row_aside(DATA, &key)
            }
            (Finding::ChunkBeyondSize { ino, index, size }, _) => {
                let start = index.saturating_mul(CHUNK_BYTES as u64);
                self.cut_chunk(*ino, *index, size.saturating_sub(start) as usize)
            }
            (Finding::OversizedChunk { ino, index, .. }, _) => {
                self.cut_chunk(*ino, *index, CHUNK_BYTES)
            }
            (Finding::LostChunk { ino, offset, .. }, _) => {
                self.mark_lost(*ino, *offset / CHUNK_BYTES as u64)
            }
            (Finding::StrayXattr { ino }, at) => self.stray_xattr(*ino, at),
            (Finding::MissingXattr { ino }, at) => self.set_has_xattrs(*ino, at, false),
            (
                Finding::MisplacedXattr { ino, .. } | Finding::BadXattrName { ino, .. },
                At::Row(key),
            ) => self.place_xattrs(*ino, key),
            (
                Finding::MissingObject { ino }
                | Finding::ShortObject { ino, .. }
                | Finding::LongObject { ino, .. }
                | Finding::UnsettledObject { ino },
                at,
            ) => self.believe_object(*ino, at),
            (Finding::DamagedInstall { ino, .. }, at) => self.damaged_install(*ino, at),
            (Finding::UnclaimedObject { ino }, at) => self.unclaimed_object(*ino, at),
            (Finding::StrayFile { path }, _) => {
                self.aside.file(Path::new(path))?;
                Ok(Some("moved aside".to_owned()))
            }
            // What hangs below a loop or an unnamed directory comes back with that; pending work is a mount's.
            _ => Ok(None),
        }
    }

    /// Gives a file a size that it can have: none where it has no bytes; that of an object is found out later.
    fn possible_size(&mut self, ino: u64, at: &At) -> FsResult<Option<String>> {
        let mut edit = Edit::new(self.volume);
        let inode = edit.inode_at(InodeId::new(ino), at)?;
        let Some(mut inode) = inode.filter(|inode| inode.size > FILE_BYTES_MAX) else {
            return Ok(None);
        };
        inode.size = match &inode.content {
            Content::Object { .. } | Content::Shared(_) => FILE_BYTES_MAX,
            _ => 0,
        };
        let done = format!("the size is {} now", inode.size);
        edit.put_inode_at(inode, at)?;
        edit.commit()?;
        Ok(Some(done))
    }

    /// Cuts bytes off that lie beyond the size; a link's size follows its target.
    fn cut_content(&mut self, ino: u64, at: &At) -> FsResult<Option<String>> {
        let mut edit = Edit::new(self.volume);
        let Some(mut inode) = edit.inode_at(InodeId::new(ino), at)? else { return Ok(None) };
        let done = match &inode.content {
            Content::Symlink(target) => {
                inode.size = target.len() as u64;
                "the size is that of the target now"
            }
            Content::Inline(bytes) if bytes.len() as u64 > inode.size => {
                let key = match at {
                    At::Name(spot) => row_key(*spot),
                    _ => RowKey::inode(inode.ino),
                };
                let row = self.volume.store.get(self.volume.meta, &key.to_bytes());
                if let Some(value) = row.map_err(error::store)? {
                    self.aside.row(META, &key.to_bytes(), &value)?;
                }
                inode.content = Content::Inline(bytes.slice(..inode.size as usize));
                "what was beyond the size is set aside"
            }
            _ => return Ok(None),
        };
        edit.put_inode_at(inode, at)?;
        edit.changes.depends_on_external = true;
        edit.commit()?;
        Ok(Some(done.to_owned()))
    }

    /// Names a file in `/lost+found` that has the data of an inode without a row. An empty object goes.
    fn file_without_row(&mut self, ino: u64) -> FsResult<Option<String>> {
        let ino = InodeId::new(ino);
        let Some(lost_found) = self.lost_found()? else { return Ok(None) };
        let mut edit = Edit::new(self.volume);
        if edit.inode(ino)?.is_some() {
            return Ok(None);
        }
        let Some(inode) = self.file_of_data(ino)? else {
            self.volume.objects.remove(&[ino])?;
            return Ok(Some("it is empty: removed".to_owned()));
        };
        let (kind, size) = (inode.kind, inode.size);
        edit.put_inode(inode);
        let name = self.name_lost(&mut edit, lost_found, Body::Reference { ino, kind })?;
        edit.changes.depends_on_external = true;
        edit.commit()?;
        Ok(Some(format!("its data, {size} bytes, is now {name}")))
    }

    fn cut_chunk(&mut self, ino: u64, index: u64, keep: usize) -> FsResult<Option<String>> {
        let key = RowKey::chunk(InodeId::new(ino), index);
        let value = self.volume.store.get(self.volume.data, &key.to_bytes());
        let Some(value) = value.map_err(error::store)?.filter(|value| value.len() > keep) else {
            return Ok(None);
        };
        self.aside.row(DATA, &key.to_bytes(), &value)?;
        let mut changes = Changes::new();
        if keep == 0 {
            changes.delete_data(key);
        } else {
            changes.put_data(key, value.slice(..keep));
        }
        changes.depends_on_external = true;
        self.commit(changes)?;
        Ok(Some("cut; what was beyond is set aside".to_owned()))
    }

    /// Puts the row there that stands for a lost chunk.
    fn mark_lost(&mut self, ino: u64, index: u64) -> FsResult<Option<String>> {
        let key = RowKey::chunk(InodeId::new(ino), index);
        let is_there = self.volume.store.get(self.volume.data, &key.to_bytes());
        if is_there.map_err(error::store)?.is_some() {
            return Ok(None);
        }
        let mut changes = Changes::new();
        changes.put_data(key, lost_chunk());
        self.commit(changes)?;
        Ok(Some("reading them fails until they are written anew".to_owned()))
    }

    fn set_has_xattrs(&mut self, ino: u64, at: &At, on: bool) -> FsResult<Option<String>> {
        let mut edit = Edit::new(self.volume);
        let Some(mut inode) = edit.inode_at(InodeId::new(ino), at)? else { return Ok(None) };
        if inode.has_xattrs == on {
            return Ok(None);
        }
        inode.has_xattrs = on;
        edit.put_inode_at(inode, at)?;
        edit.commit()?;
        let done = if on { "the inode now says that it has some" } else { "it no longer says so" };
        Ok(Some(done.to_owned()))
    }

    /// Attributes come back to an inode that forgot them; those of no inode are set aside.
    fn stray_xattr(&mut self, ino: u64, at: &At) -> FsResult<Option<String>> {
        let id = InodeId::new(ino);
        if Edit::new(self.volume).inode_at(id, at)?.is_some() {
            return self.set_has_xattrs(ino, at, true);
        }
        let range = rows_from(RowKey::xattr(id, 0));
        let rows = self.volume.store.scan(self.volume.data, range, Direction::Forward);
        let mut batch = Batch::new();
        for row in rows.map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            self.aside.row(DATA, &key, &value)?;
            batch.delete(self.volume.data, key);
        }
        batch.depends_on_external();
        self.write(batch)?;
        Ok(Some("set aside".to_owned()))
    }

    /// Brings the attributes of a row to the rows of their hashes. Where one of that name is already, and with
    /// a name that none can have, it is set aside.
    fn place_xattrs(&mut self, ino: u64, key: &[u8]) -> FsResult<Option<String>> {
        let get = |key: &[u8]| self.volume.store.get(self.volume.data, key).map_err(error::store);
        let Some(value) = get(key)? else { return Ok(None) };
        let Ok(wrong) = XattrRow::decode(&value) else { return Ok(None) };
        let mut rows = std::collections::BTreeMap::<RowKey, XattrRow>::new();
        let mut is_lost = false;
        for attr in &wrong.attrs {
            if check_name(&attr.name).is_err() {
                is_lost = true;
                continue;
            }
            let home = RowKey::xattr(InodeId::new(ino), self.volume.hasher.xattr(&attr.name));
            let row = match rows.remove(&home) {
                Some(row) => row,
                None if home.to_bytes() == *key => XattrRow::default(),
                None => get(&home.to_bytes())?
                    .and_then(|value| XattrRow::decode(&value).ok())
                    .unwrap_or_default(),
            };
            let row = rows.entry(home).or_insert(row);
            if row.get(&attr.name).is_some() {
                is_lost = true;
            } else {
                row.set(&attr.name, &attr.value);
            }
        }
        if is_lost {
            self.aside.row(DATA, key, &value)?;
        }
        let mut batch = Batch::new();
        batch.delete(self.volume.data, key);
        for (home, row) in rows {
            batch.put(self.volume.data, home.to_bytes(), row.encode());
        }
        batch.depends_on_external();
        self.write(batch)?;
        let done =
            if is_lost { "set aside what has no place" } else { "it is where its hash says now" };
        Ok(Some(done.to_owned()))
    }

    /// Lets the row of a large file claim what its object holds, all and no more.
    fn believe_object(&mut self, ino: u64, at: &At) -> FsResult<Option<String>> {
        let id = InodeId::new(ino);
        let mut edit = Edit::new(self.volume);
        let inode = edit.inode_at(id, at)?;
        let is_claimed = |inode: &varve_schema::Inode| inode.content.is_object();
        let Some(mut inode) = inode.filter(is_claimed) else { return Ok(None) };
        let before = inode.size;
        match self.volume.objects.find(id)? {
            Some(object) => {
                inode.size = object.len;
                let blocks = object.allocated.div_ceil(BLOCK_BYTES);
                inode.content = Content::Object { dirty: false, blocks };
            }
            None => (inode.size, inode.content) = (0, Content::None),
        }
        let after = inode.size;
        edit.put_inode_at(inode, at)?;
        if let Some(Pending::ObjectInstall { .. } | Pending::ObjectDirty { .. }) =
            self.volume.pending(id)?
        {
            // There is nothing that could be installed, and the row says all that the object knows.
            edit.changes.delete_pending(id);
        }
        edit.changes.depends_on_external = true;
        edit.commit()?;
        Ok(Some(if after < before {
            format!("{} bytes are lost: the file has {after} bytes now", before - after)
        } else {
            format!("the file has {after} bytes now")
        }))
    }

    /// Sets aside what a commit has yet to put in the place of a large file and never can. The file stays as it was.
    fn damaged_install(&mut self, ino: u64, at: &At) -> FsResult<Option<String>> {
        let id = InodeId::new(ino);
        let Some(Pending::ObjectInstall { view }) = self.volume.pending(id)? else {
            return Ok(None);
        };
        let own = object_path(&view_dir(&self.volume.dir, Epoch::of(view)), id);
        self.aside.file(&blocks_path(&own))?;
        let done = match self.believe_object(ino, at)? {
            Some(done) => done,
            None => return self.drop_pending(ino),
        };
        Ok(Some(format!("what the commit has changed is set aside; {done}")))
    }

    /// An object whose inode has its content elsewhere is a copy that was being made: it goes if the file begins with all
    /// that it holds. Else it may be newer than the file.
    fn unclaimed_object(&mut self, ino: u64, at: &At) -> FsResult<Option<String>> {
        let id = InodeId::new(ino);
        let Some(lost_found) = self.lost_found()? else { return Ok(None) };
        let inode = Edit::new(self.volume).inode_at(id, at)?;
        let Some(inode) = inode else { return Ok(None) };
        if inode.content.is_object() {
            return Ok(None);
        }
        let Some(object) = self.volume.objects.find(id)? else { return Ok(None) };
        if self.begins_with_object(&inode, object.len)? {
            self.volume.objects.remove(&[id])?;
            return Ok(Some("removed: the file has all of it".to_owned()));
        }
        let new = self.new_id()?;
        self.volume.objects.rename(id, new)?;
        let blocks = object.allocated.div_ceil(BLOCK_BYTES);
        let mut copy = self.blank(new, Content::Object { dirty: false, blocks });
        copy.size = object.len;
        let body = Body::Reference { ino: new, kind: copy.kind };
        let mut edit = Edit::new(self.volume);
        edit.put_inode(copy);
        let name = self.name_lost(&mut edit, lost_found, body)?;
        edit.changes.depends_on_external = true;
        edit.commit()?;
        Ok(Some(format!("it holds something else than the file, and is now {name}")))
    }

    /// Whether a file whose content is elsewhere begins with the `len` bytes of the object that is there.
    fn begins_with_object(&self, inode: &Inode, len: u64) -> FsResult<bool> {
        // No file outside of objects is larger, whatever its row says.
        if len > inode.size.min(STORED_FILE_BYTES_MAX) {
            return Ok(false);
        }
        let fail = |error| error::object("read", &self.volume.objects.path(inode.ino), error);
        let object = self.volume.objects.open(inode.ino, OpenMode::Read)?;
        for (index, start) in (0_u64..).zip((0..len).step_by(CHUNK_BYTES)) {
            let mut held = vec![0; (len - start).min(CHUNK_BYTES as u64) as usize];
            object.read_exact_at(&mut held, start).map_err(fail)?;
            let bytes = match &inode.content {
                Content::Inline(bytes) => bytes.slice(bytes.len().min(start as usize)..),
                Content::Chunks => {
                    let key = RowKey::chunk(inode.ino, index).to_bytes();
                    let chunk = self.volume.store.get(self.volume.data, &key);
                    let chunk = chunk.map_err(error::store)?.unwrap_or_default();
                    if is_lost_chunk(&chunk) {
                        return Ok(false);
                    }
                    chunk
                }
                Content::None => Bytes::new(),
                Content::Symlink(_)
                | Content::Directory(_)
                | Content::Shared(_)
                | Content::Object { .. } => return Ok(false),
            };
            // What the file has no bytes of is a hole.
            let (same, holes) = held.split_at(held.len().min(bytes.len()));
            if !bytes.starts_with(same) || holes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
