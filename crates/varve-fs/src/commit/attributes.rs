//! Extended attributes of directories that both the transaction and the main tree have changed.
//!
//! They are rows of their own, and those of different names merge by themselves. What the directory's row says of them does
//! not: whether there are any, and a mode that its access list agrees with. The first follows the rows as the commit leaves
//! them; where those contradict the second, nobody has decided what the directory is to allow, and it is a conflict.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use varve_engine::{Branch, Merged, Store};
use varve_namespace::merge::is_untouched;
use varve_namespace::xattr::{self, XattrBytes};
use varve_schema::acl::{ACL_ACCESS, Acl};
use varve_schema::{DATA, RowKey, XattrRow, decode_inode_row, encode_inode_row};
use varve_types::InodeId;
use varve_vfs::FsResult;

use crate::error;
use crate::fs::VarveFs;
use crate::rows::{for_each_xattr_row, read_inode_row};

/// What a commit makes of the attributes of a directory.
#[derive(Debug, Default)]
pub(crate) struct Attributes {
    /// There are any.
    any: bool,
    /// The mode that the access list says, if there is such a list.
    mode: Option<u16>,
    /// One side has removed what the other has by unfolding the directory, which its rows do not tell.
    is_unclear: bool,
    /// They are more than a directory may have, and than either side has.
    is_too_much: bool,
}

impl Attributes {
    /// `row`, which both sides' changes of the directory are in, with what belongs to its attributes.
    pub(crate) fn settle(&self, row: &Bytes) -> Merged {
        // What cannot be read is not for us to decide.
        let Ok(mut inode) = decode_inode_row(row) else { return Merged::Conflict };
        let contradicts = |mode: u16| mode != inode.perm & 0o777;
        if self.is_unclear || self.is_too_much || self.mode.is_some_and(contradicts) {
            return Merged::Conflict;
        }
        inode.has_xattrs = self.any;
        Merged::Value(encode_inode_row(&inode).into())
    }
}

impl VarveFs {
    /// What the commit of `branch` makes of the attributes of the directory `dir`; where rows of them are in conflict, anything.
    /// REQUIRES: all row locks.
    pub(super) fn merged_attributes(&self, branch: &Branch, dir: InodeId) -> FsResult<Attributes> {
        let base = branch.base().map_err(error::store)?;
        let own = read_inode_row(branch, self.meta, dir)?;
        let is_changed = own.is_some_and(|inode| !is_untouched(&inode));
        let by_unfolding = is_changed && read_inode_row(&base, self.meta, dir)?.is_none();
        let base = self.attribute_rows(&base, dir)?;
        let theirs = self.attribute_rows(self.store.as_ref(), dir)?;
        let ours = self.attribute_rows(branch, dir)?;
        let (mut merged, mut bytes) = (Attributes::default(), XattrBytes::default());
        let keys: BTreeSet<RowKey> =
            [&base, &theirs, &ours].into_iter().flat_map(BTreeMap::keys).copied().collect();
        for key in keys {
            let [base, theirs, ours] = [&base, &theirs, &ours].map(|rows| rows.get(&key));
            merged.is_unclear |= by_unfolding && theirs.is_some() && ours.is_none();
            let Some(row) = (if ours == base { theirs } else { ours }) else { continue };
            merged.any = true;
            bytes.add_row(row);
            if key == xattr::key(self, dir, ACL_ACCESS)
                && let Some(attr) = row.get(ACL_ACCESS)
            {
                let list = Acl::decode(&attr.value)
                    .map_err(|error| error::unreadable(DATA, key, error))?;
                merged.mode = list.map(|list| list.mode());
            }
        }
        let taken = |rows: &BTreeMap<RowKey, XattrRow>| {
            let mut bytes = XattrBytes::default();
            rows.values().for_each(|row| bytes.add_row(row));
            bytes
        };
        merged.is_too_much = bytes.has_outgrown(taken(&theirs).or(taken(&ours)));
        Ok(merged)
    }

    fn attribute_rows(
        &self,
        store: &dyn Store,
        dir: InodeId,
    ) -> FsResult<BTreeMap<RowKey, XattrRow>> {
        let mut rows = BTreeMap::new();
        for_each_xattr_row(store, self.data, dir, &mut |key, row| {
            rows.insert(key, row);
            true
        })?;
        Ok(rows)
    }
}
