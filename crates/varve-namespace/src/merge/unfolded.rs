//! What becomes of rows that both the transaction and the main view have got by unfolding the same directory of a clone
//! (`clones` of varve-fs), which is no change: both got the same.
//!
//! What either has done to them since is told from that: birth and last change of attributes of an inode are equal until
//! somebody changes it. So what one has left as it came is as the other has it, be it that it is gone, and of a row that
//! neither has when it is over a name may have gone twice, if its directory was folded. A transaction tells nobody what its
//! directories hold, so what one held at first is what it holds without what is pending.

use bytes::Bytes;
use varve_schema::key::MetaRow;
use varve_schema::{
    Body, CloneReference, Content, DecodeError, DirInfo, EntryRow, FileKind, Inode, UsageChange,
    decode_inode_row, encode_inode_row,
};
use varve_types::InodeId;

use super::{Clash, Merged, merge_directory};

/// Reads an inode in its own row; `None` too where it cannot be read.
pub type ReadInode<'a> = dyn Fn(InodeId) -> Option<Inode> + 'a;

/// What tells of a row in conflict besides its values.
pub struct Sides<'a> {
    /// Ids of this one and later were handed out after the transaction began.
    pub epoch: InodeId,
    /// Inodes when it began.
    pub base: &'a ReadInode<'a>,
    /// Inodes of the main view.
    pub theirs: &'a ReadInode<'a>,
}

impl Sides<'_> {
    /// Whether a directory had yet to get names when the transaction began, or was one of those. What cannot be read may have.
    fn was_folded(&self, dir: InodeId) -> bool {
        (self.base)(dir).is_none_or(|row| row.source().is_some())
    }

    /// Whether all names of a row of `dir` came by unfolding, with which what they stand for was made, and nobody has changed that
    /// since. Of directories the main view tells, if it is asked; files of several names may have another inode on each side.
    fn only_came(&self, dir: InodeId, row: &EntryRow, asks_main: bool) -> bool {
        let Some(made) = (self.theirs)(dir).map(|dir| dir.times.btime) else { return false };
        let came = |inode: &Inode| {
            inode.ino < self.epoch && inode.times.btime == made && is_untouched(inode)
        };
        self.was_folded(dir)
            && row.names().iter().all(|named| match &named.body {
                Body::Inline(inode) => came(inode),
                Body::Reference { ino, kind: FileKind::Directory } => {
                    asks_main && (self.theirs)(*ino).as_ref().is_some_and(came)
                }
                Body::Reference { .. } => false,
            })
    }

    /// What becomes of names of `dir` that the main view has and the transaction has removed.
    fn removed(&self, dir: InodeId, left: &Bytes) -> Decided {
        let row = EntryRow::decode(left)?;
        Ok(match () {
            () if self.only_came(dir, &row, true) => Some(Merged::Deleted),
            () if self.was_folded(dir) => Some(Merged::Conflict),
            () => None,
        })
    }

    /// What becomes of names of `dir` that both have.
    fn names(&self, dir: InodeId, theirs: &Bytes, ours: &Bytes) -> Decided {
        let (mut merged, o) = (EntryRow::decode(theirs)?, EntryRow::decode(ours)?);
        let same = |row: &EntryRow| -> Vec<_> {
            let named = row.names().iter();
            named.map(|named| (named.slot, named.name.clone(), named.body.ino())).collect()
        };
        if same(&merged) != same(&o) {
            return Ok(match () {
                () if self.only_came(dir, &merged, true) => Some(ours),
                () if self.only_came(dir, &o, false) => Some(theirs),
                () => None,
            }
            .map(|row| Merged::Value(row.clone())));
        }
        for (t, o) in merged.clone().names().iter().zip(o.names()) {
            match (&t.body, &o.body) {
                (t, o) if t == o => {}
                // The other may have given it another name, and its inode a row of its own.
                (Body::Inline(t), _) if is_untouched(t) => {
                    merged.set_body(o.slot, o.body.clone());
                }
                (_, Body::Inline(o)) if is_untouched(o) => {}
                _ => return Ok(None),
            }
        }
        Ok(Some(Merged::Value(merged.encode().into())))
    }
}

/// Decides about a row that came by unfolding, if it is one.
pub(super) fn merge(clash: &Clash<'_>, sides: &Sides<'_>) -> Option<Merged> {
    let Clash { meta, base, theirs, ours } = *clash;
    let merged = match (meta?, base, theirs, ours) {
        (MetaRow::CloneReference(..), _, Some(theirs), Some(ours)) => further(theirs, ours),
        // Returned by either, nobody needs it.
        (MetaRow::CloneReference(..), ..) => Ok(Some(Merged::Deleted)),
        (MetaRow::Entry(..) | MetaRow::Inode(_), None, Some(theirs), Some(ours))
            if theirs == ours =>
        {
            Ok(Some(Merged::Value(theirs.clone())))
        }
        (MetaRow::Entry(dir, _), None, Some(theirs), Some(ours)) => sides.names(dir, theirs, ours),
        (MetaRow::Entry(dir, _), None, Some(left), None) => sides.removed(dir, left),
        (MetaRow::Entry(dir, _), None, None, Some(left)) => EntryRow::decode(left)
            .map(|left| sides.only_came(dir, &left, false).then_some(Merged::Deleted)),
        // A name goes once.
        (MetaRow::Entry(dir, _), None, None, None) => {
            Ok(sides.was_folded(dir).then_some(Merged::Conflict))
        }
        (MetaRow::Inode(_), None, Some(theirs), Some(ours)) => inode(theirs, ours),
        (MetaRow::Inode(ino), None, Some(left), None) if ino < sides.epoch => {
            decode_inode_row(left).map(|left| is_untouched(&left).then_some(Merged::Deleted))
        }
        _ => Ok(None),
    };
    // What cannot be read is not for us to decide.
    merged.ok().flatten()
}

type Decided = Result<Option<Merged>, DecodeError>;

/// Of two loans of one directory the one that is less to come.
fn further(theirs: &Bytes, ours: &Bytes) -> Decided {
    let after = |row: &Bytes| {
        Ok(match CloneReference::decode(row)? {
            CloneReference::Directory(folded) => folded.after,
            CloneReference::File => None,
        })
    };
    let further = if after(theirs)? >= after(ours)? { theirs } else { ours };
    Ok(Some(Merged::Value(further.clone())))
}

/// Whether nobody has changed it since it was made.
pub fn is_untouched(inode: &Inode) -> bool {
    inode.times.ctime == inode.times.btime
}

fn inode(theirs: &Bytes, ours: &Bytes) -> Decided {
    let (theirs, ours) = (decode_inode_row(theirs)?, decode_inode_row(ours)?);
    let first = match (is_untouched(&theirs), is_untouched(&ours)) {
        (true, _) => &theirs,
        (_, true) => &ours,
        (false, false) => return Ok(None),
    };
    let contents = (&first.content, &theirs.content, &ours.content);
    let (Content::Directory(f), Content::Directory(t), Content::Directory(o)) = contents else {
        let later = if is_untouched(&theirs) { &ours } else { &theirs };
        return Ok(Some(Merged::Value(encode_inode_row(later).into())));
    };
    let usage = o.usage.minus(o.pending);
    let base = DirInfo { usage, pending: UsageChange::default(), ..*f };
    let merged = merge_directory((first, &base), (&theirs, t), (&ours, o));
    Ok(merged.map(|merged| Merged::Value(encode_inode_row(&merged).into())))
}
