//! Which rows changed between two states of the store: a snapshot, and a later one or the present.
//!
//! 1. Both states are pinned, so every merge keeps, of each key, the newest version after the one and not after the
//!    other; so a key changed if and only if there is a version between the two.
//! 2. A memtable, and each table whose newest version is after the older state, is walked; all other tables are not
//!    looked at. Of a table that merges made of old and new rows, only the blocks with newer versions are read
//!    ([`crate::iter::newer`]).
//!
//! Rows that came by the commit of a branch or with a table from outside have the number of that moment, as the manifest
//! says, whatever stands in their files.
//!
//! Costs: the rows in memory; of each table that is newer, a number per block; the blocks with changes. Nothing is written
//! for it when rows are.
//!
//! Source: the birth times of ZFS's block pointers, by which `zfs send` passes what is older.

use varve_types::{KeyspaceId, SeqNo};

use super::SnapshotStore;
use super::changes::RowVisitor;
use crate::iter::Source;
use crate::keyspace::Keyspace;
use crate::read_state::ReadState;
use crate::reads::Reads;
use crate::table::cache::Admission;
use crate::{StoreError, StoreResult};

impl SnapshotStore {
    /// Calls `each` with the rows of `spaces` that were written to after `older` and not after this state, as they are
    /// in it, without a value if they are gone, until it says false: key spaces in the given order, within them keys.
    /// A row may be as it was, if it was written as it stood. Key spaces that were cleared meanwhile have nothing to
    /// tell ([`crate::Store::clear_keyspace`]).
    ///
    /// Costs the changes, not the store. `Invalid` if `older` is the later of the two.
    pub fn changes_since(
        &self,
        older: &SnapshotStore,
        spaces: &[KeyspaceId],
        each: &mut RowVisitor<'_>,
    ) -> StoreResult<()> {
        let (after, upto) = (older.pin.seq(), self.pin.seq());
        if after > upto {
            let message = "changes are told from the older state to the later one".to_owned();
            return Err(StoreError::Invalid(message));
        }
        self.branches.health.check_open()?;
        let read_state = self.branches.reads.read_states.get();
        for id in spaces {
            if !self.branches.reads.changes_between(
                &read_state,
                read_state.keyspace(*id)?,
                after,
                upto,
                each,
            )? {
                break;
            }
        }
        Ok(())
    }
}

impl Reads {
    /// The same for one key space; false if `each` has had enough.
    fn changes_between(
        &self,
        read_state: &ReadState,
        space: &Keyspace,
        after: SeqNo,
        upto: SeqNo,
        each: &mut RowVisitor<'_>,
    ) -> StoreResult<bool> {
        let mut walk = self.newer_versions(read_state, space, after, upto)?;
        let mut told: Option<Vec<u8>> = None;
        while walk.valid() {
            let is_between = walk.seq() > after && walk.seq() <= upto;
            // The first version of a key that is between the two is its newest there.
            if is_between && told.as_deref() != Some(walk.key()) {
                let key = walk.key().to_vec();
                let value = self.cache.value_of(walk.found()?, Admission::Pass)?;
                if !each(space.id, &key, value) {
                    return Ok(false);
                }
                told = Some(key);
            }
            walk.advance()?;
        }
        Ok(true)
    }
}
