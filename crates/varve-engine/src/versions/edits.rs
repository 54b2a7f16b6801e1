//! The manifest's edits for changes, and for the whole state.

use std::sync::Arc;

use varve_format::edit::{Change, VersionEdit};
use varve_types::{BranchId, FileNo, KeyspaceId, SeqNo};

use super::changes::Changes;
use crate::branch::record::{BranchRecord, BranchSpace};
use crate::keyspace::Keyspace;
use crate::place::Place;
use crate::read_state::ReadState;
use crate::snapshot::Pin;
use crate::table::file::Table;

/// The manifest edit that says what `changes` do to `read_state`, of whose writes tables hold all up to `tables_seq`.
/// The next new file has the number `next_file`.
pub(super) fn edit_of(
    read_state: &ReadState,
    changes: &Changes,
    tables_seq: SeqNo,
    next_file: FileNo,
) -> VersionEdit {
    let mut list = Vec::new();
    list.extend(changes.created.iter().map(create_change));
    list.extend(changes.segments.iter().map(|segment| Change::AddSegment(*segment.meta())));
    list.extend(changes.removed.iter().map(|(keyspace, place, table)| Change::RemoveTable {
        keyspace: *keyspace,
        level: place.level as u8,
        file: table.file_no(),
    }));
    list.extend(
        changes.added.iter().map(|(keyspace, place, table)| add_change(*keyspace, *place, table)),
    );
    list.extend(changes.named.iter().map(|(name, pin)| name_change(name, pin)));
    list.extend(
        changes.unnamed.iter().map(|name| Change::DeleteSnapshot { name: name.to_string() }),
    );
    if let Some(record) = &changes.branch {
        let known = read_state.branches.get(&record.id);
        if known.is_none() {
            list.push(branch_change(record));
        }
        let is_new =
            |space: &&BranchSpace| known.is_none_or(|known| known.space(space.base).is_none());
        list.extend(record.spaces.iter().filter(is_new).map(|s| space_change(record.id, s)));
    }
    list.extend(changes.ended.iter().copied().map(Change::EndBranch));
    if let Some((flushed, last_seq)) = &changes.flushed {
        let oldest = read_state.memtables().rfind(|memtable| !Arc::ptr_eq(memtable, flushed));
        list.extend(oldest.map(|memtable| Change::OldestLog(memtable.first_log())));
        // Of rows of branches that are gone there may be no table, and no number.
        list.push(Change::LastSeq(tables_seq.max(*last_seq)));
    }
    list.extend(changes.ingested.map(Change::LastSeq));
    list.push(Change::NextFile(next_file));
    VersionEdit { changes: list }
}

fn create_change(space: &Keyspace) -> Change {
    Change::CreateKeyspace {
        keyspace: space.id,
        name: space.name.to_string(),
        prefixed: space.options.prefixed,
        compressed: space.options.compressed,
    }
}

fn name_change(name: &str, pin: &Pin) -> Change {
    Change::CreateSnapshot { name: name.to_owned(), seq: pin.seq() }
}

fn branch_change(record: &BranchRecord) -> Change {
    let (branch, parent, info) = (record.id, record.parent, record.info.clone());
    let locking = record.shared.locks.is_some();
    Change::CreateBranch { branch, parent, seq: record.base.seq(), locking, info }
}

fn space_change(branch: BranchId, space: &BranchSpace) -> Change {
    let BranchSpace { base, id, private } = *space;
    Change::CreateBranchSpace { branch, base, keyspace: id, private }
}

fn add_change(keyspace: KeyspaceId, place: Place, table: &Table) -> Change {
    let Place { level, sublevel } = place;
    Change::AddTable { keyspace, level: level as u8, sublevel, meta: table.meta().clone() }
}

/// The edit that says everything.
pub(crate) fn state_edit(
    read_state: &ReadState,
    newest_log: FileNo,
    next_file: FileNo,
    last_seq: SeqNo,
) -> VersionEdit {
    let mut changes: Vec<Change> = read_state.keyspaces.iter().map(create_change).collect();
    changes.push(Change::OldestLog(read_state.oldest_log()));
    changes.push(Change::NewestLog(newest_log));
    changes.push(Change::NextFile(next_file));
    changes.push(Change::LastSeq(last_seq));
    changes.extend(read_state.snapshots.iter().map(|(name, pin)| name_change(name, pin)));
    // A parent has a smaller number than its branches.
    for record in read_state.branches.values() {
        changes.push(branch_change(record));
        changes.extend(record.spaces.iter().map(|space| space_change(record.id, space)));
    }
    for space in read_state.spaces() {
        let segments = space.version.segments().into_values();
        changes.extend(segments.map(|(segment, _)| Change::AddSegment(*segment.meta())));
        changes.extend(space.version.tables().map(|(place, t)| add_change(space.id, place, t)));
    }
    VersionEdit { changes }
}
