//! Puts new tables, segments and key spaces in force: first durably in the manifest, then in the read state.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use varve_format::edit::{Change, VersionEdit};
use varve_format::log::LogId;
use varve_types::{BranchId, FileNo, KeyspaceId, SeqNo};

use super::Inner;
use crate::StoreResult;
use crate::branch::record::{BranchRecord, BranchSpace};
use crate::keyspace::Keyspace;
use crate::manifest::Manifest;
use crate::memtable::Memtable;
use crate::place::Place;
use crate::read_state::ReadState;
use crate::segment::Segment;
use crate::snapshot::Pin;
use crate::sublevel_map::moves::Moves;
use crate::sublevel_map::next::{Next, next_map};
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
    fn holds_for(&self, read_state: &ReadState) -> bool {
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
    fn for_read_state(&self, read_state: &ReadState) -> Changes {
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

impl Inner {
    /// Makes `changes` durable and puts them in force. False, and nothing changed, if a table to be
    /// removed is no longer there, or a key space that was seen has other tables by now.
    ///
    /// REQUIRES: the added tables and segments and their names are durable.
    pub(crate) fn install(&self, changes: &Changes) -> StoreResult<bool> {
        let mut manifest = self.manifest.lock();
        let read_state = self.read_states.get();
        if !changes.holds_for(&read_state) {
            return Ok(false);
        }
        let changes = &changes.for_read_state(&read_state);
        let versions = self.changed_versions(&read_state, changes)?;
        for (keyspace, version) in &versions {
            // A broken version must not reach the disk: it would be found broken at every open.
            version.check().map_err(|broken| {
                self.poison.set(&format_args!("key space {keyspace}: {broken}"))
            })?;
        }
        let edit = self.edit(&read_state, changes, manifest.tables_seq());
        manifest.append(&edit, &self.poison)?;
        if let Some(last_seq) = changes.flushed.as_ref().map(|(_, seq)| *seq).or(changes.ingested) {
            manifest.note_tables_seq(last_seq);
        }
        let ended = ended_tables(&read_state, &changes.ended);
        drop(read_state);
        let change = |read_state: &mut ReadState| {
            read_state.keyspaces.extend(changes.created.clone());
            for (keyspace, version) in versions {
                read_state.set_version(keyspace, version);
            }
            change_branches(read_state, changes);
            if let Some((flushed, _)) = &changes.flushed {
                read_state.immutables.retain(|memtable| !Arc::ptr_eq(memtable, flushed));
            }
        };
        // A merge of tables that were visible before their number counted would not know of who pins a state in between.
        drop(match changes.ingested {
            Some(last_seq) => self.snapshots.publish(last_seq, |_| self.read_states.update(change)),
            None => self.read_states.update(change),
        });
        self.searched.lock().tables_have_changed();
        let removed = changes.removed.iter().map(|(_, _, table)| table).chain(&ended);
        self.let_go(removed.clone());
        self.release_segments(removed);
        if manifest.is_long(self.options.manifest_bytes_max) {
            self.rewrite_manifest(&mut manifest);
        }
        Ok(true)
    }

    /// What becomes of the key spaces whose tables change.
    fn changed_versions(
        &self,
        read_state: &ReadState,
        changes: &Changes,
    ) -> StoreResult<Vec<(KeyspaceId, Version)>> {
        let touched = changes.added.iter().chain(&changes.removed).map(|(keyspace, ..)| *keyspace);
        let ids: BTreeSet<KeyspaceId> = touched.collect();
        let mut versions = Vec::new();
        for id in ids {
            let space = read_state.keyspace(id)?;
            let (removed, added) = (tables_of(id, &changes.removed), tables_of(id, &changes.added));
            let gone: Vec<(Place, FileNo)> =
                removed.iter().map(|(place, table)| (*place, table.file_no())).collect();
            let mut version = space.version.changed(&gone, &added);
            if self.plan().0.sublevel_map && space.branch.is_none() {
                let next = Next {
                    space,
                    added: &added,
                    removed: &removed,
                    moves: changes.moves.as_deref(),
                    flushed: changes.flushed.as_ref().map(|(memtable, _)| memtable),
                    shape: self.shape(),
                    findings: &self.findings,
                    cache: &self.cache,
                    metrics: &self.metrics,
                    id: self.new_map_id(),
                };
                next_map(&next, &mut version)?;
                self.map_changes.fetch_add(1, Ordering::Relaxed);
            } else {
                version.set_map(None);
            }
            versions.push((id, version));
        }
        Ok(versions)
    }

    /// Lets go of the files that served the tables `removed` and now serve none.
    fn let_go<'a>(&self, removed: impl Iterator<Item = &'a Arc<Table>>) {
        let mut removed = removed.peekable();
        if removed.peek().is_none() {
            return;
        }
        let read_state = self.read_states.get();
        let serving: HashSet<FileNo> =
            read_state.spaces().flat_map(|space| space.version.files()).collect();
        for file in removed.flat_map(|table| table.files()) {
            if !serving.contains(&file.no()) {
                file.mark_obsolete();
                self.cache.forget(file.no());
            }
        }
    }

    /// Has the segments removed that `tables`, which are gone, pointed into, and none that is there does.
    fn release_segments<'a>(&self, tables: impl Iterator<Item = &'a Arc<Table>>) {
        let segments = tables.flat_map(|table| table.segments());
        let mut left: BTreeMap<FileNo, Arc<Segment>> =
            segments.map(|segment| (segment.file_no(), Arc::clone(segment))).collect();
        if left.is_empty() {
            return;
        }
        let read_state = self.read_states.get();
        for (_, table) in read_state.spaces().flat_map(|space| space.version.tables()) {
            table.segments().iter().for_each(|used| drop(left.remove(&used.file_no())));
        }
        for (file, segment) in left {
            segment.mark_obsolete();
            self.cache.forget(file);
        }
    }

    /// The manifest edit that says what `changes` do to `read_state`, of whose writes tables hold all up to `tables_seq`.
    fn edit(&self, read_state: &ReadState, changes: &Changes, tables_seq: SeqNo) -> VersionEdit {
        let mut list = Vec::new();
        list.extend(changes.created.iter().map(create_change));
        list.extend(changes.segments.iter().map(|segment| Change::AddSegment(*segment.meta())));
        list.extend(changes.removed.iter().map(|(keyspace, place, table)| Change::RemoveTable {
            keyspace: *keyspace,
            level: place.level as u8,
            file: table.file_no(),
        }));
        list.extend(
            changes
                .added
                .iter()
                .map(|(keyspace, place, table)| add_change(*keyspace, *place, table)),
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
        list.push(Change::NextFile(self.next_file_no()));
        VersionEdit { changes: list }
    }

    /// Replaces a long manifest by one that holds the present state only. Failing to undoes nothing of what the old one
    /// holds; if it is unknown which of the two is in force, the store is poisoned.
    fn rewrite_manifest(&self, manifest: &mut Manifest) {
        let no = self.new_file_no();
        let read_state = self.read_states.get();
        let tables_seq = manifest.tables_seq();
        let newest_log = manifest.newest_log();
        let state = state_edit(&read_state, newest_log, self.next_file_no(), tables_seq);
        let log = LogId { file: no, salt: manifest.salt() };
        match Manifest::create(&self.env, &self.dir, log, &state, tables_seq, &self.poison) {
            Ok(next) => {
                let old = std::mem::replace(manifest, next);
                old.remove();
            }
            Err(error) => log::warn!("cannot rewrite the manifest: {error}"),
        }
    }
}

/// Puts in force what `changes` say of snapshots and branches.
fn change_branches(read_state: &mut ReadState, changes: &Changes) {
    read_state.snapshots.extend(changes.named.clone());
    changes.unnamed.iter().for_each(|name| drop(read_state.snapshots.remove(name)));
    if let Some(record) = &changes.branch {
        read_state.branches.insert(record.id, Arc::clone(record));
    }
    read_state
        .branch_spaces
        .extend(changes.branch_spaces.iter().map(|space| (space.id, space.clone())));
    for branch in &changes.ended {
        read_state.branches.remove(branch);
        read_state.branch_spaces.retain(|_, space| space.branch != Some(*branch));
    }
}

/// The tables of branches that end.
fn ended_tables(read_state: &ReadState, ended: &[BranchId]) -> Vec<Arc<Table>> {
    let is_over = |space: &&Keyspace| space.branch.is_some_and(|branch| ended.contains(&branch));
    let spaces = read_state.branch_spaces.values().filter(is_over);
    spaces.flat_map(|space| space.version.tables().map(|(_, table)| Arc::clone(table))).collect()
}

/// The tables of one key space.
fn tables_of(id: KeyspaceId, list: &[(KeyspaceId, Place, Arc<Table>)]) -> Vec<(Place, Arc<Table>)> {
    let own = list.iter().filter(|(keyspace, _, _)| *keyspace == id);
    own.map(|(_, place, table)| (*place, Arc::clone(table))).collect()
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

#[cfg(test)]
mod tests;
