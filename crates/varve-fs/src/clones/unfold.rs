//! Unfolding: a folded directory gets the names that the directory of the source has which it is a clone of.
//!
//! 1. Whoever needs the names of a directory, because one is looked for and not there, or is to be added or removed, or all
//!    are to be listed, sees from its row that it is folded, lets go of its locks and calls [`VarveFs::unfold`].
//! 2. That unfolds the directory of the source first, if it is folded itself: a clone of a clone.
//!    Where a file has names that the source has not copied either, all of it that was cloned is unfolded there, before
//!    anything is locked here: nothing else tells how many names lie within the clone.
//! 3. Rows of names are copied in their order, with new inode ids ([`super::names`]), some at a time: each batch has
//!    the names, what belongs to them, and in the reference row how far it came. The last one ends the reference.
//!
//! A name that is there is a name like all others, however far the rest has come. Which ids names get depends on
//! the source alone, so that all views unfold a directory to the same rows; but a file of several names that is met
//! first by one under which it does not count gets its id when that happens.
//!
//! Invariants: nobody adds a name to a folded directory or removes one; its row counts the names that it has yet to
//! get.

use std::ops::Bound;

use smallvec::SmallVec;
use varve_engine::{Direction, KeyRange};
use varve_namespace::Standing;
use varve_namespace::directory::dir_info_mut;
use varve_schema::{Body, CloneReference, EntryRow, EntrySuffix, FileKind, Inode, META, RowKey};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::names::Copying;
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::locks::RowGuards;

/// Rows of names that one batch copies at most.
const BATCH_ROWS: usize = 1024;
/// Bytes beyond which no further row of names joins a batch.
const BATCH_BYTES: usize = 1 << 20;

/// How a batch ended.
enum Step {
    /// The directory is unfolded.
    Done,
    /// There is more to copy.
    More,
    /// The next name can only be copied while these rows are locked.
    Needs(SmallVec<[RowKey; 4]>),
    /// The next name is one of several, of which not all are known.
    Unknown,
}

impl VarveFs {
    /// Locks `keys`, and reads the directory `dir`, which is unfolded then. REQUIRES: its row is among `keys`.
    pub(crate) fn lock_unfolded(
        &self,
        dir: InodeId,
        keys: &[RowKey],
    ) -> FsResult<(RowGuards<'_>, Inode)> {
        loop {
            let guards = self.lock_rows(keys)?;
            let row = self.dir_row(dir)?;
            if row.source().is_none() {
                return Ok((guards, row));
            }
            drop(guards);
            self.unfold(dir)?;
        }
    }

    /// The directory `dir`, unfolded.
    pub(crate) fn unfolded_row(&self, dir: InodeId) -> FsResult<Inode> {
        let row = self.dir_row(dir)?;
        if row.source().is_none() {
            return Ok(row);
        }
        self.unfold(dir)?;
        self.dir_row(dir)
    }

    /// Gives `dir` all its names, if it is folded. REQUIRES: the caller holds no row lock.
    pub(crate) fn unfold(&self, dir: InodeId) -> FsResult<()> {
        let mut keys: SmallVec<[RowKey; 4]> = SmallVec::from_slice(&[RowKey::inode(dir)]);
        let mut all_known = false;
        loop {
            let Some(source) = self.inode_row(dir)?.and_then(|row| row.source()) else {
                return Ok(());
            };
            let source = Epoch::of(source);
            let sources = self.sources()?;
            let found = sources
                .open(source)
                .and_then(|from| Ok((from, self.clone_reference(source, dir)?)));
            let (from, folded) = match found {
                Ok((from, Some(CloneReference::Directory(folded)))) => (from, folded),
                _ if self.is_unfolded_from(dir, source)? => continue,
                found => {
                    found?;
                    let told = format!(
                        "folded directory {dir} has no reference to its source; run `varve fsck`"
                    );
                    return Err(FsError::Storage(told));
                }
            };
            from.unfold(folded.dir)?;
            let unfold = || self.unfold_some(dir, (source, &from), &keys, all_known);
            match sources.unfoldings.count(unfold)? {
                Step::Done => {
                    sources.note_returned(source);
                    return Ok(());
                }
                Step::More => keys.truncate(1),
                Step::Needs(others) => {
                    keys.truncate(1);
                    keys.extend(others);
                }
                Step::Unknown => {
                    from.unfold_within(folded.top)?;
                    all_known = true;
                }
            }
        }
    }

    /// Whether others have unfolded `dir`, which was folded a moment ago. To a serializable view that is a change as those of counts,
    /// which it learns of when it has locked the row to change it.
    fn is_unfolded_from(&self, dir: InodeId, source: Epoch) -> FsResult<bool> {
        let _guards = self.lock_rows(&[RowKey::inode(dir)])?;
        Ok(self.inode_row(dir)?.and_then(|row| row.source()) != Some(source.id()))
    }

    /// The directories in `dir` that are folded.
    pub(crate) fn folded_in(&self, dir: InodeId) -> FsResult<Vec<InodeId>> {
        let mut folded = Vec::new();
        for row in self.names_after(dir, None)? {
            for named in row?.1.names() {
                if let Body::Reference { ino, kind: FileKind::Directory } = named.body
                    && self.dir_row(ino)?.source().is_some()
                {
                    folded.push(ino);
                }
            }
        }
        Ok(folded)
    }

    /// A reference row.
    pub(crate) fn clone_reference(
        &self,
        source: Epoch,
        ino: InodeId,
    ) -> FsResult<Option<CloneReference>> {
        let key = RowKey::clone_reference(source.id(), ino);
        let value = self.store.get(self.meta, &key.to_bytes()).map_err(error::store)?;
        let decode = |value| {
            CloneReference::decode(&value).map_err(|error| error::unreadable(META, key, error))
        };
        value.map(decode).transpose()
    }

    /// One batch from the source `from`, under the locks of `keys`. If `all_known`, the source has all names of what was
    /// cloned.
    fn unfold_some(
        &self,
        dir: InodeId,
        (source, from): (Epoch, &VarveFs),
        keys: &[RowKey],
        all_known: bool,
    ) -> FsResult<Step> {
        let mut guards = self.lock_rows(keys)?;
        let mut row = match self.inode_row(dir)? {
            Some(row) if row.source() == Some(source.id()) => row,
            _ => return Ok(Step::More),
        };
        let Some(CloneReference::Directory(folded)) = self.clone_reference(source, dir)? else {
            return Ok(Step::More);
        };
        let mut copying = Copying::new(self, from, source, folded);
        copying.all_known = all_known;
        if folded.after.is_none() {
            // The source may have corrected its account since, by unfolding itself.
            let then = dir_info_mut(&mut from.dir_row(folded.dir)?)?.usage;
            let counted = dir_info_mut(&mut row)?.usage;
            copying.recount(dir, counted.as_change(), then.as_change());
        }
        let (mut rows, mut done) = (0, true);
        for found in from.names_after(folded.dir, folded.after)? {
            let (suffix, names) = found?;
            if rows == BATCH_ROWS || copying.bytes > BATCH_BYTES {
                done = false;
                break;
            }
            if let Some(needed) = self.lock_needed(&mut guards, &copying, &names)? {
                if rows == 0 {
                    return Ok(Step::Needs(needed));
                }
                done = false;
                break;
            }
            if !copying.copy_row(dir, suffix, &names)? {
                return Ok(Step::Unknown);
            }
            rows += 1;
        }
        let (mut changes, folded) = copying.finish();
        changes.standing = Standing::Happened;
        changes.derived = true;
        if done {
            dir_info_mut(&mut row)?.source = None;
            changes.delete_meta(RowKey::clone_reference(source.id(), dir));
        } else {
            changes.put_meta(
                RowKey::clone_reference(source.id(), dir),
                CloneReference::Directory(folded).encode(),
            );
        }
        changes.put_inode(&row);
        self.commit(&mut changes)?;
        Ok(if done { Step::Done } else { Step::More })
    }

    /// Locks what copying `names` needs; gives the rows of which one would have to be waited for.
    fn lock_needed<'a>(
        &'a self,
        guards: &mut RowGuards<'a>,
        copying: &Copying<'_>,
        names: &EntryRow,
    ) -> FsResult<Option<SmallVec<[RowKey; 4]>>> {
        // What a remap row says is known for sure once it is locked.
        for _ in 0..2 {
            let needed = copying.needed(names)?;
            if !needed.iter().all(|key| self.locks.try_extend(guards, *key)) {
                return Ok(Some(needed));
            }
            self.prepare_rows(&needed)?;
        }
        Ok(None)
    }

    /// The rows of names of `dir` after the one with the suffix `after`.
    fn names_after(
        &self,
        dir: InodeId,
        after: Option<EntrySuffix>,
    ) -> FsResult<impl Iterator<Item = FsResult<(EntrySuffix, EntryRow)>> + '_> {
        let prefix = RowKey::prefix_bytes(dir);
        let first = after.map_or(1, |after| after.get() + 1);
        let range = KeyRange {
            start: Bound::Included([prefix, first.to_be_bytes()].concat()),
            end: Bound::Excluded([prefix, (1_u64 << 63).to_be_bytes()].concat()),
        };
        let rows = self.store.scan(self.meta, range, Direction::Forward).map_err(error::store)?;
        Ok(rows.filter_map(|row| {
            let (key, value) = match row {
                Ok(row) => row,
                Err(error) => return Some(Err(error::store(error))),
            };
            let key = RowKey::from_bytes(&key)?;
            let suffix = EntrySuffix::new(key.suffix())?;
            let row = EntryRow::decode(&value).map_err(|error| error::unreadable(META, key, error));
            Some(row.map(|row| (suffix, row)))
        }))
    }
}
