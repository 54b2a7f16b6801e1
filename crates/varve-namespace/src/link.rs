//! Giving an inode one more name.
//!
//! The second name moves the inode out of the row of its first into a row of its own; that entry and
//! the new one then refer to it, and parent pointers lead from it to both. It goes on counting where its first
//! name is. Its data rows are keyed by the inode's id and stay. When names go again, the inode's row stays: turning
//! back would mean to lock one row more, for a file that had several names and may get some again.
//!
//! Source: TableFS 4.2.3. Departure: the parent pointers.

use varve_schema::{Body, EntryRow, FileKind, Inode, InodeLocation, UsageChange};
use varve_types::limits::LINKS_MAX;
use varve_types::{InodeId, Timestamp};
use varve_vfs::FsError;

use crate::directory::{adjust_dir, directory, row_full};
use crate::flags::{check_adds_name, check_links};
use crate::{Changes, Decision, Effect, Locked, NameIn, Outcome, Parents, charge_growth};

/// Gives `ino` the name `at` too. Returns the inode as it is then.
pub fn link(
    host: &impl Locked,
    decision: &mut Decision,
    ino: InodeId,
    at: NameIn<'_>,
    now: Timestamp,
) -> Outcome<Inode> {
    let key = at.key();
    let mut dir = directory(host, at.dir)?;
    let mut row = host.entry_row(key)?;
    // The inode's row of its own is written whether there is one yet or not.
    let own = host.inode(ino)?;
    let place = host.place(ino)?;
    let first_key = match &place {
        InodeLocation::Entry { key: first, .. } if *first != key => Some(*first),
        _ => None,
    };
    let mut first = first_key.map(|key| host.entry_row(key)).transpose()?;
    let mut inode = target(ino, own, &place, first.as_ref().unwrap_or(&row))?;
    for row in first.iter().chain([&row]) {
        host.check_none_written_elsewhere(row)?;
    }
    host.check_written_elsewhere(&inode)?;
    if row.find(at.bytes()).is_some() {
        return Err(FsError::Exists.into());
    }
    check_adds_name(&dir)?;
    check_linkable(host, &inode, &place)?;
    check_links(&inode)?;
    if inode.nlink >= LINKS_MAX {
        return Err(FsError::TooManyLinks.into());
    }
    if let Some(counted) = place.counted_in(&inode)
        && host.crosses_limits(counted, at.dir)?
    {
        return Err(FsError::CrossesLimits.into());
    }
    let changes = &mut decision.changes;
    let names = first.as_mut().unwrap_or(&mut row);
    count_link(host, changes, &mut inode, (&place, names), at)?;
    inode.nlink += 1;
    inode.times.ctime = now;
    let reference = Body::Reference { ino, kind: inode.kind };
    row.insert(at.bytes(), reference).ok_or_else(|| row_full(&row))?;
    adjust_dir(&mut dir, 1, 0, now)?;
    changes.put_inode(&inode);
    changes.put_dir(dir);
    changes.put_entry_row(key, &row);
    if let Some((first_key, first)) = first_key.zip(first) {
        changes.put_entry_row(first_key, &first);
    }
    decision.effects.push(Effect::Named(ino));
    Ok(inode)
}

/// Gives `inode` a parent pointer to its new name `at`, and makes that its home if it had no name.
/// An inode that lies in the entry row `first` gets a row of its own, and a pointer and home there too.
fn count_link(
    host: &impl Locked,
    changes: &mut Changes,
    inode: &mut Inode,
    (place, first): (&InodeLocation, &mut EntryRow),
    at: NameIn<'_>,
) -> Outcome<()> {
    let ino = inode.ino;
    let mut parents = Parents::new(host, ino);
    if let InodeLocation::Entry { key, slot } = place {
        let named = first.at(*slot).map(|named| named.name.clone()).unwrap_or_default();
        inode.home = Some(parents.add(InodeId::new(key.prefix()), &named)?);
        first.set_body(*slot, Body::Reference { ino, kind: inode.kind });
    }
    let added = parents.add(at.dir, at.bytes())?;
    parents.stage(changes);
    // One that has names which are still to come has no home either once all others are gone.
    if inode.home.is_none() {
        inode.home = Some(added);
        changes.charge(at.dir, UsageChange::file(inode.size));
        charge_growth(host, changes, inode, at.dir)?;
    }
    // It is pending as an orphan no more, or in another place than before.
    if inode.nlink == 0 || inode.content.is_dirty() {
        changes.put_dirty(inode, None);
    }
    Ok(())
}

/// The inode at `place`: `own` is its own row, `row` the entry row that it is in, if any.
fn target(
    ino: InodeId,
    own: Option<Inode>,
    place: &InodeLocation,
    row: &EntryRow,
) -> Result<Inode, FsError> {
    match place {
        InodeLocation::Detached(inode) => Ok((**inode).clone()),
        InodeLocation::Own => own.ok_or(FsError::Stale),
        InodeLocation::Entry { slot, .. } => match row.at(*slot).map(|named| &named.body) {
            Some(Body::Inline(inode)) if inode.ino == ino => Ok(inode.clone()),
            _ => Err(FsError::Stale),
        },
    }
}

/// Refuses directories, and inodes that lost their last name.
fn check_linkable(host: &impl Locked, inode: &Inode, place: &InodeLocation) -> Result<(), FsError> {
    if inode.kind == FileKind::Directory {
        return Err(FsError::NotPermitted);
    }
    if matches!(place, InodeLocation::Detached(_))
        || (inode.nlink == 0 && !host.is_linkable(inode.ino))
    {
        return Err(FsError::NotFound);
    }
    Ok(())
}
