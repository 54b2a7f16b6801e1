//! Mends what directories say of the trees below them, and the parent pointers of files ([`crate::usage`]).

use std::collections::{HashMap, HashSet};

use varve_engine::{Direction, KeyRange};
use varve_schema::{Body, Content, Home, META, Mark, ParentRow, RowKey};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::Repair;
use super::edit::{Edit, row_key};
use crate::error;
use crate::fsck::Finding;
use crate::fsck::fact::Spot;
use crate::fsck::finding::At;

/// The slots of marked directories.
pub(super) struct Marks {
    slots: HashMap<InodeId, u64>,
    used: HashSet<u64>,
    /// Slots below are taken.
    next: u64,
}

impl Repair<'_> {
    pub(super) fn mend_usage(&mut self, finding: &Finding, at: &At) -> FsResult<Option<String>> {
        match (finding, at) {
            (Finding::WrongUsage { dir, what, recorded, counted }, _) => {
                self.set_usage(*dir, what, *recorded, *counted)
            }
            (Finding::UntoldWithoutMark { dir }, _) => self.mark_untold(*dir),
            (
                Finding::MarkWithoutDirectory { dir } | Finding::LimitsWithoutDirectory { dir },
                At::Row(key),
            ) => {
                // The same pass may have made it anew.
                if Edit::new(self.volume).directory(InodeId::new(*dir))?.is_some() {
                    return Ok(None);
                }
                self.marks = None;
                self.set_row_aside(META, key)
            }
            (Finding::WrongHome { ino }, At::Name(spot)) => self.set_home(*ino, *spot),
            (Finding::MissingParentPointer { ino, .. }, At::Name(spot)) => {
                self.add_pointer(*ino, *spot)
            }
            (Finding::StrayParentPointer { ino, .. }, At::Row(key)) => {
                self.keep_true_pointers(*ino, key)
            }
            _ => self.mend_data(finding, at),
        }
    }

    /// Corrects one number of a directory's usage. What its parent was told stays: the correction is told to it
    /// like any change, when the store is mounted.
    fn set_usage(
        &mut self,
        dir: u64,
        what: &str,
        recorded: u64,
        counted: u64,
    ) -> FsResult<Option<String>> {
        let dir = InodeId::new(dir);
        let mut edit = Edit::new(self.volume);
        let Some(inode) = edit.directory(dir)? else { return Ok(None) };
        let Content::Directory(info) = &mut inode.content else { return Ok(None) };
        let (usage, pending) = match what {
            "bytes" => (&mut info.usage.bytes, &mut info.pending.bytes),
            "files" => (&mut info.usage.files, &mut info.pending.files),
            _ => (&mut info.usage.dirs, &mut info.pending.dirs),
        };
        if *usage != recorded {
            return Ok(None);
        }
        *usage = counted;
        let mut has_news = false;
        if dir != InodeId::ROOT {
            *pending = pending.wrapping_add(counted.wrapping_sub(recorded) as i64);
            has_news = !info.pending.is_zero();
        }
        if has_news {
            self.mark(&mut edit, dir)?;
        }
        edit.commit()?;
        Ok(Some(format!("counted: {counted}")))
    }

    /// Names a directory with something to tell by a mark. The root has nobody to tell.
    fn mark_untold(&mut self, dir: u64) -> FsResult<Option<String>> {
        let dir = InodeId::new(dir);
        let mut edit = Edit::new(self.volume);
        let Some(inode) = edit.directory(dir)? else { return Ok(None) };
        let Content::Directory(info) = &mut inode.content else { return Ok(None) };
        if dir == InodeId::ROOT {
            info.pending = Default::default();
        } else {
            self.mark(&mut edit, dir)?;
        }
        edit.commit()?;
        Ok(Some("its parent will be told".to_owned()))
    }

    fn mark(&mut self, edit: &mut Edit<'_>, dir: InodeId) -> FsResult<()> {
        if self.marks.is_none() {
            self.marks = Some(self.load_marks()?);
        }
        let Some(marks) = &mut self.marks else { return Ok(()) };
        if marks.slots.contains_key(&dir) {
            return Ok(());
        }
        while marks.used.contains(&marks.next) {
            marks.next += 1;
        }
        let slot = marks.next;
        marks.next += 1;
        marks.slots.insert(dir, slot);
        edit.changes.put_meta(RowKey::mark(slot), Mark(dir).encode());
        Ok(())
    }

    fn load_marks(&self) -> FsResult<Marks> {
        let mut marks = Marks { slots: HashMap::new(), used: HashSet::new(), next: 0 };
        let range = KeyRange::prefix(&RowKey::mark_prefix());
        let rows = self.volume.store.scan(self.volume.meta, range, Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            let Some(key) = RowKey::from_bytes(&key) else { continue };
            marks.used.insert(key.suffix());
            if let Ok(Mark(dir)) = Mark::decode(&value) {
                marks.slots.insert(dir, key.suffix());
            }
        }
        Ok(marks)
    }

    /// Lets a file count in the directory of the name at `spot`; within an entry it counts there anyway.
    fn set_home(&mut self, ino: u64, spot: Spot) -> FsResult<Option<String>> {
        let id = InodeId::new(ino);
        let mut edit = Edit::new(self.volume);
        let named = edit.row(row_key(spot))?.at(spot.slot).cloned();
        let Some(named) = named.filter(|named| named.body.ino() == id) else { return Ok(None) };
        match named.body {
            Body::Inline(mut inode) => {
                inode.home = None;
                edit.set_body(spot, Body::Inline(inode))?;
            }
            Body::Reference { .. } => {
                let dir = InodeId::new(spot.dir);
                let hash = self.volume.hasher.parent(dir, &named.name);
                let Some(inode) = edit.inode(id)? else { return Ok(None) };
                inode.home = Some(Home { dir, hash });
            }
        }
        edit.commit()?;
        Ok(Some(format!("it counts in directory {} now", spot.dir)))
    }

    /// Adds the parent pointer to the name at `spot`.
    fn add_pointer(&mut self, ino: u64, spot: Spot) -> FsResult<Option<String>> {
        let (id, dir) = (InodeId::new(ino), InodeId::new(spot.dir));
        let mut edit = Edit::new(self.volume);
        let named = edit.row(row_key(spot))?.at(spot.slot).cloned();
        let Some(named) = named.filter(|named| named.body.ino() == id) else { return Ok(None) };
        let key = RowKey::parent(id, self.volume.hasher.parent(dir, &named.name));
        let mut row = self.pointers(&key.to_bytes())?.unwrap_or_default();
        if edit.inode(id)?.is_none() || !row.add(dir, &named.name) {
            return Ok(None);
        }
        edit.changes.put_meta(key, row.encode());
        edit.commit()?;
        Ok(Some("the pointer is there now".to_owned()))
    }

    fn pointers(&self, key: &[u8]) -> FsResult<Option<ParentRow>> {
        let value = self.volume.store.get(self.volume.meta, key).map_err(error::store)?;
        Ok(value.and_then(|value| ParentRow::decode(&value).ok()))
    }

    /// Removes from a row of parent pointers those that lead to no name of the inode.
    fn keep_true_pointers(&mut self, ino: u64, key: &[u8]) -> FsResult<Option<String>> {
        let id = InodeId::new(ino);
        let (Some(row), Some(row_key)) = (self.pointers(key)?, RowKey::from_bytes(key)) else {
            return Ok(None);
        };
        let hasher = &self.volume.hasher;
        let mut edit = Edit::new(self.volume);
        let has_row = edit.inode(id)?.is_some_and(|i| !matches!(i.content, Content::Directory(_)));
        let mut kept = ParentRow::default();
        for pointer in &row.pointers {
            let entry = RowKey::entry(pointer.dir, hasher.entry(&pointer.name));
            let body = edit.row(entry)?.find(&pointer.name).map(|named| named.body.clone());
            let leads = matches!(body, Some(Body::Reference { ino, .. }) if ino == id);
            let place = RowKey::parent(id, hasher.parent(pointer.dir, &pointer.name));
            if has_row && leads && place == row_key {
                kept.add(pointer.dir, &pointer.name);
            }
        }
        if kept.pointers.len() == row.pointers.len() {
            return Ok(None);
        }
        if kept.pointers.is_empty() {
            edit.changes.delete_meta(row_key);
        } else {
            edit.changes.put_meta(row_key, kept.encode());
        }
        edit.commit()?;
        Ok(Some("the pointer is removed".to_owned()))
    }
}
