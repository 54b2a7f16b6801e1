//! What a branch has changed so far, read from its own rows alone: nothing is asked of what it stands over.

use bytes::Bytes;
use varve_types::KeyspaceId;

use super::handle::Branch;
use crate::iter::rows::Rows;
use crate::read_state::{Layer, ReadState};
use crate::reads::Reads;
use crate::table::cache::Admission;
use crate::{Direction, KeyRange, StoreResult};

/// Takes one row after the other: the store's key space, the key, its value if it was not deleted; false to stop.
pub type RowVisitor<'a> = dyn FnMut(KeyspaceId, &[u8], Option<Bytes>) -> bool + 'a;

impl Branch {
    /// Calls `each` with the rows that the branch changed, without a value if it deleted one, until it says false: key
    /// spaces in their order, within them keys. Private key spaces are left out. Costs the number of rows, and reads
    /// their values.
    pub fn changes(&self, each: &mut RowVisitor<'_>) -> StoreResult<()> {
        let mut goes_on = true;
        for keyspace in self.spaces()? {
            self.changes_of(keyspace, &KeyRange::all(), &mut |keyspace, key, value| {
                goes_on = each(keyspace, key, value);
                goes_on
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// The same for the rows of `range` in one key space of the store.
    pub fn changes_of(
        &self,
        keyspace: KeyspaceId,
        range: &KeyRange,
        each: &mut RowVisitor<'_>,
    ) -> StoreResult<()> {
        self.walk_changes(keyspace, range, &mut |walk| {
            while let Some((key, found)) = walk.next_found()? {
                let value = self.branches.reads.cache.value_of(found, Admission::Pass)?;
                if !each(keyspace, key.as_slice(), value) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// How many rows of `range` in a key space the branch has changed, `max` at most. Reads no values.
    pub fn count_changes(
        &self,
        keyspace: KeyspaceId,
        range: &KeyRange,
        max: u64,
    ) -> StoreResult<u64> {
        let mut count = 0;
        self.walk_changes(keyspace, range, &mut |walk| {
            while count < max && walk.next_found()?.is_some() {
                count += 1;
            }
            Ok(())
        })?;
        Ok(count)
    }

    /// The store's key spaces in which the branch has changed rows, in their order.
    pub fn changed_spaces(&self) -> StoreResult<Vec<KeyspaceId>> {
        let mut changed = Vec::new();
        for keyspace in self.spaces()? {
            if self.count_changes(keyspace, &KeyRange::all(), 1)? > 0 {
                changed.push(keyspace);
            }
        }
        Ok(changed)
    }

    /// The store's key spaces that the branch may have changed, in their order.
    fn spaces(&self) -> StoreResult<Vec<KeyspaceId>> {
        let read_state = self.branches.reads.read_states.get();
        let spaces = read_state.branch(self.id)?.spaces.iter();
        Ok(spaces.filter(|own| !own.private).map(|own| own.base).collect())
    }

    fn walk_changes(
        &self,
        keyspace: KeyspaceId,
        range: &KeyRange,
        take: &mut dyn FnMut(&mut Rows) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let (pin, read_state) = self.branches.reads.pinned();
        let own = read_state.branch(self.id)?.space(keyspace);
        // Of one that it has not written to it has none.
        let Some(own) = own.filter(|own| !own.private) else { return Ok(()) };
        let layer = Layer { space: read_state.keyspace(own.id)?, seq: pin.seq() };
        take(&mut self.branches.reads.changes(&read_state, layer, range)?)
    }
}

impl Reads {
    /// The rows of `range` in a branch's own key space.
    pub(super) fn changes(
        &self,
        read_state: &ReadState,
        layer: Layer<'_>,
        range: &KeyRange,
    ) -> StoreResult<Rows> {
        self.rows(read_state, &[layer], range, Direction::Forward)
    }
}
