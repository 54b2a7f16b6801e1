//! What a flush, a merge or a call changes of the store's tables, key spaces, snapshots and branches: all of it or nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use varve_types::{BranchId, FileNo, KeyspaceId, SeqNo};

use crate::branch::record::BranchRecord;
use crate::keyspace::Keyspace;
use crate::memtable::Memtable;
use crate::place::Place;
use crate::read_state::ReadState;
use crate::segment::Segment;
use crate::snapshot::Pin;
use crate::sublevel_map::moves::Moves;
use crate::table::file::Table;
use crate::version::Version;

/// Changes that take effect together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// A new key space.
    pub(crate) created: Option<Keyspace>,
    /// Tables that join a sub-level.
    pub(crate) added: Vec<(KeyspaceId, Place, Arc<Table>)>,
    /// New segments, into which tables of `added` point.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Tables that leave a sub-level.
    pub(crate) removed: Vec<(KeyspaceId, Place, Arc<Table>)>,
    /// Key spaces of which all tables were looked at, as they were then.
    pub(crate) seen: Vec<(KeyspaceId, Arc<Version>)>,
    /// A memtable whose rows `added` holds.
    pub(crate) flushed: Option<(Arc<Memtable>, SeqNo)>,
    /// The largest sequence number of rows of `added`, if they come from outside; tables hold all writes before it, and it
    /// becomes that of the newest state.
    pub(crate) ingested: Option<SeqNo>,
    /// A state that gets a name.
    pub(crate) named: Option<(Arc<str>, Arc<Pin>)>,
    /// A name that goes.
    pub(crate) unnamed: Option<Arc<str>>,
    /// A branch that begins, or one that gets further key spaces.
    pub(crate) branch: Option<Arc<BranchRecord>>,
    /// The key spaces that it gets.
    pub(crate) branch_spaces: Vec<Keyspace>,
    /// Branches that end. Tables of theirs are gone unless `added` names them.
    pub(crate) ended: Vec<BranchId>,
    /// Where a merge took the keys of `removed` from, if they are in the map of the sub-levels.
    pub(crate) moves: Option<Arc<Moves>>,
}

impl Changes {
    /// Whether what they were made for is still there.
    pub(super) fn holds_for(&self, read_state: &ReadState) -> bool {
        let version = |keyspace| read_state.keyspace(keyspace).map(|space| &space.version);
        let removed = self.removed.iter().all(|(keyspace, place, table)| {
            version(*keyspace).is_ok_and(|version| version.holds(*place, table.file_no()))
        });
        let is_same = |(keyspace, seen): &(KeyspaceId, Arc<Version>)| {
            version(*keyspace).is_ok_and(|version| Arc::ptr_eq(version, seen))
        };
        removed && self.seen.iter().all(is_same)
    }

    /// The same without tables for key spaces of branches that are no longer there, whose files go.
    ///
    /// REQUIRES: [`Changes::holds_for`] the read state. Else they may be files that serve tables elsewhere by now: of a merge
    /// that leaves some in place, whose branch was committed meanwhile.
    pub(super) fn for_read_state(&self, read_state: &ReadState) -> Changes {
        let mut changes = self.clone();
        changes.added.retain(|(keyspace, _, table)| {
            let is_there = read_state.keyspace(*keyspace).is_ok();
            if !is_there {
                table.mark_obsolete();
            }
            is_there
        });
        let segments = changes.added.iter().flat_map(|(_, _, table)| table.segments());
        let used: BTreeSet<FileNo> = segments.map(|segment| segment.file_no()).collect();
        changes.segments.retain(|segment| {
            let is_used = used.contains(&segment.file_no());
            if !is_used {
                segment.mark_obsolete();
            }
            is_used
        });
        changes.ended.retain(|branch| read_state.branches.contains_key(branch));
        changes
    }
}
