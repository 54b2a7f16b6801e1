//! Moving and swapping names in one atomic batch.
//!
//! 1. Lock the inode rows of both directories and both entry rows; read them.
//! 2. If an inode that is to change has a row of its own, lock that too and begin again.
//! 3. If a directory changes its parent, take the tree lock first and begin again. While it is held no
//!    directory anywhere changes its parent, so that walking up from the new parent to the root proves
//!    that the directory does not move into itself; without it two renames could each be right and
//!    together cut a loop off the tree.
//! 4. If a directory moves to where other limits hold, lock everything and begin again ([`crate::usage`]).
//! 5. Change the rows in memory, write one batch, let the locator follow.
//!
//! Source: TableFS 4.2.6 (rename as one batch of insert and delete). Departure: the batch also holds both
//! directories' counts, the moved directory's new place, and what counts for it ([`crate::usage`]).

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use varve_schema::{
    Body, Content, EntryRow, EntrySuffix, FileKind, Inode, Place, RowKey, UsageChange,
};
use varve_types::{FileName, InodeId, Timestamp};
use varve_vfs::{Caller, FsError, FsResult, RenameMode};

use super::create::{NewInode, adjust_dir, dir_info_mut};
use super::lookup::{dangling, row_full};
use super::remove::{Departure, Lost};
use crate::flags::{check_adds_name, check_takes_name};
use crate::fs::VarveFs;
use crate::locks::RowGuards;
use crate::rows::{Changes, DEPTH_MAX};

/// One end of a rename.
#[derive(Clone, Copy)]
struct End<'a> {
    dir: InodeId,
    name: FileName<'a>,
    suffix: EntrySuffix,
}

impl End<'_> {
    fn key(&self) -> RowKey {
        RowKey::entry(self.dir, self.suffix)
    }
}

impl<'a> End<'a> {
    /// The name at this end as one that `child` loses.
    fn lost(&self, child: &Child) -> Lost<'a> {
        Lost { dir: self.dir, name: self.name, own: child.own }
    }
}

/// The rows of a rename, each once: with one directory or one entry row, both ends share it.
struct Rows {
    dirs: SmallVec<[Inode; 2]>,
    entries: SmallVec<[EntryRow; 2]>,
}

impl Rows {
    fn target_dir(&mut self) -> &mut Inode {
        let last = self.dirs.len() - 1;
        &mut self.dirs[last]
    }

    /// Whether file flags let the source move to where the target is.
    fn check_flags(&self, source: &Child, target: Option<&Child>) -> FsResult<()> {
        check_takes_name(&self.dirs[0], &source.inode)?;
        let target_dir = &self.dirs[self.dirs.len() - 1];
        match target {
            Some(target) => check_takes_name(target_dir, &target.inode),
            None => check_adds_name(target_dir),
        }
    }

    fn target_row(&mut self) -> &mut EntryRow {
        let last = self.entries.len() - 1;
        &mut self.entries[last]
    }
}

/// A name's inode as it is before the rename.
struct Child {
    slot: u8,
    /// The inode, wherever it is.
    inode: Inode,
    /// It is in a row of its own.
    own: bool,
}

impl Child {
    fn is_dir(&self) -> bool {
        self.inode.kind == FileKind::Directory
    }

    fn moved(&self) -> Moved {
        Moved { ino: self.inode.ino, own: self.own }
    }
}

/// What is still to be known of an inode once it is in the row of its new name.
#[derive(Clone, Copy)]
struct Moved {
    ino: InodeId,
    /// It is in a row of its own.
    own: bool,
}

impl VarveFs {
    pub(crate) fn do_rename(
        &self,
        parent: InodeId,
        name: FileName<'_>,
        new_parent: InodeId,
        new_name: FileName<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        self.writable()?;
        self.check_name(parent, name)?;
        self.check_name(new_parent, new_name)?;
        let from = End { dir: parent, name, suffix: self.hasher.entry(name.as_bytes()) };
        let to =
            End { dir: new_parent, name: new_name, suffix: self.hasher.entry(new_name.as_bytes()) };
        let base = [RowKey::inode(parent), RowKey::inode(new_parent), from.key(), to.key()];
        let mut keys: SmallVec<[RowKey; 6]> = SmallVec::from_slice(&base);
        let (mut tree, mut all) = (None, false);
        loop {
            let guards = self.lock_rows_or_all(&keys, all)?;
            let mut rows = self.rename_rows(&guards, &from, &to)?;
            if let Some(folded) = rows.dirs.iter().find(|dir| dir.source().is_some()) {
                let dir = folded.ino;
                drop(guards);
                self.unfold(dir)?;
                continue;
            }
            let own = own_rows(&rows, &from, &to);
            if !own.iter().all(|key| guards.holds(*key)) {
                keys.truncate(base.len());
                keys.extend(own);
                continue;
            }
            let source = self.child(&rows.entries[0], &from)?.ok_or(FsError::NotFound)?;
            let target = self.child(rows.target_row(), &to)?;
            let same = target.as_ref().is_some_and(|target| target.inode.ino == source.inode.ino);
            match (mode, &target) {
                (mode, Some(_)) if mode.needs_absent() => return Err(FsError::Exists),
                (RenameMode::Exchange, None) => return Err(FsError::NotFound),
                _ if same => return Ok(()),
                _ => {}
            }
            rows.check_flags(&source, target.as_ref())?;
            if let Some(home) = self.home_of_replaced(target.as_ref(), &to, mode)?
                && !guards.holds(home)
            {
                keys.truncate(base.len());
                keys.extend(own);
                keys.push(home);
                continue;
            }
            let target_dir = target.as_ref().filter(|target| target.is_dir());
            if parent != new_parent && (source.is_dir() || target_dir.is_some()) {
                if tree.is_none() {
                    drop(guards);
                    tree = Some(self.tree.lock());
                    continue;
                }
                self.check_ancestry(&source, parent, target_dir, new_parent, mode)?;
                if !all && self.accounts.crosses(parent, new_parent)? {
                    all = true;
                    continue;
                }
            }
            let renamed = self.carry_out(&mut rows, (&from, source), (&to, target), mode);
            if all {
                self.accounts.forget_chains();
            }
            return renamed;
        }
    }

    /// Moves the source over the target, or each to the other's place.
    fn carry_out(
        &self,
        rows: &mut Rows,
        from: (&End<'_>, Child),
        (to, target): (&End<'_>, Option<Child>),
        mode: RenameMode,
    ) -> FsResult<()> {
        let now = self.now();
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => self.exchange(rows, from, (to, target), now),
            (_, target) => self.replace(rows, from, (to, target), mode.whiteout_by(), now),
        }
    }

    fn rename_rows(&self, guards: &RowGuards<'_>, from: &End<'_>, to: &End<'_>) -> FsResult<Rows> {
        let mut rows = Rows { dirs: SmallVec::new(), entries: SmallVec::new() };
        rows.dirs.push(self.dir_row(from.dir)?);
        if to.dir != from.dir {
            rows.dirs.push(self.dir_row(to.dir)?);
        }
        rows.entries.push(self.entry_row(from.key())?);
        if to.key() != from.key() {
            rows.entries.push(self.locked_entry_row(guards, to.key())?);
        }
        rows.entries.iter().try_for_each(|row| self.check_none_written_elsewhere(row))?;
        Ok(rows)
    }

    fn child(&self, row: &EntryRow, end: &End<'_>) -> FsResult<Option<Child>> {
        let Some(named) = row.find(end.name.as_bytes()) else { return Ok(None) };
        let (inode, own) = match &named.body {
            Body::Inline(inode) => (inode.clone(), false),
            Body::Reference { ino, kind } => {
                if *kind == FileKind::Directory {
                    self.claim_directory(*ino)?;
                }
                (self.inode_row(*ino)?.ok_or_else(|| dangling(end.key(), named))?, true)
            }
        };
        self.check_written_elsewhere(&inode)?;
        Ok(Some(Child { slot: named.slot, inode, own }))
    }

    /// The row of the directory where a replaced file counts afterwards, if it has other names.
    fn home_of_replaced(
        &self,
        target: Option<&Child>,
        to: &End<'_>,
        mode: RenameMode,
    ) -> FsResult<Option<RowKey>> {
        let Some(target) = target.filter(|_| mode != RenameMode::Exchange) else { return Ok(None) };
        let home = self.home_without(&target.inode, to.lost(target))?;
        Ok(home.map(|home| RowKey::inode(home.dir)))
    }

    /// Refuses to put a directory below itself, either of the two in an exchange, and to replace a
    /// directory that holds the source. REQUIRES: the tree lock.
    fn check_ancestry(
        &self,
        source: &Child,
        parent: InodeId,
        target_dir: Option<&Child>,
        new_parent: InodeId,
        mode: RenameMode,
    ) -> FsResult<()> {
        if source.is_dir() && self.is_above(source.inode.ino, new_parent)? {
            return Err(FsError::IntoOwnSubtree);
        }
        match target_dir {
            Some(target) if self.is_above(target.inode.ino, parent)? => Err(match mode {
                RenameMode::Exchange => FsError::IntoOwnSubtree,
                _ => FsError::NotEmpty,
            }),
            _ => Ok(()),
        }
    }

    /// Whether `dir` is `below` or holds it. REQUIRES: the tree lock.
    fn is_above(&self, dir: InodeId, below: InodeId) -> FsResult<bool> {
        let mut at = below;
        for _ in 0..DEPTH_MAX {
            if at == dir || at == InodeId::ROOT {
                return Ok(at == dir);
            }
            at = dir_info_mut(&mut self.dir_row(at)?)?.parent;
        }
        let text =
            format!("the parents of directory {below} form a loop; run `varve fsck --repair`");
        Err(FsError::Damaged(text))
    }

    fn replace(
        &self,
        rows: &mut Rows,
        (from, source): (&End<'_>, Child),
        (to, target): (&End<'_>, Option<Child>),
        whiteout_by: Option<Caller>,
        now: Timestamp,
    ) -> FsResult<()> {
        let mut changes = self.changes();
        let mut departure = Departure::Stays;
        let is_dir = i32::from(source.is_dir());
        adjust_dir(&mut rows.dirs[0], -1, -is_dir, now)?;
        rows.entries[0].remove(from.name.as_bytes());
        if let Some(target) = target {
            match (source.is_dir(), target.is_dir()) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                _ => {}
            }
            changes.batch.reclaims_space();
            adjust_dir(rows.target_dir(), -1, -i32::from(target.is_dir()), now)?;
            rows.target_row().remove(to.name.as_bytes());
            let lost = to.lost(&target);
            departure = self.take_name(&mut changes, target.inode, lost, now)?;
        }
        adjust_dir(rows.target_dir(), 1, is_dir, now)?;
        let row = rows.target_row();
        let moved = source.moved();
        let slot = self
            .settle(&mut changes, source, (from, to), now)
            .and_then(|body| row.insert(to.name.as_bytes(), body).ok_or_else(|| row_full(row)))
            .and_then(|slot| match whiteout_by {
                Some(caller) => {
                    self.leave_whiteout(&mut changes, rows, from, caller, now).map(|()| slot)
                }
                None => Ok(slot),
            });
        let slot = match slot {
            Ok(slot) => slot,
            Err(error) => {
                self.undo_orphan(&departure);
                return Err(error);
            }
        };
        rows.put(&mut changes, from, to);
        self.commit_departure(&mut changes, departure)?;
        self.follow(moved, to, slot)
    }

    /// Puts a whiteout of `caller` under the name that has just moved away.
    fn leave_whiteout(
        &self,
        changes: &mut Changes,
        rows: &mut Rows,
        from: &End<'_>,
        caller: Caller,
        now: Timestamp,
    ) -> FsResult<()> {
        let inode = self.new_inode(changes, caller, &rows.dirs[0], NewInode::whiteout(), now)?;
        let row = &mut rows.entries[0];
        row.insert(from.name.as_bytes(), Body::Inline(inode)).ok_or_else(|| row_full(row))?;
        adjust_dir(&mut rows.dirs[0], 1, 0, now)?;
        changes.charge(from.dir, UsageChange::file(0));
        Ok(())
    }

    fn exchange(
        &self,
        rows: &mut Rows,
        (from, source): (&End<'_>, Child),
        (to, target): (&End<'_>, Child),
        now: Timestamp,
    ) -> FsResult<()> {
        let mut changes = self.changes();
        let difference = i32::from(target.is_dir()) - i32::from(source.is_dir());
        adjust_dir(&mut rows.dirs[0], 0, difference, now)?;
        adjust_dir(rows.target_dir(), 0, -difference, now)?;
        let (from_slot, to_slot) = (source.slot, target.slot);
        let (source_moved, target_moved) = (source.moved(), target.moved());
        let source_body = self.settle(&mut changes, source, (from, to), now)?;
        let target_body = self.settle(&mut changes, target, (to, from), now)?;
        rows.entries[0].set_body(from_slot, target_body);
        rows.target_row().set_body(to_slot, source_body);
        rows.put(&mut changes, from, to);
        self.commit(&mut changes)?;
        self.moves.fetch_add(1, Ordering::AcqRel);
        self.follow(source_moved, to, to_slot)?;
        self.follow(target_moved, from, from_slot)
    }

    /// Gives a moved inode its new place and change time, and takes along what counts for it; returns what its
    /// new name holds.
    fn settle(
        &self,
        changes: &mut Changes,
        mut child: Child,
        (from, to): (&End<'_>, &End<'_>),
        now: Timestamp,
    ) -> FsResult<Body> {
        let crosses = self.accounts.crosses(from.dir, to.dir)?;
        let inode = &mut child.inode;
        inode.times.ctime = now;
        let file = UsageChange::file(inode.size);
        if let Content::Directory(info) = &mut inode.content {
            (info.parent, info.suffix) = (to.dir, Some(to.suffix));
            let told = info.told();
            changes.move_charge(from.dir, to.dir, told);
            if crosses {
                let whole = self.recorded_usage(inode.ino)?.as_change().plus(UsageChange::DIR);
                changes.bring(from.dir, to.dir, whole.plus(told.negated()));
            }
        } else if let Some(home) = inode.home {
            if crosses && inode.nlink > 1 {
                return Err(FsError::CrossesLimits);
            }
            let mut parents = self.parents(inode.ino);
            parents.remove(from.dir, from.name.as_bytes())?;
            let added = parents.add(to.dir, to.name.as_bytes())?;
            let was_home = home.dir == from.dir
                && home.hash == self.hasher.parent(from.dir, from.name.as_bytes());
            if was_home {
                inode.home = Some(added);
                changes.move_charge(from.dir, to.dir, file);
                if crosses {
                    self.charge_growth(changes, inode, to.dir)?;
                }
            }
            parents.stage(changes);
        } else {
            changes.move_charge(from.dir, to.dir, file);
            if inode.content.is_dirty() {
                changes.put_dirty(inode, Some(to.key()));
                if crosses {
                    self.charge_growth(changes, inode, to.dir)?;
                }
            }
        }
        if child.own {
            changes.put_inode(&child.inode);
            Ok(Body::Reference { ino: child.inode.ino, kind: child.inode.kind })
        } else {
            Ok(Body::Inline(child.inode))
        }
    }

    /// Tells the locator where a moved inode is now.
    fn follow(&self, moved: Moved, end: &End<'_>, slot: u8) -> FsResult<()> {
        if moved.own {
            return Ok(());
        }
        self.locator.moved(moved.ino, Place::Entry { key: end.key(), slot })
    }

    fn undo_orphan(&self, departure: &Departure) {
        if let Departure::Orphan(ino) = departure {
            self.locator.unmark_orphan(*ino);
        }
    }
}

impl Rows {
    fn put(&mut self, changes: &mut Changes, from: &End<'_>, to: &End<'_>) {
        for dir in self.dirs.drain(..) {
            changes.put_dir(dir);
        }
        for (row, end) in self.entries.iter().zip([from, to]) {
            changes.put_entry_row(end.key(), row);
        }
    }
}

/// The rows of the children that have one of their own.
fn own_rows(rows: &Rows, from: &End<'_>, to: &End<'_>) -> SmallVec<[RowKey; 2]> {
    let ends = [(rows.entries.first(), from), (rows.entries.last(), to)];
    let found = ends.into_iter().filter_map(|(row, end)| row?.find(end.name.as_bytes()));
    let own = found.filter_map(|named| match named.body {
        Body::Reference { ino, .. } => Some(RowKey::inode(ino)),
        Body::Inline(_) => None,
    });
    own.collect()
}
