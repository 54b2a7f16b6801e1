//! Removing names, and what happens to an inode whose last name goes.
//!
//! ```text
//! several names --unlink--> fewer names
//! last name     --unlink--> open, or known and with data rows?
//!                             yes: orphan (own row, link count 0, pending row) --last release or forget--> gone
//!                             no:  gone; detached in memory while the front end knows it
//! detached      --open--> orphan
//! ```
//!
//! Gone means: no row of the inode is left, and its object, if it has one, is queued for the reaper. A
//! crash leaves orphans and queued objects with their pending rows, which the next mount finds.

use varve_schema::{Body, Content, FileKind, Inode, Pending, UsageChange};
use varve_types::Timestamp;
use varve_vfs::FsError;

use crate::directory::{adjust_dir, dangling, directory};
use crate::flags::check_takes_name;
use crate::{Changes, Decision, Effect, Locked, NameIn, Outcome, Parents, Rows, Standing, xattr};

/// What is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remove {
    /// Anything but a directory.
    File,
    /// An empty directory.
    Directory,
}

/// Removes the name `at`.
pub fn remove(
    host: &impl Locked,
    decision: &mut Decision,
    at: NameIn<'_>,
    what: Remove,
    now: Timestamp,
) -> Outcome<()> {
    let key = at.key();
    let mut dir = directory(host, at.dir)?;
    let mut row = host.entry_row(key)?;
    let named = row.find(at.bytes()).ok_or(FsError::NotFound)?;
    let is_dir = named.body.kind() == FileKind::Directory;
    match (what, is_dir) {
        (Remove::File, true) => return Err(FsError::IsDirectory.into()),
        (Remove::Directory, false) => return Err(FsError::NotDirectory.into()),
        _ => {}
    }
    host.check_none_written_elsewhere(&row)?;
    let named = row.remove(at.bytes()).ok_or(FsError::NotFound)?;
    let (inode, own) = match named.body {
        Body::Inline(inode) => (inode, false),
        Body::Reference { ino, .. } => {
            if is_dir {
                host.claim_directory(ino)?;
            }
            (host.inode(ino)?.ok_or_else(|| dangling(key, &named))?, true)
        }
    };
    host.check_written_elsewhere(&inode)?;
    check_takes_name(&dir, &inode)?;
    let changes = &mut decision.changes;
    // A file that counts elsewhere from now on is no reason to keep its name here.
    changes.standing = Standing::Happened;
    changes.put_entry_row(key, &row);
    adjust_dir(&mut dir, -1, -i32::from(is_dir), now)?;
    changes.put_dir(dir);
    changes.reclaims_space = true;
    take_name(host, decision, inode, (at, own), now)
}

/// Adds to `decision` what the loss of the name `lost` means for `inode`, which is in its `own` row or in that of the name. A
/// directory must be empty.
/// REQUIRES: the locks of the row it is in and of its directory's.
pub(crate) fn take_name(
    host: &impl Locked,
    decision: &mut Decision,
    mut inode: Inode,
    (lost, own): (NameIn<'_>, bool),
    now: Timestamp,
) -> Outcome<()> {
    let changes = &mut decision.changes;
    inode.times.ctime = now;
    if let Content::Directory(info) = &mut inode.content {
        if info.entries != 0 {
            return Err(FsError::NotEmpty.into());
        }
        let counted = info.propagated();
        changes.charge(lost.dir, counted.negated());
        // Limits count it as empty, whatever its parent counts.
        changes.brought.push((lost.dir, counted.plus(UsageChange::DIR.negated())));
        changes.propagated.push(inode.ino);
        info.suffix = None;
        inode.nlink = 0;
        changes.delete_inode(inode.ino);
        xattr::delete_all(host, changes, &inode)?;
        decision.effects.push(Effect::Gone { inode: Box::new(inode), has_object: false });
        return Ok(());
    }
    uncount(host, changes, &mut inode, (lost, own))?;
    inode.nlink = inode.nlink.saturating_sub(1);
    if inode.nlink > 0 {
        changes.put_inode(&inode);
        return Ok(());
    }
    let has_more_rows = inode.has_xattrs
        || matches!(inode.content, Content::Chunks | Content::Object { .. } | Content::Shared(_));
    if host.must_outlive_its_name(inode.ino, has_more_rows)? {
        changes.put_inode(&inode);
        changes.put_pending(inode.ino, Pending::Orphan);
        decision.effects.push(Effect::Orphaned(inode.ino));
        return Ok(());
    }
    host.refresh_from_object(&mut inode);
    let has_object = delete_content(host, changes, &inode)?;
    if own {
        changes.delete_inode(inode.ino);
    }
    decision.effects.push(Effect::Gone { inode: Box::new(inode), has_object });
    Ok(())
}

/// Takes a file that loses a name from the account where it counts, and counts it at its next home.
fn uncount(
    host: &impl Locked,
    changes: &mut Changes,
    inode: &mut Inode,
    (lost, own): (NameIn<'_>, bool),
) -> Outcome<()> {
    let file = UsageChange::file(inode.size);
    if !own {
        changes.charge(lost.dir, file.negated());
        return Ok(());
    }
    let mut parents = Parents::new(host, inode.ino);
    parents.remove(lost.dir, lost.bytes())?;
    if let Some(home) = inode.home {
        inode.home = if inode.nlink > 1 { parents.home_after(home)? } else { None };
        match inode.home {
            Some(next) if next.dir != home.dir => {
                // Its row is written too.
                host.inode(next.dir)?;
                changes.move_charge(home.dir, next.dir, file);
            }
            Some(_) => {}
            None => changes.charge(home.dir, file.negated()),
        }
    }
    parents.stage(changes);
    Ok(())
}

/// Adds to `changes` the removal of the data and attributes of `inode`; true if its object file must be
/// queued for removal afterwards.
pub fn delete_content<R: Rows>(
    rows: &R,
    changes: &mut Changes,
    inode: &Inode,
) -> Result<bool, R::Error> {
    xattr::delete_all(rows, changes, inode)?;
    match inode.content {
        Content::Chunks => {
            changes.delete_chunks(inode.ino, 0, inode.size);
            Ok(false)
        }
        Content::Object { .. } => {
            changes.put_pending(inode.ino, Pending::ObjectDelete);
            Ok(true)
        }
        Content::Shared(_) => {
            changes.release_source(inode);
            Ok(false)
        }
        _ => Ok(false),
    }
}

/// The removal of what is left of an orphan. REQUIRES: the lock of its row, and nobody holds it.
pub fn reap<R: Rows>(rows: &R, decision: &mut Decision, inode: Inode) -> Result<(), R::Error> {
    let changes = &mut decision.changes;
    changes.reclaims_space = true;
    changes.delete_pending(inode.ino);
    let has_object = delete_content(rows, changes, &inode)?;
    changes.delete_inode(inode.ino);
    decision.effects.push(Effect::Gone { inode: Box::new(inode), has_object });
    Ok(())
}
