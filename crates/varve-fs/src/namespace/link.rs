//! Giving an inode one more name.
//!
//! The second name moves the inode out of the row of its first into a row of its own; that entry and
//! the new one then refer to it, and parent pointers lead from it to both. It goes on counting where its first
//! name is. Its data rows are keyed by the inode's id and stay. When names go again, the inode's row stays: turning
//! back would mean to lock one row more, for a file that had several names and may get some again.
//!
//! Source: TableFS 4.2.3. Departure: the parent pointers.

use std::sync::atomic::Ordering;

use varve_schema::{Body, EntryRow, FileKind, Inode, Place, RowKey, UsageChange};
use varve_types::limits::LINKS_MAX;
use varve_types::{FileName, InodeId};
use varve_vfs::{Entry, FsError, FsResult};

use super::create::adjust_dir;
use super::lookup::row_full;
use crate::flags::{check_adds_name, check_links};
use crate::fs::VarveFs;
use crate::rows::Changes;

impl VarveFs {
    pub(crate) fn do_link(
        &self,
        ino: InodeId,
        parent: InodeId,
        name: FileName<'_>,
    ) -> FsResult<Entry> {
        let inode = self.give_name(ino, parent, name)?;
        // Who wrote to it may have let go of it when it had no name.
        if inode.nlink == 1 && inode.content.is_dirty() {
            self.settle_unwritten(ino);
        }
        Ok(Entry { attr: self.attr(&inode)? })
    }

    /// Gives an inode one more name and one more lookup.
    fn give_name(&self, ino: InodeId, parent: InodeId, name: FileName<'_>) -> FsResult<Inode> {
        self.writable()?;
        self.check_name(parent, name)?;
        if ino.is_made_up() {
            return Err(FsError::NotPermitted);
        }
        let key = RowKey::entry(parent, self.hasher.entry(name.as_bytes()));
        // What has no name counts nowhere, so it must not grow between the look at its size and the name.
        let node = self.locator.node(ino).filter(|node| node.state().linkable);
        let _growing = node.as_ref().map(|node| node.append.lock());
        loop {
            let place = self.locator.place(ino)?.unwrap_or(Place::Own);
            let mut keys = vec![RowKey::inode(parent), key, RowKey::inode(ino)];
            if let Place::Entry { key, .. } = &place {
                keys.push(*key);
            }
            let (guards, mut dir) = self.lock_unfolded(parent, &keys)?;
            if self.locator.place(ino)?.unwrap_or(Place::Own) != place {
                continue;
            }
            let home_key = match &place {
                Place::Entry { key: home, .. } if *home != key => Some(*home),
                _ => None,
            };
            let mut home = home_key.map(|key| self.entry_row(key)).transpose()?;
            let mut row = self.locked_entry_row(&guards, key)?;
            let mut inode = self.link_target(ino, &place, home.as_ref().unwrap_or(&row))?;
            home.iter().chain([&row]).try_for_each(|row| self.check_none_written_elsewhere(row))?;
            self.check_written_elsewhere(&inode)?;
            if row.find(name.as_bytes()).is_some() {
                return Err(FsError::Exists);
            }
            check_adds_name(&dir)?;
            self.check_linkable(&inode, &place)?;
            check_links(&inode)?;
            if inode.nlink >= LINKS_MAX {
                return Err(FsError::TooManyLinks);
            }
            if let Some(dir) = place.counted_in(&inode)
                && self.accounts.crosses(dir, parent)?
            {
                return Err(FsError::CrossesLimits);
            }
            let now = self.now();
            let mut changes = self.changes();
            let first = home.as_mut().unwrap_or(&mut row);
            self.count_link(&mut changes, &mut inode, (&place, first), (parent, name))?;
            inode.nlink += 1;
            inode.times.ctime = now;
            let reference = Body::Reference { ino, kind: inode.kind };
            row.insert(name.as_bytes(), reference).ok_or_else(|| row_full(&row))?;
            adjust_dir(&mut dir, 1, 0, now)?;
            changes.put_inode(&inode);
            changes.put_dir(dir);
            changes.put_entry_row(key, &row);
            if let Some((home_key, home)) = home_key.zip(home) {
                changes.put_entry_row(home_key, &home);
            }
            self.commit(&mut changes)?;
            self.moves.fetch_add(1, Ordering::AcqRel);
            self.locator.unmark_orphan(ino);
            if let Some(node) = self.locator.node(ino) {
                node.state().linkable = false;
            }
            self.locator.note_lookup(ino, Place::Own)?;
            return Ok(inode);
        }
    }

    /// Gives `inode` a parent pointer to its new name `(parent, name)`, and makes that its home if it had no name.
    /// An inode that lies in the entry row `first` gets a row of its own, and a pointer and home there too.
    fn count_link(
        &self,
        changes: &mut Changes,
        inode: &mut Inode,
        (place, first): (&Place, &mut EntryRow),
        (parent, name): (InodeId, FileName<'_>),
    ) -> FsResult<()> {
        let ino = inode.ino;
        let mut parents = self.parents(ino);
        if let Place::Entry { key, slot } = place {
            let named = first.at(*slot).map(|named| named.name.clone()).unwrap_or_default();
            inode.home = Some(parents.add(InodeId::new(key.prefix()), &named)?);
            first.set_body(*slot, Body::Reference { ino, kind: inode.kind });
        }
        let added = parents.add(parent, name.as_bytes())?;
        parents.stage(changes);
        // One that has names which are still to come has no home either once all others are gone.
        if inode.home.is_none() {
            inode.home = Some(added);
            changes.charge(parent, UsageChange::file(inode.size));
            self.charge_growth(changes, inode, parent)?;
        }
        // It is pending as an orphan no more, or in another place than before.
        if inode.nlink == 0 || inode.content.is_dirty() {
            changes.put_dirty(inode, None);
        }
        Ok(())
    }

    /// The inode at `place`. REQUIRES: its lock; `row` is the entry row it is in, if any.
    fn link_target(&self, ino: InodeId, place: &Place, row: &EntryRow) -> FsResult<Inode> {
        match place {
            Place::Detached(inode) => Ok((**inode).clone()),
            Place::Own => self.inode_row(ino)?.ok_or(FsError::Stale),
            Place::Entry { slot, .. } => match row.at(*slot).map(|named| &named.body) {
                Some(Body::Inline(inode)) if inode.ino == ino => Ok(inode.clone()),
                _ => Err(FsError::Stale),
            },
        }
    }

    /// Refuses directories, and inodes that lost their last name.
    fn check_linkable(&self, inode: &Inode, place: &Place) -> FsResult<()> {
        if inode.kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        let linkable = || self.locator.node(inode.ino).is_some_and(|node| node.state().linkable);
        if matches!(place, Place::Detached(_)) || (inode.nlink == 0 && !linkable()) {
            return Err(FsError::NotFound);
        }
        Ok(())
    }
}
