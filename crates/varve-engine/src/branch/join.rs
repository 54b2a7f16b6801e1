//! The commit of a branch by reference: its tables join its parent, none of their bytes is copied.
//!
//! 1. All that is in memory becomes tables, the branch's rows among them; what others changed meanwhile is looked at.
//! 2. While writers wait, the rest is flushed and looked at. Then the branch is newer than all that its parent holds.
//! 3. Each of the branch's sub-levels gets the next sequence number, from the oldest on, and becomes a sub-level of
//!    level 0 of the parent's key space; tables of the oldest that overlap nothing go further down. Merged rows make
//!    one more sub-level above them.
//! 4. One manifest edit does all of it and ends the branch. It is durable before anybody sees it.
//!
//! Of two versions of a key in one table both get the same number; the newer stands first in the file and counts.
//!
//! Source: KVFS (thesis 3.3): a transaction's tables are handed to the main tree.

use std::sync::Arc;

use varve_format::edit::TableMeta;
use varve_types::{KeyspaceId, SeqNo, SublevelId};

use super::clash::{Clashes, top_space};
use super::handle::Branches;
use super::record::{BranchRecord, BranchSpace};
use crate::commit::log::Writer;
use crate::compaction::outputs::{Outputs, Written};
use crate::keyspace::Keyspace;
use crate::place::Place;
use crate::read_state::ReadState;
use crate::table::file::Table;
use crate::version::Sublevel;
use crate::versions::changes::Changes;
use crate::{StoreError, StoreResult};

/// Tables with their places.
type Placed = Vec<(KeyspaceId, Place, Arc<Table>)>;

impl Branches {
    /// Commits a branch by reference.
    ///
    /// REQUIRES: the branch takes no writes and has no branches, and its parent does not end. If that is the store, the
    /// branch takes locks, or what it changed is `locked` for the commit, or nobody had locked anything: then it is
    /// refused if somebody has by now.
    pub(super) fn join_branch(
        &self,
        record: &BranchRecord,
        clashes: &mut Clashes<'_, '_>,
        locked: bool,
    ) -> StoreResult<()> {
        let mut checked = self.snapshots.last_seq();
        clashes.look_first(checked)?;
        self.flusher.flush_all()?;
        let newest = self.snapshots.last_seq();
        clashes.look_unless_lost(std::mem::replace(&mut checked, newest))?;
        // No compaction may be on its way to a level that is chosen; while one is, level 0 is right.
        let compaction = self.compactor.hold_off();
        let may_go_deep = compaction.is_some();
        self.flusher.when_flushed(|writer, read_state| {
            if locked || record.shared.locks.is_some() {
                self.locks.keep(record.id)?;
            } else if record.parent.is_none() {
                let mut changed = record.spaces.iter().filter(|own| !own.private);
                changed.try_for_each(|own| self.locking.refuse_locked(own.base))?;
            }
            clashes.look(checked)?;
            self.put_branch_in_force(writer, read_state, record, clashes, may_go_deep)
        })?;
        drop(compaction);
        self.compactor.update_pace();
        self.commits.work_is_due();
        Ok(())
    }

    /// Steps 3 and 4; false if a compaction changed the branch's tables meanwhile.
    fn put_branch_in_force(
        &self,
        writer: &mut Writer,
        read_state: &ReadState,
        record: &BranchRecord,
        clashes: &Clashes<'_, '_>,
        may_go_deep: bool,
    ) -> StoreResult<bool> {
        let (first, mut last, mut added) = (writer.next_seq, writer.next_seq, Placed::new());
        let (mut merged, mut seen) = (Written::default(), Vec::new());
        for own in record.spaces.iter().filter(|own| !own.private) {
            seen.push((own.id, Arc::clone(&read_state.keyspace(own.id)?.version)));
            let space = top_space(read_state, record.parent, own.base)?.ok_or(StoreError::Ended)?;
            let next = self.join_space(read_state, *own, space, first, may_go_deep, &mut added)?;
            last = last.max(next);
            let written = self.merged_tables(*own, space, clashes, first);
            let written = written.inspect_err(|_| merged.discard())?;
            merged.tables.extend(written.tables);
            merged.segments.extend(written.segments);
        }
        for table in &merged.tables {
            let sublevel = SublevelId::new(self.file_numbers.take().get());
            let joined = table.joined(table.keyspace(), last);
            added.push((table.keyspace(), Place { level: 0, sublevel }, Arc::new(joined)));
        }
        let install = || {
            self.versions.sync_names()?;
            let (ingested, ended) = (Some(last), vec![record.id]);
            let segments = merged.segments.clone();
            self.versions.install(&Changes {
                added,
                seen,
                segments,
                ingested,
                ended,
                ..Changes::default()
            })
        };
        let outcome = install();
        // After a failure that poisons, the edit may have reached the disk: keep the files.
        if !matches!(outcome, Ok(true)) && self.health.poison.cause().is_none() {
            merged.discard();
        }
        if outcome? {
            writer.next_seq = last.advanced(1);
            self.locks.store_has_changed();
            return Ok(true);
        }
        Ok(false)
    }

    /// Gives the tables of the branch's key space `own` places in its parent's key space; returns the first sequence
    /// number after theirs.
    fn join_space(
        &self,
        read_state: &ReadState,
        own: BranchSpace,
        space: &Keyspace,
        first: SeqNo,
        may_go_deep: bool,
        added: &mut Placed,
    ) -> StoreResult<SeqNo> {
        let version = &read_state.keyspace(own.id)?.version;
        let mut oldest_first: Vec<&Sublevel> =
            version.sublevels().map(|(_, sublevel)| sublevel).collect();
        oldest_first.reverse();
        let mut seq = first;
        for (age, sublevel) in oldest_first.into_iter().enumerate() {
            let newest = SublevelId::new(self.file_numbers.take().get());
            for table in sublevel.tables() {
                let joined = table.joined(space.id, seq);
                let may_go_deep = may_go_deep && age == 0;
                let place =
                    self.maker.plans.place_of(&space.version, joined.meta(), newest, may_go_deep);
                added.push((space.id, place, Arc::new(joined)));
            }
            seq = seq.advanced(1);
        }
        Ok(seq)
    }

    /// Tables with what the hook made of rows that others changed too.
    fn merged_tables(
        &self,
        own: BranchSpace,
        space: &Keyspace,
        clashes: &Clashes<'_, '_>,
        seq: SeqNo,
    ) -> StoreResult<Written> {
        let mut outputs = Outputs::new(&self.maker, space, 0);
        for ((base, key), found) in &clashes.merged {
            if *base == own.base {
                outputs.add(key, seq, found)?;
            }
        }
        outputs.finish()
    }
}

impl Table {
    /// The same file as a table of `keyspace`, all of whose rows are of `seq`.
    fn joined(&self, keyspace: KeyspaceId, seq: SeqNo) -> Table {
        let seq_override = Some(seq);
        let (smallest_seq, largest_seq) = (seq, seq);
        self.moved(
            keyspace,
            TableMeta { smallest_seq, largest_seq, seq_override, ..self.meta().clone() },
        )
    }
}
