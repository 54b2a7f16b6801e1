//! Mends names and directories.

use varve_engine::{Direction, KeyRange};
use varve_schema::key::MetaRow;
use varve_schema::{Body, Content, EntryRow, EntrySuffix, FileKind, META, Pending, RowKey};
use varve_types::{FileName, InodeId};
use varve_vfs::FsResult;

use super::Repair;
use super::edit::{Edit, row_key};
use crate::error;
use crate::fsck::fact::Spot;
use crate::fsck::names::printable;

/// Entry rows that are moved before the next are read.
const ROWS_AT_ONCE: usize = 1000;

impl Repair<'_> {
    /// Gives a directory whose row is lost a new one; its entries stay. What is no directory loses its
    /// entries to `/lost+found`.
    pub(super) fn restore_directory(&mut self, dir: InodeId) -> FsResult<Option<String>> {
        let mut edit = Edit::new(self.volume);
        let there = edit.inode(dir)?.map(|inode| inode.kind);
        if there == Some(FileKind::Directory) {
            return Ok(None);
        }
        if there.is_some() && dir != InodeId::ROOT {
            return self.move_entries(dir);
        }
        if there.is_some() {
            self.set_row_aside(META, &RowKey::inode(dir).to_bytes())?;
        }
        let (entries, subdirs) = self.counted(dir)?;
        let mut inode = self.blank_directory(dir);
        if dir == InodeId::ROOT {
            inode.perm = 0o755;
        }
        if let Content::Directory(info) = &mut inode.content {
            (info.entries, info.subdirs) = (entries, subdirs);
        }
        inode.nlink = subdirs.saturating_add(2);
        let perm = inode.perm;
        edit.put_inode(inode);
        edit.commit()?;
        Ok(Some(format!(
            "made anew with mode {perm:04o}, owned by {}; its {entries} entries stay",
            self.owner_name()
        )))
    }

    /// Moves the entries below something that is no directory.
    fn move_entries(&mut self, dir: InodeId) -> FsResult<Option<String>> {
        let Some(lost_found) = self.lost_found()? else { return Ok(None) };
        let mut moved = 0_u64;
        loop {
            let rows = self.entries(dir)?;
            if rows.is_empty() {
                break;
            }
            for (suffix, row) in rows {
                let mut edit = Edit::new(self.volume);
                for named in row.names() {
                    let spot = Spot { dir: dir.get(), suffix, slot: named.slot };
                    let Some(body) = edit.remove_name(spot)? else { continue };
                    let wanted = [format!("#{dir}.").as_bytes(), &named.name].concat();
                    self.name_variant(&mut edit, lost_found, &wanted, body)?;
                    moved += 1;
                }
                edit.commit()?;
            }
        }
        Ok((moved > 0).then(|| {
            format!("it is no directory: {moved} entries go to {}", self.lost_found_path())
        }))
    }

    /// The first entry rows of a directory that can be read.
    fn entries(&self, dir: InodeId) -> FsResult<Vec<(EntrySuffix, EntryRow)>> {
        let range = KeyRange::prefix(&RowKey::prefix_bytes(dir));
        let rows = self.volume.store.scan(self.volume.meta, range, Direction::Forward);
        let mut entries = Vec::new();
        for row in rows.map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            let Some(MetaRow::Entry(_, suffix)) = RowKey::from_bytes(&key).map(RowKey::meta_kind)
            else {
                continue;
            };
            if let Ok(row) = EntryRow::decode(&value) {
                entries.push((suffix, row));
            }
            if entries.len() == ROWS_AT_ONCE {
                break;
            }
        }
        Ok(entries)
    }

    /// Entries and subdirectories of a directory, counted.
    fn counted(&self, dir: InodeId) -> FsResult<(u64, u32)> {
        let range = KeyRange::prefix(&RowKey::prefix_bytes(dir));
        let rows = self.volume.store.scan(self.volume.meta, range, Direction::Forward);
        let (mut entries, mut subdirs) = (0, 0);
        for row in rows.map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            let kind = RowKey::from_bytes(&key).map(RowKey::meta_kind);
            if let Some(MetaRow::Entry(..)) = kind
                && let Ok(row) = EntryRow::decode(&value)
            {
                entries += row.names().len() as u64;
                let is_dir =
                    |named: &&varve_schema::Named| named.body.kind() == FileKind::Directory;
                subdirs += row.names().iter().filter(is_dir).count() as u32;
            }
        }
        Ok((entries, subdirs))
    }

    pub(super) fn count_entries(&mut self, dir: u64) -> FsResult<Option<String>> {
        let dir = InodeId::new(dir);
        let (entries, subdirs) = self.counted(dir)?;
        let mut edit = Edit::new(self.volume);
        let Some(inode) = edit.directory(dir)? else { return Ok(None) };
        let Content::Directory(info) = &mut inode.content else { return Ok(None) };
        if (info.entries, info.subdirs) == (entries, subdirs) {
            return Ok(None);
        }
        (info.entries, info.subdirs) = (entries, subdirs);
        inode.nlink = subdirs.saturating_add(2);
        edit.commit()?;
        Ok(Some(format!("counted: {entries} entries, {subdirs} of them directories")))
    }

    /// Brings a name to the row that its hash says; if it is taken there, or `must_change`, under another
    /// name.
    pub(super) fn put_name_right(
        &mut self,
        spot: Spot,
        must_change: bool,
    ) -> FsResult<Option<String>> {
        let mut edit = Edit::new(self.volume);
        let named = edit.row(row_key(spot))?.at(spot.slot).cloned();
        let Some(named) = named else { return Ok(None) };
        let is_name = FileName::new(&named.name).is_ok();
        let place_is_right = self.volume.hasher.entry(&named.name) == spot.suffix;
        let others = edit.row(row_key(spot))?.names().iter();
        let twins = others.filter(|other| other.name == named.name).count() > 1;
        if is_name && place_is_right && !twins {
            return Ok(None);
        }
        let mut wanted = named.name.to_vec();
        if !is_name {
            wanted.iter_mut().filter(|byte| matches!(byte, 0 | b'/')).for_each(|byte| *byte = b'_');
            if FileName::new(&wanted).is_err() {
                wanted.insert(0, b'#');
            }
        }
        if must_change && is_name {
            wanted.extend_from_slice(format!("#{}", named.body.ino()).as_bytes());
            wanted.truncate(varve_types::limits::NAME_BYTES_MAX);
        }
        let Some(body) = edit.remove_name(spot)? else { return Ok(None) };
        let name = self.name_variant(&mut edit, InodeId::new(spot.dir), &wanted, body)?;
        edit.commit()?;
        Ok(Some(format!("it is now entry {}", printable(&name))))
    }

    /// Takes a name of a directory away that has its name elsewhere.
    pub(super) fn second_name(&mut self, spot: Spot, ino: u64) -> FsResult<Option<String>> {
        let mut edit = Edit::new(self.volume);
        let body = edit.body(spot)?;
        if body.is_none_or(|body| body.ino().get() != ino) {
            return Ok(None);
        }
        edit.remove_name(spot)?;
        edit.commit()?;
        Ok(Some("the second name is removed; the directory keeps the first".to_owned()))
    }

    /// Lets a directory know where its name is.
    pub(super) fn adopt_name(&mut self, dir: u64, spot: Spot) -> FsResult<Option<String>> {
        let ino = InodeId::new(dir);
        let mut edit = Edit::new(self.volume);
        let body = edit.body(spot)?;
        if body.is_none_or(|body| body.ino() != ino) {
            return Ok(None);
        }
        let Some(inode) = edit.directory(ino)? else { return Ok(None) };
        let Content::Directory(info) = &mut inode.content else { return Ok(None) };
        (info.parent, info.suffix) = (InodeId::new(spot.dir), Some(spot.suffix));
        edit.commit()?;
        Ok(Some(format!("it now says directory {}", spot.dir)))
    }

    pub(super) fn root_is_its_own_parent(&mut self) -> FsResult<Option<String>> {
        let mut edit = Edit::new(self.volume);
        let Some(inode) = edit.directory(InodeId::ROOT)? else { return Ok(None) };
        let Content::Directory(info) = &mut inode.content else { return Ok(None) };
        (info.parent, info.suffix) = (InodeId::ROOT, None);
        edit.commit()?;
        Ok(Some("the root is its own parent again".to_owned()))
    }

    /// Gives an inode with a row of its own and no name one in `/lost+found`.
    pub(super) fn name_in_lost_found(&mut self, ino: u64) -> FsResult<Option<String>> {
        let ino = InodeId::new(ino);
        let Some(lost_found) = self.lost_found()? else { return Ok(None) };
        let mut edit = Edit::new(self.volume);
        let Some(inode) = edit.inode(ino)? else { return Ok(None) };
        let kind = inode.kind;
        if kind != FileKind::Directory {
            inode.nlink = 1;
        }
        let (pending, mut depends) = (self.volume.pending(ino)?, false);
        if inode.content.is_dirty()
            && !matches!(pending, Some(Pending::ObjectInstall { .. }))
            && let Some(object) = self.volume.objects.find(ino)?
        {
            inode.size = object.len;
            let blocks = object.allocated.div_ceil(512);
            inode.content = Content::Object { dirty: false, blocks };
            depends = true;
        }
        if depends {
            edit.changes.depends_on_external = true;
        }
        // What is pending of its object is left to the next mount.
        if let Some(Pending::Orphan | Pending::OrphanObjectMaking | Pending::ObjectDirty { .. }) =
            pending
        {
            edit.changes.delete_pending(ino);
        }
        let name = self.name_lost(&mut edit, lost_found, Body::Reference { ino, kind })?;
        edit.commit()?;
        Ok(Some(format!("it is now {name}")))
    }

    /// Takes a directory out of the one that is below it.
    pub(super) fn cut_loop(&mut self, dir: u64) -> FsResult<Option<String>> {
        let ino = InodeId::new(dir);
        let Some(lost_found) = self.lost_found()? else { return Ok(None) };
        let mut edit = Edit::new(self.volume);
        let Some(inode) = edit.directory(ino)? else { return Ok(None) };
        let Content::Directory(info) = inode.content else { return Ok(None) };
        if let Some(suffix) = info.suffix {
            let row = edit.row(RowKey::entry(info.parent, suffix))?;
            let slot = row.names().iter().find(|named| named.body.ino() == ino).map(|n| n.slot);
            if let Some(slot) = slot {
                edit.remove_name(Spot { dir: info.parent.get(), suffix, slot })?;
            }
        }
        let body = Body::Reference { ino, kind: FileKind::Directory };
        let name = self.name_lost(&mut edit, lost_found, body)?;
        edit.commit()?;
        Ok(Some(format!("the loop is cut: it is now {name}")))
    }
}
