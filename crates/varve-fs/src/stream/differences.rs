//! In which rows two states differ, in their plain form ([`super::plain`]).
//!
//! Looked at are the rows that were stored after the earlier state, and those whose plain form is not what is stored in one
//! of the two; all others are the same. In the order of keys, so that whoever takes them can go on behind any.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;
use varve_engine::{Direction, KeyRange, Store};
use varve_schema::DictionaryRow;
use varve_types::KeyspaceId;
use varve_vfs::FsResult;

use super::plain::Plain;
use super::{DATA_SPACE, META_SPACE, NAMES_SPACE, PAIRS_SPACE, Space};
use crate::error;
use crate::fs::VarveFs;

/// Takes a row that may differ: its key, what it was, and what it is.
pub(super) type Visit<'a> = dyn FnMut(&[u8], Option<Bytes>, Option<Bytes>) -> FsResult<()> + 'a;

/// A later state and an earlier one, or nothing.
pub(super) struct Differences<'a> {
    pub(super) before: Option<Plain<'a>>,
    pub(super) after: Plain<'a>,
}

impl VarveFs {
    /// The key spaces of all that users see in a state, in the order in which they are sent.
    fn sent_spaces(&self, state: &Plain<'_>) -> FsResult<Vec<Space>> {
        let names = self.dictionaries().names();
        let files = [(META_SPACE, self.meta), (DATA_SPACE, self.data), (NAMES_SPACE, names)];
        let mut spaces = Vec::from(files);
        let numbers: BTreeSet<u32> = state.dictionaries.values().map(|row| row.number).collect();
        for number in numbers {
            let pairs = self.dictionaries().pairs(DictionaryRow::found(number))?;
            spaces.push((PAIRS_SPACE + number, pairs));
        }
        Ok(spaces)
    }
}

impl Differences<'_> {
    /// The key spaces in which there may be some; the pairs of a dictionary that went are gone with its name.
    pub(super) fn spaces(&self, fs: &VarveFs) -> FsResult<Vec<Space>> {
        fs.sent_spaces(&self.after)
    }

    /// Calls `each` with the rows of a key space that may differ, those from `from` on, until it fails.
    pub(super) fn each(
        &self,
        space: Space,
        from: Bound<&[u8]>,
        each: &mut Visit<'_>,
    ) -> FsResult<()> {
        match self.earlier(space) {
            None => self.each_of_all(space, from, each),
            Some(before) => self.each_changed(before, space, from, each),
        }
    }

    /// What the rows of a key space are compared with: nothing if its pairs are another dictionary's than then.
    fn earlier(&self, (number, _): Space) -> Option<&Plain<'_>> {
        let before = self.before.as_ref()?;
        let Some(number) = number.checked_sub(PAIRS_SPACE) else { return Some(before) };
        let of = |state: &Plain<'_>| -> Option<(Vec<u8>, DictionaryRow)> {
            let found = state.dictionaries.iter().find(|(_, row)| row.number == number)?;
            Some((found.0.clone(), *found.1))
        };
        (of(before) == of(&self.after)).then_some(before)
    }

    fn each_of_all(&self, space: Space, from: Bound<&[u8]>, each: &mut Visit<'_>) -> FsResult<()> {
        let range = KeyRange { start: from.map(<[u8]>::to_vec), end: Bound::Unbounded };
        let rows = self.after.rows.scan(space.1, range, Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            if let Some(is) = self.after.row(space, &key, Some(value))? {
                each(&key, None, Some(is))?;
            }
        }
        Ok(())
    }

    fn each_changed(
        &self,
        before: &Plain<'_>,
        space: Space,
        from: Bound<&[u8]>,
        each: &mut Visit<'_>,
    ) -> FsResult<()> {
        let mut special = before.special_keys(space)?;
        special.append(&mut self.after.special_keys(space)?);
        let mut special = special.into_iter().peekable();
        let is_next = |key: &[u8]| match from {
            Bound::Unbounded => true,
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
        };
        let mut visit = |key: &[u8], stored: Option<Bytes>| -> FsResult<()> {
            if !is_next(key) {
                return Ok(());
            }
            let then = before.rows.get(space.1, key).map_err(error::store)?;
            each(key, before.row(space, key, then)?, self.after.row(space, key, stored)?)
        };
        let of_now = |key: &[u8]| self.after.rows.get(space.1, key).map_err(error::store);
        let mut failed = None;
        let spaces: [KeyspaceId; 1] = [space.1];
        let walked = self.after.rows.changes_since(&before.rows, &spaces, &mut |_, key, stored| {
            let mut visit_upto = || -> FsResult<()> {
                while let Some(earlier) = special.next_if(|special| special.as_slice() < key) {
                    visit(&earlier, of_now(&earlier)?)?;
                }
                special.next_if(|special| special.as_slice() == key);
                visit(key, stored.clone())
            };
            failed = visit_upto().err();
            failed.is_none()
        });
        walked.map_err(error::store)?;
        failed.map_or(Ok(()), Err)?;
        special.try_for_each(|key| visit(&key, of_now(&key)?))
    }
}
