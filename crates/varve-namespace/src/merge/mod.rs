//! What becomes of a row that a transaction changed and that was changed in the main view too since it began.
//!
//! Most such rows exclude each other. What commutes is merged:
//!
//! - Of a directory: the counts of its names, and what lies below it, by adding what the transaction has added; its
//!   times, by the later one. So two transactions may make different names in one directory. Its owner, mode and
//!   place stay with the one who changed them. A directory that one has moved or removed and below which the other
//!   has changed something is a conflict. Extended attributes are rows of their own, which its row follows
//!   (`varve-fs`, `views/attributes.rs`).
//! - Times of last access: what was only read by one of the two is as the other left it, or removed it.
//! - Mark rows, whose slots the main view gives out: a mark that the transaction brings is written, one that it takes
//!   away stays as the main view has it.
//!
//! What both have got by unfolding a clone is no change ([`unfolded`]).
//!
//! Source: KVFS, thesis section 3.3 (the first committer wins). Departure: rows that commute.

mod unfolded;

use bytes::Bytes;
use varve_schema::key::MetaRow;
use varve_schema::{
    Body, Content, DecodeError, DirInfo, EntryRow, Inode, UsageChange, decode_inode_row,
    encode_inode_row,
};

pub use unfolded::{ReadInode, Sides, is_untouched};

/// A row that both a transaction and the main view have changed.
#[derive(Clone, Copy, Debug)]
pub struct Clash<'a> {
    /// What it is, if it is a row of [`varve_schema::META`].
    pub meta: Option<MetaRow>,
    /// Its value when the transaction began.
    pub base: Option<&'a Bytes>,
    /// Its value in the main view now.
    pub theirs: Option<&'a Bytes>,
    /// Its value in the transaction.
    pub ours: Option<&'a Bytes>,
}

/// What becomes of a [`Clash`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merged {
    /// Both changes are in this value.
    Value(Bytes),
    /// Both are in the row's absence.
    Deleted,
    /// They exclude each other.
    Conflict,
}

/// Decides about a row that both a transaction and the main view have changed, or have got by unfolding the same directory of a
/// clone.
pub fn merge_rows(clash: &Clash<'_>, sides: &Sides<'_>) -> Merged {
    unfolded::merge(clash, sides).unwrap_or_else(|| merge(clash))
}

/// Decides about a row that both have changed.
pub fn merge(clash: &Clash<'_>) -> Merged {
    let Clash { meta: key, base, theirs, ours } = *clash;
    // Two equal changes of what a directory holds are two changes, and a name goes once.
    let adds_up = matches!(key, Some(MetaRow::Inode(_) | MetaRow::Entry(..)));
    if let Some(MetaRow::Mark(_)) = key {
        // One like that of the base is a new one, too: the slot was given to the same directory again.
        return taken(ours.or(theirs));
    }
    if key.is_none() && base.is_none() && theirs.is_some() != ours.is_some() {
        // Both may have got it by unfolding, and one has removed it.
        return Merged::Conflict;
    }
    if ours == base || (ours == theirs && !adds_up) {
        return taken(theirs);
    }
    if key.is_none() && theirs == base {
        // Written as they were; what that says of the inode is in its own row.
        return taken(ours);
    }
    let merged = match (key, base, theirs, ours) {
        (Some(MetaRow::Inode(_)), Some(base), Some(theirs), Some(ours)) => {
            merge_inodes(base, theirs, ours)
        }
        (Some(MetaRow::Entry(..)), Some(base), Some(theirs), Some(ours)) => {
            merge_entries(base, theirs, ours)
        }
        (Some(MetaRow::Inode(_) | MetaRow::Entry(..)), Some(_), Some(_), None) => {
            return match same_but_access_times(key, base, theirs) {
                true => Merged::Deleted,
                false => Merged::Conflict,
            };
        }
        _ => return Merged::Conflict,
    };
    // What cannot be read is not for us to decide.
    merged.ok().flatten().map_or(Merged::Conflict, |value| Merged::Value(value.into()))
}

/// What becomes of a row of which one value counts.
fn taken(value: Option<&Bytes>) -> Merged {
    value.map_or(Merged::Deleted, |value| Merged::Value(value.clone()))
}

/// Merges two changes of a row of an inode; `None` if they exclude each other.
pub fn merge_inodes(
    base: &Bytes,
    theirs: &Bytes,
    ours: &Bytes,
) -> Result<Option<Vec<u8>>, DecodeError> {
    let [base, theirs, ours] = [base, theirs, ours].map(decode_inode_row);
    let merged = merge_inode(&base?, &theirs?, &ours?);
    Ok(merged.as_ref().map(encode_inode_row))
}

fn merge_inode(base: &Inode, theirs: &Inode, ours: &Inode) -> Option<Inode> {
    let infos = (&base.content, &theirs.content, &ours.content);
    if let (Content::Directory(b), Content::Directory(t), Content::Directory(o)) = infos {
        return merge_directory((base, b), (theirs, t), (ours, o));
    }
    let (mut winner, other) = match () {
        () if theirs == ours => (theirs.clone(), ours),
        () if but_access(base) == but_access(theirs) => (ours.clone(), theirs),
        () if but_access(base) == but_access(ours) => (theirs.clone(), ours),
        () => return None,
    };
    winner.times.atime = winner.times.atime.max(other.times.atime);
    Some(winner)
}

/// The inode without what a mere read changes.
fn but_access(inode: &Inode) -> Inode {
    let mut inode = inode.clone();
    inode.times.atime = inode.times.btime;
    inode
}

type Directory<'a> = (&'a Inode, &'a DirInfo);

fn merge_directory(
    (base, b): Directory<'_>,
    (theirs, t): Directory<'_>,
    (ours, o): Directory<'_>,
) -> Option<Inode> {
    let place = |info: &DirInfo| (info.parent, info.suffix);
    let told_moved = |mover: &DirInfo, other: &DirInfo| {
        place(mover) != place(b) && other.propagated() != b.propagated()
    };
    if told_moved(o, t) || told_moved(t, o) {
        return None;
    }
    let (parent, suffix) = one_change(place(b), place(t), place(o))?;
    let owner = |inode: &Inode| (inode.perm, inode.uid, inode.gid);
    let (perm, uid, gid) = one_change(owner(base), owner(theirs), owner(ours))?;
    let flags = one_change(base.flags, theirs.flags, ours.flags)?;
    if theirs.flags.without(base.flags).fixed() && ours.times.ctime != base.times.ctime {
        // What the transaction has done to it may not be done any more.
        return None;
    }
    let has_xattrs = one_change(base.has_xattrs, theirs.has_xattrs, ours.has_xattrs)?;
    let since = |now: &DirInfo| now.usage.minus(b.usage.as_change()).as_change();
    let info = DirInfo {
        parent,
        suffix,
        entries: t.entries.checked_add_signed(o.entries.wrapping_sub(b.entries) as i64)?,
        subdirs: t.subdirs.checked_add_signed(o.subdirs.wrapping_sub(b.subdirs) as i32)?,
        usage: t.usage.plus(since(o)),
        pending: sum([t.pending, o.pending, b.pending.negated()]),
        // Unfolded by either, it has the names that it gets by that.
        source: t.source.and(o.source),
    };
    let mut merged = Inode { perm, uid, gid, has_xattrs, flags, ..theirs.clone() };
    merged.nlink = info.subdirs.saturating_add(2);
    merged.times.atime = theirs.times.atime.max(ours.times.atime);
    merged.times.mtime = theirs.times.mtime.max(ours.times.mtime);
    merged.times.ctime = theirs.times.ctime.max(ours.times.ctime);
    merged.content = Content::Directory(info);
    Some(merged)
}

fn sum(changes: [UsageChange; 3]) -> UsageChange {
    changes.into_iter().fold(UsageChange::default(), UsageChange::plus)
}

/// What became of a value that at most one of two has changed, or both to the same.
fn one_change<T: PartialEq>(base: T, theirs: T, ours: T) -> Option<T> {
    match () {
        () if ours == base || ours == theirs => Some(theirs),
        () if theirs == base => Some(ours),
        () => None,
    }
}

/// Merges what names stand for, where both have the same names.
fn merge_entries(
    base: &Bytes,
    theirs: &Bytes,
    ours: &Bytes,
) -> Result<Option<Vec<u8>>, DecodeError> {
    let [base, theirs, ours] = [base, theirs, ours].map(EntryRow::decode);
    let (base, theirs, ours) = (base?, theirs?, ours?);
    let names = |row: &EntryRow| -> Vec<(u8, Bytes)> {
        row.names().iter().map(|named| (named.slot, named.name.clone())).collect()
    };
    if names(&base) != names(&theirs) || names(&base) != names(&ours) {
        return Ok(None);
    }
    let mut merged = theirs.clone();
    for ((b, t), o) in base.names().iter().zip(theirs.names()).zip(ours.names()) {
        let body = match (&b.body, &t.body, &o.body) {
            (b, t, o) if b == o => t.clone(),
            (b, t, o) if b == t => o.clone(),
            // Both may have put the same there in exchange, and what lies below the directories has changed twice then.
            (b, t, o) if t == o && b.ino() == o.ino() => t.clone(),
            // It has got another name, and its inode a row of its own.
            (Body::Inline(b), Body::Inline(t), o @ Body::Reference { .. })
                if but_access(b) == but_access(t) =>
            {
                o.clone()
            }
            (Body::Inline(b), Body::Inline(t), Body::Inline(o)) => match merge_inode(b, t, o) {
                Some(inode) => Body::Inline(inode),
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        merged.set_body(t.slot, body);
    }
    Ok(Some(merged.encode()))
}

/// Whether two rows of metadata are there and differ at most by times of last access.
pub fn same_but_access_times(
    key: Option<MetaRow>,
    one: Option<&Bytes>,
    other: Option<&Bytes>,
) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return false };
    match key {
        Some(MetaRow::Entry(..)) => matches!(same_but_access(one, other), Ok(true)),
        Some(MetaRow::Inode(_)) => {
            let read = |row: &Bytes| decode_inode_row(row).map(|inode| but_access(&inode));
            matches!((read(one), read(other)), (Ok(one), Ok(other)) if one == other)
        }
        _ => false,
    }
}

/// Whether two rows of names differ at most by times of last access.
fn same_but_access(one: &Bytes, other: &Bytes) -> Result<bool, DecodeError> {
    let (one, other) = (EntryRow::decode(one)?, EntryRow::decode(other)?);
    let but_access = |row: &EntryRow| -> Vec<_> {
        let named = row.names().iter().map(|named| {
            let inode = match &named.body {
                Body::Inline(inode) => Some(but_access(inode)),
                Body::Reference { .. } => None,
            };
            (named.slot, named.name.clone(), named.body.ino(), inode)
        });
        named.collect()
    };
    Ok(but_access(&one) == but_access(&other))
}

#[cfg(test)]
mod tests;
