//! What becomes of rows that both the transaction and the main view have got by unfolding the same directory of a clone
//! ([`crate::clones`]), which is no change: both got the same.
//!
//! What either has done to them since is told from that: birth and last change of attributes of an inode are equal until
//! somebody changes it. A transaction tells nobody what its directories hold, so what one held at first is what it holds
//! without what is untold.

use bytes::Bytes;
use varve_engine::{Clash, Merged};
use varve_schema::key::MetaRow;
use varve_schema::{
    Body, Content, DecodeError, DirInfo, EntryRow, Inode, Loan, RowKey, UsageChange,
    decode_inode_row, encode_inode_row,
};
use varve_types::{InodeId, KeyspaceId};

use super::merge_directory;

/// Decides about a row that came by unfolding, if it is one: ids of `epoch` and later were handed out after the
/// transaction began.
pub(super) fn merge_unfolded(
    clash: &Clash<'_>,
    meta: KeyspaceId,
    epoch: InodeId,
) -> Option<Merged> {
    let key = RowKey::from_bytes(clash.key).filter(|_| clash.keyspace == meta)?;
    let Clash { base, theirs, ours, .. } = clash;
    let merged = match (key.meta_kind(), base, theirs, ours) {
        (MetaRow::Loan(..), _, Some(theirs), Some(ours)) => further(theirs, ours),
        // Returned by either, nobody needs it.
        (MetaRow::Loan(..), ..) => Ok(Some(Merged::Deleted)),
        (MetaRow::Entry(..) | MetaRow::Inode(_), None, Some(theirs), Some(ours))
            if theirs == ours =>
        {
            Ok(Some(Merged::Value(theirs.clone())))
        }
        (MetaRow::Entry(..), None, Some(theirs), Some(ours)) => names(theirs, ours),
        (MetaRow::Entry(..), None, Some(left), None)
        | (MetaRow::Entry(..), None, None, Some(left)) => untouched(left, epoch),
        (MetaRow::Inode(_), None, Some(theirs), Some(ours)) => inode(theirs, ours),
        _ => Ok(None),
    };
    // What cannot be read is not for us to decide.
    merged.ok().flatten()
}

type Decided = Result<Option<Merged>, DecodeError>;

/// Of two loans of one directory the one that is less to come.
fn further(theirs: &Bytes, ours: &Bytes) -> Decided {
    let after = |row: &Bytes| {
        Ok(match Loan::decode(row)? {
            Loan::Directory(folded) => folded.after,
            Loan::File => None,
        })
    };
    let further = if after(theirs)? >= after(ours)? { theirs } else { ours };
    Ok(Some(Merged::Value(further.clone())))
}

/// Whether nobody has changed it since it was made.
pub(in crate::views) fn is_untouched(inode: &Inode) -> bool {
    inode.times.ctime == inode.times.btime
}

/// Names that one of the two has removed again: no change by the other, so they are gone.
fn untouched(left: &Bytes, epoch: InodeId) -> Decided {
    let row = EntryRow::decode(left)?;
    let came = |body: &Body| match body {
        Body::Inline(inode) => inode.ino < epoch && is_untouched(inode),
        Body::Reference { .. } => false,
    };
    let all = row.names().iter().all(|named| came(&named.body));
    Ok(all.then_some(Merged::Deleted))
}

fn names(theirs: &Bytes, ours: &Bytes) -> Decided {
    let (mut merged, ours) = (EntryRow::decode(theirs)?, EntryRow::decode(ours)?);
    let same = |row: &EntryRow| -> Vec<_> {
        let named = row.names().iter();
        named.map(|named| (named.slot, named.name.clone(), named.body.ino())).collect()
    };
    if same(&merged) != same(&ours) {
        return Ok(None);
    }
    for (t, o) in merged.clone().names().iter().zip(ours.names()) {
        match (&t.body, &o.body) {
            (t, o) if t == o => {}
            (Body::Inline(t), Body::Inline(_)) if is_untouched(t) => {
                merged.set_body(o.slot, o.body.clone());
            }
            (Body::Inline(_), Body::Inline(o)) if is_untouched(o) => {}
            _ => return Ok(None),
        }
    }
    Ok(Some(Merged::Value(merged.encode().into())))
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
    let usage = o.usage.minus(o.untold);
    let base = DirInfo { usage, untold: UsageChange::default(), ..*f };
    let merged = merge_directory((first, &base), (&theirs, t), (&ours, o));
    Ok(merged.map(|merged| Merged::Value(encode_inode_row(&merged).into())))
}
