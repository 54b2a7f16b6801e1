//! Mends inodes: rows, links, identities.

use varve_engine::{Direction, KeyRange};
use varve_schema::key::DataRow;
use varve_schema::{Body, CHUNK_BYTES, Content, FileKind, Inode, Pending, RowKey};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::Repair;
use super::edit::Edit;
use crate::epoch::Epoch;
use crate::error;
use crate::fsck::fact::{ContentKind, Spot};
use crate::fsck::finding::At;
use crate::ids::is_inode_id;
use crate::objects::Staged;
use crate::superblock::view_dir;

impl Repair<'_> {
    /// Mends a name whose inode has no row: if data of it is left, it gets a row, else the name goes.
    pub(super) fn dangling(&mut self, spot: Spot, ino: u64) -> FsResult<Option<String>> {
        let id = InodeId::new(ino);
        let mut edit = Edit::new(self.volume);
        let body = edit.body(spot)?;
        let refers = body.is_some_and(|b| b.ino() == id && matches!(b, Body::Reference { .. }));
        if !refers || edit.inode(id)?.is_some() {
            return Ok(None);
        }
        if let Some(inode) = self.file_of_data(id)? {
            let size = inode.size;
            edit.set_body(spot, Body::Reference { ino: id, kind: inode.kind })?;
            edit.put_inode(inode);
            edit.changes.depends_on_external = true;
            edit.commit()?;
            return Ok(Some(format!(
                "the file is made anew of its data, {size} bytes, with mode 0600, owned by {}",
                self.owner_name()
            )));
        }
        edit.remove_name(spot)?;
        edit.commit()?;
        Ok(Some("the name is removed; nothing is left of what it stood for".to_owned()))
    }

    /// A file that has the data found for an inode without a row; `None` if there is none.
    pub(super) fn file_of_data(&self, ino: InodeId) -> FsResult<Option<Inode>> {
        if !is_inode_id(ino) {
            return Ok(None);
        }
        let range = KeyRange::prefix(&RowKey::prefix_bytes(ino));
        let rows = self.volume.store.scan(self.volume.data, range, Direction::Forward);
        let mut size = 0_u64;
        for row in rows.map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            match RowKey::from_bytes(&key).map(RowKey::data_kind) {
                Some(DataRow::Chunk(_, index)) => {
                    let end = index.saturating_mul(CHUNK_BYTES as u64);
                    size = size.max(end.saturating_add(value.len().min(CHUNK_BYTES) as u64));
                }
                _ => break,
            }
        }
        let objects = &self.volume.objects;
        // What a commit has made of it is put in its place by the next mount.
        let staged = match self.volume.pending(ino)? {
            Some(Pending::ObjectInstall { view }) => {
                match objects.staged(ino, &view_dir(&self.volume.dir, Epoch::of(view)))? {
                    Staged::Ready(len) => Some(len),
                    Staged::Nothing | Staged::Damaged(_) => None,
                }
            }
            _ => None,
        };
        let object = match staged {
            Some(len) => Some((len, len)),
            None => objects.find(ino)?.map(|object| (object.len, object.allocated)),
        };
        let (size, content) = match object {
            Some((len, allocated)) if len > 0 && len >= size => {
                let blocks = allocated.div_ceil(512);
                (len, Content::Object { dirty: false, blocks })
            }
            _ if size > 0 => (size.min(varve_types::limits::FILE_BYTES_MAX), Content::Chunks),
            _ => return Ok(None),
        };
        let mut inode = self.blank(ino, content);
        inode.size = size;
        Ok(Some(inode))
    }

    /// Moves an inode from the entry it is in to a row of its own.
    pub(super) fn make_row(&mut self, ino: u64, spot: Spot) -> FsResult<Option<String>> {
        let mut edit = Edit::new(self.volume);
        let inode = edit.inline(spot)?.filter(|inode| inode.ino.get() == ino);
        let Some(inode) = inode else { return Ok(None) };
        if edit.inode(inode.ino)?.is_some() {
            return Ok(None);
        }
        edit.set_body(spot, Body::Reference { ino: inode.ino, kind: inode.kind })?;
        edit.put_inode(inode);
        edit.commit()?;
        Ok(Some("it has a row of its own now".to_owned()))
    }

    /// Mends an inode within an entry although it has a row of its own: the entry becomes one more name of
    /// it, or if it holds something else, an inode by itself.
    pub(super) fn second_inode(&mut self, ino: u64, spot: Spot) -> FsResult<Option<String>> {
        let mut edit = Edit::new(self.volume);
        let second = edit.inline(spot)?.filter(|inode| inode.ino.get() == ino);
        let Some(second) = second else { return Ok(None) };
        let Some(own) = edit.inode(second.ino)? else { return Ok(None) };
        if !is_same_file(own, &second) {
            let own = own.clone();
            return self.part(spot, second, Some(&own));
        }
        if second.times.ctime > own.times.ctime {
            let has_xattrs = own.has_xattrs || second.has_xattrs;
            *own = Inode { nlink: own.nlink, has_xattrs, home: own.home, ..second };
        }
        own.nlink = own.nlink.saturating_add(1);
        let body = Body::Reference { ino: own.ino, kind: own.kind };
        edit.set_body(spot, body)?;
        edit.commit()?;
        Ok(Some("both are the same file: they are links to it now".to_owned()))
    }

    /// Gives the inode within an entry an id that nobody else has.
    pub(super) fn new_identity(&mut self, spot: Spot) -> FsResult<Option<String>> {
        let mut edit = Edit::new(self.volume);
        match edit.inline(spot)? {
            Some(inode) if !is_inode_id(inode.ino) || inode.ino == InodeId::ROOT => {
                self.part(spot, inode, None)
            }
            _ => Ok(None),
        }
    }

    /// Gives `inode`, which is at `spot`, an id of its own and what data `own`, which keeps the id, does not
    /// claim.
    fn part(
        &mut self,
        spot: Spot,
        mut inode: Inode,
        own: Option<&Inode>,
    ) -> FsResult<Option<String>> {
        let old = inode.ino;
        let new = self.new_id()?;
        let mut edit = Edit::new(self.volume);
        inode.ino = new;
        let takes_data = own.is_some_and(|own| ContentKind::of(&own.content) == ContentKind::Inode);
        let takes_xattrs = own.is_some_and(|own| !own.has_xattrs);
        let place = ContentKind::of(&inode.content);
        let range = KeyRange::prefix(&RowKey::prefix_bytes(old));
        let rows = self.volume.store.scan(self.volume.data, range, Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            let Some(key) = RowKey::from_bytes(&key) else { continue };
            let takes = match key.data_kind() {
                DataRow::Chunk(..) => takes_data && place == ContentKind::Chunks,
                DataRow::Xattr(_) => takes_xattrs && inode.has_xattrs,
            };
            if takes {
                edit.changes.delete_data(key);
                edit.changes.put_data(key.of_inode(new), value);
            }
        }
        inode.has_xattrs &= takes_xattrs;
        if place.is_object() && takes_data && self.volume.objects.find(old)?.is_some() {
            self.volume.objects.rename(old, new)?;
        } else if !takes_data && place != ContentKind::Inode {
            (inode.content, inode.size) = (Content::None, 0);
        }
        edit.set_body(spot, Body::Inline(inode))?;
        edit.changes.depends_on_external = true;
        edit.commit()?;
        Ok(Some(format!("the entry holds something else: it is inode {new} now")))
    }

    /// Lets an entry say the type that its inode has.
    pub(super) fn wrong_type(&mut self, spot: Spot, ino: u64) -> FsResult<Option<String>> {
        let id = InodeId::new(ino);
        let mut edit = Edit::new(self.volume);
        if edit.body(spot)?.is_none_or(|body| body.ino() != id) {
            return Ok(None);
        }
        let Some(own) = edit.inode(id)? else { return self.make_row(ino, spot) };
        let kind = own.kind;
        edit.set_body(spot, Body::Reference { ino: id, kind })?;
        edit.commit()?;
        Ok(Some("the entry now says what the inode is".to_owned()))
    }

    /// Writes an inode's row with its own id.
    pub(super) fn wrong_inode(&mut self, ino: u64, found: u64) -> FsResult<Option<String>> {
        let mut edit = Edit::new(self.volume);
        if edit.inode(InodeId::new(ino))?.is_none() {
            return Ok(None);
        }
        edit.commit()?;
        Ok(Some(format!("the row says {ino} now, no longer {found}")))
    }

    pub(super) fn set_links(
        &mut self,
        ino: u64,
        at: &At,
        recorded: u64,
        counted: u64,
    ) -> FsResult<Option<String>> {
        let mut edit = Edit::new(self.volume);
        let Some(mut inode) = edit.inode_at(InodeId::new(ino), at)? else { return Ok(None) };
        let links = match (&inode.content, at) {
            (Content::Directory(info), _) => info.subdirs.saturating_add(2),
            _ => u32::try_from(counted).unwrap_or(u32::MAX),
        };
        if u64::from(inode.nlink) != recorded || inode.nlink == links {
            return Ok(None);
        }
        inode.nlink = links;
        edit.put_inode_at(inode, at)?;
        edit.commit()?;
        Ok(Some(format!("it records {links} now")))
    }
}

/// Whether two inodes with one id can be one file: what they hold is the same, or held under that id.
fn is_same_file(a: &Inode, b: &Inode) -> bool {
    let (at_a, at_b) = (ContentKind::of(&a.content), ContentKind::of(&b.content));
    let same = if at_a == ContentKind::Inode || at_b == ContentKind::Inode {
        a.content == b.content && a.size == b.size
    } else {
        (at_a == ContentKind::Chunks) == (at_b == ContentKind::Chunks)
    };
    a.kind == b.kind && a.kind != FileKind::Directory && a.rdev == b.rdev && same
}
