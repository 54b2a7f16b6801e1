//! What directories say of the trees below them ([`crate::usage`]): totals, marks, homes, parent pointers, limits.
//!
//! Each directory is checked by itself, with the group of its rows: its usage is what lies directly in it and
//! what its subdirectories have told. Where that holds everywhere, every total is right.

use bytes::Bytes;
use varve_engine::StoreSnapshot;
use varve_schema::{
    Body, DirInfo, EntryRow, Inode, Limits, Mark, Named, ParentRow, RowKey, Usage, UsageChange,
};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::names::Group;
use super::{Check, Finding};
use crate::error;

impl Check<'_> {
    pub(super) fn mark_row(&mut self, key: RowKey, value: &Bytes) {
        match Mark::decode(value) {
            Ok(Mark(dir)) => drop(self.marked.insert(dir.get())),
            Err(error) => self.unreadable(key, &error),
        }
    }

    pub(super) fn limits_row(&mut self, key: RowKey, dir: InodeId, value: &Bytes) -> FsResult<()> {
        match Limits::decode(value) {
            Ok(_) if self.directory(dir)?.is_some() => {}
            Ok(_) => self.found(Finding::LimitsWithoutDirectory { dir: dir.get() }),
            Err(error) => self.unreadable(key, &error),
        }
        Ok(())
    }

    /// Checks that each pointer of a row is where its hash says and leads to a name of the inode.
    pub(super) fn parent_row(
        &mut self,
        ino: InodeId,
        hash: u64,
        key: RowKey,
        value: &Bytes,
    ) -> FsResult<()> {
        let row = match ParentRow::decode(value) {
            Ok(row) => row,
            Err(error) => {
                self.unreadable(key, &error);
                return Ok(());
            }
        };
        for pointer in row.pointers {
            self.linked.entry(ino.get()).or_default().pointers += 1;
            let entry = RowKey::entry(pointer.dir, self.fs.hasher.entry(&pointer.name));
            let stands = names(self.snapshot, self.fs.meta, entry, &pointer.name, ino)?;
            if !stands || self.fs.hasher.parent(pointer.dir, &pointer.name) != hash {
                let (dir, name) = (pointer.dir.get(), pointer.name.escape_ascii().to_string());
                self.found(Finding::StrayParentPointer { ino: ino.get(), dir, name });
            }
        }
        Ok(())
    }

    /// Adds what a name counts in its directory. `inode` is the file it refers to, which is in a row of its
    /// own.
    pub(super) fn count_linked(&mut self, group: &mut Group, named: &Named, inode: &Inode) {
        let Some(home) = inode.home else { return };
        let links = self.linked.entry(inode.ino.get()).or_default();
        let is_home = home.dir == group.ino
            && home.hash == self.fs.hasher.parent(group.ino, &named.name)
            && !links.home_found;
        if is_home {
            links.home_found = true;
            group.usage = group.usage.plus(UsageChange::file(inode.size));
        }
    }

    pub(super) fn check_usage(&mut self, dir: InodeId, info: &DirInfo, counted: Usage) {
        let recorded = info.usage;
        let sums = [
            ("bytes", recorded.bytes, counted.bytes),
            ("files", recorded.files, counted.files),
            ("directories", recorded.dirs, counted.dirs),
        ];
        for (what, recorded, counted) in sums {
            if recorded != counted {
                self.found(Finding::WrongUsage { dir: dir.get(), what, recorded, counted });
            }
        }
        let told = info.untold.is_zero();
        if !told && (dir == InodeId::ROOT || !self.marked.contains(&dir.get())) {
            self.found(Finding::UntoldWithoutMark { dir: dir.get() });
        }
    }

    /// Checks that every mark names a directory.
    pub(super) fn check_marks(&mut self) -> FsResult<()> {
        let mut marked: Vec<u64> = std::mem::take(&mut self.marked).into_iter().collect();
        marked.sort_unstable();
        for dir in marked {
            if self.directory(InodeId::new(dir))?.is_none() {
                self.found(Finding::MarkWithoutDirectory { dir });
            }
        }
        Ok(())
    }
}

/// Whether `name` in the entry row `entry` refers to `ino`.
fn names(
    snapshot: &dyn StoreSnapshot,
    meta: varve_types::KeyspaceId,
    entry: RowKey,
    name: &[u8],
    ino: InodeId,
) -> FsResult<bool> {
    let value = snapshot.get(meta, &entry.to_bytes()).map_err(error::store)?;
    let Some(Ok(row)) = value.map(|value| EntryRow::decode(&value)) else { return Ok(false) };
    let body = row.find(name).map(|named| &named.body);
    Ok(matches!(body, Some(Body::Reference { ino: found, .. }) if *found == ino))
}
