//! Moving and swapping names in one atomic batch.
//!
//! 1. Read the inode rows of both directories, both entry rows, and the inodes that have a row of their own.
//! 2. If a directory changes its parent, no other may do so anywhere meanwhile ([`Need::Tree`]). Then walking up from the new
//!    parent to the root proves that the directory does not move into itself; without it two renames could each be right and
//!    together cut a loop off the tree.
//! 3. If a directory moves to where other limits hold, all rows stand still ([`Need::AllRows`]).
//! 4. Change the rows in memory; they become one batch. A file that has to be found again by who knows only where it was
//!    ([`Locked::must_be_found`]) gets a row of its own, as a second name gives it one ([`mod@crate::link`]).
//!
//! Source: TableFS 4.2.6 (rename as one batch of insert and delete). Departure: the batch also holds both
//! directories' counts, the moved directory's new place, and what counts for it.

use smallvec::SmallVec;
use varve_schema::{Body, Content, EntryRow, FileKind, Inode, InodeLocation, UsageChange};
use varve_types::{InodeId, Timestamp};
use varve_vfs::{Caller, FsError, RenameMode};

use crate::create::{NewInode, new_inode};
use crate::directory::{adjust_dir, dangling, directory, is_above, row_full};
use crate::flags::{check_adds_name, check_takes_name};
use crate::remove::take_name;
use crate::{
    Changes, Decision, Effect, Locked, NameIn, Need, Outcome, Parents, Stop, charge_growth,
};

/// The rows of a rename, each once: with one directory or one entry row, both ends share it.
struct EndRows {
    dirs: SmallVec<[Inode; 2]>,
    entries: SmallVec<[EntryRow; 2]>,
}

impl EndRows {
    fn read(host: &impl Locked, from: NameIn<'_>, to: NameIn<'_>) -> Outcome<EndRows> {
        let mut rows = EndRows { dirs: SmallVec::new(), entries: SmallVec::new() };
        rows.dirs.push(directory(host, from.dir)?);
        if to.dir != from.dir {
            rows.dirs.push(directory(host, to.dir)?);
        }
        rows.entries.push(host.entry_row(from.key())?);
        if to.key() != from.key() {
            rows.entries.push(host.entry_row(to.key())?);
        }
        rows.entries.iter().try_for_each(|row| host.check_none_written_elsewhere(row))?;
        Ok(rows)
    }

    fn target_dir(&mut self) -> &mut Inode {
        let last = self.dirs.len() - 1;
        &mut self.dirs[last]
    }

    fn target_row(&mut self) -> &mut EntryRow {
        let last = self.entries.len() - 1;
        &mut self.entries[last]
    }

    /// Whether file flags let the source move to where the target is.
    fn check_flags(&self, source: &Child, target: Option<&Child>) -> Result<(), FsError> {
        check_takes_name(&self.dirs[0], &source.inode)?;
        let target_dir = &self.dirs[self.dirs.len() - 1];
        match target {
            Some(target) => check_takes_name(target_dir, &target.inode),
            None => check_adds_name(target_dir),
        }
    }

    fn put(self, changes: &mut Changes, from: NameIn<'_>, to: NameIn<'_>) {
        for dir in self.dirs {
            changes.put_dir(dir);
        }
        for (row, end) in self.entries.iter().zip([from, to]) {
            changes.put_entry_row(end.key(), row);
        }
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
    fn read(host: &impl Locked, row: &EntryRow, end: NameIn<'_>) -> Outcome<Option<Child>> {
        let Some(named) = row.find(end.bytes()) else { return Ok(None) };
        let (inode, own) = match &named.body {
            Body::Inline(inode) => (inode.clone(), false),
            Body::Reference { ino, kind } => {
                if *kind == FileKind::Directory {
                    host.claim_directory(*ino)?;
                }
                (host.inode(*ino)?.ok_or_else(|| dangling(end.key(), named))?, true)
            }
        };
        host.check_written_elsewhere(&inode)?;
        Ok(Some(Child { slot: named.slot, inode, own }))
    }

    fn is_dir(&self) -> bool {
        self.inode.kind == FileKind::Directory
    }
}

/// Moves a name, or swaps two. Changes nothing if both stand for one inode already.
pub fn rename(
    host: &impl Locked,
    decision: &mut Decision,
    from: NameIn<'_>,
    to: NameIn<'_>,
    mode: RenameMode,
    now: Timestamp,
) -> Outcome<()> {
    let mut rows = EndRows::read(host, from, to)?;
    let source = Child::read(host, &rows.entries[0], from)?.ok_or(FsError::NotFound)?;
    let target = Child::read(host, rows.target_row(), to)?;
    let same = target.as_ref().is_some_and(|target| target.inode.ino == source.inode.ino);
    match (mode, &target) {
        (mode, Some(_)) if mode.needs_absent() => return Err(FsError::Exists.into()),
        (RenameMode::Exchange, None) => return Err(FsError::NotFound.into()),
        _ if same => return Ok(()),
        _ => {}
    }
    rows.check_flags(&source, target.as_ref())?;
    let target_dir = target.as_ref().filter(|target| target.is_dir());
    if from.dir != to.dir && (source.is_dir() || target_dir.is_some()) {
        if !host.tree_stands_still() {
            return Err(Stop::Needs(Need::Tree));
        }
        check_ancestry(host, (&source, from), (target_dir, to), mode)?;
        if !host.all_rows_are_locked() && host.crosses_limits(from.dir, to.dir)? {
            return Err(Stop::Needs(Need::AllRows));
        }
    }
    match (mode, target) {
        (RenameMode::Exchange, Some(target)) => {
            exchange(host, decision, rows, (from, source), (to, target), now)
        }
        (_, target) => {
            replace(host, decision, rows, (from, source), (to, target), (mode.whiteout_by(), now))
        }
    }
}

/// Refuses to put a directory below itself, either of the two in an exchange, and to replace a
/// directory that holds the source. REQUIRES: no directory gets another parent meanwhile.
fn check_ancestry(
    host: &impl Locked,
    (source, from): (&Child, NameIn<'_>),
    (target_dir, to): (Option<&Child>, NameIn<'_>),
    mode: RenameMode,
) -> Outcome<()> {
    if source.is_dir() && is_above(host, source.inode.ino, to.dir)? {
        return Err(FsError::IntoOwnSubtree.into());
    }
    match target_dir {
        Some(target) if is_above(host, target.inode.ino, from.dir)? => Err(match mode {
            RenameMode::Exchange => FsError::IntoOwnSubtree,
            _ => FsError::NotEmpty,
        }
        .into()),
        _ => Ok(()),
    }
}

fn replace(
    host: &impl Locked,
    decision: &mut Decision,
    mut rows: EndRows,
    (from, source): (NameIn<'_>, Child),
    (to, target): (NameIn<'_>, Option<Child>),
    (whiteout_by, now): (Option<Caller>, Timestamp),
) -> Outcome<()> {
    let is_dir = i32::from(source.is_dir());
    adjust_dir(&mut rows.dirs[0], -1, -is_dir, now)?;
    rows.entries[0].remove(from.bytes());
    if let Some(target) = target {
        match (source.is_dir(), target.is_dir()) {
            (true, false) => return Err(FsError::NotDirectory.into()),
            (false, true) => return Err(FsError::IsDirectory.into()),
            _ => {}
        }
        decision.changes.reclaims_space = true;
        adjust_dir(rows.target_dir(), -1, -i32::from(target.is_dir()), now)?;
        rows.target_row().remove(to.bytes());
        take_name(host, decision, target.inode, (to, target.own), now)?;
    }
    adjust_dir(rows.target_dir(), 1, is_dir, now)?;
    let (ino, was_own) = (source.inode.ino, source.own);
    let body = settle(host, &mut decision.changes, source, (from, to), now)?;
    let is_own = body.is_reference();
    let row = rows.target_row();
    let slot = row.insert(to.bytes(), body).ok_or_else(|| row_full(row))?;
    if let Some(caller) = whiteout_by {
        leave_whiteout(host, &mut decision.changes, &mut rows, from, (caller, now))?;
    }
    rows.put(&mut decision.changes, from, to);
    follow(decision, ino, (was_own, is_own), (to, slot));
    Ok(())
}

/// Puts a whiteout of `caller` under the name that has just moved away.
fn leave_whiteout(
    host: &impl Locked,
    changes: &mut Changes,
    rows: &mut EndRows,
    from: NameIn<'_>,
    (caller, now): (Caller, Timestamp),
) -> Outcome<()> {
    let inode = new_inode(host, changes, caller, &rows.dirs[0], &NewInode::whiteout(), now)?;
    let row = &mut rows.entries[0];
    row.insert(from.bytes(), Body::Inline(inode)).ok_or_else(|| row_full(row))?;
    adjust_dir(&mut rows.dirs[0], 1, 0, now)?;
    changes.charge(from.dir, UsageChange::file(0));
    Ok(())
}

fn exchange(
    host: &impl Locked,
    decision: &mut Decision,
    mut rows: EndRows,
    (from, source): (NameIn<'_>, Child),
    (to, target): (NameIn<'_>, Child),
    now: Timestamp,
) -> Outcome<()> {
    let difference = i32::from(target.is_dir()) - i32::from(source.is_dir());
    adjust_dir(&mut rows.dirs[0], 0, difference, now)?;
    adjust_dir(rows.target_dir(), 0, -difference, now)?;
    let (from_slot, to_slot) = (source.slot, target.slot);
    let moved = [&source, &target].map(|child| (child.inode.ino, child.own));
    let source_body = settle(host, &mut decision.changes, source, (from, to), now)?;
    let target_body = settle(host, &mut decision.changes, target, (to, from), now)?;
    let is_own = [&source_body, &target_body].map(|body| body.is_reference());
    rows.entries[0].set_body(from_slot, target_body);
    rows.target_row().set_body(to_slot, source_body);
    rows.put(&mut decision.changes, from, to);
    for (at, end) in [(to, to_slot), (from, from_slot)].into_iter().enumerate() {
        let (ino, was_own) = moved[at];
        follow(decision, ino, (was_own, is_own[at]), end);
    }
    Ok(())
}

/// Gives a moved inode its new place and change time, and takes along what counts for it; returns what its
/// new name holds.
fn settle(
    host: &impl Locked,
    changes: &mut Changes,
    mut child: Child,
    (from, to): (NameIn<'_>, NameIn<'_>),
    now: Timestamp,
) -> Outcome<Body> {
    let crosses = host.crosses_limits(from.dir, to.dir)?;
    let inode = &mut child.inode;
    inode.times.ctime = now;
    let file = UsageChange::file(inode.size);
    if let Content::Directory(info) = &mut inode.content {
        (info.parent, info.suffix) = (to.dir, Some(to.suffix));
        let counted = info.propagated();
        changes.move_charge(from.dir, to.dir, counted);
        if crosses {
            let whole = host.usage_below(inode.ino)?.as_change().plus(UsageChange::DIR);
            changes.bring(from.dir, to.dir, whole.plus(counted.negated()));
        }
    } else if let Some(home) = inode.home {
        if crosses && inode.nlink > 1 {
            return Err(FsError::CrossesLimits.into());
        }
        let mut parents = Parents::new(host, inode.ino);
        parents.remove(from.dir, from.bytes())?;
        let added = parents.add(to.dir, to.bytes())?;
        let was_home =
            home.dir == from.dir && home.hash == host.hasher().parent(from.dir, from.bytes());
        if was_home {
            inode.home = Some(added);
            changes.move_charge(from.dir, to.dir, file);
            if crosses {
                charge_growth(host, changes, inode, to.dir)?;
            }
        }
        parents.stage(changes);
    } else {
        if host.must_be_found(inode.ino) {
            // Under its lock: nobody looks for it there meanwhile.
            host.inode(inode.ino)?;
            let mut parents = Parents::new(host, inode.ino);
            inode.home = Some(parents.add(to.dir, to.bytes())?);
            parents.stage(changes);
            child.own = true;
        }
        changes.move_charge(from.dir, to.dir, file);
        if inode.content.is_dirty() {
            changes.put_dirty(inode, (!child.own).then_some(to.key()));
            if crosses {
                charge_growth(host, changes, inode, to.dir)?;
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

/// Records where an inode is that was, or is now, in the row of its name.
fn follow(
    decision: &mut Decision,
    ino: InodeId,
    (was_own, is_own): (bool, bool),
    (end, slot): (NameIn<'_>, u8),
) {
    let to = match (was_own, is_own) {
        (true, _) => return,
        (false, true) => InodeLocation::Own,
        (false, false) => InodeLocation::Entry { key: end.key(), slot },
    };
    decision.effects.push(Effect::Moved { ino, to });
}
